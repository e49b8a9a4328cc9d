"""Run folders that others made: reports on them, and going on with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fuzzing.command import check_answer, fedoptax, tree_of, untrained
from fuzzing.page import check_page
from fuzzing.target import Target, check, refusal

_ROW = {"round": 1, "train_loss": 0.5, "test_distance": 0.25, "bytes_up": 8, "bytes_down": 8, "seconds": 0.1}


def config(**changes: Any) -> dict[str, Any]:
    """A run's config.json, such as one on the quadratics writes."""
    content = {
        "format": 1, "kind": "run", "fedoptax": "0.1.0",
        "task": {"name": "quadratic", "description": "", "num_clients": 3, "partition_seed": 0},
        "algorithm": {"name": "fedavg", "hyperparameters": {"client_lr": 0.1}, "reference": "McMahan et al. 2017"},
        "rounds": 2, "cohort_size": 2, "batch_size": 5, "local_epochs": 1, "local_steps": None,
        "weighting": "uniform", "seed": 0, "eval_every": 1, "num_params": 10,
        "bytes": {"down_per_client": 40, "up_per_client": 40},
        "primary_metric": "test_distance", "higher_is_better": False,
        "partition": {"sizes": [4, 5, 6], "label_counts": [[1, 3], [5, 0], [2, 4]], "heterogeneity": 0.25,
                      "measures": {"size_gini": 0.1}},
        "environment": {"python": "3.11.7", "jax": "0.10.2", "device": "cpu: cpu x 1", "system": "Linux"},
    }  # fmt: skip
    return content | changes


def files(**changes: Any) -> dict[str, bytes]:
    """The files of a sound run."""
    rows = [_ROW, _ROW | {"round": 2, "test_distance": None}]
    return {
        "config.json": json.dumps(config(**changes)).encode(),
        "history.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
        "summary.json": json.dumps({"status": "completed", "message": None, "rounds_done": 2}).encode(),
    }


def comparison() -> dict[str, Any]:
    """The compare.json of two runs."""
    return {
        "format": 1, "algorithms": ["fedavg", "fedadam"], "seeds": [0],
        "hyperparameters": {"fedavg": {"client_lr": 0.1}, "fedadam": {"client_lr": 0.1, "server_lr": 0.1}},
        "task": {"name": "quadratic", "num_clients": 3, "partition_seed": 0},
        "options": {"rounds": 2, "cohort_size": 2, "batch_size": 5, "local_epochs": 1, "eval_every": 1},
        "command": "fedoptax compare --task quadratic",
    }  # fmt: skip


def search() -> dict[str, Any]:
    """The tune.json of two points."""
    return {
        "format": 1, "algorithm": "fedavg", "grid": {"client_lr": [0.1, 0.3], "server_lr": [1.0, 0.5, 0.1]},
        "fixed": {}, "rule": {"metric": "train_loss", "last": 1, "higher_is_better": False}, "seed": 0,
        "task": {"name": "quadratic", "num_clients": 3, "partition_seed": 0},
        "options": {"rounds": 2, "cohort_size": 2, "batch_size": 5, "local_epochs": 1, "eval_every": 1},
        "search": "grid", "trials": 0, "command": "fedoptax tune --task quadratic",
    }  # fmt: skip


def within(one: dict[str, Any]) -> dict[str, Any]:
    """A search as a part of compare.json."""
    return {name: value for name, value in one.items() if name != "format"}


