"""How long the data sets take to load: decoding them the first time, and from the cache.

    python benchmarks/loading.py DATA_DIR

Wall seconds, each in a process of its own with an empty cache first, imports not counted. DATA_DIR as `--data-dir`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

LOADS = {
    "mnist": "from fedoptax.data.sources.mnist import load; work = lambda: load(root, writers=True)",
    "fashion-mnist": "from fedoptax.data.sources.fashion_mnist import load; work = lambda: load(root)",
    "cifar10": "from fedoptax.data.sources.cifar import load10; work = lambda: load10(root)",
    "femnist": "from fedoptax.data.sources.femnist import load; work = lambda: load(root)",
    "shakespeare": "import h5py; from fedoptax.data.sources.shakespeare import load; work = lambda: load(root)",
    "wikitext-2": "from fedoptax.data.sources.wikitext import load; work = lambda: load(root)",
}
TIMED = "begun = time.perf_counter(); source = work(); print(time.perf_counter() - begun)"


def seconds(name: str, root: str, cache: str) -> float:
    code = f"import sys, time; root = {root!r}; {LOADS[name]}; {TIMED}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"FEDOPTAX_CACHE": cache}, capture_output=True, text=True
    )
    return float(done.stdout) if done.returncode == 0 else float("nan")


def main(root: str) -> None:
    print("| data set | first, s | again, s |\n|---|---|---|")
    for name in LOADS:
        with tempfile.TemporaryDirectory() as cache:
            first, again = seconds(name, root, cache), seconds(name, root, cache)
            print(f"| {name} | {first:.2f} | {again:.2f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
