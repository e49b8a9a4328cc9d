"""The report as one HTML page that needs nothing else: no network, no library, no other file."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fedoptax.report import style
from fedoptax.report.groups import group_runs
from fedoptax.report.load import Run
from fedoptax.report.page import page
from fedoptax.report.profile_chart import drawn
from fedoptax.report.search_page import search_sections
from fedoptax.report.searches import Search, profiles
from fedoptax.report.style import look

#: The page's script, in the order of their use: one function scope holds them all.
SCRIPTS = ("base.js", "series.js", "chart.js", "hover.js", "controls.js", "partition.js", "table.js", "main.js")


def render(
    runs: Sequence[Run],
    title: str,
    target: float | None = None,
    searches: Sequence[Search] = (),
    folder: Path = Path(),
) -> str:
    """The report of some runs as one self-contained page.

    Every text from the runs is escaped; the page's policy forbids it any script but its own, and all network.

    Args:
      runs: from `load_runs`; at least one.
      title: the page's heading.
      target: as in `final_table`.
      searches: for hyper-parameters, that are shown above the runs.
      folder: where the page will be; links lead from there.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    loader = PackageLoader("fedoptax.report", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    groups = group_runs(runs)
    content, data = page(groups, runs, target)
    colors = {} if content["leading_only"] else {group.algorithm: look(group.index).color for group in groups}
    order = [*colors, *(search.algorithm for search in searches)]
    searches = sorted(searches, key=lambda search: order.index(search.algorithm))
    sheet, script = style.css() + _template("report.css"), _script()
    return environment.get_template("report.html").render(
        title=title,
        sheet=Markup(sheet),
        script=Markup(script),
        data=Markup(json_for_html(data)),
        policy=policy(sheet, script),
        searches=search_sections(searches, folder),
        profiles=[drawn(profile, colors) for profile in profiles(searches)],
        **content,
    )


def json_for_html(value: Any) -> str:
    """JSON that may stand between script tags: it holds no character that HTML or JavaScript treats specially."""
    text = json.dumps(_finite(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def policy(sheet: str, script: str) -> str:
    """A content security policy that allows exactly this style sheet and script, and nothing from elsewhere."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(sheet)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _script() -> str:
    body = "\n".join(_template(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}\n}})();\n'


def _template(name: str) -> str:
    return (resources.files("fedoptax.report") / "templates" / name).read_text(encoding="utf-8")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
