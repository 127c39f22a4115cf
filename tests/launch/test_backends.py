"""Back ends of other packages: the one in docs/backends.md, announced as an entry point, and bad ones."""

import importlib.metadata
import json
import logging
import os
import re
import socket
import subprocess
import sys
import tomllib

import pytest
from support_paths import CHECKOUT

from tfdist.launch.backends import registry
from tfdist.launch.backends.interface import Attached, Backend, BackendError
from tfdist.launch.backends.registry import BUILT_IN, GROUP, find, load

PAGE = (CHECKOUT / "docs" / "backends.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```\w+ title=\"([^\"]+)\"\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))

PROGRAM = """
import json, os, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
me = config["task"]
listener = socket.create_server(("", int(config["cluster"]["worker"][me["index"]].rpartition(":")[2])))
print("I am", me["index"], *sys.argv[1:], flush=True)
time.sleep(2)
if me["index"] == 1 and "fail" in sys.argv: sys.exit(7)
if "fail" in sys.argv: time.sleep(600)
"""


@pytest.fixture
def plain(tmp_path):
    """Returns a function that runs tfdist with the back end of the page."""
    info = tmp_path / "site" / "tfdist_plain-1.0.dist-info"
    info.mkdir(parents=True)
    entries = tomllib.loads(FILES["pyproject.toml"])["project"]["entry-points"][GROUP]
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tfdist-plain\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items()))
    (tmp_path / "site" / "tfdist_plain.py").write_text(FILES["tfdist_plain.py"])
    (tmp_path / "program.py").write_text(PROGRAM)
    with_package = os.environ | {"PYTHONPATH": f"{tmp_path / 'site'}:{CHECKOUT}"}

    def run(*words):
        command = [sys.executable, "-m", "tfdist", "run", *words]
        return subprocess.run(command, cwd=tmp_path, env=with_package, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.mark.cluster
def test_the_back_end_of_the_page_runs_a_job_and_its_failure_is_found(plain):
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
        addresses = [f"localhost:{server.getsockname()[1]}" for server in (one, other)]
    cluster = ("--backend", "plain", "--cluster", json.dumps({"cluster": {"worker": addresses}}), "program.py")
    got = plain(*cluster, "well")
    assert got.returncode == 0, got.stdout + got.stderr
    assert got.stderr == "" and "worker:1 | I am 1 well" in got.stdout and "tfdist: done in" in got.stdout
    got = plain(*cluster, "fail")
    assert got.returncode == 7
    assert (
        "tfdist: worker:1 failed first: it exited with 7" in got.stdout
        and "I am 1 fail" in got.stdout.rpartition("last lines")[2]
    )
    assert "Python processes on this machine" not in got.stdout


GOOD = Backend("good", "a title", plan=lambda job: None, runs=Attached(lambda plan, files: None), options={"good_queue": "x"})
FAULTS = [
    ("no back end", "it is a str; expected a tfdist.launch.backends.interface.Backend"),
    (Backend("Bad", "", plan=print, runs=GOOD.runs), "its name is 'Bad'; expected lower-case letters, digits and _"),
    (Backend("local", "", plan=print, runs=GOOD.runs), "the name local is taken; choose another"),
    (Backend("odd", "", plan="x", runs=GOOD.runs), "its plan is a str; expected a function"),
    (
        Backend("half", "", plan=print, runs=object()),
        "its runs is a object without submit, status, logs, cancel; expected an Attached or a Detached",
    ),
    (
        Backend("rude", "", plan=print, runs=GOOD.runs, options={"cluster": "x"}),
        "its option 'cluster' does not begin with rude_",
    ),
]


def test_a_bad_back_end_is_left_out_by_name_and_the_others_work(monkeypatch, caplog):
    values = [*(value for value, _ in FAULTS), GOOD]

    class Entry:
        dist = None

        def __init__(self, number):
            self.name, self.value = f"entry{number}", f"package:B{number}"

        def load(self):
            return values[int(self.name.removeprefix("entry"))]

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [Entry(number) for number in range(len(values))])
    with caplog.at_level(logging.WARNING, "tfdist"):
        assert load(BUILT_IN) == [GOOD]
    start = "the back end of the entry point entry{0} = package:B{0} (unknown package) is left out: {1}"
    assert [record.getMessage() for record in caplog.records] == [
        start.format(number, fault) for number, (_, fault) in enumerate(FAULTS)
    ]


def test_an_unknown_back_end_is_an_error_with_all_names():
    with pytest.raises(BackendError, match=r"'locl' is not a back end; there are local.*; did you mean local\?"):
        find("locl")
    assert list(registry.backends()) == [backend.name for backend in BUILT_IN]
