"""Sphinx settings of the documentation site; `make docs` builds it from the repository's root.

The root is the source folder, so links between README, docs and results are the same on the site and in the repository.
"""

import re
from importlib.metadata import version as version_of
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
    "LOG.md",
    "benchmarks/reproductions/**",
    "benchmarks/results/**",
]
exclude_patterns = ["docs/site/**"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
nb_execution_mode = "off"  # the notebooks hold their outputs; `make notebooks` runs them anew
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
html_extra_path = ["site"]  # index.html: from the site's root to docs/index.html
html_show_sphinx = False
html_copy_source = False


def setup(app: Any) -> None:
    """Docstrings are plain text with code in backticks: |S| and *.png are no markup."""
    app.connect("autodoc-process-docstring", escaped, priority=400)  # before napoleon writes markup of its own


def escaped(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escapes what would be markup outside of backticks."""
    for number, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        lines[number] = "".join(part if part.startswith("`") else re.sub(r"([|*])", r"\\\1", part) for part in parts)
