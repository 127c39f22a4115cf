"""The live view on a terminal, read back from a screen: what it shows, and that it leaves the terminal as it was."""

import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from support_paths import PROGRAMS
from waits import wait_until

from tfdist.choice import choose, prepared
from tfdist.dialects import read
from tfdist.launch.jobs.job import Job, Program
from tfdist.launch.jobs.job_status import JobStatus, State, TaskStatus
from tfdist.launch.jobs.progress import Progress, duration, size
from tfdist.launch.terminal import live_view, terminal_text
from tfdist.launch.terminal.job_view import JobView
from tfdist.launch.terminal.live_panel import LONGEST_LINE, MOST_LINES, LivePanel
from tfdist.launch.terminal.output import Terminal
from tfdist.planner.binding import Binding

pyte = pytest.importorskip("pyte")
wcwidth = pyte.screens.wcwidth

COLUMNS, ROWS = 80, 20
FIT = Progress("fit", 2, 5, 130, 937, 1067, 12.5, 1234.5, 41.0, {"loss": 0.35})


class FakeStream:
    """A `BackgroundWriter` in front of a screen."""

    def __init__(self, screen):
        self._stream = pyte.Stream(screen)
        self.is_idle = self.is_shown = True
        self.written = ""

    def write(self, text, important=False):
        self.written += text
        if self.is_shown:
            self._stream.feed(text.replace("\n", "\r\n"))


class Drawn:
    """A panel on a screen, with a clock of its own."""

    def __init__(self, monkeypatch):
        self.screen = pyte.HistoryScreen(COLUMNS, ROWS, history=1000)
        self.stream, self.now, self.size = FakeStream(self.screen), 100.0, (COLUMNS, ROWS)
        self.lines = ["== panel", "row one", "row two"]
        monkeypatch.setattr(LivePanel, "_terminal_size", lambda _: self.size)
        monkeypatch.setattr(LivePanel, "_is_ours", lambda _: True)
        self.panel = LivePanel(self.stream, lambda columns, rows: self.lines[:rows], lambda: self.now)

    def tick(self, seconds=0.5):
        self.now += seconds
        self.panel.tick()

    def resize(self, columns, rows):
        self.size = (columns, rows)
        self.screen.resize(rows, columns)

    @property
    def shown(self):
        return [line.rstrip() for line in self.screen.display if line.strip()]


@pytest.fixture
def drawn(monkeypatch):
    return Drawn(monkeypatch)


def test_lines_scroll_above_the_panel_which_is_removed_at_the_end(drawn):
    for number in range(50):
        drawn.panel.add(f"line {number}")
        drawn.tick()
    assert drawn.shown[-3:] == drawn.lines
    assert drawn.shown[:-3] == [f"line {number}" for number in range(50 - len(drawn.shown) + 3, 50)]
    drawn.panel.add("the last")
    drawn.panel.close()
    assert drawn.shown[-2:] == ["line 49", "the last"] and "== panel" not in drawn.shown
    history = ["".join(row[x].data for x in range(COLUMNS)).rstrip() for row in drawn.screen.history.top]
    assert history == [f"line {number}" for number in range(len(history))], "the scrollback has every line once"


def test_a_panel_of_another_height_leaves_nothing_behind(drawn):
    drawn.tick()
    drawn.lines = ["== panel"]
    drawn.tick()
    assert drawn.shown == ["== panel"]
    drawn.lines = ["== panel", *(f"row {n}" for n in range(100))]
    drawn.tick()
    assert len(drawn.shown) <= ROWS // 2


@pytest.mark.parametrize("new", [(40, 20), (120, 20), (80, 10), (80, 40), (30, 7), (10, 3)])
def test_after_a_resize_the_screen_shows_the_last_lines_and_one_panel(drawn, new):
    for number in range(30):
        drawn.panel.add(f"line {number}")
    drawn.tick()
    drawn.resize(*new)
    drawn.tick()
    drawn.panel.add("after")
    drawn.tick()
    assert drawn.shown.count("== panel") == (new[0] >= 20 and new[1] >= 6)
    assert "after" in drawn.shown
    drawn.panel.close()
    assert "== panel" not in drawn.shown


