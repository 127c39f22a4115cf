"""The output of tasks: how it is split into lines, shown on the terminal and written to files."""

import fcntl
import io
import os
import resource
from types import SimpleNamespace

import pytest

from tfdist.launch.backends.local.pipes import Pipe
from tfdist.launch.terminal.output import Lines, TaskOutput, Terminal, last_lines


@pytest.mark.parametrize(
    ("chunks", "lines", "rest"),
    [
        ([b"one\ntwo\n"], ["one", "two"], ""),
        ([b"on", b"e\nt", b"wo"], ["one"], "two"),
        ([b"windows\r\nline\r\n"], ["windows", "line"], ""),
        ([b"half\r", b"\nnext"], ["half"], "next"),
        ([b"1/3", b"\b\b\b\r2/3", b"\b\b\b\r3/3\n"], ["3/3"], ""),
        ([b"10%\r20%\r"], [], "20%\r"),
        ([b"10%\r20%\r", b"\n"], ["20%"], ""),
        ([b"x" * 70000], ["x" * 70000], ""),
        ([b"10%\r20%\r", b"30%"], [], "30%"),
        (["ä".encode()[:1], "ä".encode()[1:] + b"\n"], ["ä"], ""),
        ([b"\xff\xfe\n"], ["\ufffd\ufffd"], ""),
        ([b"\n\n"], ["", ""], ""),
    ],
)
def test_output_is_split_into_the_lines_that_a_terminal_would_show(chunks, lines, rest):
    splitter = Lines()
    assert [line for chunk in chunks for line in splitter.feed(chunk)] == lines
    assert splitter.rest == rest


def test_the_last_line_needs_no_newline():
    splitter = Lines()
    splitter.feed(b"the end")
    assert splitter.feed(b"", final=True) == ["the end"]
    assert splitter.rest == ""


class FakeTerminal(io.StringIO):
    def isatty(self):
        return True


def test_each_line_starts_with_the_name_of_its_task():
    stream = io.StringIO()
    terminal = Terminal(["chief:0", "worker:10"], stream)
    terminal.line("chief:0", "hello")
    terminal.say("bye")
    assert stream.getvalue() == "chief:0   | hello\ntfdist: bye\n"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\x1b[1mbold\x1b[0m", "bold"),
        ("\x1b]8;id=1;file:///a.py\x1b\\a.py\x1b]8;;\x1b\\:7 \x1bc", "a.py:7 "),  # A link, as rich writes it, and a reset.
        ("\x1b]8;;file:///a.py\x1b\\a.py\x1b]8;;\x1b\\ in \x1b]0;title\x07b", "a.py in b"),
    ],
)
def test_what_controls_a_terminal_is_removed_for_files_and_pipes(tmp_path, text, plain):
    stream = io.StringIO()
    output = TaskOutput("ps:0", tmp_path / "log", Terminal(["ps:0"], stream))
    output.add(f"{text}\n".encode())
    output.close()
    assert (stream.getvalue(), (tmp_path / "log").read_text()) == (f"ps:0 | {plain}\n", f"{plain}\n")


