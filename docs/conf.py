"""Sphinx settings of the documentation site; `make docs` builds it from the repository's root.

The root is the source folder, so links between README, docs and results are the same on the site and in the repository.
"""

import os
import posixpath
import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

project = "fedoptax"
author = "the fedoptax authors"
copyright = author
version = release = version_of("fedoptax")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LOG.md",
    "SECURITY.md",
    "benchmarks/reproductions/README.md",
    "benchmarks/reproductions/results/**",
    "benchmarks/results/**",
]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
nb_execution_mode = "force"  # the notebooks are kept without outputs
nb_execution_in_temp = True
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_output_stderr = "remove"  # progress bars
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # they call `fedoptax`
nitpicky = False

myst_heading_anchors = 3
highlight_language = "none"  # most blocks are shell sessions and tables of text; Python ones say so

default_role = "code"  # docstrings have code in single backticks
autodoc_typehints = "none"  # signatures show them
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "count, index"}  # every named tuple has these
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = "fedoptax"
html_static_path, html_css_files = ["static"], ["tables.css"]
html_show_sphinx = False
html_copy_source = False


def setup(app: Any) -> None:
    """Docstrings are plain text with code in backticks: |S| and *.png are no markup."""
    app.connect("autodoc-process-docstring", escaped, priority=400)  # before napoleon writes markup of its own
    app.connect("build-finished", write_first_page)


def write_first_page(app: Any, exception: Exception | None) -> None:
    """Writes docs/index.html once more as the site's index.html, with its links as they are from there."""
    page = Path(app.outdir, "docs", "index.html")
    if exception is None and page.is_file():
        link = re.compile(r'((?:href|src|data-content_root)=")(?![a-z]+:|#|/)([^"#?]+)')
        text = link.sub(lambda found: found[1] + posixpath.relpath(f"docs/{found[2]}"), page.read_text("utf-8"))
        Path(app.outdir, "index.html").write_text(
            text.replace('data-content_root="."', 'data-content_root="./"'), "utf-8"
        )


def escaped(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escapes what would be markup outside of backticks."""
    for number, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        lines[number] = "".join(part if part.startswith("`") else re.sub(r"([|*])", r"\\\1", part) for part in parts)
