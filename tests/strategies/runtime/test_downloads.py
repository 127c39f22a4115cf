"""Downloads and archives of `keras.utils.get_file` that several tasks of a machine fetch at once."""

import http.server
import os
import tarfile
import threading

import keras
import pytest

from tfdist.strategies.runtime import downloads

DATA = bytes(range(256)) * 256


@pytest.fixture
def server():
    """The address of a server that sends half of `DATA`, then the rest when `rest` is set."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(DATA)))
            self.end_headers()
            self.wfile.write(DATA[: len(DATA) // 2])
            half_sent.set()
            rest.wait(60)
            self.wfile.write(DATA[len(DATA) // 2 :])

        def log_message(self, *args):
            pass

    half_sent, rest = threading.Event(), threading.Event()
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    served.half_sent, served.rest = half_sent, rest
    yield served
    rest.set()
    served.shutdown()
    served.server_close()
    thread.join()


def test_another_task_never_finds_half_a_download(server, tmp_path):
    downloads.install()
    origin, got = f"http://127.0.0.1:{server.server_port}/data.bin", []
    thread = threading.Thread(target=lambda: got.append(keras.utils.get_file(origin=origin, cache_dir=tmp_path)))
    thread.start()
    assert server.half_sent.wait(60)
    target = tmp_path / "datasets" / "data.bin"
    while thread.is_alive() and not list(target.parent.glob("**/*.bin")):
        thread.join(0.01)
    assert not target.exists()  # get_file of another task would take it.
    server.rest.set()
    thread.join(60)
    assert got == [str(target)]
    assert target.read_bytes() == DATA
    assert [path.name for path in target.parent.iterdir()] == ["data.bin"]


def test_an_archive_that_is_extracted_again_replaces_files_in_one_step(tmp_path):
    downloads.install()
    folder = tmp_path / "images"
    (folder / "cats").mkdir(parents=True)
    (folder / "cats" / "1.bin").write_bytes(DATA)
    with tarfile.open(tmp_path / "images.tgz", "w:gz") as archive:
        archive.add(folder, "images")
    options = {"fname": "images", "origin": (tmp_path / "images.tgz").as_uri(), "extract": True, "cache_dir": tmp_path}
    (first := tmp_path / "datasets").mkdir()
    extracted = keras.utils.get_file(**options)
    assert extracted == str(first / "images")
    (kept := first / "images" / "images" / "cats" / "mine.bin").write_bytes(b"of the user's")
    with open(first / "images" / "images" / "cats" / "1.bin", "rb") as reading:
        keras.utils.get_file(**options)
        assert os.fstat(reading.fileno()).st_nlink == 0  # It is replaced, and what this process reads is not written to.
        assert reading.read() == DATA
    assert kept.read_bytes() == b"of the user's"
    assert sorted(path.name for path in first.iterdir()) == ["images", "images_archive"]
