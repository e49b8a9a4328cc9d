"""Every command, with any arguments: a status of 0, 1 or 2, one line on an error, nothing written elsewhere."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from fuzzing.arguments import argument_lists, commands
from fuzzing.command import check_answer, fedoptax, tree_of, untrained
from fuzzing.run_targets import comparison, files, write
from fuzzing.target import check

EXAMPLES = int(os.environ.get("FEDOPTAX_FUZZ_EXAMPLES", "60"))
COMMANDS = commands()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sound run, a comparison and a file of examples."""
    folder = tmp_path_factory.mktemp("cli")
    write(folder / "runs" / "one", files())
    write(folder / "runs" / "pair", {"compare.json": json.dumps(comparison()).encode()})
    (folder / "data.csv").write_text("f0,f1,client,label\n" + "1,2,a,x\n3,4,b,y\n" * 6)
    return folder


@pytest.fixture(scope="module", autouse=True)
def of_ones_own(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("FEDOPTAX_DATA", raising=False)
        patch.delenv("FEDOPTAX_DEBUG", raising=False)
        yield


def answer_and_check(place: Path, work: Path, arguments: list[str]) -> None:
    """Runs a command in a fresh copy of `place` and checks the law."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(place, work)
    before = tree_of(work)
    here = Path.cwd()
    os.chdir(work)
    try:
        with untrained():
            answer = fedoptax(*arguments)
    finally:
        os.chdir(here)
    check_answer(answer, arguments)
    after = tree_of(work)
    changed = {name for name in before.keys() | after.keys() if before.get(name, 0) != after.get(name, 0)}
    if answer.status == 2:
        check(not changed, f"{arguments!r} is refused and leaves {sorted(changed)[:5]}")
    foreign = {name for name in changed if Path(name).parts[0] in ("data.csv",)}
    check(not foreign, f"{arguments!r} changes {foreign}")
    check({path.name for path in work.parent.iterdir()} == {work.name}, f"{arguments!r} writes beside its folder")


@given(argument_lists(COMMANDS))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_arguments(place: Path, tmp_path_factory: pytest.TempPathFactory, arguments: list[str]) -> None:
    root = place.parent / "fuzz-cli"
    root.mkdir(exist_ok=True)
    answer_and_check(place, root / "work", arguments)
