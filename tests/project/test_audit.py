"""The dependency audit: what it makes of pip-audit's reports, recorded in its form."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "audit.py"


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = spec_from_file_location("audit", TOOL)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOUND = {"name": "numpy", "version": "2.4.6", "vulns": []}
SKIPPED = {"name": "jax", "skip_reason": "Dependency not found on PyPI and could not be audited: jax (0.10.2)"}
FLAW = {"id": "PYSEC-2026-1", "fix_versions": ["3.1.6", "3.2"], "aliases": ["CVE-2026-1", "GHSA-aaaa-bbbb-cccc"]}
BROKEN = {"name": "jinja2", "version": "3.1.5", "vulns": [FLAW]}


def report(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": list(packages), "fixes": []})


def test_a_clean_report(audit: ModuleType) -> None:
    status, lines = audit.judge(report(SOUND, SOUND), [])
    assert (status, lines) == (0, ["audit: no known vulnerability in 2 packages"])


def test_a_known_vulnerability_fails(audit: ModuleType) -> None:
    status, lines = audit.judge(report(SOUND, BROKEN, SKIPPED), [])
    assert status == 1
    assert lines[0] == (
        "audit: vulnerable: jinja2 3.1.5: PYSEC-2026-1, CVE-2026-1, GHSA-aaaa-bbbb-cccc; fixed in 3.1.6, 3.2"
    )


@pytest.mark.parametrize("name", ["PYSEC-2026-1", "CVE-2026-1", "GHSA-aaaa-bbbb-cccc"])
def test_one_that_was_looked_at_passes_by_any_of_its_names(audit: ModuleType, name: str) -> None:
    allowed = audit.read_allowed(f"# a comment\n\n{name} 2026-11-21 templates are ours alone\n")
    status, lines = audit.judge(report(SOUND, BROKEN), allowed)
    assert status == 0 and "looked at 2026-11-21: templates are ours alone" in lines[0]
    assert audit.judge(report(BROKEN | {"vulns": [FLAW, FLAW | {"id": "X-2", "aliases": []}]}), allowed).status == 1


def test_an_allowance_that_nothing_needs_is_told(audit: ModuleType) -> None:
    status, lines = audit.judge(report(SOUND), audit.read_allowed("CVE-2020-1 2026-11-21 of a package of old\n"))
    assert status == 0 and "lists CVE-2020-1, which no locked package has any more" in lines[0]


@pytest.mark.parametrize("text", ["CVE-1", "CVE-1 2026-11-21", "CVE-1 soon because of it",
"CVE-1 2026-13-45 because of it",
                                  "CVE-1 2026-11-21 short",
                                  "A 2026-11-21 because of it\nA 2026-11-21 because of it"])  # fmt: skip
def test_an_allowance_without_date_or_reason_is_refused(audit: ModuleType, text: str) -> None:
    with pytest.raises(ValueError, match=r"line|month|twice"):
        audit.read_allowed(text)


@pytest.mark.parametrize(
    "text",
    [
        report(SKIPPED, SKIPPED),
        "",
        "ERROR:pip_audit: Failed to connect to https://pypi.org",
        "{}",
        report(),
        "[1]",
        "null",
    ],
)
def test_without_advisories_nothing_was_audited_and_nothing_is_claimed(audit: ModuleType, text: str) -> None:
    status, lines = audit.judge(text, [])
    assert status == 3 and "nothing was audited" in lines[0] and len(lines) == 1


def test_packages_that_were_left_out_are_named(audit: ModuleType) -> None:
    status, lines = audit.judge(report(SOUND, SKIPPED), [])
    assert (status, lines) == (3, ["audit: 1 of 2 packages could not be audited: jax"])


@pytest.mark.parametrize(("packages", "status"), [((SOUND,), 0), ((BROKEN,), 1), ((SKIPPED,), 3)])
def test_the_command_has_these_statuses(tmp_path: Path, packages: tuple[dict[str, Any], ...], status: int) -> None:
    path = tmp_path / "report.json"
    path.write_text(report(*packages))
    done = subprocess.run(
        [sys.executable, str(TOOL), "--report", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert bool(done.stdout) == (status == 0) and bool(done.stderr) == (status != 0)


def test_without_pip_audit_the_command_says_so(audit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = subprocess.CompletedProcess([], 1, "", "python: No module named pip_audit\n")
    monkeypatch.setattr(audit.subprocess, "run", lambda *given, **more: missing)
    monkeypatch.setattr(sys, "argv", ["audit.py"])
    assert audit.main() == 2


def test_the_list_of_allowances_can_be_read(audit: ModuleType) -> None:
    assert isinstance(audit.read_allowed(audit.ALLOWED.read_text(encoding="utf-8")), list)
