"""Data sets read beside the imports of a command."""

from __future__ import annotations

import gzip
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from test_sources import idx_bytes, tiny_mnist, write

from fedoptax.data import ahead, images
from fedoptax.data.gzipped import Gzipped
from fedoptax.errors import DataError


def test_what_was_begun_is_read_once_and_beside() -> None:
    threads = []

    def read(number: int) -> int:
        threads.append(threading.current_thread())
        return number + 1

    ahead.begin(read, 1)
    assert ahead.result(read, 1) == 2
    assert threads[0] is not threading.main_thread()
    assert ahead.result(read, 1) == 2  # taken before: read again, here
    assert ahead.result(read, 5) == 6  # never begun
    assert threads[1:] == [threading.main_thread()] * 2


def test_what_is_wrong_is_told_where_the_result_is_asked_for() -> None:
    def read() -> None:
        raise DataError("a.gz: truncated")

    ahead.begin(read)
    with pytest.raises(DataError, match="truncated"):
        ahead.result(read)


@pytest.mark.parametrize("partition", [None, "iid", "writers"])
def test_images_read_ahead_are_those_that_are_read(tmp_path: Path, partition: str | None) -> None:
    tiny_mnist(tmp_path)
    tiny_mnist(tmp_path, "qmnist")
    images.read_ahead("mnist", tmp_path, partition)
    begun = list(ahead._begun)
    found = images.read(images.mnist, tmp_path, partition)
    assert len(begun) == 1 and not ahead._begun  # the same arguments: nothing was read twice
    expected = images._wanted(images.mnist, partition)(tmp_path)
    np.testing.assert_array_equal(found.train["x"], expected.train["x"])
    assert (found.train_groups is not None) == (partition == "writers")


def test_other_tasks_are_not_read_ahead() -> None:
    for task in ("digits", "shakespeare", "file:a.csv", "no such task"):
        images.read_ahead(task, None, None)
    assert not ahead._begun


def test_reading_ahead_imports_no_jax() -> None:
    code = (
        "import sys, fedoptax.data.images as i; i.read_ahead('mnist', '/nowhere', None); sys.exit('jax' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_named_task_of_images_is_read_by_its_own_loader() -> None:
    from fedoptax.tasks import TASKS

    assert images._TASKS.keys() <= TASKS.keys()


# --- gzip by large pieces


def test_gzip_of_several_members_and_padding(tmp_path: Path) -> None:
    parts = [np.random.default_rng(i).integers(0, 256, 50_000, np.uint8).tobytes() for i in range(3)]
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(parts[0]) + gzip.compress(b"") + gzip.compress(parts[1] + parts[2]) + bytes(512))
    with path.open("rb") as file:
        assert Gzipped(file).read() == b"".join(parts)


@pytest.mark.parametrize("count", [1, 7, 8192, 10**6])
def test_gzip_is_unpacked_as_it_is_read(tmp_path: Path, count: int) -> None:
    """However many bytes are asked for at once, they are all there; none is unpacked before."""
    data = idx_bytes(np.arange(30_000 if count == 1 else 300_000).astype(np.uint8))
    path = write(tmp_path / "a.gz", data)
    found = bytearray()
    with path.open("rb") as file:
        stream = Gzipped(file)
        while piece := stream.read(count):
            assert len(piece) <= count
            found += piece
    assert found == data


@pytest.mark.parametrize("cut", [5, 12, -9, -8, -1])
def test_truncated_gzip_is_told_from_a_whole_one(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(range(256)) * 100)[:cut])
    with path.open("rb") as file, pytest.raises(EOFError):
        Gzipped(file).read()


# Named, as a test's name may not hold what a gzip's header does: the time, of which workers do not agree.
AFTER = {"other bytes": b"more", "after padding": b"\0\0more", "a wrong length": gzip.compress(b"")[:-1] + b"\1"}


@pytest.mark.parametrize("after", AFTER.values(), ids=AFTER)
def test_damage_after_a_member_is_told(tmp_path: Path, after: bytes) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"content") + after)
    with path.open("rb") as file, pytest.raises(zlib.error):
        Gzipped(file).read()