def test_of_too_many_lines_the_latest_are_shown_and_the_others_counted(drawn):
    drawn.stream.is_shown = False  # It would take seconds.
    drawn.panel.add("important", important=True)
    for number in range(10_000):
        drawn.panel.add(f"line {number} {'x' * 5000}")
    drawn.tick()
    assert f"tfdist: {10_000 - MOST_LINES + 1} lines are left out here; the log files have them" in drawn.stream.written
    assert "important\n" in drawn.stream.written and "line 9999 " in drawn.stream.written
    assert len(drawn.stream.written) < MOST_LINES * 2100


def test_nothing_is_drawn_while_the_terminal_does_not_read(drawn):
    drawn.stream.is_idle = False
    drawn.panel.add("waits")
    drawn.tick()
    assert drawn.stream.written == ""
    drawn.stream.is_idle = True
    drawn.tick()
    assert "waits" in drawn.shown


@pytest.mark.parametrize(
    ("text", "colored", "plain"),
    [
        ("plain", "plain", "plain"),
        ("\x1b[31mred", "\x1b[31mred\x1b[0m", "red"),
        ("a\x1b[2J\x1b[H\x1b[?1049hb", "ab", "ab"),
        ("a\x1b]0;title\x07b\x1b]52;c;aGk=\x1b\\c", "abc", "abc"),
        ("bell\x07 \x9b31m del\x7f nul\x00", "bell 31m del nul", "bell 31m del nul"),
        ("cut \x1b[", "cut ", "cut "),
        ("tab\there ä 漢", "tab\there ä 漢", "tab\there ä 漢"),
    ],
)
def test_only_colors_of_a_task_reach_the_terminal(text, colored, plain):
    assert (terminal_text.shown(text, True), terminal_text.shown(text, False)) == (colored, plain)


@pytest.mark.parametrize("place", range(5))
def test_a_color_ends_where_a_long_line_is_cut_also_if_it_is_cut_apart(drawn, place):
    drawn.stream.is_shown = False
    drawn.panel.add(terminal_text.shown("x" * (LONGEST_LINE - place) + "\x1b[31m" + "y" * 50, True))
    drawn.tick()
    line = drawn.stream.written.splitlines()[0]
    assert line == "x" * (LONGEST_LINE - place) + "...\x1b[0m"


def test_where_a_terminal_draws_and_has_colors():
    assert not terminal_text.draws({}) and not terminal_text.draws({"TERM": "dumb"})
    notebook = {"TERM": "xterm-color", "CLICOLOR": "1", "PAGER": "cat", "GIT_PAGER": "cat"}  # `!tfdist run` in a cell.
    assert not terminal_text.draws(notebook) and terminal_text.draws(notebook | {"PAGER": "less"})
    assert terminal_text.has_colors({"TERM": "xterm", "NO_COLOR": ""})
    assert not terminal_text.has_colors({"TERM": "xterm", "NO_COLOR": "1"})


def view_of(cluster, status, colors=False):
    cluster = prepared(read(cluster))
    view = JobView(Job(cluster, choose(cluster), Program("train.py")), colors, clock=lambda: 83.0)
    view.status = status
    return view


def test_the_view_shows_each_task_and_the_progress():
    tasks = (
        TaskStatus("chief:0", State.RUNNING, "localhost", memory=512_000_000),
        TaskStatus("worker:0", State.FAILED, "localhost", exit_code=-9, restarts=2),
        TaskStatus("ps:0", State.RUNNING, "localhost", memory=61_000_000),
    )
    exchange = {"period": 16, "delay": 1, "compression": "int8", "bytes_per_second": 3.4e6}
    progress = Progress(**{**vars(FIT), "exchange": exchange})
    binding = Binding("link of ps 0", 0.98, "3 ps", 1.62, "12.2 MB/s sent").as_json()
    view = view_of({"chief": 1, "worker": 1, "ps": 1}, JobStatus(State.RUNNING, tasks, progress=progress, binding=binding))
    lines = view.render(99, 20)
    assert lines[0] == "── running  0:00:00  parameter_server, 1 chief, 1 worker, 1 ps"
    assert re.fullmatch(r"chief:0 +running +130/937 +1,23[45] +512 MB", lines[2])
    assert re.fullmatch(r"worker:0 +failed +exit code -9, 2 restarts", lines[3])
    assert re.fullmatch(r"ps:0 +running +61 MB", lines[4])
    assert re.fullmatch(r"[━╸╺ ]+ epoch 2/5, step 130/937, 1234 examples/s, 0:00:41 left, loss 0.3500", lines[5])
    assert lines[6] == "synchronization every 16 updates, delay 1: 3.4 MB/s as int8"
    assert lines[7] == "binds: link of ps 0, busy for 98%; 3 ps would give 1.6 times the speed"


