"""The package as an index would have it: built, installed into a bare environment, used from the shell there."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def run(*command: object, cwd: Path) -> str:
    """Run a program without this project on its paths; return what it printed."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=bare, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The folder with the sdist and the wheel."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", out, cwd=ROOT)
    return out


@pytest.mark.long
def test_the_wheel_has_the_package_and_the_sdist_what_builds_it(dist):
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    source = {path.removeprefix("src/") for path in tracked if path.startswith("src/fedoptax/")}
    with zipfile.ZipFile(dist / f"fedoptax-{VERSION}-py3-none-any.whl") as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
        (told,) = [wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/METADATA")]
    assert held == source
    assert "Provides-Extra: cuda" in told and "License-Expression: Apache-2.0" in told
    with tarfile.open(dist / f"fedoptax-{VERSION}.tar.gz") as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "src/fedoptax/py.typed"} <= names
    assert not [name for name in names if re.match(r"\.venv|build/|dist/|runs/", name)]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["py3-none-any.whl", ".tar.gz"], ids=["wheel", "sdist"])
def test_it_works_where_nothing_else_is_installed(dist, tmp_path, kind):
    """With the newest dependencies of the index, as `pip install fedoptax` takes them."""
    (package,) = dist.glob(f"*{kind}")
    venv.create(tmp_path / "env", with_pip=True)
    bin = tmp_path / "env" / "bin"
    uv = shutil.which("uv")
    install = [uv, "pip", "install", "--python", bin / "python"] if uv else [bin / "pip", "install"]
    run(*install, package, cwd=tmp_path)
    assert run(bin / "fedoptax", "--version", cwd=tmp_path).strip().endswith(VERSION)
    first = "run", "--task", "digits", "--algorithm", "fedadam", "--rounds", 2, "--out", "a"
    for arguments in (first, ("report", "a")):
        run(bin / "fedoptax", *arguments, cwd=tmp_path)
    assert {"report.html", "params.npz"} <= {path.name for path in (tmp_path / "a").iterdir()}
    where = run(bin / "python", "-c", "import fedoptax; print(fedoptax.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path)


def test_versions_agree():
    """CITATION.cff has the package's version; the formatter before a commit is the locked one."""
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    (ruff,) = re.findall(r"^ruff==(\S+)", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE)
    assert f"rev: v{ruff} " in (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
