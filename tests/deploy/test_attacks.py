"""The attacks of benchmarks/network_attacks.py end as its page says. Real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from federations import processes_of, wait_until
from fedoptax._files import read_json

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_bad_replies_and_false_nodes_end_as_on_the_page(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "network_attacks.py"), "--only", "replies,places", "--work"]
    subprocess.run([*command, str(tmp_path)], check=True, timeout=1100)
    wait_until(lambda: not processes_of(tmp_path), 10, "the processes end")
    page = (BENCHMARKS / "results" / "network-attacks.md").read_text(encoding="utf-8")
    for name in ("replies", "places"):
        for attack, sent, outcome, line in read_json(tmp_path / f"{name}.json")["rows"]:
            assert f"| {attack} | {sent} | {outcome} |" in page
            assert line or "counts" in outcome
            assert ("counts" in outcome) == (attack == "last upload")