def write(folder: Path, contents: dict[str, bytes]) -> None:
    """Writes files into a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)


WORDS = (
    b'"task"', b'"algorithm"', b'"name"', b'"rounds"', b'"seed"', b'"format"', b'"partition"', b'"sizes"', b'"seeds"',
    b'"label_counts"', b'"hyperparameters"', b'"bytes"', b'"primary_metric"', b'"environment"', b'"options"',
    b'"round"',
    b'"quadratic"', b'"counterexample"', b'"fedavg"', b'"algorithms"', b'"status"', b'"completed"', b'"diverged"',
    b'"test_distance"', b'"num_clients"', b'"os:getcwd"', b'"file:x.npz"', b'"../../x"', b"-5", b"1e308", b"0", b"1",
    b"12345678901234567890123", b"[[1]]", b"[[], [1]]", b"[1, 2, 3]", b'["a"]', b"{}", b"null", b"1.5", b"true",
    b'"grid"', b'"rule"',
    b'"tunings"', b'"client_lr"', b'"../x"', b'"optuna"',
    b'"cosine(0.1, 10)"', b'"cosine(1e999)"', b'"</script><script>alert(1)//"', b'"deployment"', b"[4, 5, 6]",
)  # fmt: skip


def _report(name: str, data: bytes, folder: Path) -> None:
    """A report on a folder of two runs, one of which has the bytes in place of one of its files."""
    from fedoptax.errors import RunError
    from fedoptax.report import final_table, history_table, load_runs, to_markdown
    from fedoptax.report.html import render
    from fedoptax.report.tables import to_csv
    from fedoptax.report.titles import title_of

    root = folder / "runs"
    write(root / "fedavg" / "seed-0", files())
    write(root / "fedavg" / "seed-1", files(seed=1))
    write(root, {"compare.json": json.dumps(comparison()).encode()})
    (root / name if name == "compare.json" else root / "fedavg" / "seed-0" / name).write_bytes(data)
    with refusal(RunError, str(root)):
        runs = load_runs(root)
        table = final_table(runs)
        to_markdown(table).encode()
        to_csv(table).encode("utf-8", "replace")
        to_csv(history_table(runs))
        check_page(render(runs, title_of(runs)))


def _report_target(name: str) -> Target:
    sound = (files() | {"compare.json": json.dumps(comparison()).encode()})[name]
    return Target(f"report-{name}", (sound,), partial(_report, name), WORDS)


def _figures() -> Target:
    """The figures of a report: slow, so only the parts of a config that they are drawn from."""

    def read(data: bytes, folder: Path) -> None:
        from fedoptax.errors import RunError
        from fedoptax.report import write_report

        write(folder / "run", files() | {"config.json": data})
        with refusal(RunError, "run"):
            write_report(folder / "run")
            left = {name for name in tree_of(folder) if not name.startswith("run")}
            check(not left, f"files elsewhere: {left}")

    return Target("report-figures", (files()["config.json"],), read, WORDS)


def _search_report(data: bytes, folder: Path) -> None:
    """The sections and charts of a search whose tune.json is hostile."""
    from fedoptax.errors import RunError
    from fedoptax.report.html import render
    from fedoptax.report.searches import load_searches, points_table
    from fedoptax.report.tables import to_csv

    root = folder / "runs"
    for number, rates in enumerate(((0.1, 1.0), (0.3, 0.5)), start=1):
        hyper = dict(zip(("client_lr", "server_lr"), rates))
        algorithm = {"name": "fedavg", "hyperparameters": hyper}
        write(root / f"point-{number:03d}", files(algorithm=algorithm))
    write(root, {"tune.json": data})
    with refusal(RunError, str(root)):
        searches = load_searches(root)
        to_csv(points_table(searches)).encode("utf-8", "replace")
        runs = [point.run for one in searches for point in one.ranked]
        check_page(render(runs, "a search", searches=searches, folder=root))


def _resume(name: str, data: bytes, folder: Path) -> None:
    """Going on with a folder whose config or comparison is hostile; nothing is trained."""
    write(folder / "run", {name: data} if name in ("compare.json", "tune.json") else files() | {name: data})
    write(folder / "victim", files())
    before = tree_of(folder / "victim")
    arguments = ["resume", str(folder / "run")]
    with untrained():
        answer = fedoptax(*arguments)
    check_answer(answer, arguments)
    check(tree_of(folder / "victim") == before, "another folder was changed")
    check({path.name for path in folder.iterdir()} <= {"run", "victim", "cache"}, "files outside the run's folder")


def _resume_target(name: str) -> Target:
    others = {"compare.json": comparison() | {"tunings": {"fedavg": within(search())}}, "tune.json": search()}
    sound = (files() | {key: json.dumps(value).encode() for key, value in others.items()})[name]
    return Target(f"resume-{name}", (sound,), partial(_resume, name), WORDS)


TARGETS: dict[str, Callable[[], Target]] = {
    **{
        f"report-{name}": partial(_report_target, name)
        for name in ("config.json", "history.jsonl", "summary.json", "compare.json")
    },
    "report-tune.json": lambda: Target("report-tune.json", (json.dumps(search()).encode(),), _search_report, WORDS),
    "report-figures": _figures,
    **{
        f"resume-{name}": partial(_resume_target, name)
        for name in ("config.json", "compare.json", "tune.json", "summary.json")
    },
}
