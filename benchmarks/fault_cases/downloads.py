"""`kill -9` of `fedoptax data fetch` in mid-download from the loopback; the next fetch asks for the rest."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from fault_cases.program import Done, Program, Row, finish, watch

TESTS = Path(__file__).parents[2] / "tests"
KILLS = 10
SIZE = 30_000_000
FETCH = """
import sys
from fedoptax.cli.main import main
from fedoptax.data.registry import DATA_SETS, DataSet, Download
url, digest, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
DATA_SETS["mnist"] = DataSet((Download("big.bin", (url,), "sha256:" + digest, size),), {})
main(["data", "fetch", "mnist", "--data-dir", sys.argv[4]])
"""


def run(program: Program, seed: int, part: float) -> list[Row]:
    """Kills in mid-download, and the tests of downloads."""
    sys.path.insert(0, str(TESTS))
    from file_server import serving

    rng = np.random.default_rng([seed, 7])
    data = rng.bytes(SIZE)
    row = Row("download", "kill -9 of data fetch, then fetch again (loopback)")
    with serving() as server:
        server.files["big.bin"] = data
        for i in range(max(2, round(KILLS * part))):
            place = program.folder / f"data-{i}"
            part_file = place / "mnist" / "big.bin.part"
            arguments = [server.url + "big.bin", hashlib.sha256(data).hexdigest(), str(SIZE), str(place)]
            process = _start(program, arguments)
            wanted = int(rng.uniform(0.02, 0.9) * SIZE)
            watch(process, lambda f=part_file, n=wanted: f.is_file() and f.stat().st_size >= n)
            process.kill()
            finish(process)
            there = part_file.stat().st_size if part_file.is_file() else None
            time.sleep(0.2)
            server.requests.clear()
            done: Done = finish(_start(program, arguments))
            asked = [request.range for request in server.requests]
            whole = (place / "mnist" / "big.bin").is_file() and (place / "mnist" / "big.bin").read_bytes() == data
            going_on = there is None or asked == [f"bytes={there}-"]
            note = f"killed after {there} bytes, then asked {asked}: {done}"
            row.count("survived" if done.status == 0 and whole and going_on else "lost", note)
    return [row, _tests(program)]


def _start(program: Program, arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, *arguments], cwd=program.folder, env=program.environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def _tests(program: Program) -> Row:
    """The suite of downloads against a misbehaving server, by its own count."""
    row = Row("download", "tests/data/test_fetch.py and test_fetch_data_sets.py (a misbehaving server on the loopback)")
    files = [str(TESTS / name) for name in ("test_fetch.py", "test_fetch_data_sets.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=TESTS.parent, env=program.environment, capture_output=True, text=True,
    )  # fmt: skip
    found = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    row.survived, row.lost = found.get("passed", 0), found.get("failed", 0) + found.get("error", 0)
    row.tried = row.survived + row.lost
    if done.returncode or not row.tried:
        row.lost, row.tried = max(row.lost, 1), max(row.tried, 1)
        row.notes.append(done.stdout[-300:])
    return row
