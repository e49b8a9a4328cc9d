"""The page and the files of a report: whole, alone, quick, and safe from what the runs say."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_report import HOSTILE, ramp, write_comparison, write_run

from fedoptax.report import final_table, load_runs, write_report
from fedoptax.report.html import json_for_html

PNG = b"\x89PNG\r\n\x1a\n"


def test_hostile_names_cannot_leave_their_place(tmp_path: Path):
    task = {"name": HOSTILE, "description": HOSTILE, "model": HOSTILE, "partition": HOSTILE, "alpha": 1.0}
    for seed in (0, 1):
        write_run(
            tmp_path / str(seed), ramp(0.9), seed=seed, name=HOSTILE, hyper={HOSTILE: HOSTILE}, task=task,
            environment={HOSTILE: HOSTILE}, status="diverged", message=HOSTILE, command=HOSTILE,
        )  # fmt: skip
        path = tmp_path / str(seed) / "history.jsonl"
        path.write_text(path.read_text().replace("test_loss", HOSTILE))
    html = write_report(tmp_path).read_text(encoding="utf-8")
    assert "<img" not in html
    assert html.count("</script>") == 2
    assert "onerror=alert(1)&gt;" in html
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert data is not None
    assert not set("<>&\u2028\u2029") & set(data[1])
    assert json.loads(data[1])["groups"][0]["label"] == HOSTILE


def test_json_for_html_escapes_and_keeps_the_value():
    value = {"a<b>&c": "\u2028</script>\u2029", "n": [1.5, float("nan"), float("inf")]}
    text = json_for_html(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a<b>&c": "\u2028</script>\u2029", "n": [1.5, None, None]}


def test_the_page_is_alone_and_its_policy_names_its_own_script(tmp_path: Path):
    html = write_report(write_comparison(tmp_path, ["fedavg"], seeds=1, rounds=5)).read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)
    sheet = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert policy is not None
    assert script is not None
    assert sheet is not None
    rules = policy[1].replace("&#39;", "'")
    assert rules.startswith("default-src 'none';")
    assert "unsafe" not in rules
    for part in (script[1], sheet[1]):
        assert base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() in rules
    outside = re.findall(r"""(?:src|href)=["']?([^"'\s>]+)|url\(([^)]*)\)|https?://[^\s"'<]+""", html)
    assert {a or b for a, b in outside} <= {"data:,", "#frame", ""}
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"""\sstyle=|\son\w+=["']""", html)
    assert str(tmp_path) not in html


def test_write_report_writes_all_files_and_leaves_nothing_else(tmp_path: Path):
    runs = write_comparison(tmp_path / "runs", ["fedavg", "fedadam"], seeds=2, rounds=10)
    out = tmp_path / "elsewhere"
    assert write_report(runs, out=out, target=0.5) == out / "report.html"
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert names == {
        "report.html", "table.csv", "table.md", "history.csv", "figures/metric-rounds.png",
        "figures/metric-megabytes.png", "figures/train-loss-rounds.png", "figures/partition.png",
    }  # fmt: skip
    assert all(path.read_bytes().startswith(PNG) for path in (out / "figures").iterdir())
    assert "Rounds to 0.500" in (out / "table.md").read_text(encoding="utf-8")
    write_report(runs)
    assert write_report(runs) == runs / "report.html"  # its own files are not runs


@pytest.mark.parametrize("amount", [1, 15, 20])
def test_any_number_of_algorithms(tmp_path: Path, amount: int):
    write_comparison(tmp_path, [f"algorithm-{i:02d}" for i in range(amount)], seeds=1, rounds=10)
    html = write_report(tmp_path).read_text(encoding="utf-8")
    assert html.count('scope="row"') == 2 * amount


@pytest.mark.parametrize("name", ["_hidden", "$x^$", "$\\frac{1}{2", "联邦", "\ud800", "", "a" * 500, "=1+1", "-"])
def test_odd_names_do_not_stop_a_report(tmp_path: Path, name: str):
    write_run(tmp_path, ramp(0.9), name=name)
    assert write_report(tmp_path).stat().st_size > 10_000


def test_a_run_without_rounds_metrics_or_partition(tmp_path: Path):
    write_run(tmp_path / "a", [], status=None, partition=None, bytes=None, rounds=10)
    (tmp_path / "a" / "history.jsonl").unlink()
    html = write_report(tmp_path).read_text(encoding="utf-8")
    assert "still running, or was killed, after 0 of 10 rounds" in html
    write_run(tmp_path / "b", [None] * 5, name="fedavg", primary_metric=None, higher_is_better=None, local_epochs=None)
    sizes = {"sizes": [3, 4, 5], "label_counts": None, "heterogeneity": None}
    write_run(tmp_path / "c", ramp(0.9), name="fedprox", partition=sizes)
    write_report(tmp_path)
    table = final_table(load_runs(tmp_path)).set_index("algorithm")
    assert table.loc["fedavg", "metric"] == "train_loss"
    assert table.loc["fedavg", "final"] == pytest.approx(0.4)


def test_importing_the_report_is_cheap():
    code = (
        "import sys, fedoptax.report; print([m for m in ('matplotlib', 'pandas', 'jinja2', 'jax') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
