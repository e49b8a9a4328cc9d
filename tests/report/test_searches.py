"""Searches in a report: maps, profiles, ranks, links; unfinished and damaged ones."""

import math
import re
import shutil

import pytest

from browser import without_scripts
from fedoptax.report import write_report
from fedoptax.report.page import render
from fedoptax.report.report import load_report
from fedoptax.report.searches import describe_search, edge_warnings, load_searches, make_heat_map, make_profiles
from run_folders import ramp, write_comparison, write_run, write_search

GRID = {"a": [0.1, 1.0], "b": [0.01, 0.1, 1.0]}
ENDS = {
    (0.1, 0.01): 0.5, (0.1, 0.1): 0.9, (0.1, 1.0): None,
    (1.0, 0.01): 0.7, (1.0, 0.1): 0.6, (1.0, 1.0): 0.3,
}  # fmt: skip


def test_a_map_by_hand(tmp_path):
    (search,) = load_searches(write_search(tmp_path / "s", ENDS, GRID))
    found = make_heat_map(search)
    assert (found.y, found.x, search.search.rule.metric) == ("a", "b", "train_loss")
    assert (found.rows, found.columns) == (["1", "0.1"], ["0.01", "0.1", "1"])
    values = [[cell.score for cell in row if cell] for row in found.cells]
    assert values[0] == pytest.approx([0.3, 0.4, 0.7]) and values[1][:2] == pytest.approx([0.5, 0.1])
    assert math.isnan(values[1][2])
    assert found.cells[1][1] is search.best
    assert search.edges == {"a": "lowest"}
    assert edge_warnings(search) == [
        "The best a is the lowest that was searched (0.1 to 1): a better one may lie beyond."
    ]
    text = "6 of 6 points, of which 1 diverged, ranked by the train loss in the last round: "
    text += "a from 0.1 to 1 (2 values, a factor 10 or more apart), "
    text += "b from 0.01 to 1 (3 values, a factor 10 or more apart). "
    assert describe_search(search) == text + "Best: a 0.1 and b 0.1, train loss 0.1000."
    deep = {(a, b, c): (end or 0.5) - c for (a, b), end in ENDS.items() for c in (0.1, 0.2)}
    (other,) = load_searches(write_search(tmp_path / "deep", deep, {**GRID, "c": [0.1, 0.2]}))
    mapped = make_heat_map(other)
    assert mapped is not None and mapped.others == ["c"]  # of which each cell has the best
    assert [cell.score for cell in mapped.cells[0] if cell] == pytest.approx([0.4, 0.5, 0.8])
    (profile,) = make_profiles([search])
    assert profile.name == "b" and profile.lines == {
        "fedadam": [(0.01, pytest.approx(0.3)), (0.1, pytest.approx(0.1)), (1.0, pytest.approx(0.7))]
    }


def test_points_of_searches_are_not_compared_with_runs(tmp_path):
    write_comparison(tmp_path, ["fedavg", "fedadam"], rounds=5)
    write_search(tmp_path / "tuning" / "fedadam", ENDS, GRID)
    write_search(tmp_path / "tuning" / "a-fedavg", ENDS, GRID, algorithm="fedavg")
    (tmp_path / "tuning" / "fedadam" / "report.html").touch()
    report = load_report(tmp_path)
    html = without_scripts(render(report, {}, tmp_path))
    assert 'href="./tuning/fedadam/report.html"' in html and "tuning/a-fedavg/report.html" not in html
    sections = [html.index(text) for text in ("Final values</h2>", "<b>fedavg</b>", "<b>fedadam</b>", "Settings</h2>")]
    assert sections == sorted(sections)
    assert list(report.profiles[0].lines) == ["fedavg", "fedadam"]
    assert not report.table["algorithm"].str.contains("a=").any()


def test_an_unfinished_search_shows_the_points_it_has(tmp_path):
    folder = write_search(tmp_path / "s", ENDS, GRID)
    shutil.rmtree(folder / "point-006")
    (folder / "point-005" / "summary.json").unlink()
    report = load_report(folder)
    ((search, found),) = report.searches
    assert found is not None and found.cells[0][2] is None
    assert found.cells[0][1] is not None and math.isnan(found.cells[0][1].score)
    assert describe_search(search).startswith("4 of 6 points")
    assert report.is_of_search and len(report.runs) == 5
    assert 'alt="fedadam: train loss' in render(report, {"heat-map.svg": b"<svg/>"}, folder)


def test_a_search_without_a_completed_point_says_so(tmp_path):
    (search,) = load_searches(write_search(tmp_path / "s", dict.fromkeys(ENDS), GRID))
    assert search.best_or_none is None and search.edges == {}
    assert describe_search(search).endswith("None completed.")


def test_a_folder_named_like_a_scheme_makes_no_script_link(tmp_path):
    write_run(tmp_path / "run", ramp(0.9))
    folder = write_search(tmp_path / "javascript:alert(1)", ENDS, GRID)
    (folder / "report.html").touch()
    links = re.findall('href="([^"]*)"', without_scripts(render(load_report(tmp_path), {}, tmp_path)))
    assert "./javascript%3Aalert%281%29/report.html" in links
    assert all(link == "data:," or re.fullmatch(r"\./[\w%./-]+", link) for link in links)


def test_a_second_report_leaves_nothing_of_the_first(tmp_path, monkeypatch):
    """Files with the names of a report's are the user's own where there was no report."""
    run, out = write_run(tmp_path / "run", ramp(0.9)), tmp_path / "report"
    (out / "figures").mkdir(parents=True)
    photo, *others = (out / name for name in ("figures/photo.png", "figures/profile-7.png", "points.csv"))
    for path in (photo, *others):
        path.write_text("mine")
    names = {f"{name}.{kind}" for name in ("metric-rounds", "partition") for kind in ("png", "svg", "pdf")}
    monkeypatch.setattr("fedoptax.report.draw_figures", lambda report: dict.fromkeys(names, b"a figure"))
    write_report(run, out)
    assert all(path.read_text() == "mine" for path in (photo, *others))
    write_report(run, out)
    assert {path.name for path in (out / "figures").iterdir()} == {"photo.png", *names}
    assert not (out / "points.csv").exists() and (out / "table.csv").exists()