@pytest.mark.parametrize("columns", [20, 40, 200])
@pytest.mark.parametrize("rows", [3, 5, 12])
@pytest.mark.parametrize("colors", [False, True])
def test_the_view_fits_whatever_the_terminal_and_names_tasks_in_trouble(columns, rows, colors):
    tasks = [TaskStatus(f"worker:{n}", State.RUNNING, "host-with-a-long-name.example", memory=n) for n in range(100)]
    tasks[77] = TaskStatus("worker:77", State.FAILED, exit_code=1, note="\x1b[2J\n漢" * 50)
    tasks[50] = TaskStatus("worker:50", State.RUNNING, note="stopped by SIGSTOP")
    view = view_of({"worker": 100}, JobStatus(State.RUNNING, tuple(tasks), progress=FIT), colors)
    lines = view.render(columns, rows)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert len(lines) <= rows and all(sum(map(wcwidth, line)) <= columns for line in plain)
    assert colors or lines == plain
    if rows > 5:
        assert all(any(text in line for line in plain) for text in ("worker:50 ", "worker:77 ", "more: "))


def test_numbers_are_short():
    assert [size(n) for n in (0, 999, 1500, 61_000_000, 2.5e9, 3e13)] == [
        "0 B",
        "999 B",
        "1.5 KB",
        "61 MB",
        "2.5 GB",
        "30000 GB",
    ]
    assert duration(3723.9) == "1:02:03"


@pytest.mark.parametrize(
    ("is_tty", "has_rich", "mode", "said"),
    [
        (False, True, "auto", ""),
        (False, True, "live", "tfdist: --view live: output is not a terminal that can draw; the output is shown as lines\n"),
        (True, False, "auto", ""),
        (
            True,
            False,
            "live",
            "tfdist: --view live: the package rich is missing: pip install rich; the output is shown as lines\n",
        ),
    ],
)
def test_where_there_is_no_live_view_those_who_ask_for_it_hear_why(monkeypatch, is_tty, has_rich, mode, said):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(live_view.importlib.util, "find_spec", lambda name: name if has_rich else None)
    stream = io.StringIO()
    stream.isatty = lambda: is_tty
    cluster = prepared(read({"worker": 2}))
    terminal = Terminal(["worker:0"], stream)
    view = live_view.LiveView(Job(cluster, choose(cluster), Program("train.py")), terminal, mode)
    view.show()
    view.update(JobStatus(State.RUNNING))
    terminal.tick()
    view.hide()
    assert stream.getvalue() == said


class OnTerminal:
    """The launcher on a pseudo-terminal."""

    def __init__(self, folder, program, *flags, columns=COLUMNS, rows=ROWS, **variables):
        (folder / "program.py").write_text(program)
        self.main, side = pty.openpty()
        self.screen = pyte.Screen(columns, rows)
        self._stream, self.bytes = pyte.ByteStream(self.screen), b""
        self.resize(columns, rows)
        self.before = termios.tcgetattr(side)
        environ = {**os.environ, "TERM": "xterm-256color", **variables}
        command = [sys.executable, str(PROGRAMS / "quick_launcher.py"), "--tier", "BASIC", *flags, "program.py"]
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=side, stdout=side, stderr=side, env=environ, start_new_session=True
        )
        self._side = side

    def resize(self, columns, rows):
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and select.select([self.main], [], [], left)[0]:
            data = os.read(self.main, 1 << 16)
            self.bytes += data
            self._stream.feed(data)

    def read_until(self, condition, seconds=90):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.shown
            self.read(0.1)

    def wait(self, seconds=90):
        self.read_until(lambda: self.process.poll() is not None, seconds)
        self.read(0.2)
        return self.process.returncode

    @property
    def shown(self):
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def panels(self, below=None):
        """Returns how many panels are shown, or are below a line."""
        lines = self.shown[self.shown.index(below) :] if below else self.shown
        return sum(line.startswith("── running") for line in lines)

    def close(self):
        self.process.kill()
        self.process.wait(60)
        os.close(self.main)
        os.close(self._side)


