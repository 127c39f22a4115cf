"""Reading a damaged description gives a Cluster, a RankInfo, or a ClusterError of one line.

`TFDIST_MUTATIONS` sets the number of damaged descriptions of each dialect in each form.
"""

import json
import os
import random
from collections.abc import Callable

import pytest
from mutators import damaged, damaged_variables
from samples import COMMANDS, ENVIRONMENTS, TEXTS

from tfdist.cluster import Cluster
from tfdist.dialects import description, environment, read
from tfdist.dialects.registry import command_readers, environment_readers, text_readers
from tfdist.errors import ClusterError
from tfdist.rank_info import RankInfo
from tfdist.translate import outputs

COUNT = int(os.environ.get("TFDIST_MUTATIONS", "250"))

FORMS: dict[str, dict[str, tuple[object, ...]]] = {"text": TEXTS, "command": COMMANDS, "environment": ENVIRONMENTS}
CASES = [(form, dialect) for form, samples in FORMS.items() for dialect in samples]


@pytest.fixture(autouse=True)
def no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TFDIST_REDIS_PASSWORD", raising=False)


def test_every_form_of_every_dialect_has_samples() -> None:
    assert TEXTS.keys() == text_readers().keys()
    assert COMMANDS.keys() == command_readers().keys()
    assert ENVIRONMENTS.keys() == environment_readers().keys()


def test_the_samples_themselves_are_read_in_their_dialect() -> None:
    for dialect, texts in (*TEXTS.items(), *COMMANDS.items()):
        for text in texts:
            described = description(text)
            found = described.source.dialect
            assert found == dialect or (found, dialect) == ("tf_config", "slurm"), text  # A script may carry a TF_CONFIG.
    for dialect, environs in ENVIRONMENTS.items():
        for environ in environs:
            found = environment.find(
                {name: value for name, value in environ.items() if dialect != "horovod" or name != "TF_CONFIG"}
            )
            assert found is not None and found.source.dialect == dialect


def reader(form: str, dialect: str, rng: random.Random) -> Callable[[], Cluster | RankInfo | None]:
    """Reads a damaged sample of a dialect."""
    if form == "environment":
        environ = damaged_variables(rng.choice(ENVIRONMENTS[dialect]), rng)
        if rng.random() < 0.2:  # Launchers leave their variables beside those of others.
            environ |= rng.choice(ENVIRONMENTS[rng.choice(list(ENVIRONMENTS))])
        return lambda: environment.find(environ)
    if form == "text":
        content = damaged(rng.choice(TEXTS[dialect]), rng)
        return lambda: description(content)
    first, _, rest = rng.choice(COMMANDS[dialect]).partition("-")
    line = first.encode() + damaged(f"-{rest}", rng)
    return lambda: description(line)


def check_message(error: ClusterError, seed: int) -> None:
    message = str(error)
    assert message and message.isprintable(), f"seed {seed}: {message!r}"
    assert len(message) < 1500, f"seed {seed}: a message of {len(message)} characters"


@pytest.mark.timeout(max(300, COUNT))
@pytest.mark.parametrize(("form", "dialect"), CASES, ids=lambda value: value)
def test_a_damaged_description_is_read_or_refused_in_one_line(form: str, dialect: str) -> None:
    refused = 0
    for seed in range(COUNT):
        try:
            described = reader(form, dialect, random.Random(seed))()
        except ClusterError as error:
            refused += 1
            check_message(error, seed)
            continue
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        if isinstance(described, RankInfo):
            assert 0 <= (described.rank or 0) < described.size
            described = described.outline() if described.size < 1000 else None
        assert described is None or isinstance(described, Cluster)
        if described is not None and seed % 10 == 0 and len(described.tasks) < 100:
            check_outputs(described, seed)
    # Neither does damage go unseen, nor is everything refused that is not as in the samples. Hardly any damage leaves JSON JSON:
    # of 20,000 damaged arguments of `paddle.init` 96.4 % are refused.
    assert COUNT * 0.1 < refused < COUNT * 0.97


def check_outputs(cluster: Cluster, seed: int) -> None:
    """Every output prints what was read, or refuses it in one line."""
    for output in outputs().values():
        try:
            assert isinstance(output(cluster), str)
        except ClusterError as error:
            check_message(error, seed)


@pytest.mark.timeout(max(300, COUNT))
def test_what_came_from_json_gives_the_same_result_as_a_dict() -> None:
    for seed in range(COUNT):
        rng = random.Random(seed)
        content = damaged(rng.choice([text for texts in TEXTS.values() for text in texts if text.startswith("{")]), rng)
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            try:
                assert isinstance(read(value), Cluster)
            except ClusterError as error:
                assert str(error).isprintable()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [1]\nb: &b [*a, *a]\napiVersion: v1\nkind: List\nitems: *b\n", "the alias *a is not allowed"),
        ("apiVersion: v1\nkind: List\nitems: !!python/object/apply:os.system [touch x]\n", "the tag"),
        ("apiVersion: v1\nkind: List\nitems: " + "[" * 3000 + "\n", "nested too deeply"),
        ("apiVersion: v1\nkind: List\nitems: [" + "{}, " * 300_000 + "]\n", "the description is larger than 1 MiB"),
        ("---\n" * 20_000 + "kind: x\napiVersion: y\n", "there is no training job"),
    ],
)
def test_bombs_are_refused(text: str, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        read(text)
    assert message in str(caught.value)
