"""Downloads from a server on the loopback: whole, broken, resumed, refused, and by two at once."""

import errno
import hashlib
import os
import socket
import time
from types import SimpleNamespace

import pytest

from fedoptax.data import transfer
from fedoptax.data.fetch import fetch
from fedoptax.data.registry import DataSet, Download
from fedoptax.errors import DataError, RunError, UsageError
from fedoptax.storage.folder import locked
from file_server import Asked, serving
from files import assert_one_line

DATA = bytes(range(256)) * 400  # 102,400 bytes


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server():
    with serving() as content:
        content.files["numbers"] = DATA
        yield content


def md5(data):
    return f"md5:{hashlib.md5(data).hexdigest()}"


def published(*urls, data=DATA, name="numbers", size=True, **fields):
    """A data set of one file, offered at these addresses."""
    download = Download(name, urls, md5(data), len(data) if size else None, **fields)
    return {"tiny": DataSet((download,), {})}


def get(tmp_path, data_sets, **options):
    return fetch("tiny", tmp_path, data_sets=data_sets, say=lambda text: None, **options)


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


# --- what goes well


def test_a_file_is_downloaded_once(tmp_path, server):
    wanted = published(f"{server.url}numbers")
    assert get(tmp_path, wanted) == tmp_path / "tiny"
    get(tmp_path, wanted)
    assert (tmp_path / "tiny" / "numbers").read_bytes() == DATA
    assert visible(tmp_path / "tiny") == ["numbers"]
    assert server.sent() == [len(DATA)]


def test_what_is_complete_needs_no_network_and_no_permission(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "numbers").write_bytes(DATA)
    get(tmp_path, published("http://127.0.0.1:9/never"))
    assert not (folder / ".lock").exists()


def test_a_damaged_file_is_replaced(tmp_path, server):
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "numbers").write_bytes(DATA[:-1] + b"!")
    get(tmp_path, published(f"{server.url}numbers"))
    assert (tmp_path / "tiny" / "numbers").read_bytes() == DATA


def test_a_redirect_is_followed(tmp_path, server):
    server.faults["old"] = "redirect numbers"
    get(tmp_path, published(f"{server.url}old"))
    assert (tmp_path / "tiny" / "numbers").read_bytes() == DATA


@pytest.mark.parametrize("fault", ["status 404", "status 503", "drop", "declare 7", "redirect file:///etc/passwd"])
def test_the_next_address_is_tried(tmp_path, server, fault):
    server.files["bad"], server.faults["bad"] = DATA, fault
    get(tmp_path, published(f"{server.url}bad", f"{server.url}numbers"))
    assert (tmp_path / "tiny" / "numbers").read_bytes() == DATA
    assert visible(tmp_path / "tiny") == ["numbers"]


def test_the_size_is_said_before_the_first_byte(tmp_path, server):
    said = []
    fetch("tiny", tmp_path, data_sets=published(f"{server.url}numbers"), say=said.append)
    assert said == ["downloading numbers: 0.1 MB"]


def test_a_bar_is_shown_on_request(tmp_path, server, capsys):
    get(tmp_path, published(f"{server.url}numbers"), progress=True)
    captured = capsys.readouterr()
    assert "numbers" in captured.err
    assert captured.out == ""


def test_nothing_is_shown_without_a_terminal(tmp_path, server, capsys):
    get(tmp_path, published(f"{server.url}numbers"))
    assert capsys.readouterr() == ("", "")


# --- what breaks and goes on


def test_a_broken_connection_is_taken_up_at_once(tmp_path, server):
    server.faults["numbers"] = "cut 40000"
    get(tmp_path, published(f"{server.url}numbers"))
    assert (tmp_path / "tiny" / "numbers").read_bytes() == DATA
    assert server.sent() == [40_000, len(DATA) - 40_000]
    assert visible(tmp_path / "tiny") == ["numbers"]


