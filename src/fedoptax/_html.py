"""Small tables for notebooks, which ask an object for its `_repr_html_`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def html_table(rows: Sequence[Mapping[str, Any]], caption: str) -> str:
    """Write rows as an HTML table below a caption, all text escaped, a dash for None and NaN."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = _row("th", columns)
    body = "\n".join(_row("td", [_text(row.get(name)) for name in columns]) for row in rows)
    return f'<p>{escape(caption)}</p>\n<table class="dataframe">\n{head}\n{body}\n</table>'


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
