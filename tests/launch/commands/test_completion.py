"""Completion in shells: asked of bash itself, and the syntax of the scripts of those shells that are installed."""

import os
import shutil
import subprocess
import sys

import pytest
from tools import needs

from tfdist.launch.background.job_folder import JobFolder
from tfdist.launch.commands import COMMANDS, completion


@pytest.fixture
def script(capsys):
    def of(shell):
        assert completion.main([shell]) == 0
        return capsys.readouterr().out

    return of


def asked(script, folder, *words):
    """Returns what bash offers for the last of the words. Bash splits them at colons and equals signs."""
    parts = [part for word in words for part in _split(word)] if words else []
    line = " ".join(["tfdist", *words])
    (folder / "tfdist").write_text(f'#!/bin/sh\nexec {sys.executable} -m tfdist "$@"\n')
    (folder / "tfdist").chmod(0o755)
    setting = " ".join(f"'{part}'" for part in ["tfdist", *parts])
    ask = f"COMP_WORDS=({setting}); COMP_CWORD={len(parts)}; COMP_LINE='{line}'; COMP_POINT={len(line)}\n"
    ask += f"_tfdist tfdist '{'' if parts[-1] in (':', '=') else parts[-1]}' ''\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    got = subprocess.run(["bash", "-c", script + ask], capture_output=True, text=True, timeout=30, cwd=folder, env=environ)
    assert got.stderr == ""
    return got.stdout.split()


def _split(word):
    for mark in ("=", ":"):
        word = word.replace(mark, f" {mark} ")
    return word.split() or [""]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_flags_values_files_and_handles(script, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDIST_STATE_DIR", str(tmp_path / "state"))
    bash = script("bash")
    (tmp_path / "train.py").write_text("")
    assert asked(bash, tmp_path, "") == [*COMMANDS]
    assert asked(bash, tmp_path, "st") == ["status"]
    assert asked(bash, tmp_path, "run", "--dry") == ["--dry_run"]
    assert asked(bash, tmp_path, "run", "--sync_p") == ["--sync_period="]
    assert asked(bash, tmp_path, "run", "--tier=STAND") == ["STANDARD_1"]
    assert asked(bash, tmp_path, "run", "--view=") == ["auto", "live", "lines"]
    assert asked(bash, tmp_path, "run", "tra") == ["train.py"]
    assert asked(bash, tmp_path, "run", "--tier", "STAND") == ["STANDARD_1"]
    assert asked(bash, tmp_path, "run", "--detach", "--view", "") == ["auto", "live", "lines"]
    assert asked(bash, tmp_path, "run", "--cluster", "tr") == asked(bash, tmp_path, "status", "--svg", "tr") == ["train.py"]
    assert asked(bash, tmp_path, "translate", "STANDARD_1", "--to", "tf_") == ["tf_config"]
    assert asked(bash, tmp_path, "translate", "STANDARD_1", "--to=cl") == ["cloudml", "cluster_spec"]
    assert asked(bash, tmp_path, "translate", "STANDARD_1", "--nam") == ["--name=", "--namespace="]
    assert asked(bash, tmp_path, "translate", "STANDARD_1", "--ta") == ["--task="]
    assert "--tier=BASIC" in asked(bash, tmp_path, "run", "--dry_run", "")
    assert asked(bash, tmp_path, "completion", "z") == ["zsh"]
    folder = JobFolder.create("local")
    assert asked(bash, tmp_path, "logs", "local:")[0] == f"//{folder.id}"
    assert asked(bash, tmp_path, "cancel", "loc") == [f"local://{folder.id}"]


@pytest.mark.parametrize("shell", ["bash", *(pytest.param(name, marks=needs(name)) for name in ("zsh", "fish"))])
def test_the_script_of_each_shell_is_valid_there(script, shell, tmp_path):
    text = script(shell)
    assert "STANDARD_1" in text and "completion handles" in text and "@" not in text.replace('"$@"', "").replace("[@]", "")
    (tmp_path / "script").write_text(text)
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=30)


@needs("fish")
def test_fish_completes_values_of_flags(script, tmp_path):
    (tmp_path / "script").write_text(script("fish"))
    (tmp_path / "train.py").write_text("")
    asks = ("run --tier STAND", "run --tier=STAND", "run --cluster tr", "run --sync_p", "translate x --to tf_")
    lines = "\n".join(f"complete -C 'tfdist {line}'" for line in asks)
    got = subprocess.run(
        ["fish", "-N", "-c", f"source script\n{lines}"], capture_output=True, text=True, timeout=30, cwd=tmp_path, check=True
    )
    assert got.stdout.split() == ["STANDARD_1", "--tier=STANDARD_1", "train.py", "--sync_period", "tf_config"]


@needs("zsh")
def test_zsh_completes_values_of_flags(script, tmp_path):
    stubs = "compdef() { :; }\ncompadd() { shift; print -r -- $1 }\n_files() { print files }\n"
    ask = '\nt() { words=(tfdist "$@"); CURRENT=$#words; PREFIX="${words[-1]}"; _tfdist }\n'
    lines = "t run --tier ''\nt run --cluster ''\nt translate x --to ''\nt run --dry_run ''\nt ''\n"
    (tmp_path / "script").write_text(stubs + script("zsh") + ask + lines)
    got = subprocess.run(["zsh", "-f", str(tmp_path / "script")], capture_output=True, text=True, timeout=30, check=True)
    assert got.stdout.split() == ["BASIC", "files", "cloudml", "-n", "files", "run"]