@pytest.mark.parametrize("etag", ['"v1"', 'W/"v1"', None])
@pytest.mark.parametrize("fault", ["", "no version"])
def test_a_later_fetch_asks_only_for_the_rest(tmp_path, server, monkeypatch, etag, fault):
    """The version is the strong ETag, else the date, else none; the hash decides in the end."""
    if etag:
        server.etags["numbers"] = etag
    server.faults["numbers"] = f"{fault} cut 30000"
    wanted = published(f"{server.url}numbers")
    monkeypatch.setattr(transfer, "ATTEMPTS", 1)
    with pytest.raises(DataError, match="ended after 30000 of 102400"):
        get(tmp_path, wanted)
    version = etag if etag == '"v1"' else None if etag or fault else "Tue, 01 Jan 2019 00:00:00 GMT"
    assert visible(tmp_path / "tiny") == ["numbers.part", *(["numbers.part.etag"] if version else [])]
    get(tmp_path, wanted)
    assert (tmp_path / "tiny" / "numbers").read_bytes() == DATA
    assert server.requests[-1] == Asked("numbers", "bytes=30000-", version, len(DATA) - 30_000)
    assert visible(tmp_path / "tiny") == ["numbers"]


def start_with(tmp_path, part, version=None):
    """A part file of an earlier attempt."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "numbers.part").write_bytes(part)
    if version:
        (folder / "numbers.part.etag").write_text(version)


def test_another_version_is_downloaded_whole(tmp_path, server):
    server.etags["numbers"] = '"v2"'
    start_with(tmp_path, b"x" * 5000, '"v1"')
    get(tmp_path, published(f"{server.url}numbers"))
    assert (tmp_path / "tiny" / "numbers").read_bytes() == DATA
    assert server.requests == [Asked("numbers", "bytes=5000-", '"v1"', len(DATA))]


def test_a_server_without_ranges_sends_all(tmp_path, server):
    server.faults["numbers"] = "no ranges"
    start_with(tmp_path, DATA[:5000])
    get(tmp_path, published(f"{server.url}numbers"))
    assert (tmp_path / "tiny" / "numbers").read_bytes() == DATA
    assert server.sent() == [len(DATA)]


def test_a_part_of_another_file_costs_a_second_download(tmp_path, server):
    start_with(tmp_path, b"x" * 5000)
    get(tmp_path, published(f"{server.url}numbers"))
    assert (tmp_path / "tiny" / "numbers").read_bytes() == DATA
    assert server.sent() == [len(DATA) - 5000, len(DATA)]


def test_a_part_that_is_whole_is_only_checked(tmp_path, server):
    start_with(tmp_path, DATA)
    get(tmp_path, published(f"{server.url}numbers"))
    assert visible(tmp_path / "tiny") == ["numbers"]
    assert server.sent() == [0]


@pytest.mark.parametrize(("part", "fault"), [(DATA + b"more", ""), (DATA[:5000], "wrong range")])
def test_a_part_that_does_not_fit_is_dropped(tmp_path, server, part, fault):
    server.faults["numbers"] = fault
    start_with(tmp_path, part)
    get(tmp_path, published(f"{server.url}numbers"))
    assert (tmp_path / "tiny" / "numbers").read_bytes() == DATA


def test_ctrl_c_leaves_the_part_and_the_next_fetch_goes_on(tmp_path, server, monkeypatch):
    wanted = published(f"{server.url}numbers")
    read, calls = transfer._read, []

    def interrupted(response):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return read(response)

    monkeypatch.setattr(transfer, "_CHUNK", 20_000)
    monkeypatch.setattr(transfer, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        get(tmp_path, wanted)
    assert visible(tmp_path / "tiny") == ["numbers.part", "numbers.part.etag"]
    here = (tmp_path / "tiny" / "numbers.part").stat().st_size
    assert here > 0
    get(tmp_path, wanted)
    assert server.requests[-1].range == f"bytes={here}-"
    assert visible(tmp_path / "tiny") == ["numbers"]


# --- what is refused


def assert_refused(tmp_path, wanted, *words):
    with pytest.raises(DataError) as error:
        get(tmp_path, wanted)
    assert_one_line(error, tmp_path / "numbers", *words)


def test_a_wrong_hash_is_refused_and_not_kept(tmp_path, server):
    server.files["numbers"] = DATA[:-1] + b"!"
    assert_refused(tmp_path, published(f"{server.url}numbers"), "its MD5 is not the published one")
    assert visible(tmp_path / "tiny") == []
    assert len(server.requests) == 1


def test_the_wrong_size_is_refused_before_the_first_byte(tmp_path, server):
    server.files["numbers"] = bytes(40_000_000)
    assert_refused(tmp_path, published(f"{server.url}numbers"), "offers 40000000 bytes; 102400 were published")
    assert visible(tmp_path / "tiny") == []
    assert server.sent()[0] < 40_000_000


def test_more_than_the_limit_is_refused_where_no_size_is_published(tmp_path, server):
    wanted = published(f"{server.url}numbers", size=False, limit=100_000)
    assert_refused(tmp_path, wanted, "offers 102400 bytes; at most 100000")


def test_a_server_that_declares_no_size_is_stopped_at_the_published_one(tmp_path, server):
    server.files["numbers"], server.faults["numbers"] = DATA * 100, "no length"
    assert_refused(tmp_path, published(f"{server.url}numbers"), "sends more than 102400 bytes")
    assert visible(tmp_path / "tiny") == []
    assert server.sent()[0] < len(DATA) * 100


def test_a_server_that_declares_no_size_may_be_right(tmp_path, server):
    server.faults["numbers"] = "no length"
    get(tmp_path, published(f"{server.url}numbers"))
    assert (tmp_path / "tiny" / "numbers").read_bytes() == DATA


def test_redirects_in_a_circle(tmp_path, server):
    server.faults["numbers"] = "redirect numbers"
    assert_refused(tmp_path, published(f"{server.url}numbers"), "302")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/a", "data:,hello", "nonsense"])
def test_only_http_is_spoken(tmp_path, url):
    assert_refused(tmp_path, published(url), url)


@pytest.fixture
def closed_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return f"http://127.0.0.1:{port}/numbers"


def test_without_a_network_the_message_says_what_to_do(tmp_path, closed_port):
    folder = tmp_path / "tiny"
    assert_refused(
        tmp_path,
        published(closed_port),
        closed_port,
        "Connection refused",
        f"get numbers elsewhere, put that into {folder}",
    )
    assert visible(folder) == []


def test_every_address_that_failed_is_named(tmp_path, server, closed_port):
    wanted = published(closed_port, f"{server.url}gone")
    assert_refused(tmp_path, wanted, f"{closed_port} (Connection refused)", f"{server.url}gone (the server answers 404")


@pytest.fixture
def mute():
    """A server that accepts and says nothing, or as much as it is given to say."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def test_a_silent_server_is_given_up(tmp_path, mute, monkeypatch):
    monkeypatch.setattr(transfer, "TIMEOUT", 0.2)
    start = time.monotonic()
    assert_refused(tmp_path, published(f"http://127.0.0.1:{mute.getsockname()[1]}/x"), "timed out")
    assert time.monotonic() - start < 3


