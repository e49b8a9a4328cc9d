"""The cache of decoded data sets: keyed by content, shared by processes, rebuilt when damaged, never needed."""

import multiprocessing
import os
import shutil

import numpy as np
import pytest

from damaged_stores import DAMAGE, change
from fedoptax.data import cache as caching
from fedoptax.data.cache import cache_dir, cached
from fedoptax.data.store import StoreWriter
from fedoptax.errors import DataError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def build(tmp_path, monkeypatch):
    """A source file and what decodes it; `build.calls` counts."""
    monkeypatch.setenv("FEDOPTAX_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "source"
    source.write_bytes(b"123")

    def build(writer: StoreWriter):
        build.calls += 1
        writer.append("x", np.frombuffer(source.read_bytes(), np.uint8))

    build.calls, build.source = 0, source
    return build


def test_the_second_time_is_read_from_the_cache(build):
    for _ in range(3):
        assert cached("set", [build.source], 1, build)["x"].tobytes() == b"123"
    assert build.calls == 1


def test_a_changed_source_is_decoded_again(build):
    cached("set", [build.source], 1, build)
    build.source.write_bytes(b"124")
    assert cached("set", [build.source], 1, build)["x"].tobytes() == b"124"
    assert build.calls == 2


def test_a_moved_source_is_not(build, tmp_path):
    cached("set", [build.source], 1, build)
    moved = build.source.rename(tmp_path / "moved")
    cached("set", [moved], 1, build)
    assert build.calls == 1


def test_another_name_version_or_order_of_files_is_another_cache(build, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"4")
    both = [build.source, other]
    for name, files, version in [
        ("a", both, 1),
        ("b", both, 1),
        ("a", both, 2),
        ("a", both[::-1], 1),
        ("a", both[:1], 1),
    ]:
        cached(name, files, version, build)
    assert build.calls == 5


def test_the_cache_may_be_deleted_while_it_is_in_use(build):
    arrays = cached("set", [build.source], 1, build)
    shutil.rmtree(cache_dir())
    assert arrays["x"].tobytes() == b"123"
    assert cached("set", [build.source], 1, build)["x"].tobytes() == b"123"
    assert build.calls == 2


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_cache_is_built_again(build, kind):
    cached("set", [build.source], 1, build)
    (folder,) = cache_dir().iterdir()
    name, edit = DAMAGE[kind]
    change(folder / name, edit)
    assert cached("set", [build.source], 1, build)["x"].tobytes() == b"123"
    assert names(cache_dir()) == [folder.name]


def test_a_source_that_cannot_be_read(build):
    build.source.unlink()
    with pytest.raises(DataError, match="source: cannot be read: No such file"):
        cached("set", [build.source], 1, build)
    assert not cache_dir().exists()


def test_a_build_that_fails_leaves_nothing(build):
    def fail(writer):
        writer.append("x", np.zeros(3))
        raise DataError("broken")

    with pytest.raises(DataError, match="broken"):
        cached("set", [build.source], 1, fail)
    assert names(cache_dir()) == []


@pytest.mark.parametrize("obstacle", ["a file in the way", "no permission"])
def test_without_a_writable_folder_everything_works_uncached(build, tmp_path, monkeypatch, obstacle):
    if obstacle == "a file in the way":
        monkeypatch.setenv("FEDOPTAX_CACHE", str(build.source / "cache"))
    else:
        monkeypatch.setattr(caching.os, "access", lambda path, mode: False)
    for _ in range(2):
        assert cached("set", [build.source], 1, build)["x"].tobytes() == b"123"
    assert build.calls == 2


def test_the_users_cache_folder_is_the_default(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FEDOPTAX_CACHE", raising=False)
    assert cache_dir().parts[-2:] == ("fedoptax", "arrays")


def _cached_slowly(source, barrier, results):
    def build(writer):
        barrier.wait(60)  # both build at the same time
        writer.append("x", np.frombuffer(source.read_bytes(), np.uint8))

    results.put(cached("set", [source], 1, build)["x"].tobytes())


def test_two_processes_at_once(build):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_cached_slowly, args=(build.source, barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [b"123", b"123"]
    for process in processes:
        process.join()
    assert len(names(cache_dir())) == 1
    cached("set", [build.source], 1, build)
    assert build.calls == 0


def test_a_large_file_is_told_by_its_ends_its_size_and_its_time(build, monkeypatch):
    monkeypatch.setattr(caching, "_LARGE", 10)
    monkeypatch.setattr(caching, "_ENDS", 4)
    keys = set()
    for content in (b"0123456789abcdef", b"0123456789abcdeX", b"X123456789abcdef", b"0123456789abcdefg"):
        build.source.write_bytes(content)
        os.utime(build.source, ns=(0, 0))
        cached("set", [build.source], 1, build)
        keys |= set(names(cache_dir()))
    assert len(keys) == build.calls == 4
    os.utime(build.source, ns=(0, 1))
    cached("set", [build.source], 1, build)
    assert build.calls == 5
