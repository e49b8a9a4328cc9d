"""Archives are unpacked where the readers look; every data set of the registry can be fetched or says how."""

import hashlib
import multiprocessing
import re
from urllib.parse import urlsplit

import pytest

from fedoptax.data.fetch import fetch
from fedoptax.data.registry import DATA_SETS, DataSet, Download, File
from fedoptax.data.verify import recorded
from fedoptax.errors import DataError, RunError
from file_server import serving
from files import assert_one_line
from hostile_archives import HOSTILE, LIMIT, member, tar_bytes

CONTENT = {"deep/train": b"0123456789" * 300, "deep/test": b"abc" * 100, "readme": b"not wanted"}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server():
    with serving() as content:
        content.files["tiny.tar"] = tar_bytes([(member(name, len(data)), data) for name, data in CONTENT.items()])
        yield content


def published(server, *files, name="tiny.tar"):
    digest = hashlib.sha256(server.files[name]).hexdigest()
    download = Download(name, (f"{server.url}{name}",), f"sha256:{digest}", files=files, unpacked_limit=LIMIT)
    return {"tiny": DataSet((download,), {})}


def get(tmp_path, data_sets):
    return fetch("tiny", tmp_path, data_sets=data_sets, say=lambda text: None)


def files(folder):
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != ".lock"
    )


TRAIN, TEST = File("deep/train"), File("deep/test")


def test_an_archive_is_unpacked_and_only_what_is_wanted_is_kept(tmp_path, server):
    folder = get(tmp_path, published(server, TRAIN, TEST))
    assert files(folder) == ["SHA256SUMS", "deep/test", "deep/train"]
    assert (folder / "deep" / "train").read_bytes() == CONTENT["deep/train"]


def test_hashes_that_are_not_published_are_recorded(tmp_path, server):
    folder = get(tmp_path, published(server, TRAIN, TEST))
    sums = {name: hashlib.sha256(CONTENT[name]).hexdigest() for name in ("deep/train", "deep/test")}
    assert recorded(folder) == sums


def test_hashes_that_are_published_are_not_recorded(tmp_path, server):
    md5 = hashlib.md5(CONTENT["deep/train"]).hexdigest()
    assert files(get(tmp_path, published(server, File("deep/train", f"md5:{md5}")))) == ["deep/train"]


def test_a_file_that_was_lost_is_fetched_again(tmp_path, server):
    wanted = published(server, TRAIN, TEST)
    folder = get(tmp_path, wanted)
    (folder / "deep" / "test").unlink()
    get(tmp_path, wanted)
    assert (folder / "deep" / "test").read_bytes() == CONTENT["deep/test"]
    assert len(server.requests) == 2
    get(tmp_path, wanted)
    assert len(server.requests) == 2


def test_an_archive_put_there_by_hand_is_unpacked_without_a_network(tmp_path, server):
    wanted = published(server, TRAIN)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "tiny.tar").write_bytes(server.files["tiny.tar"])
    folder = get(tmp_path, wanted)
    assert (folder / "deep" / "train").read_bytes() == CONTENT["deep/train"]
    assert server.requests == []


def test_what_a_killed_process_left_is_no_obstacle(tmp_path, server):
    left = tmp_path / "tiny" / ".tiny.tar.unpacked"
    left.mkdir(parents=True)
    (left / "half").write_text("half")
    assert files(get(tmp_path, published(server, TRAIN))) == ["SHA256SUMS", "deep/train"]


def test_an_archive_without_a_wanted_file_leaves_nothing(tmp_path, server):
    with pytest.raises(DataError) as error:
        get(tmp_path, published(server, TRAIN, File("deep/valid")))
    assert_one_line(error, tmp_path / "tiny.tar", "lacks deep/valid")
    assert files(tmp_path / "tiny") == ["tiny.tar"]


def test_an_archive_with_another_file_leaves_nothing(tmp_path, server):
    with pytest.raises(DataError) as error:
        get(tmp_path, published(server, TRAIN, File("deep/test", f"md5:{'0' * 32}")))
    assert_one_line(error, tmp_path / "tiny.tar", "its deep/test is not the published one")
    assert files(tmp_path / "tiny") == ["tiny.tar"]


@pytest.mark.parametrize("kind", ["a name above", "a symbolic link", "a gzip bomb", "a truncated gzip", "no archive"])
def test_a_hostile_archive_leaves_only_itself(tmp_path, server, kind):
    server.files["tiny.tar"] = HOSTILE[kind][0]
    with pytest.raises(DataError) as error:
        get(tmp_path, published(server, File("good")))
    assert_one_line(error, tmp_path / "tiny.tar")
    assert files(tmp_path / "tiny") == ["tiny.tar"]


def _fetch(folder, data_sets, results):
    try:
        results.put(str(fetch("tiny", folder, data_sets=data_sets, say=lambda text: None)))
    except RunError as error:
        results.put(str(error))


def test_two_processes_at_once(tmp_path, server):
    """One downloads; the other says so, or finds everything done."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    arguments = (tmp_path, published(server, TRAIN, TEST), results)
    processes = [context.Process(target=_fetch, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    said = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert said <= {str(tmp_path / "tiny"), f"'{tmp_path / 'tiny'}' is in use by another process"}
    assert str(tmp_path / "tiny") in said
    assert files(tmp_path / "tiny") == ["SHA256SUMS", "deep/test", "deep/train"]
    assert len(server.requests) == 1


# --- the registry


def test_femnist_says_how_to_make_it(tmp_path):
    with pytest.raises(DataError) as error:
        fetch("femnist", tmp_path)
    assert_one_line(error, tmp_path / "femnist", "preprocess.sh", str(tmp_path / "femnist" / "train"))
    assert list(tmp_path.iterdir()) == []


def test_every_data_set_of_the_papers_is_in_the_registry():
    names = "mnist qmnist fashion-mnist cifar10 cifar100 emnist shakespeare stackoverflow wikitext-2 femnist"
    assert set(DATA_SETS) == set(names.split())


@pytest.mark.parametrize("name", [name for name, entry in DATA_SETS.items() if entry.downloads])
def test_the_registry_is_complete(name):
    for download in DATA_SETS[name].downloads:
        assert re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", download.hash)
        assert download.urls
        for url in download.urls:
            parts = urlsplit(url)
            assert parts.scheme in ("http", "https")
            assert parts.path.endswith(f"/{download.name}")
        assert download.size is None or 0 < download.size < download.limit
        for file in download.wanted:
            assert file.hash is None or re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", file.hash)
            assert not file.path.startswith(("/", "."))


def test_hashes_of_different_files_differ():
    hashes = [file.hash for entry in DATA_SETS.values() for item in entry.downloads for file in (item, *item.files)]
    known = [digest for digest in hashes if digest]
    assert len(set(known)) == len(known)