def test_a_slow_server_is_given_up(tmp_path, server, monkeypatch):
    monkeypatch.setattr(transfer, "PATIENCE", 0.0)
    monkeypatch.setattr(transfer, "SLOWEST", 1e12)
    monkeypatch.setattr(transfer, "ATTEMPTS", 1)
    assert_refused(tmp_path, published(f"{server.url}numbers"), "bytes a second")


def test_a_disk_that_is_too_small_is_noticed_before_the_first_byte(tmp_path, server, monkeypatch):
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda path: SimpleNamespace(free=5))
    with pytest.raises(DataError, match="has 5 bytes free; 102400 are needed"):
        get(tmp_path, published(f"{server.url}numbers"))


def test_a_disk_that_fills_up(tmp_path, server, monkeypatch):
    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(transfer.os, "fsync", full)
    with pytest.raises(DataError) as error:
        get(tmp_path, published(f"{server.url}numbers"))
    assert_one_line(error, tmp_path / "numbers.part", "No space left")


def test_a_folder_that_cannot_be_made(tmp_path, server):
    (tmp_path / "tiny").write_text("a file")
    with pytest.raises(DataError, match="cannot be used"):
        get(tmp_path, published(f"{server.url}numbers"))


def test_another_process_at_it(tmp_path, server):
    with locked(tmp_path / "tiny"), pytest.raises(RunError, match="in use by another process"):
        get(tmp_path, published(f"{server.url}numbers"))
    assert server.requests == []


def test_an_unknown_name():
    with pytest.raises(UsageError, match="data set: unknown name 'cifar'; did you mean 'cifar1"):
        fetch("cifar")
