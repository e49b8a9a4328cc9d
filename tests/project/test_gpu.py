"""The GPU recipe, which runs on a CPU with little work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("FEDOPTAX_DATA") or ROOT.parent / "shared" / "data")


@pytest.mark.long
@pytest.mark.skipif(not (DATA / "cifar10").is_dir(), reason="CIFAR-10 is not in FEDOPTAX_DATA")
def test_the_gpu_recipe_writes_all_parts(tmp_path: Path) -> None:
    train = "--model logistic --num-clients 50 --cohort-size 2 --rounds 2 --eval-every 1"
    arguments = ["--minutes", "8", "--tests", "tests/test_errors.py", "--shapes", "tiny", "--peers", ""]
    subprocess.run(
        [sys.executable, "benchmarks/gpu.py", *arguments, "--run", train, "--out", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"FEDOPTAX_DATA": str(DATA)},
        check=True,
        timeout=600,
    )
    (page,) = tmp_path.iterdir()
    text = page.read_text(encoding="utf-8")
    assert " passed" in text and "FAILED" not in text
    assert "| fedoptax |" in text
    assert "\n2 rounds; " in text and "best test accuracy 0." in text