def test_only_a_real_terminal_shows_an_unfinished_line_until_the_next_finished_one(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    plain, real = io.StringIO(), FakeTerminal()
    Terminal(["chief:0"], plain).progress("chief:0", "1/3")
    assert plain.getvalue() == ""
    terminal = Terminal(["chief:0"], real)
    terminal.progress("chief:0", "1/3")
    terminal.line("chief:0", "done")
    assert real.getvalue().endswith("\r\x1b[K\x1b[36mchief:0 | \x1b[0mdone\n")


def test_a_panel_has_the_latest_unfinished_line_as_plain_text_until_it_ends(monkeypatch, tmp_path):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal(["chief:0", "worker:10"], FakeTerminal())
    terminal._panel = SimpleNamespace(add=lambda line, important: None)
    chief, worker = (TaskOutput(name, tmp_path / name, terminal) for name in ("chief:0", "worker:10"))
    for output, data, unfinished in (
        (chief, b"\r\x1b[31m10%", "chief:0 | 10%"),
        (worker, b"a line\n", "chief:0 | 10%"),
        (chief, b"\r20%", "chief:0 | 20%"),
        (chief, b"\n", ""),
    ):
        output.add(data)
        assert terminal.unfinished == unfinished


def test_the_terminal_hides_the_lines_of_every_tensorflow_start_unless_verbose():
    noise = "E0000 00:00:1795237116.095783    3161 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error"
    quiet, verbose = io.StringIO(), io.StringIO()
    Terminal(["ps:0"], quiet).line("ps:0", noise)
    Terminal(["ps:0"], verbose, verbose=True).line("ps:0", noise)
    assert (quiet.getvalue(), noise in verbose.getvalue()) == ("", True)


def test_the_terminal_hides_what_tensorflow_says_for_each_function_of_a_task_that_is_gone_unless_verbose():
    rest = [
        "Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling /tensorflow.eager",
        ':UNKNOWN:Error received from peer  {grpc_status:14, grpc_message:"recvmsg:Connection reset by peer"}',
    ]
    failed = "E0000 00:00:1796053052.288253    3371 context.cc:873] Failed to register function remotely due to recvmsg"
    message = [failed, *rest, "This could happen if the remote target has been disconnected from the client."]
    for verbose in (False, True):
        stream = io.StringIO()
        terminal = Terminal(["chief:0", "ps:0"], stream, verbose)
        for line in message:
            terminal.line("chief:0", line)
            terminal.line("ps:0", rest[0])  # Of an exception.
        terminal.lines("chief:0", [*message, "an error", *rest])
        shown = [line.partition(" | ")[2] for line in stream.getvalue().splitlines() if line.startswith("chief:0")]
        assert shown == [*(message * 2 if verbose else []), "an error", *rest]
        assert stream.getvalue().count("ps:0    | Additional") == 4


@pytest.mark.parametrize("use_terminal", [False, True])
def test_the_log_file_of_a_task_holds_all_its_output(tmp_path, use_terminal):
    stream = io.StringIO()
    output = TaskOutput("ps:1", tmp_path / "ps-1.log", Terminal(["ps:1"], stream))
    pipe = Pipe("ps:1", use_terminal)
    os.write(pipe.write_end, b"".join(b"line %d\n" % n for n in range(50)) + b"no newline")
    pipe.started()
    while data := pipe.read():
        output.add(data)
    assert list(pipe.close()) == []
    output.close()
    assert (tmp_path / "ps-1.log").read_text().splitlines() == [*(f"line {n}" for n in range(50)), "no newline"]
    assert last_lines(tmp_path / "ps-1.log") == [*(f"line {n}" for n in range(31, 50)), "no newline"]
    assert stream.getvalue().count("\n") == 51


@pytest.mark.parametrize("append", [False, True])
def test_a_log_file_that_is_cut_by_a_rotation_goes_on_at_its_beginning(tmp_path, append):
    path = tmp_path / "ps-0.log"
    path.write_text("of an earlier job\n")
    output = TaskOutput("ps:0", path, Terminal(["ps:0"], io.StringIO()), append)
    output.add(b"one\n")
    assert path.read_text() == ("of an earlier job\n" if append else "") + "one\n"
    os.truncate(path, 0)  # As `copytruncate` of logrotate does.
    output.add(b"two\n")
    output.close()
    assert path.read_text() == "two\n"


def test_a_long_line_is_one_line_in_the_log_file(tmp_path):
    path = tmp_path / "worker-0.log"
    for more in (b"", b"\nend\n", b"end"):
        stream = io.StringIO()
        output = TaskOutput("ps:1", path, Terminal(["ps:1"], stream))
        for _ in range(3):
            output.add(b"x" * 70000)
        assert path.read_text() == "x" * 210000  # A launcher that is killed loses nothing of it.
        output.add(more)
        output.close()
        assert path.read_text() == "x" * 210000 + {b"": "\n", b"end": "end\n"}.get(more, more.decode())
        assert stream.getvalue().count("x\nps:1 | ") >= 2


def test_a_task_prints_to_a_pipe_where_there_is_no_pseudo_terminal(monkeypatch):
    def no_terminal():
        raise FileNotFoundError("out of pty devices")  # As in a chroot without /dev/pts.

    monkeypatch.setattr(os, "openpty", no_terminal)
    pipe = Pipe("ps:1", is_terminal=True)
    assert not os.isatty(pipe.write_end)
    pipe.started()
    assert list(pipe.close()) == []


def test_a_pseudo_terminal_has_at_most_as_many_columns_as_one_may_have(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100000")
    pipe = Pipe("ps:1", is_terminal=True)
    assert os.get_terminal_size(pipe.write_end).columns == 65535
    pipe.started()
    assert list(pipe.close()) == []


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_rest_of_the_output_is_read_also_where_a_launcher_has_more_than_1024_open_files(is_terminal):
    """As one with some hundred tasks: `select` refuses such descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] <= 1100:
        pytest.skip("this user may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 1200), limits[1]))
    try:
        pipe = Pipe("ps:1", is_terminal)
        low, pipe._read_end = pipe._read_end, fcntl.fcntl(pipe._read_end, fcntl.F_DUPFD_CLOEXEC, 1100)
        os.close(low)
        os.write(pipe.write_end, b"the end")
        assert list(pipe.close()) == [b"the end"]
        pipe.started()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_last_lines_of_a_log_file_are_those_of_the_program(tmp_path):
    noise = "E0000 00:00:1795237116.095783    3161 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error"
    path = tmp_path / "worker-0.log"
    assert last_lines(path) == []
    path.write_bytes(b"x" * 100_000 + f"\nan error\n\n{noise}\n".encode() + b"\xff\n")
    assert last_lines(path)[1:] == ["an error", "\ufffd"]


def test_the_last_lines_of_a_crash_begin_with_what_the_library_said(tmp_path):
    said = "F0000 00:00:1.0 7 env.cc:84] Check failed: ret == 0 (11 vs. 0) Thread creation via pthread_create() failed."
    stacks = ["Fatal Python error: Aborted", *(f'  File "program.py", line {n} in f' for n in range(40))]
    path = tmp_path / "ps-0.log"
    path.write_text("\n".join(["epoch 1", said, "    @     0x7f213ed1d314  absl::LogMessage::Flush()", *stacks]))
    assert last_lines(path) == [said, *stacks[-19:]]
    path.write_text("\n".join([said, "    @     0x7f213ed1d314  absl::LogMessage::Flush()", *stacks[:9]]))
    assert last_lines(path) == [said, *stacks[:9]]
    path.write_text("\n".join([said, *(f"step {n}" for n in range(30))]))  # It went on.
    assert last_lines(path)[0] == "step 10"
