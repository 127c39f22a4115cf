"""The pages: links lead somewhere, and the README's example and picture are real."""

import ast
import builtins
import os
import re
import subprocess
import sys

import pytest
from support_paths import CHECKOUT

from tfdist import errors
from tfdist.launch.commands import help_topics, run_command
from tfdist.translate import main

PAGES = [*CHECKOUT.glob("*.md"), *CHECKOUT.glob("benchmarks/*.md"), *CHECKOUT.glob("docs/**/*.md")]
SMALL = '{"chief": 1, "worker": 1, "ps": 1}'
ROOMS = [path.parent for room in ("tfdist", "strategies", "launch") for path in sorted((CHECKOUT / room).rglob("__init__.py"))]
OF_THE_LAUNCHER = {
    f"TFDIST_{name}"
    for name in ("COUNT_STEPS", "ENDS_WITH_CHIEF", "LAUNCH", "MEASURE", "REPORT", "START_TIMEOUT", "STARTED", "VERBOSE")
}
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_link_leads_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target


def test_every_page_of_the_documentation_is_a_line_of_the_readme():
    linked = set(re.findall(r"\]\((docs/\w+\.md)\)", README))
    pages = {str(page.relative_to(CHECKOUT)) for page in CHECKOUT.glob("docs/*.md")}
    assert pages - linked == {"docs/package_index.md", "docs/contents.md"}


def test_every_flag_of_run_is_on_a_page_and_not_only_in_its_help():
    pages = [page for page in PAGES if page.name not in ("BUILD.md", "CHANGELOG.md", "reference.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    names = [name for topic in help_topics.topics(run_command.FLAGS).values() for name in topic]
    assert [name for name in names if not re.search(rf"--?(no)?{name}\b|`{name}`", text)] == []


def test_the_errors_of_the_reference_can_be_imported_and_are_what_it_says():
    reference = (CHECKOUT / "docs" / "reference.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+Error)` \| `([\w.]+)`", reference, re.MULTILINE)
    assert len(rows) == 7
    for name, base in rows:
        if name != "TaskLostError":  # One of TensorFlow's.
            assert issubclass(getattr(errors, name), getattr(errors, base, None) or getattr(builtins, base)), name


def test_the_reference_lists_every_variable_that_a_user_may_set():
    reference = (CHECKOUT / "docs" / "reference.md").read_text(encoding="utf-8")
    files = [path for room in ROOMS for path in room.glob("*.py")]
    in_code = {name for path in files for name in re.findall(r"\bTFDIST_[A-Z_]+\b", path.read_text(encoding="utf-8"))}
    assert set(re.findall(r"`(TFDIST_[A-Z_]+)`", reference)) == in_code - OF_THE_LAUNCHER


def test_the_readme_shows_the_picture_of_its_cluster(capsys):
    assert main(["translate", "STANDARD_1", "--to", "svg"]) == 0
    assert "](docs/pictures/standard_1.svg)" in README
    assert (CHECKOUT / "docs" / "pictures" / "standard_1.svg").read_text(encoding="utf-8") == capsys.readouterr().out


@pytest.mark.cluster
@pytest.mark.parametrize("launcher", [(), ("-m", "tfdist.launch", "--cluster", SMALL)], ids=["alone", "launcher"])
def test_the_example_of_the_readme_trains(start, tmp_path, launcher):
    """Alone as written, and under the launcher with fewer tasks and one epoch."""
    (example,) = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    text = example.replace('"STANDARD_1"', SMALL, 1).replace("epochs=10", "epochs=1") if launcher else example
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    job = start(*launcher, "train.py")
    assert job.wait() == 0, job.output
    assert ("57/57" if launcher else "Epoch 10/10") in job.output
    assert (tmp_path / "digits.keras").exists()
    assert job.left(within=10) == {}  # Nor of the servers that the program has started itself.


@pytest.mark.parametrize("folder", ROOMS, ids=lambda folder: str(folder.relative_to(CHECKOUT)))
def test_the_docstring_of_a_room_says_where_to_start_reading_and_names_files_that_exist(folder):
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert re.search(r"\b[Ss]tart\s(reading\sat|with)\b", text)
    roots = (CHECKOUT, *ROOMS)
    assert [name for name in re.findall(r"`([\w/]+\.py)`", text) if not any((root / name).exists() for root in roots)] == []


def test_the_defaults_on_the_page_of_the_launcher_describe_a_job(tmp_path):
    page = (CHECKOUT / "docs" / "launch.md").read_text(encoding="utf-8")
    (defaults,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "tfdist.toml").write_text(defaults, encoding="utf-8")
    command, variables = [sys.executable, "-m", "tfdist", "run", "--dry_run"], os.environ | {"WANDB_API_KEY": "secret"}
    job = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert job.returncode == 0, job.stderr
    assert "1 chief, 4 workers, 3 ps" in job.stdout
