"""The pages about the dialects say what really happens: every file and every command on them is tried."""

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support_paths import CHECKOUT

from tfdist.dialects.registry import command_readers
from tfdist.translate import main, outputs

DOCS = CHECKOUT / "docs"
PAGES = [*sorted((DOCS / "dialects").glob("*.md")), DOCS / "pictures.md"]
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_prints_what_the_page_says(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    for _, title, content in blocks:
        if title:
            (tmp_path / title).write_text(content, encoding="utf-8")
    commands = 0
    for language, _, content in blocks:
        if language != "console":
            continue
        line, _, expected = content.partition("\n")
        assert line.startswith("$ ")
        words = shlex.split(line.removeprefix("$ "))
        given = list(itertools.takewhile(lambda word: "=" in word, words))
        program, *arguments = words[len(given) :]
        assert program in ("tfdist", "python")
        with monkeypatch.context() as variables:
            for word in given:
                variables.setenv(*word.split("=", 1))
            if program == "tfdist":  # In this process: a page has many.
                assert arguments[0] == "translate"
                code = main(arguments)
                out, err = capsys.readouterr()
            else:
                result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
                code, out, err = result.returncode, result.stdout, result.stderr
        assert out + err == expected, line
        is_error = bool(err) and not err.startswith("tfdist: note: ")
        assert code == (2 if is_error else 0)
        commands += 1
    assert commands >= 2


def test_the_table_has_every_page_every_output_and_every_program() -> None:
    page = (DOCS / "dialects" / "README.md").read_text(encoding="utf-8")
    table = page.partition("\n## Add your own")[0]
    linked = set(re.findall(r"\]\((\w+\.md)\)", table))
    assert linked == {page.name for page in (DOCS / "dialects").glob("*.md")} - {"README.md"}
    assert set(re.findall(r"--to (\w+)", table)) == set(outputs())
    known = {"slurm", "horovod", "gcloud", "pytorch", "accelerate", "deepspeed", "tf1", "caffe2", "paddle"}
    assert command_readers().keys() == known
    assert all(
        f"`{program}`" in table
        for program in (
            "horovodrun",
            "mpirun",
            "mpiexec",
            "torchrun",
            "resnet50_trainer.py",
            "fleetrun",
            "srun",
            "accelerate launch",
            "deepspeed",
            "gcloud",
        )
    )
