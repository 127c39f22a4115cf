"""The combinations of versions that `nox` runs. They cover every supported Python and every minor of TensorFlow and Keras.

Not every combination exists: TensorFlow 2.18 and 2.19 have no wheels for Python 3.13, TensorFlow 2.21 needs Keras 3.12, and
Keras 3.13 needs Python 3.11. The corners are here: the oldest of all, the oldest TensorFlow with the newest Keras, the newest
TensorFlow with the oldest Keras that it takes, and the newest of all.
"""

import configparser
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

RESULTS = Path(__file__).parent / "results"
"""A JSON file for each combination, of the last whole run."""

TESTS = (
    "tests/dialects/test_kubernetes_write.py",
    "tests/dialects/test_singa.py",
    "tests/matrix/every_strategy.py",
    "tests/strategies/private_api",
)
"""The tests that run with every combination: languages that use PyYAML and protobuf, private names, and launched trainings
under every strategy, which save and load. In tests/strategies/test_versions.py the versions are pretended ones."""


@dataclass(frozen=True)
class Combination:
    """Versions that are installed together.

    Attributes:
        python: the minor version of Python, as text; likewise all here.
        tensorflow: of TensorFlow.
        keras: of Keras.
        lowest: whether all dependencies have the lowest version that setup.cfg allows; otherwise they have the newest.
        short: whether the short run of the matrix has it.
        refused: the message with which tfdist refuses it; None for a combination that works.
    """

    python: str
    tensorflow: str
    keras: str
    lowest: bool = False
    short: bool = False
    refused: str | None = None

    @property
    def name(self) -> str:
        """The name of the session of nox and of the file of the result."""
        return f"{self.python}-{self.tensorflow}-{self.keras}"

    @property
    def result(self) -> Path:
        """The file of the result."""
        return RESULTS / f"{self.name}.json"

    def constraints(self) -> str:
        """Returns pip's constraints, a line for each package."""
        pins = [f"tensorflow=={self.tensorflow}.*", f"keras=={self.keras}.*"]
        return "\n".join(lowest_requirements() if self.lowest else pins) + "\n"


COMBINATIONS = (
    Combination("3.10", "2.18", "3.10", lowest=True, short=True),
    Combination("3.10", "2.21", "3.12"),
    Combination("3.11", "2.19", "3.11"),
    Combination("3.12", "2.18", "3.15"),
    Combination("3.12", "2.19", "3.13"),
    Combination("3.13", "2.20", "3.14"),
    Combination("3.13", "2.21", "3.15"),
    Combination("3.11", "2.17", "3.9", refused="tensorflow 2.17.1 is too old"),
)


def settings() -> configparser.SectionProxy:
    """Returns the section `options` of setup.cfg."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser["options"]


def lowest_requirements() -> list[str]:
    """Returns the requirements of setup.cfg, each with the lowest version that it allows: `absl-py==2.0`."""
    found = re.findall(r"^(\S+) >= ([\d.]+)", settings()["install_requires"], re.MULTILINE)
    return [f"{name}=={version}" for name, version in found]
