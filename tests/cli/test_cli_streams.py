"""What the command line prints: help as written, to any stream or to none; and no argument that is not text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedoptax.cli.main import main

LISTED = ["list", "algorithms"]
MAIN = "from fedoptax.cli.main import main; main()"


def fedoptax(*arguments: str, closed: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own, with redirections of the shell that close file descriptors."""
    command = [sys.executable, "-c", MAIN, *map(os.fsencode, arguments)]
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    return subprocess.run(
        [*shell, *command], capture_output=True, check=False, env=os.environ | environment, timeout=120
    )


@pytest.mark.parametrize("command", [["report"], ["resume"], ["data", "fetch"], ["run"], ["deploy", "run"]])
def test_help_tells_defaults_plainly_and_what_arguments_are(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    said = capsys.readouterr().out
    assert "\\[" not in said
    if "Arguments:" in said:
        [line] = said.split("Arguments:\n")[1].split("\n\n")[0].replace("\n   ", "").splitlines()
        name, told = line.strip().split(maxsplit=1)
        assert name.isupper()
        assert not told.startswith("["), line


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_fail_no_command(closed: str, tmp_path: Path) -> None:
    small = ["--model", "logistic", "--num-clients", "4", "--cohort-size", "2", "--rounds", "1"]
    done = fedoptax("run", *small, "--out", str(tmp_path / "a"), closed=closed)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a" / "params.npz").is_file()
    assert fedoptax("run", "--seed", "x", closed=closed).returncode == 2


def test_a_stream_in_ascii_gets_escapes() -> None:
    whole = fedoptax(*LISTED, PYTHONIOENCODING="utf-8")
    done = fedoptax(*LISTED, PYTHONIOENCODING="ascii")
    assert (whole.returncode, done.returncode) == (0, 0)
    assert "Δ" in whole.stdout.decode()
    assert "\\u0394" in done.stdout.decode("ascii")


def test_an_argument_that_is_no_text_is_refused(tmp_path: Path) -> None:
    done = fedoptax("run", "--out", f"{tmp_path}/a\udcff")
    assert done.returncode == 2
    assert done.stderr.decode().count("\n") == 1
    assert "a\\udcff' given, allowed is text in UTF-8" in done.stderr.decode()
    assert list(tmp_path.iterdir()) == []
