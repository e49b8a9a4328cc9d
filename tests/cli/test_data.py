"""`fedoptax data` and `--task file:PATH` as a user types them."""

import csv
import io
import json
import sys
from pathlib import Path

import numpy as np

from command_line import fedoptax


def own_table(path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = ["site,height,width,kind"]
    for site in range(6):
        for _ in range(20):
            height, width = rng.normal(100 + 5 * site, 10), rng.normal(3, 1)
            kind = "large" if height / 20 + width > 8.6 else "small"
            rows.append(f"hospital-{site},{height:.3f},{width:.3f},{kind}")
    path.write_text("\n".join(rows) + "\n")


def test_partition_shows_measures_a_table_and_a_picture(capsys):
    arguments = ["data", "partition", "--task", "digits", "--alpha", "0.1", "--num-clients", "12", "--out", "p"]
    assert fedoptax(*arguments) == 0
    printed = capsys.readouterr().out
    assert "12 clients with 1,438 examples" in printed
    assert "total_variation_mean" in printed
    assert "... and 2 more clients" in printed
    rows = list(csv.reader(Path("p/partition.csv").read_text().splitlines()))
    assert rows[0][:5] == ["client", "examples", "test_examples", "classes", "largest_class"]
    assert sum(int(row[1]) for row in rows[1:]) == 1438
    assert sum(int(row[2]) for row in rows[1:]) == 359
    for row in rows[1:]:
        counts = [int(cell) for cell in row[5:]]
        found = sum(counts), np.count_nonzero(counts), int(np.argmax(counts))
        assert found == (int(row[1]), int(row[3]), int(row[4]))
    assert Path("p/partition.png").read_bytes().startswith(b"\x89PNG")
    assert fedoptax(*arguments) == 2  # a table is not replaced unasked
    assert fedoptax(*arguments, "--alpha", "10", "--overwrite") == 0
    assert list(csv.reader(Path("p/partition.csv").read_text().splitlines())) != rows


def id_table(path: Path) -> None:
    """Sites with a constant region, and a number that differs in every row."""
    rng = np.random.default_rng(0)
    rows = ["number,site,region,height,kind"]
    rows += [f"{7000 + i},site-{i % 4},{i % 4 // 2},{rng.normal():.4f},{'ab'[i % 3 == 0]}" for i in range(80)]
    path.write_text("\n".join(rows) + "\n")


def test_a_table_without_clients_is_asked_for_them(capsys):
    id_table(Path("own.csv"))
    np.savez("own.npz", x=np.random.default_rng(0).normal(size=(40, 3)), y=np.arange(40) % 2)
    for name, kind, label in (("own.csv", "column", "kind"), ("own.npz", "array", "y")):
        assert fedoptax("run", "--task", f"file:{name}", "--label-column", label) == 2
        printed = capsys.readouterr().err
        assert f"no {kind} names the clients" in printed and "--client-column" in printed and "--partition" in printed
    assert fedoptax("data", "partition", "--task", "file:own.npz", "--partition", "iid", "--out", "p") == 0
    assert "clients: 10, made by partition iid" in capsys.readouterr().out


def test_what_is_understood_of_a_table_is_shown_with_what_looks_like_ids(capsys):
    id_table(Path("own.csv"))
    arguments = ["data", "partition", "--task", "file:own.csv", "--client-column", "site", "--label-column", "kind"]
    assert fedoptax(*arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "clients: 4, as 'site' names them; 16 to 16 training examples each",
        "examples: 3 features (number, region, height); 2 classes (a 53, b 27), positive b",
        "split: 64 training examples, 16 test examples",
    ]
    assert lines[3].startswith("warning: column 'number' differs in every row") and "drop=number" in lines[3]
    assert lines[4].startswith("warning: column 'region' is constant within each client")
    assert fedoptax(*arguments, "--task-set", "drop=number,region") == 0
    printed = capsys.readouterr().out
    assert "1 feature (height)" in printed and "warning" not in printed
    assert fedoptax(*arguments[:-2], "--label-column", "height", "--task-set", "drop=number") == 2
    assert "'height' has 80 different decimals" in capsys.readouterr().err
    assert fedoptax(*arguments, "--label-column", "sort") == 1 and "lacks 'sort'" in capsys.readouterr().err
    assert fedoptax(*arguments, "--task-set", "image_size=8") == 2 and "image_size" in capsys.readouterr().err


def test_an_own_table_trains_and_resumes_until_it_changes(capsys):
    own_table(Path("own.csv"))
    columns = ["--client-column", "site", "--label-column", "kind", "--model", "logistic"]
    arguments = ["run", "--task", "file:own.csv", *columns, "--algorithm", "fedavg", "--set", "client_lr=0.3"]
    assert fedoptax(*arguments, "--rounds", "15", "--out", "r") == 0, capsys.readouterr().err
    config = json.loads(Path("r/config.json").read_text())
    assert config["cohort_size"] == 6  # everyone: there are fewer than the usual ten
    assert config["task"]["client_column"] == "site"
    assert config["task"]["partition"] == "clients"
    assert json.loads(Path("r/summary.json").read_text())["final"]["test_accuracy"] > 0.75
    lines = Path("own.csv").read_text().splitlines()
    site, height, *rest = lines[3].split(",")
    changed = ",".join([site, f"{float(height) + 1e-3:.3f}", *rest])  # sizes and classes stay
    Path("own.csv").write_text("\n".join([*lines[:3], changed, *lines[4:]]) + "\n")
    before = Path("r/config.json").read_bytes()
    assert fedoptax("resume", "r", "--rounds", "17") == 1
    assert "'file:own.csv' has changed" in capsys.readouterr().err and Path("r/config.json").read_bytes() == before
    own_table(Path("own.csv"))
    assert fedoptax("resume", "r", "--rounds", "17") == 0, capsys.readouterr().err
    assert len(Path("r/history.jsonl").read_text().splitlines()) == 17


def test_a_data_set_that_is_not_there_is_incomplete(capsys):
    assert fedoptax("data", "check", "mnist") == 1
    assert capsys.readouterr().err == "fedoptax: incomplete: mnist\n"


def test_what_a_terminal_cannot_show_is_escaped(monkeypatch):
    """The output is as Python opens it for PYTHONIOENCODING=ascii, and for LC_ALL=C with and without UTF-8."""
    rows = [f"{i};{i % 7};Köln-{i % 3};{'kränk' if i % 2 else 'wohl'}" for i in range(30)]
    Path("own.csv").write_text("höhe;breite;client;label\n" + "\n".join(rows), encoding="utf-8-sig")
    run = ["run", "--task", "file:own.csv", "--model", "logistic", "--algorithm", "fedavg", "--rounds", "1"]
    assert fedoptax(*run, "--set", "client_lr=0.1", "--out", "r") == 0
    partition, predict = ["data", "partition", "--task", "file:own.csv"], ["predict", "r", "--input", "own.csv"]
    for encoding, errors, arguments, word in (
        ("ascii", "strict", partition, b"kr\\xe4nk"),
        ("utf-8", "surrogateescape", predict, "Köln-1".encode()),
        ("ascii", "surrogateescape", predict, b"K\\xf6ln-1"),
    ):
        out = io.BytesIO()
        with monkeypatch.context() as patch, io.TextIOWrapper(out, encoding=encoding, errors=errors) as stream:
            patch.setattr(sys, "stdout", stream)
            assert fedoptax(*arguments) == 0
            stream.flush()
            assert word in out.getvalue()
