"""The page in a real browser: curves are drawn, every control works, and nothing is written to the console."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_report import HOSTILE, ramp, write_comparison, write_run

from fedoptax.report import write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on the PATH")

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--enable-logging=stderr", "--v=0", "--virtual-time-budget=3000", "--window-size=1200,1600",
]  # fmt: skip

#: Uses every control as a reader would, and notes in the page what it found.
EXERCISE = """
const note = (name, ok) => { document.body.dataset[name] = String(ok); };
const paths = () => [...document.querySelectorAll("#chart path.mean")].map((p) => p.getAttribute("d"));
const finite = () => paths().length > 0 && [...document.querySelectorAll("#chart svg *")].every((node) =>
  [...node.attributes].every((a) => !/NaN|Infinity|undefined/.test(a.value)));
const before = paths().join();
const box = document.getElementById("chart").getBoundingClientRect();
const move = (share) => document.getElementById("chart").dispatchEvent(new PointerEvent("pointermove",
  { clientX: box.left + box.width * share, clientY: box.top + 80, bubbles: true }));
move(0.5);
note("tip", document.querySelectorAll("#chart .tip tbody tr").length);
const shown = [...document.querySelectorAll("#chart .tip td")].map((cell) => parseFloat(cell.textContent));
note("sorted", shown.every((value, i) => i === 0 || value <= shown[i - 1]));
document.getElementById("chart").dispatchEvent(new KeyboardEvent("keydown", { key: "Home" }));
note("spoken", document.getElementById("live").textContent);
document.getElementById("chart").dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
note("cleared", document.querySelector("#chart .tip") === null);
for (const input of document.querySelectorAll("#controls input, #controls select")) {
  const old = input.value;
  if (input.type === "range") { input.value = input.max; input.dispatchEvent(new Event("input")); }
  else input.click();
  if (!finite()) note("broken", input.parentElement.textContent);
  move(0.3);
}
note("changed", paths().join() !== before);
document.querySelector("#legend button").click();
note("afterHiding", paths().length);
document.querySelectorAll("#legend button")[1].dispatchEvent(new MouseEvent("dblclick"));
note("alone", paths().length);
document.getElementById("show-all").click();
note("all", paths().length);
const head = document.querySelectorAll("#final thead button")[1];
const rows = () => [...document.querySelectorAll("#final tbody tr")];
const column = () => rows().map((row) => parseFloat(row.cells[1].textContent));
head.click();
const up = column();
note("ascending", up.every((value, i) => i === 0 || value >= up[i - 1]));
head.click();
note("descending", column().join() === up.reverse().join());
"""


class Page(HTMLParser):
    """The elements of a page as (tag, attributes)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def having(self, tag: str, name: str) -> list[dict[str, str | None]]:
        """The attributes of all elements with a tag and a class."""
        return [attrs for other, attrs in self.found if other == tag and name in (attrs.get("class") or "").split()]

    def body(self) -> dict[str, str | None]:
        return next(attrs for tag, attrs in self.found if tag == "body")


def open_page(path: Path, profile: Path) -> tuple[str, list[str]]:
    """The page's DOM after its scripts, and the lines of its console."""
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE:" in line]


def open_and_use(path: Path, profile: Path) -> tuple[Page, list[str]]:
    """As `open_page`, after `EXERCISE` (for which the page's policy is taken away)."""
    text = path.read_text(encoding="utf-8")
    text, policies = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    assert policies == 1
    used = path.with_name("used.html")
    used.write_text(text.replace("</body>", f"<script>{EXERCISE}</script></body>"), encoding="utf-8")
    dom, console = open_page(used, profile)
    return Page(dom), console


def coordinates(path: str) -> list[float]:
    """All numbers of an SVG path; fails if it holds anything but moves, lines and numbers."""
    assert re.fullmatch(r"[ML0-9.,\-Z]*", path), path
    return [float(part) for part in re.findall(r"-?\d+(?:\.\d+)?", path)]