@pytest.fixture
def on_terminal(tmp_path):
    started = []

    def run(*words, **more):
        started.append(OnTerminal(tmp_path, *words, **more))
        return started[-1]

    yield run
    for each in started:
        each.close()


PROGRESS = f"""
import json, os, time
path = os.environ["TFDIST_REPORT"] + ".progress"
for n in range(10_000):
    print("\\x1b[2J\\x1b[?1049h\\x1b[31mline", n, flush=True)
    values = {{**{vars(FIT)}, "step": n, "batches": n}}
    with open(path + ".part", "w") as file: json.dump(values, file)
    os.replace(path + ".part", path)
    time.sleep(0.05)
"""


@pytest.mark.cluster
def test_a_job_on_a_terminal_is_resized_and_terminated(on_terminal):
    job = on_terminal(PROGRESS)
    job.read_until(lambda: any("epoch 2/5, step 2" in line for line in job.shown) and any(" MB" in line for line in job.shown))
    assert any(re.match(r"chief:0 +running +\d+/937 +1,23", line) for line in job.shown)
    job.resize(50, 12)
    job.read(1.5)
    job.read_until(lambda: job.panels() == 1 and job.shown[0].startswith("chief:0 | line"))
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == 143
    assert job.shown[-1] == "tfdist: ended by SIGTERM" and not any(line.startswith("──") for line in job.shown)
    assert b"\x1b[?" not in job.bytes and b"\x1b]" not in job.bytes, "no modes, so none to leave"
    assert termios.tcgetattr(job._side) == job.before


@pytest.mark.cluster
def test_after_ctrl_z_the_lines_of_the_shell_are_not_erased(on_terminal):
    job = on_terminal("import time\ntime.sleep(600)\n")
    job.read_until(lambda: any(line.startswith("── running") for line in job.shown))
    job.process.send_signal(signal.SIGSTOP)
    job.read(0.3)
    os.write(job._side, b"$ fg\n")
    job.process.send_signal(signal.SIGCONT)
    job.read_until(lambda: job.shown[-1] != "$ fg")
    job.read(1.0)
    job.read_until(lambda: job.panels(below="$ fg") == 1)


@pytest.mark.cluster
def test_a_task_that_prints_much_is_not_held_up_by_the_terminal(on_terminal, tmp_path):
    job = on_terminal("for n in range(50_000): print('x' * 60, n)\n")
    assert job.wait() == 0
    assert "tfdist: done in" in "\n".join(job.shown) and len(job.bytes) < 1_250_000
    assert b"lines are left out here; the log files have them" in job.bytes and b"x 49999" in job.bytes
    (log,) = tmp_path.glob("tfdist_logs/*/chief-0.log")
    assert sum(1 for _ in open(log)) == 50_000


@pytest.mark.cluster
def test_a_terminal_that_stops_reading_does_not_make_the_launcher_deaf(on_terminal, tmp_path):
    job = on_terminal("import time\nfor n in range(20_000): print('x' * 60, n)\nopen('printed', 'w')\ntime.sleep(600)\n")
    wait_until((tmp_path / "printed").exists)
    job.process.send_signal(signal.SIGINT)
    assert job.process.wait(25) == 130  # Else after CLOSE_SECONDS.


@pytest.mark.cluster
@pytest.mark.parametrize(("flags", "variables"), [((), {"TERM": "dumb"}), ((), {"NO_COLOR": "1"})])
def test_a_terminal_without_colors_gets_none(on_terminal, flags, variables):
    job = on_terminal(
        "import time\nfor n in range(20): print('\\x1b[31mline', n, flush=True); time.sleep(0.05)\n", *flags, **variables
    )
    assert job.wait() == 0
    assert b"chief:0 | line 19" in job.bytes and b"tfdist: done in" in job.bytes
    assert not re.search(rb"\x1b\[[0-9;]*m", job.bytes)
    assert (b"\x1b" in job.bytes) == (flags == () and "NO_COLOR" in variables)
