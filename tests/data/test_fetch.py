"""Downloads from a real HTTP server on the loopback: checked by hash, from the next mirror, unpacked completely."""

import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from fedoptax.data.check import fetch
from fedoptax.data.registry import DATA_SETS, DataSet, Download, File
from fedoptax.errors import DataError
from refusals import refused

DATA = b"what was published" * 1000
MEMBERS = {"batches/one": b"first", "batches/two": b"second"}


def md5(data):
    return f"md5:{hashlib.md5(data).hexdigest()}"


def tar_of(files):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


@pytest.fixture
def server():
    content = SimpleNamespace(files={}, asked=[])  # files by name, and the names that were asked for

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.lstrip("/")
            content.asked.append(name)
            data = content.files.get(name)
            self.send_response(404 if data is None else 200)
            self.send_header("Content-Length", str(len(data or b"") + 10 * name.startswith("cut")))
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        content.url = f"http://127.0.0.1:{http.server_port}/"
        yield content
        http.shutdown()
        thread.join()


def publish(monkeypatch, *downloads):
    monkeypatch.setitem(DATA_SETS, "mnist", DataSet(downloads, {}))


def test_a_file_is_downloaded_once_and_again_with_a_bar_if_it_is_damaged(tmp_path, server, monkeypatch, capsys):
    server.files["data.bin"] = DATA
    publish(monkeypatch, Download("data.bin", (f"{server.url}data.bin",), md5(DATA)))
    assert fetch("mnist", tmp_path) == tmp_path / "mnist"
    assert (tmp_path / "mnist" / "data.bin").read_bytes() == DATA
    assert "downloading data.bin" in capsys.readouterr().err
    fetch("mnist", tmp_path)
    assert server.asked == ["data.bin"]
    (tmp_path / "mnist" / "data.bin").write_bytes(b"damaged")
    fetch("mnist", tmp_path, progress=True)
    assert (tmp_path / "mnist" / "data.bin").read_bytes() == DATA
    assert "100%" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["missing.bin", "other.bin", "cut.bin", "http://127.0.0.1:9/"])
def test_the_next_mirror_is_taken(tmp_path, server, monkeypatch, wrong):
    server.files |= {"data.bin": DATA, "other.bin": b"not what was published", "cut.bin": DATA}
    urls = (wrong if ":" in wrong else server.url + wrong, f"{server.url}data.bin")
    publish(monkeypatch, Download("data.bin", urls, md5(DATA)))
    fetch("mnist", tmp_path)
    assert [path.name for path in (tmp_path / "mnist").iterdir()] == ["data.bin"]
    assert (tmp_path / "mnist" / "data.bin").read_bytes() == DATA
    assert server.asked == [wrong, "data.bin"][":" in wrong :]


def test_without_a_mirror_the_error_says_what_to_do_by_hand(tmp_path, server, monkeypatch):
    server.files["other.bin"] = b"not what was published"
    urls = tuple(server.url + name for name in ("missing.bin", "other.bin"))
    publish(monkeypatch, Download("data.bin", urls, md5(DATA)))
    refused(lambda: fetch("mnist", tmp_path), "data.bin not downloaded: ", "404", "other.bin", "put the file into")
    assert list((tmp_path / "mnist").iterdir()) == []
    (tmp_path / "mnist" / "data.bin").write_bytes(b"nor this")
    refused(lambda: fetch("mnist", tmp_path), "the file there is another than the published one")


@pytest.fixture
def archive(server, monkeypatch):
    server.files["data.tar.gz"] = tar_of(MEMBERS | {"batches/readme": b"not wanted"})
    members = (File("batches/one", md5(b"first")), File("batches/two"))
    hash = md5(server.files["data.tar.gz"])
    publish(monkeypatch, Download("data.tar.gz", (f"{server.url}data.tar.gz",), hash, members=members))
    return server


def files_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_the_members_of_an_archive_are_kept(tmp_path, archive):
    for _ in range(2):
        assert files_in(fetch("mnist", tmp_path)) == MEMBERS
    assert archive.asked == ["data.tar.gz"]


def test_leftovers_of_a_killed_process_are_replaced(tmp_path, archive):
    partly = tmp_path / "mnist" / ".data.tar.gz.unpacked" / "batches"
    partly.mkdir(parents=True)
    (partly / "two").write_bytes(b"sec")
    (tmp_path / "mnist" / "data.tar.gz").write_bytes(archive.files["data.tar.gz"])  # downloaded, or put there by hand
    assert files_in(fetch("mnist", tmp_path)) == MEMBERS
    assert archive.asked == []


@pytest.mark.parametrize("members", [{"batches/one": b"first"}, {"batches/one": b"other", "batches/two": b"second"}])
def test_an_archive_that_lacks_a_member_leaves_none(tmp_path, server, monkeypatch, members):
    data = server.files["data.tar.gz"] = tar_of(members)
    wanted = (File("batches/one", md5(b"first")), File("batches/two"))
    publish(monkeypatch, Download("data.tar.gz", (f"{server.url}data.tar.gz",), md5(data), members=wanted))
    with pytest.raises(DataError, match=r"data\.tar\.gz"):
        fetch("mnist", tmp_path)
    assert not (tmp_path / "mnist" / "batches").exists()