def test_curves_are_drawn_and_the_console_is_silent(tmp_path: Path):
    runs = write_comparison(tmp_path / "runs", ["fedavg", "fedadam", "fedyogi"], seeds=2, rounds=30)
    dom, console = open_page(write_report(runs), tmp_path / "profile")
    page = Page(dom)
    assert console == []
    assert 'data-ready="true"' in dom
    curves = page.having("path", "mean")
    assert len(curves) == 3
    for curve in curves:
        numbers = coordinates(str(curve["d"]))
        assert len(numbers) == 60
        assert all(0 <= value <= 1200 for value in numbers)
    assert len(page.having("path", "band")) == 3
    assert len(page.having("rect", "heat")) > 100


def test_every_control_works(tmp_path: Path):
    runs = write_comparison(tmp_path / "runs", ["fedavg", "fedadam", "fedyogi"], seeds=2, rounds=60)
    page, console = open_and_use(write_report(runs), tmp_path / "profile")
    assert console == []
    body = page.body()
    expected = {
        "data-tip": "3", "data-sorted": "true", "data-cleared": "true", "data-changed": "true",
        "data-after-hiding": "2", "data-alone": "1", "data-all": "3", "data-ascending": "true",
        "data-descending": "true",
    }  # fmt: skip
    assert {name: body.get(name) for name in expected} == expected
    assert "data-broken" not in body
    assert str(body["data-spoken"]).startswith("Round 1: fed")


def test_hard_data_draws_without_complaint(tmp_path: Path):
    """15 algorithms: hostile, diverged, empty, constant, negative and unlabelled ones among them."""
    runs = write_comparison(tmp_path / "runs", [f"a{i}" for i in range(8)], seeds=1, rounds=40)
    write_run(runs / "hostile", ramp(0.9), name=HOSTILE, hyper={HOSTILE: HOSTILE}, command=HOSTILE)
    write_run(runs / "diverged", ramp(0.3, 3), name="diverged", rounds=40, status="diverged",
              losses=[1.0, 1e12, None])  # fmt: skip
    write_run(runs / "empty", [], name="empty", status="running", rounds=40)
    write_run(runs / "constant", [0.5] * 40, name="constant", losses=[0.0] * 40)
    write_run(runs / "negative", [-1.0, 0.0, 1.0], name="negative", losses=[-3.0, 0.0, 2.0])
    write_run(runs / "point", [0.7], name="point")
    sizes = {"sizes": [5, 5], "label_counts": None, "heterogeneity": None}
    write_run(runs / "unlabelled", ramp(0.8), name="unlabelled", partition=sizes, task={"name": "other"})
    report = write_report(runs)
    dom, console = open_page(report, tmp_path / "profile")
    assert console == []
    assert "<img" not in dom
    assert len(Page(dom).having("path", "mean")) == 14
    used, console = open_and_use(report, tmp_path / "profile")
    assert console == []
    assert "data-broken" not in used.body()


def test_one_run(tmp_path: Path):
    report = write_report(write_run(tmp_path / "run", ramp(0.9)))
    dom, console = open_page(report, tmp_path / "profile")
    assert console == []
    assert len(Page(dom).having("path", "mean")) == 1
    assert not Page(dom).having("path", "band")


@pytest.mark.parametrize("script", ["throw new Error('broken')", "console.error('broken')", "null.x"])
def test_the_check_sees_a_page_that_fails(tmp_path: Path, script: str):
    report = write_report(write_run(tmp_path / "run", ramp(0.9)))
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", report.read_text(encoding="utf-8"))
    report.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    _, console = open_page(report, tmp_path / "profile")
    assert len(console) == 1


def test_the_policy_stops_a_foreign_script(tmp_path: Path):
    report = write_report(write_run(tmp_path / "run", ramp(0.9)))
    text = report.read_text(encoding="utf-8")
    evil = "<script>document.body.dataset.owned = '1'</script><img src='http://127.0.0.1:9/x' onerror='alert(1)'>"
    report.write_text(text.replace("</body>", f"{evil}</body>"), encoding="utf-8")
    dom, console = open_page(report, tmp_path / "profile")
    assert "data-owned" not in dom.split("<script>document")[0]
    assert Page(dom).body().get("data-owned") is None
    assert sum("Content Security Policy" in line for line in console) >= 2
