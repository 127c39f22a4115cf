"""Damages descriptions: bytes, characters and words, always the same for the same seed."""

import random
import re
from collections.abc import Callable, Mapping

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_HOSTILE = [
    "{",
    "}",
    "[",
    "]",
    "<",
    ">",
    ":",
    ",",
    '"',
    "'",
    "#",
    "&a",
    "*a",
    "!!int",
    "---",
    "\n",
    "\t",
    "\\",
    "\0",
    "é",
    "\u2028",
]
_NUMBERS = ["0", "-1", "1", "3", "7", "65536", "2147483648", "99999", "100000", "1e9", "0x10", "007", "4.5", "9" * 5000, "true"]


def _flip_bytes(content: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _cut(content: bytes, rng: random.Random) -> bytes:
    first, last = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:first] + content[last:] if rng.random() < 0.5 else content[first:last]


def _on_tokens(change: Callable[[list[str], random.Random], None]) -> Callable[[bytes, random.Random], bytes]:
    def mutate(content: bytes, rng: random.Random) -> bytes:
        tokens = _TOKEN.findall(content.decode("utf-8", "replace")) or [" "]
        for _ in range(rng.randint(1, 3)):
            change(tokens, rng)
        return "".join(tokens).encode("utf-8", "replace")

    return mutate


def _delete(tokens: list[str], rng: random.Random) -> None:
    tokens[rng.randrange(len(tokens))] = ""


def _duplicate(tokens: list[str], rng: random.Random) -> None:
    first = rng.randrange(len(tokens))
    last = first + rng.randint(1, 8)
    tokens[first:first] = tokens[first:last] * rng.randint(1, 3)


def _swap(tokens: list[str], rng: random.Random) -> None:
    one, other = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    tokens[one], tokens[other] = tokens[other], tokens[one]


def _insert(tokens: list[str], rng: random.Random) -> None:
    tokens.insert(rng.randrange(len(tokens)), rng.choice(_HOSTILE) * rng.choice((1, 1, 1, 2, 2000)))


def _number(tokens: list[str], rng: random.Random) -> None:
    places = [place for place, token in enumerate(tokens) if token.isdecimal()]
    if places:
        tokens[rng.choice(places)] = rng.choice(_NUMBERS)


def _typo(tokens: list[str], rng: random.Random) -> None:
    places = [place for place, token in enumerate(tokens) if len(token) > 3 and token[0].isalpha()]
    if places:
        place = rng.choice(places)
        word, at = tokens[place], rng.randrange(1, len(tokens[place]) - 1)
        tokens[place] = rng.choice((word[:at] + word[at + 1 :], word[:at] + word[at] + word[at:], word.upper(), word + "s"))


_MUTATORS = (_flip_bytes, _cut, *map(_on_tokens, (_delete, _duplicate, _swap, _insert, _number, _typo)))


def damaged(text: str, rng: random.Random) -> bytes:
    """Returns a text that is damaged one to three times."""
    content = text.encode()
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(_MUTATORS)(content, rng) or b" "
    return content


def damaged_variables(variables: Mapping[str, str], rng: random.Random) -> dict[str, str]:
    """Returns the variables, of which some are missing or damaged, as an environment can hold them."""
    environ = dict(variables)
    for name in rng.sample(sorted(environ), min(len(environ), rng.choice((1, 1, 2)))):
        if rng.random() < 0.2:
            del environ[name]
        else:
            value = rng.choice(_MUTATORS)(environ[name].encode(), rng) if environ[name] else b""
            environ[name] = value.decode("utf-8", "surrogateescape").replace("\0", "")
    return environ
