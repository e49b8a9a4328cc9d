"""requirements.lock: every package pinned with hashes, and those of pyproject.toml, without extras, within bounds."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
ENTRIES = re.split(r"\n(?=\S)", re.sub(r"^\s*#.*\n", "", (ROOT / "requirements.lock").read_text(), flags=re.M).strip())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WANTED = [
    *PROJECT["project"]["dependencies"],
    *(text for group in PROJECT["dependency-groups"].values() for text in group if isinstance(text, str)),
    *PROJECT["build-system"]["requires"],
]


def test_every_package_is_pinned_with_hashes():
    assert len(ENTRIES) > 50
    for entry in ENTRIES:
        requirement = Requirement(entry.split("\\")[0])
        assert [s.operator for s in requirement.specifier] == ["=="], requirement
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), requirement


@pytest.mark.parametrize("text", WANTED)
def test_dependency_is_locked_within_its_bounds(text):
    wanted = Requirement(text)
    locked = [Requirement(entry.split("\\")[0]) for entry in ENTRIES]
    versions = [
        next(iter(r.specifier)).version for r in locked if canonicalize_name(r.name) == canonicalize_name(wanted.name)
    ]
    assert versions, f"{text} is not in requirements.lock: make lock"
    assert all(wanted.specifier.contains(version, prereleases=True) for version in versions), versions
