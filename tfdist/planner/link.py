"""Speeds of links as users write them: `1gbit`, `100mbit`, `12.5MB`."""

import re

from tfdist.errors import Source

GOODPUT = 0.95
"""Part of a link's rate that parameters get: one TCP connection got 95 of 100 Mbit/s and 950 of 1000
(benchmarks/hogwild.md)."""

_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(k|m|g)?(bit|bps|b)(?:/?s)?", re.ASCII | re.IGNORECASE)
_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}


def bytes_per_second(text: str) -> float:
    """Returns the rate of a link in bytes per second, in each direction: a number with `bit` (or `bps`) or `B` (or `Bps`), with
    `k`, `m` or `g` before it, as in `1gbit`, `100mbit`, `125MB`.

    Raises:
        ClusterError: for anything else, and for 0.
    """
    match = _RATE.fullmatch(text.strip())
    rate = 0.0
    if match is not None:
        number, factor, unit = match.groups()
        rate = float(number) * _FACTORS[(factor or "").lower()] / (1 if unit in ("B", "Bps") else 8)
    if rate <= 0:
        raise Source("flags", "--link").error(
            f"{text!r} is not the rate of a link; expected for example 1gbit or 100mbit, or measured"
        )
    return rate


def shown(rate: float) -> str:
    """Returns a rate, given in bytes per second, as text: `100 Mbit/s`."""
    bits = rate * 8
    for factor, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= factor:
            return f"{bits / factor:g} {unit}"
    return f"{bits:g} bit/s"
