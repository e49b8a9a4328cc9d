"""Known vulnerabilities of the locked dependencies; run by a Python that has pip-audit (`make audit` makes one).

Usage: python tools/audit.py [--report FILE]

Exit status: 0 every locked package was audited and nothing is known that `audit-allowed.txt` does not list; 1 something
is, or that file is wrong; 2 pip-audit is missing; 3 the advisories could not be reached for some packages or for all of
them, and nothing is known of the others: that is not a clean bill.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LOCK, ALLOWED = ROOT / "requirements.lock", Path(__file__).with_name("audit-allowed.txt")
CLEAN, VULNERABLE, UNUSABLE, UNREACHED = 0, 1, 2, 3


class Allowance(NamedTuple):
    """A vulnerability that somebody has looked at: its id, when, and why it does not matter here."""

    id: str
    reviewed: date
    reason: str


class Verdict(NamedTuple):
    """An exit status and the lines that explain it."""

    status: int
    lines: list[str]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, help="judge this JSON report of pip-audit instead of making one")
    given = parser.parse_args()
    try:
        allowed = read_allowed(ALLOWED.read_text(encoding="utf-8"))
    except ValueError as error:
        print(f"audit: {ALLOWED.name}: {error}", file=sys.stderr)
        return VULNERABLE
    report = given.report.read_text(encoding="utf-8") if given.report else run()
    if report is None:
        print("audit: pip-audit is not installed for this Python; see `make audit`", file=sys.stderr)
        return UNUSABLE
    verdict = judge(report, allowed)
    print("\n".join(verdict.lines), file=sys.stderr if verdict.status else sys.stdout)
    return verdict.status


def run() -> str | None:
    """pip-audit's report on the lock, as JSON; nothing is installed or resolved. None without pip-audit."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--require-hashes", "--disable-pip"]
    command += ["--format", "json", "--desc", "off", "--progress-spinner", "off"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No module named pip_audit" in done.stderr:
        return None
    return done.stdout or done.stderr


def read_allowed(text: str) -> list[Allowance]:
    """The lines `ID YYYY-MM-DD REASON`; empty ones and those that begin with # are passed over.

    Raises:
      ValueError: a line is of another form, or an id is there twice.
    """
    found: dict[str, Allowance] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"(\S+)\s+(\d{4}-\d{2}-\d{2})\s+(\S.{9,})", line.strip())
        if match is None:
            raise ValueError(f"line {number}: {line!r} given, allowed is ID YYYY-MM-DD REASON (ten characters or more)")
        if match[1] in found:
            raise ValueError(f"line {number}: {match[1]} is there twice")
        found[match[1]] = Allowance(match[1], date.fromisoformat(match[2]), match[3])
    return list(found.values())


def judge(report: str, allowed: list[Allowance]) -> Verdict:
    """What a report of pip-audit says.

    Args:
      report: its JSON; anything else is what it said when it could not reach the advisories.
      allowed: the vulnerabilities that were looked at.
    """
    packages = _packages(report)
    if packages is None:
        last = (report.strip().splitlines() or ["it said nothing"])[-1]
        return Verdict(
            UNREACHED, [f"audit: advisories could not be reached: nothing was audited (pip-audit: {last[:200]})"]
        )
    skipped = [package["name"] for package in packages if "vulns" not in package]
    audited = len(packages) - len(skipped)
    if not audited:
        return Verdict(
            UNREACHED, [f"audit: advisories could not be reached: nothing was audited ({len(skipped)} packages)"]
        )
    excused = {allowance.id: allowance for allowance in allowed}
    lines, known, used = [], 0, set()
    for package in packages:
        for vulnerability in package.get("vulns", []):
            ids = [vulnerability["id"], *vulnerability.get("aliases", [])]
            listed = [i for i in ids if i in excused]
            used.update(listed)
            what = f"{package['name']} {package['version']}: {', '.join(ids)}"
            if listed:
                why = excused[listed[0]]
                lines.append(f"audit: allowed: {what} (looked at {why.reviewed}: {why.reason})")
            else:
                known += 1
                fixed = ", ".join(vulnerability.get("fix_versions", [])) or "no version"
                lines.append(f"audit: vulnerable: {what}; fixed in {fixed}")
    lines += [f"audit: {ALLOWED.name} lists {i}, which no locked package has any more" for i in excused.keys() - used]
    if known:
        return Verdict(VULNERABLE, [*lines, f"audit: {known} known vulnerabilities in {audited} packages"])
    if skipped:
        few = ", ".join(skipped[:5]) + (" …" if len(skipped) > 5 else "")
        return Verdict(
            UNREACHED, [*lines, f"audit: {len(skipped)} of {len(packages)} packages could not be audited: {few}"]
        )
    return Verdict(CLEAN, [*lines, f"audit: no known vulnerability in {audited} packages"])


def _packages(report: str) -> list[dict[str, Any]] | None:
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return None
    return packages if isinstance(packages, list) and packages else None


if __name__ == "__main__":
    sys.exit(main())
