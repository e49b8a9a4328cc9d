"""The page in a real browser: charts are drawn, every control works, and nothing is written to the console."""

from pathlib import Path

import pytest

from browser import Page, needs_browser, open_and_use, open_page, without_scripts
from fedoptax.report.page import render
from fedoptax.report.report import load_report
from run_folders import HOSTILE, ramp, write_comparison, write_named_run, write_run, write_search

pytestmark = needs_browser

#: Uses every control as a reader would, and notes in the page what it found.
USE = """
const note = (name, value) => { document.body.dataset[name] = String(value); };
const chart = document.getElementById("chart");
const isMean = (line) => line.style.strokeWidth === "2px";
const paths = () => [...chart.querySelectorAll(".scatterlayer .js-line")].filter(isMean);
const lines = () => paths().map((line) => line.getAttribute("d"));
const before = lines();
note("lines", before.length);
Plotly.Fx.hover(chart, { xval: 10 }, ["xy"]);
const rows = [...chart.querySelectorAll(".hoverlayer .legendtext")].map((text) => text.textContent);
note("hover", rows.length);
const values = rows.map((text) => parseFloat(text.split(" : ").at(-1))).filter((value) => !Number.isNaN(value));
note("sorted", values.length > 1 && values.every((value, i) => i === 0 || value <= values[i - 1]));
for (const input of document.querySelectorAll(".controls input")) {
  input.click();
  if (lines().some((line) => /NaN|Infinity|undefined/.test(line))) note("broken", input.id || input.value);
}
note("changed", lines().join() !== before.join());
for (const input of document.querySelectorAll(".controls input")) input.click();
const axes = [...document.querySelectorAll("#axis option")];
note("axes", axes.map((option) => option.textContent).join());
for (const option of [...axes.slice(1), ...document.querySelectorAll("#metric option"), axes[0]]) {
  option.parentElement.value = option.value;
  option.parentElement.dispatchEvent(new Event("change"));
  if (lines().some((line) => /NaN|Infinity|undefined/.test(line))) note("broken", option.textContent);
}
const press = (place, times) => {
  const events = Array(times).fill(["mousedown", "mouseup"]).flat();
  for (const event of events) chart.querySelectorAll(".legendtoggle")[place].dispatchEvent(new MouseEvent(event));
  return new Promise((done) => setTimeout(done, 700));
};
press(0, 1).then(() => {
  note("hidden", lines().length);
  document.getElementById("spread")?.click();
  note("still", lines().length);
  return press(1, 2);
}).then(() => {
  note("alone", lines().length);
  return press(1, 2);
}).then(() => note("all", lines().length));
note("table", document.querySelectorAll("#values tbody tr").length);
note("buttons", [...chart.querySelectorAll("button")].map((button) => button.getAttribute("aria-label")).join());
const head = document.querySelectorAll("#final thead button")[1];
const cells = "#final tbody td:nth-child(2)";
const column = () => [...document.querySelectorAll(cells)].map((cell) => parseFloat(cell.textContent));
head.click();
const up = column();
note("ascending", up.every((value, i) => i === 0 || value >= up[i - 1]));
head.click();
note("descending", column().join() === up.reverse().join());
"""


def write_page(folder: Path) -> Path:
    path = folder / "report.html"
    report = load_report(folder)
    path.write_text(render(report, {}, folder), encoding="utf-8")
    return path


def test_every_control_works_and_the_console_is_silent(tmp_path):
    page = write_page(write_comparison(tmp_path / "runs", ["fedavg", "fedadam", "fedyogi"]))
    found, console = open_and_use(page, tmp_path / "profile", USE)
    assert console == []
    expected = {
        "lines": "3", "hover": "3", "sorted": "true", "changed": "true", "hidden": "2", "still": "2",
        "alone": "1", "all": "3",
        "axes": "rounds,MB sent,wall time", "table": "3", "ascending": "true", "descending": "true",
        "buttons": "Zoom in,Zoom out,Reset axes,Download plot as a PNG",
    }  # fmt: skip
    assert {name: found.body.get(f"data-{name}") for name in expected} == expected
    assert "data-broken" not in found.body


def write_hard_page(folder: Path) -> Path:
    """Hostile, diverged, empty, constant, negative and unlabelled runs, and a search."""
    runs = write_comparison(folder / "runs", ["fedavg", "fedadam"], seeds=1, rounds=10)
    write_named_run(runs / "hostile", HOSTILE + '<a href="https://x.invalid">x</a>&lt;b>')
    write_run(runs / "diverged", ramp(0.3, 3), name="diverged", rounds=10, status="diverged", losses=[1.0, 1e12, None])
    write_run(runs / "empty", [], name="empty", status="running", rounds=10)
    write_run(runs / "constant", [0.5] * 10, name="constant", losses=[0.0] * 10)
    write_run(runs / "negative", [-1.0, 0.0, 1.0], name="negative", losses=[-3.0, 0.0, 2.0])
    write_run(runs / "point", [0.7], name="point")
    sizes = {"sizes": [5, 5], "label_counts": None}
    write_run(runs / "unlabelled", ramp(0.8), name="unlabelled", partition=sizes, task={"name": "other"})
    grid = {HOSTILE: [0.1, 1.0, 10.0], "b": [1, 2, 3]}
    write_search(runs / "search", {(a, b): 0.1 * b for a in grid[HOSTILE] for b in grid["b"]}, grid, algorithm=HOSTILE)
    return write_page(runs)


def test_hard_data_and_hostile_names_are_drawn(tmp_path):
    """Under the page's own policy."""
    dom, console = open_page(write_hard_page(tmp_path), tmp_path / "profile")
    assert console == [] and 'data-ready="true"' in dom
    elements = Page(without_scripts(dom)).elements
    assert all(
        (attrs.get("class"), attrs.get("onerror")) == ("figure", None) for tag, attrs in elements if tag == "img"
    )
    assert not [attrs for _, attrs in elements if "x.invalid" in f"{attrs.get('href')}{attrs.get('xlink:href')}"]


@pytest.mark.long
def test_every_control_works_on_hard_data(tmp_path):
    used, console = open_and_use(write_hard_page(tmp_path), tmp_path / "profile", USE)
    assert console == [] and "data-broken" not in used.body


@pytest.mark.long
def test_the_policy_stops_another_script(tmp_path):
    page = write_page(write_run(tmp_path / "run", ramp(0.9)))
    text = page.read_text(encoding="utf-8")
    evil = "<script>document.body.dataset.owned = '1'</script><img src='http://127.0.0.1:9/x' onerror='alert(1)'>"
    page.write_text(text.replace("</main>", f"{evil}</main>"), encoding="utf-8")
    dom, console = open_page(page, tmp_path / "profile")
    assert Page(without_scripts(dom)).body.get("data-owned") is None
    assert sum("Content Security Policy" in line for line in console) >= 2
