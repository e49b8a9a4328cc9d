"""The documentation site: it is built without a warning, as of a page outside the navigation, and has every name."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedoptax as fx

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` builds it."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-c", "docs", "-W", "--keep-going", "-q", "-E", "-d", f"{out}/trees"]
    environment = os.environ | {"PYTHONWARNINGS": "default"}
    done = subprocess.run([*command, ".", f"{out}/html"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out / "html"


def test_notebooks_are_shown_with_their_outputs(site):
    """A cell that fails ends the build."""
    notebooks = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    assert len(notebooks) == 3
    for notebook in notebooks:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        assert not any(cell.get("outputs") for cell in cells), notebook  # they are kept without
        assert 'class="dataframe"' in (site / "docs" / "notebooks" / f"{notebook.stem}.html").read_text(
            encoding="utf-8"
        )


def test_links_and_images_exist(site):
    seen = 0
    for page in site.rglob("*.html"):
        for target in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8")):
            if re.match(r"[a-z]+:|//", target):
                continue
            seen += 1
            assert (page.parent / target).exists(), f"{page.relative_to(site)}: {target}"
    assert seen > 1000


def test_reference_has_every_public_name(site):
    text = (site / "docs" / "api.html").read_text(encoding="utf-8")
    documented = set(re.findall(r'id="fedoptax\.([\w.]+)"', text))
    names_and_modules = {part for name in documented for part in name.split(".")}
    assert set(fx.__all__) - names_and_modules - {"codecs"} == set()
    assert {"eager.run_round", "tasks.metrics.Metric", "tree.norm"} <= documented


def test_the_first_page_is_the_site_s_root(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    assert "<h1>fedoptax" in text and "pip install" in text and 'http-equiv="refresh"' not in text
    assert 'href="docs/start.html"' in text and 'data-content_root="./"' in text
