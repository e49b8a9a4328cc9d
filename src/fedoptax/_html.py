"""Small tables for notebooks, which ask an object for its `_repr_html_`."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any


def html_table(rows: Sequence[Mapping[str, Any]], caption: str) -> str:
    """Write rows as an HTML table below a caption, all text escaped, a dash for None and NaN."""
    import pandas as pd  # here: heavy

    table = pd.DataFrame(list(rows), dtype=object)
    html = table.where(table.notna(), "–").to_html(index=False, float_format="{:.4g}".format)
    return f"<p>{escape(caption)}</p>\n{html}"
