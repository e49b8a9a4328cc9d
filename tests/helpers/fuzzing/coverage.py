"""Cases that atheris chooses by which branches of the package they reach, where it is installed."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from typing import Any

from fuzzing.mutations import mutate
from fuzzing.worker import Runner, limit_memory


def run(given: argparse.Namespace) -> None:
    """Fuzzes one target under libFuzzer; prints the same line of JSON as the plain loop."""
    import atheris

    with atheris.instrument_imports(include=["fedoptax"], enable_loader_override=False):
        from fuzzing.target import targets

        runner = Runner(targets()[given.target](), given.scratch)
        runner.sound()  # imports what the cases need
    limit_memory(given.memory)
    runner.begin()
    target, end = runner.target, time.monotonic() + given.seconds
    corpus = given.scratch / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)

    def one(data: bytes) -> None:
        runner.case(given.first + runner.cases, data)
        if runner.cases >= given.cases or time.monotonic() > end:
            print(json.dumps(runner.summary()), flush=True)
            sys.stdout.flush()
            os._exit(0)  # libFuzzer ends the process in its own way, with a status of its own

    def mutator(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return atheris.Mutate(data, most)
        return mutate(rng, (data or target.seeds[0], *target.seeds), target.words, most)

    arguments = [sys.argv[0], str(corpus), f"-seed={given.seed + given.first + 1}", f"-max_len={target.largest}"]
    arguments += ["-rss_limit_mb=0", "-timeout=100000", "-handle_segv=0", "-verbosity=0"]
    _setup(atheris, arguments, one, mutator)


def _setup(atheris: Any, arguments: list[str], one: Any, mutator: Any) -> None:
    atheris.Setup(arguments, one, custom_mutator=mutator)
    atheris.Fuzz()
