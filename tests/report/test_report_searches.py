"""Searches in a report, from folders written by hand: maps, curves, ranks, links; damaged and hostile ones."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from test_report import HOSTILE, ramp, write_comparison, write_run
from test_report_browser import BROWSER, FLAGS

from fedoptax.report import write_report
from fedoptax.report.profile_chart import drawn, spread_out, ticks
from fedoptax.report.search_page import edge_warnings, sentence
from fedoptax.report.searches import Profile, heat_map, load_searches, profiles

RATES = {"a": [0.1, 1.0], "b": [0.01, 0.1, 1.0]}


def write_search(
    folder: Path,
    ends: dict[tuple[Any, ...], float | None],
    grid: dict[str, list[Any]] | None = None,
    *,
    algorithm: str = "fedadam",
    last: int = 1,
    **changes: Any,
) -> Path:
    """A search whose points end at these accuracies (their losses at 1 less); None is one that diverged."""
    grid = RATES if grid is None else grid
    content = {
        "format": 1, "algorithm": algorithm, "grid": grid, "fixed": {"b1": 0.9}, "seed": 0, "search": "grid",
        "trials": 0, "command": "fedoptax tune", "task": {"name": "digits"}, "options": {"rounds": 4},
        "rule": {"metric": "train_loss", "last": last, "higher_is_better": False},
    } | changes  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "tune.json").write_text(json.dumps(content), encoding="utf-8")
    for number, (values, end) in enumerate(ends.items(), start=1):
        hyper = {"b1": 0.9, **dict(zip(grid, values))}
        status = "completed" if end is not None else "diverged"
        finals: list[float | None] = [0.1, 0.2, 0.3, end] if end is not None else [0.1, 0.2]
        losses: list[float | None] = [1 - value for value in finals if value is not None]
        place = folder / f"point-{number:03d}"
        write_run(place, finals, name=algorithm, hyper=hyper, losses=losses, status=status, rounds=4)
    return folder


ENDS = {
    (0.1, 0.01): 0.5, (0.1, 0.1): 0.9, (0.1, 1.0): None,
    (1.0, 0.01): 0.7, (1.0, 0.1): 0.6, (1.0, 1.0): 0.3,
}  # fmt: skip


def test_a_map_by_hand(tmp_path: Path) -> None:
    (search,) = load_searches(write_search(tmp_path / "s", ENDS))
    found = heat_map(search)
    assert (found.y, found.x, found.metric) == ("a", "b", "test_accuracy")
    assert (found.rows, found.columns) == (["1", "0.1"], ["0.01", "0.1", "1"])
    values = [[cell.value for cell in row] for row in found.cells]
    assert values[0] == [0.7, 0.6, 0.3] and values[1][:2] == [0.5, 0.9] and math.isnan(values[1][2])
    assert found.cells[1][1].best and found.cells[1][1].shade == 1 and found.cells[0][2].shade == 0
    assert found.cells[0][0].shade == pytest.approx((0.7 - 0.3) / 0.6)
    assert found.cells[1][1].folder == tmp_path / "s" / "point-002"
    assert search.edges == {"a": "lowest"}
    assert edge_warnings(search) == ["The best a is the lowest of its grid (0.1 to 1): a better one may lie beyond."]
    text = "6 of 6 points, of which 1 diverged, ranked by the mean train loss in the last round. "
    assert sentence(search) == text + "Best: a 0.1 and b 0.1, train loss 0.1000."
    (curve,) = profiles([search])
    assert curve.name == "b" and curve.lines == {"fedadam": [(0.01, 0.7), (0.1, 0.9), (1.0, 0.3)]}


def test_values_are_means_of_the_last_rounds(tmp_path: Path) -> None:
    (search,) = load_searches(write_search(tmp_path / "s", ENDS, last=2))
    assert search.points[0].metric == pytest.approx((0.3 + 0.5) / 2)
    assert search.points[0].score == pytest.approx((0.7 + 0.5) / 2)


def test_a_third_hyper_parameter_is_taken_at_its_best(tmp_path: Path) -> None:
    grid = {"a": [1, 2], "b": [1, 2], "c": [1, 2, 3]}
    ends = {(a, b, c): 0.1 * a + 0.2 * b + (0.3 if c == 2 else 0) for a in (1, 2) for b in (1, 2) for c in (1, 2, 3)}
    (search,) = load_searches(write_search(tmp_path / "s", ends, grid))
    found = heat_map(search)
    assert found.others == ["c"]
    assert [[cell.value for cell in row] for row in found.cells] == [
        [pytest.approx(0.1 * a + 0.2 * b + 0.3) for b in (1, 2)] for a in (2, 1)
    ]
    assert profiles([search])[0].lines["fedadam"] == [
        (c, pytest.approx(0.6 + (0.3 if c == 2 else 0))) for c in (1, 2, 3)
    ]


def test_curves_of_several_searches_share_a_figure(tmp_path: Path) -> None:
    for name, shift in (("fedadam", 0.0), ("fedyogi", 0.1)):
        ends = {(tau,): 0.3 + shift + 0.1 * i for i, tau in enumerate((1e-3, 1e-2, 1e-1))}
        write_search(tmp_path / name, ends, {"tau": [1e-3, 1e-2, 1e-1]}, algorithm=name)
    page = write_report(tmp_path)
    assert {p.name for p in (tmp_path / "figures").iterdir()} >= {"profile-1.png"}
    (curve,) = profiles(load_searches(tmp_path))
    assert list(curve.lines) == ["fedadam", "fedyogi"]
    table = pd.read_csv(tmp_path / "points.csv")
    assert table["rank"].tolist() == [1, 2, 3, 1, 2, 3]
    assert table.groupby("algorithm")["tau"].first().to_dict() == {"fedadam": 0.1, "fedyogi": 0.1}
    text = page.read_text()
    assert text.count("profile-line") >= 2 and 'href="./fedadam/point-001/history.jsonl"' in text


def test_points_of_searches_are_not_compared_with_runs(tmp_path: Path) -> None:
    write_comparison(tmp_path, ["fedavg", "fedadam"])
    before = write_report(tmp_path).read_text()
    write_search(tmp_path / "tuning" / "fedadam", ENDS)
    write_search(tmp_path / "tuning" / "a-fedavg", ENDS, algorithm="fedavg")
    write_report(tmp_path / "tuning" / "fedadam")
    after = write_report(tmp_path).read_text()
    assert 'href="./tuning/fedadam/report.html"' in after and "tuning" not in before
    sections = [after.index(text) for text in ("Final values</h2>", "<b>fedavg</b>", "<b>fedadam</b>", "Settings</h2>")]
    assert sections == sorted(sections)
    colors = dict(zip(("fedavg", "fedadam"), re.findall(r'class="swatch c(\d)', after)))
    drawn_in = re.findall(r"profile-line c(\d)", after)
    assert drawn_in == [colors["fedavg"], colors["fedadam"]]
    assert after.count('<th scope="row"') >= before.count('<th scope="row"')
    assert not (pd.read_csv(tmp_path / "table.csv")["algorithm"].str.contains("a=")).any()


def test_an_unfinished_search_is_drawn_as_far_as_it_is(tmp_path: Path) -> None:
    folder = write_search(tmp_path / "s", ENDS)
    shutil.rmtree(folder / "point-006")
    (folder / "point-005" / "summary.json").unlink()
    (search,) = load_searches(folder)
    found = heat_map(search)
    assert found.cells[0][2] is None and math.isnan(found.cells[0][1].value)
    text = write_report(folder).read_text()
    assert "5 of 6 points" in text and "The 5 best points each trained" in text


def test_a_search_of_which_nothing_ended_says_so(tmp_path: Path) -> None:
    folder = write_search(tmp_path / "s", dict.fromkeys(ENDS))
    text = write_report(folder).read_text()
    assert "None came to its end." in text and text.count('class="lost"') == 6


def test_trials_without_a_grid_are_dots(tmp_path: Path) -> None:
    ends = {(0.02, 0.3): 0.5, (0.5, 0.1): 0.7, (0.9, 0.02): None}
    (search,) = load_searches(write_search(tmp_path / "s", ends, search="optuna", trials=3))
    assert heat_map(search) is None
    first, second = profiles([search])
    assert first.lines["fedadam"] == [(0.02, 0.5), (0.5, 0.7)] and not first.joined
    assert second.lines["fedadam"] == [(0.1, 0.7), (0.3, 0.5)]
    assert all(line["path"] == "" for line in drawn(first)["lines"])
    assert search.edges == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"grid": {"a": [[1]], "b": [1]}}, {"grid": {"a": []}}, {"grid": [1]}, {"rule": {"metric": 1}}, {"rule": 3},
        {"search": "other"}, {"options": {}}, {"fixed": 1}, {"format": 2},
    ],
)  # fmt: skip
def test_a_damaged_search_is_one_line(tmp_path: Path, changes: dict[str, Any]) -> None:
    from fedoptax.errors import RunError

    write_search(tmp_path / "s", {}, **changes)
    with pytest.raises(RunError, match=r"tune\.json") as error:
        write_report(tmp_path)
    assert "\n" not in str(error.value)


def test_a_second_report_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    out = tmp_path / "report"
    (out / "figures").mkdir(parents=True)
    (out / "points.csv").write_text("mine")
    for name in ("profile-7.png", "photo.png"):
        (out / "figures" / name).write_bytes(b"mine")
    write_run(tmp_path / "run", ramp(0.9))
    write_report(tmp_path / "run", out)
    assert (out / "points.csv").exists() and (out / "figures" / "profile-7.png").exists(), "of no report"
    write_report(write_search(tmp_path / "s", ENDS), out)
    figures = {path.name for path in (out / "figures").iterdir()}
    assert {"heat-map.png", "photo.png", "partition.png"} <= figures and "profile-7.png" not in figures
    write_report(tmp_path / "run", out)
    assert {path.name for path in (out / "figures").iterdir()} == {
        "metric-rounds.png", "metric-megabytes.png", "train-loss-rounds.png", "partition.png", "photo.png"
    }  # fmt: skip
    assert not (out / "points.csv").exists() and (out / "table.csv").exists()


def test_nothing_in_a_search_becomes_markup(tmp_path: Path) -> None:
    grid = {HOSTILE: [0.1, 1.0], "b": [HOSTILE, "x"]}
    ends = {(a, b): 0.5 for a in grid[HOSTILE] for b in grid["b"]}
    folder = write_search(tmp_path / "s", ends, grid, algorithm=HOSTILE)
    config = json.loads((folder / "point-001" / "config.json").read_text())
    config["algorithm"]["hyperparameters"]["b"] = {"not": ["hashable"]}
    (folder / "point-001" / "config.json").write_text(json.dumps(config))
    text = write_report(folder).read_text()
    assert "<img" not in text and text.count("</script>") == 2


def test_a_folders_name_is_no_scheme(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ramp(0.9))
    write_search(tmp_path / "javascript:alert(1)", ENDS)
    write_report(tmp_path / "javascript:alert(1)")
    links = re.findall('href="([^"]*)"', write_report(tmp_path).read_text())
    assert "./javascript%3Aalert%281%29/report.html" in links
    assert all(link == "data:," or re.fullmatch(r"\./[\w%./-]+", link) for link in links)


def test_ticks_and_labels_have_room() -> None:
    assert ticks(0.31, 0.97) == pytest.approx([0.4, 0.6, 0.8])
    assert len(ticks(0, 1000)) <= 7 and ticks(-1, 1)[0] == -1
    moved = spread_out([100, 101, 50, 102])
    assert moved[2] == 50 and sorted(moved) == [50, 100, 116, 132]
    flat = drawn(Profile("a", "test_loss", False, {"x": [(1.0, 2.0), (2.0, 2.0)]}, True))
    assert all(math.isfinite(dot["y"]) for dot in flat["lines"][0]["dots"])


@pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on the PATH")
def test_the_page_of_a_search_is_quiet_in_a_browser(tmp_path: Path) -> None:
    write_search(tmp_path / "one" / "fedadam", ENDS)
    write_search(tmp_path / "one" / "fedyogi", ENDS, algorithm="fedyogi")
    write_run(tmp_path / "one" / "run", ramp(0.9), name="fedavg")
    page = write_report(tmp_path / "one")
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert done.returncode == 0 and not console, console
    assert done.stdout.count('class="search-map"') >= 4 and '"NaN' not in done.stdout
