"""The page and the files of a report: complete, self-contained, and safe from what the runs say."""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plotly.offline import get_plotlyjs

from browser import Page, without_scripts
from fedoptax._files import read_json
from fedoptax.report import final_table, load_runs, write_report
from fedoptax.report.figures import draw_figures
from fedoptax.report.page import caution_about_times, render
from fedoptax.report.report import load_report
from fedoptax.report.tables import shown_columns
from run_folders import HOSTILE, ramp, write_comparison, write_json, write_named_run, write_run, write_search

HOSTILE_TEXTS = (
    HOSTILE, "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='alert(1)",
    "javascript:alert(1)", "]]><svg onload=alert(1)>", "</style><style>*{background:url(//x)}", "<!--", "--><b>",
    "&lt;script&gt;", "{{ 7*7 }}", "{% include '/etc/passwd' %}", "\\u003cscript", "a\u2028b\u2029c", "\u202egnp.exe",
    "</title><script>alert(1)</script>", "__proto__", "</SCRIPT ", "\n\n# x", "a" * 5000,
)  # fmt: skip


def page_of(folder: Path) -> Page:
    return Page(without_scripts(render(load_report(folder), {}, folder)))


def shape(page: Page) -> list[tuple[str, tuple[str, ...]]]:
    """The elements of a page with the names of their attributes."""
    return [(tag, tuple(attrs)) for tag, attrs in page.elements]


def page_of_names(folder: Path, texts: Sequence[str]) -> Page:
    for i, text in enumerate(texts):
        write_named_run(folder / str(i), text)
    return page_of(folder)


def test_hostile_names_add_no_markup(tmp_path):
    page = page_of_names(tmp_path / "hostile", HOSTILE_TEXTS)
    assert shape(page) == shape(page_of_names(tmp_path / "named", [f"name{i}" for i in range(len(HOSTILE_TEXTS))]))
    (data,) = [part for part in page.texts if part.startswith('{"groups"')]
    assert [group["label"] for group in json.loads(data)["groups"]] == list(HOSTILE_TEXTS)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=9, max_size=9, unique=True))
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_name_adds_markup(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("any")
    assert shape(page_of_names(folder / "a", texts)) == shape(page_of_names(folder / "b", [*"abcdefghi"]))


def test_hostile_searches_add_no_markup(tmp_path):
    shapes = []
    for text in ("name", HOSTILE):
        grid = {text: [0.1, 1.0], "b": [text, "x"]}
        ends = {(a, b): 0.5 for a in grid[text] for b in grid["b"]}
        shapes.append(shape(page_of(write_search(tmp_path / text.replace("/", ""), ends, grid, algorithm=text))))
    assert shapes[0] == shapes[1]


def test_hostile_names_in_figures_stay_text(tmp_path):
    write_named_run(tmp_path / "a", "name")
    write_named_run(tmp_path / "b", HOSTILE + "\x00--><script>")
    tags = {
        element.tag.rpartition("}")[2]
        for name, data in draw_figures(load_report(tmp_path)).items()
        if name.endswith(".svg")
        for element in ElementTree.fromstring(data).iter()
    }
    assert "path" in tags and not tags & {"script", "img", "a", "foreignObject"}


def test_the_page_needs_nothing_else_and_its_policy_names_its_scripts(tmp_path):
    html = render(load_report(write_comparison(tmp_path, ["fedavg"], seeds=1, rounds=5)), {}, tmp_path)
    (rules,) = [attrs["content"] or "" for _, attrs in Page(without_scripts(html)).elements if "http-equiv" in attrs]
    assert rules.startswith("default-src 'none'; script-src 'sha256-")
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in rules
    assert "unsafe" not in rules.replace("style-src 'unsafe-inline'", "") and "http" not in rules
    own = html.replace(get_plotlyjs(), "")
    assert all(link.startswith("data:") for link in re.findall(r"""(?:src|href)=["']?([^"'\s>]+)""", own))
    assert "://" not in own and not re.search(r"\son\w+=", without_scripts(own))
    assert str(tmp_path) not in own


def test_all_files_are_written_and_nothing_else(tmp_path):
    runs = write_comparison(tmp_path / "runs", ["fedavg", "fedadam"], seeds=2, rounds=10)
    out = tmp_path / "elsewhere"
    assert write_report(runs, out=out, target=0.5) == out / "report.html"
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    figures = ("metric-rounds", "metric-megabytes", "train-loss-rounds", "partition")
    assert names == {"report.html", "table.csv", "table.md", "table.tex", "history.csv"} | {
        f"figures/{name}.{kind}" for name in figures for kind in ("png", "svg", "pdf")
    }
    assert all(path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n") for path in (out / "figures").glob("*.png"))
    assert "Rounds to 0.500" in (out / "table.md").read_text(encoding="utf-8")


def test_figures_depend_on_nothing_but_the_runs(tmp_path):
    report = load_report(write_comparison(tmp_path, ["fedavg"], seeds=1, rounds=3))
    assert draw_figures(report) == draw_figures(report)


def test_runs_without_rounds_metrics_or_partition(tmp_path, monkeypatch):
    monkeypatch.setattr("fedoptax.report.draw_figures", lambda report: {})
    write_run(tmp_path / "a", [], status=None, partition=None, bytes=None, rounds=10)
    (tmp_path / "a" / "history.jsonl").unlink()
    html = render(load_report(tmp_path), {}, tmp_path)
    assert "still running, or killed, after 0 of 10 rounds" in html and "No round was recorded" in html
    assert "Clients over rounds" not in html
    write_run(tmp_path / "b", [None] * 5, name="fedavg", primary_metric=None, higher_is_better=None, local_epochs=None)
    sizes = {"sizes": [3, 4, 5], "label_counts": None}
    write_run(tmp_path / "c", ramp(0.9), name="fedprox", partition=sizes)
    write_report(tmp_path)
    (row,) = final_table(load_runs(tmp_path)).query("algorithm.str.startswith('fedavg')").to_dict("records")
    assert row["metric"] == "train_loss" and row["final"] == pytest.approx(0.4)


def test_every_column_is_explained_on_hover_and_below(tmp_path):
    report = load_report(write_comparison(tmp_path, ["fedavg", "fedadam"], rounds=5))
    page = Page(without_scripts(render(report, {}, tmp_path)))
    hints = [attrs["title"] for tag, attrs in page.elements if tag == "th" and "title" in attrs]
    assert len(hints) == len(shown_columns(report.table)) and all(hints)
    assert set(hints) <= set(page.texts)


def test_times_carry_a_caution_where_they_do_not_compare(tmp_path):
    for place, end in enumerate((100.0, 101.0, 101.5)):  # each of a second
        folder = write_run(tmp_path / str(place), ramp(0.9, 2), seed=place)
        write_json(folder / "summary.json", read_json(folder / "summary.json") | {"ended": end})
    runs = load_runs(tmp_path)
    assert caution_about_times(runs[:2]) == ""
    assert caution_about_times(runs) == "Times do not compare: some ran at the same time, perhaps on one machine."
    write_run(tmp_path / "3", ramp(0.9, 2), seed=3, environment={"device": "cuda: H100 x 1"})
    assert "runs differ in hardware or versions" in caution_about_times(load_runs(tmp_path))
