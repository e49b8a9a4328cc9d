"""The lock: every package pinned with hashes, all that pyproject.toml asks for, and what is installed equal to it."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
ENTRY = re.compile(r"(?P<requirement>[^\s\\#][^\\]*?)\s*(?P<hashes>(?:\\\n\s+--hash=sha256:[0-9a-f]{64}\s*)+)")


def entries(text: str) -> list[tuple[Requirement, list[str]]]:
    """The requirements of a lock with their hashes; fails on a line that is neither."""
    bare = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)
    found = [
        (Requirement(m["requirement"]), re.findall(r"sha256:([0-9a-f]{64})", m["hashes"])) for m in ENTRY.finditer(bare)
    ]
    assert not ENTRY.sub("", bare).strip(), ENTRY.sub("", bare).strip()[:200]
    return found


LOCK = entries((ROOT / "requirements.lock").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def version(requirement: Requirement) -> str:
    (specifier,) = requirement.specifier
    return specifier.version


def test_every_package_is_pinned_and_has_hashes() -> None:
    assert len(LOCK) > 50
    for requirement, hashes in LOCK:
        assert [s.operator for s in requirement.specifier] == ["=="], requirement
        assert "*" not in str(requirement.specifier) and requirement.url is None, requirement
        assert hashes and len(set(hashes)) == len(hashes), requirement


def test_no_package_has_two_versions_on_one_machine() -> None:
    names = [canonicalize_name(r.name) for r, _ in LOCK if r.marker is None or r.marker.evaluate()]
    assert len(set(names)) == len(names)


def asked_for() -> list[str]:
    project = PROJECT["project"]
    return [*project["dependencies"], *PROJECT["dependency-groups"]["dev"], *PROJECT["build-system"]["requires"]]


@pytest.mark.parametrize("text", asked_for())
def test_all_that_is_asked_for_is_locked_within_its_bounds(text: str) -> None:
    wanted = Requirement(text)
    locked = [r for r, _ in LOCK if canonicalize_name(r.name) == canonicalize_name(wanted.name)]
    assert locked, f"{text} is not in requirements.lock: make lock"
    for requirement in locked:
        assert wanted.specifier.contains(version(requirement), prereleases=True), (text, str(requirement))


def test_the_environment_is_that_of_the_lock() -> None:
    applies = [r for r, _ in LOCK if r.marker is None or r.marker.evaluate()]
    installed = {canonicalize_name(d.metadata["Name"]): d.version for d in metadata.distributions()}
    different = {
        r.name: (installed.get(canonicalize_name(r.name)), version(r))
        for r in applies
        if installed.get(canonicalize_name(r.name)) != version(r)
    }
    if len(different) > len(applies) // 4:
        pytest.skip("this environment was not made from requirements.lock")
    assert different == {}, "installed and locked: make setup"


def test_a_lock_with_a_hole_is_found() -> None:
    sound = "a==1 \\\n    --hash=sha256:" + "0" * 64 + "\n    # via b\n"
    assert [str(r) for r, _ in entries(sound)] == ["a==1"]
    with pytest.raises(AssertionError):
        entries(sound + "b==2\n")
    with pytest.raises(AssertionError):
        entries(sound + "b==2 \\\n    --hash=md5:00\n")
