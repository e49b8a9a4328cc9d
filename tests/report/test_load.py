"""Runs read back from folders, grouped, labelled and made into curves."""

from collections.abc import Callable

import numpy as np
import pytest

from fedoptax.report import group_runs, load_runs
from fedoptax.report.curves import axis_limits, find_axes, find_metrics, make_curve
from fedoptax.report.style import style_of
from refusals import refused
from run_folders import ramp, write_comparison, write_run


def test_a_comparison_keeps_its_own_order(tmp_path):
    write_comparison(tmp_path, ["fedyogi", "fedavg"], seeds=2, rounds=5)
    runs = load_runs(tmp_path)
    assert [(run.config["algorithm"]["name"], run.config["seed"]) for run in runs] == [
        ("fedyogi", 0), ("fedyogi", 1), ("fedavg", 0), ("fedavg", 1)]  # fmt: skip
    assert all(run.command and run.command.startswith("fedoptax compare") for run in runs)
    assert list(runs[0].rows["round"]) == [1, 2, 3, 4, 5]


RUN = "fedavg/seed-0/"
DAMAGED: list[tuple[str, Callable[[str], str], str]] = [  # file, what becomes of its text, the refusal
    (f"{RUN}config.json", lambda text: "[1]", "config.json"),
    (f"{RUN}history.jsonl", lambda text: text[text.index("\n") + 1 :], "line 1"),  # rounds out of order
    (f"{RUN}history.jsonl", lambda text: text[:-9], "has 5 of 6 rounds"),  # of a run that has ended
]


@pytest.mark.parametrize(("name", "change", "part"), DAMAGED)
def test_damaged_files_are_refused_in_one_line(tmp_path, name, change, part):
    path = write_comparison(tmp_path, ["fedavg"], seeds=1, rounds=6) / name
    path.write_text(change(path.read_text()))
    refused(lambda: load_runs(tmp_path), part)


def test_labels_say_only_what_differs(tmp_path):
    write_run(tmp_path / "a", ramp(0.9), hyper={"client_lr": 0.1, "server_lr": 0.01})
    write_run(tmp_path / "b", ramp(0.9), hyper={"client_lr": 0.1, "server_lr": 0.03})
    write_run(tmp_path / "c", ramp(0.9), name="fedavg", hyper={"client_lr": 0.1})
    labels = [group.label for group in group_runs(load_runs(tmp_path))]
    assert labels == ["fedadam (server_lr=0.01)", "fedadam (server_lr=0.03)", "fedavg"]


def test_options_that_change_no_result_make_no_group(tmp_path):
    for seed, place in enumerate(("device", "host")):
        options = {"mesh": seed + 1, "client_states": place, "client_loop": ("loop", "vmap")[seed]}
        deployment = {"experiment": f"{seed}abc", "quorum": 0.5}  # the experiment's id is drawn anew for each run
        write_run(tmp_path / str(seed), ramp(0.9), seed=seed, deployment=deployment, **options)
    write_run(tmp_path / "other", ramp(0.9), deployment={"experiment": "2abc", "quorum": 1.0})
    groups = group_runs(load_runs(tmp_path))
    assert [group.label for group in groups] == ["fedadam (quorum=0.5)", "fedadam (quorum=1)"]
    assert [len(group.runs) for group in groups] == [2, 1]


def test_a_repeated_run_is_no_second_seed(tmp_path):
    write_run(tmp_path / "a", ramp(0.9))
    write_run(tmp_path / "b", ramp(0.9))
    groups = group_runs(load_runs(tmp_path))
    assert [group.label for group in groups] == ["fedadam (copy=1)", "fedadam (copy=2)"]
    assert len({style_of(i) for i in range(21)}) == 21


def test_mean_and_spread_stop_where_a_seed_stops(tmp_path):
    write_run(tmp_path / "0", [0.2, 0.4, 0.6], seed=0)
    write_run(tmp_path / "1", [0.4, 0.6], seed=1, rounds=3, status="diverged")
    curve = make_curve(group_runs(load_runs(tmp_path))[0], "test_accuracy")
    assert curve.mean[:2].tolist() == pytest.approx([0.3, 0.5])
    assert np.isnan(curve.mean[2])
    assert curve.std[0] == pytest.approx(0.02**0.5)
    assert curve.along("megabytes").tolist() == pytest.approx([0.9876, 1.9752, 2.9628])


def test_the_primary_metric_comes_first_and_a_diverged_run_does_not_stretch_the_axis(tmp_path):
    write_run(tmp_path / "a", ramp(0.9), losses=ramp(1.0))
    write_run(tmp_path / "b", ramp(0.9), name="fedavg", losses=[1e30] * 20, status="diverged")
    metrics = find_metrics(group_runs(load_runs(tmp_path)))
    assert [metric.name for metric in metrics] == ["test_accuracy", "test_loss", "train_loss"]
    assert [metric.higher_is_better for metric in metrics] == [True, False, False]
    assert axis_limits(metrics[2].curves) == pytest.approx((0.05 - 0.038, 1.0 + 0.038))


def test_costs_are_axes_where_the_history_has_them(tmp_path):
    write_run(tmp_path / "0", ramp(0.9, 3), counts=[[20], [21]], gradients_per_step=2)
    (run,) = load_runs(tmp_path)
    (metric, *_) = metrics = find_metrics(group_runs([run]))
    assert [axis.name for axis in find_axes(metrics)] == ["round", "megabytes", "gradients", "seconds"]
    assert metric.curves[0].along("gradients").tolist() == [30, 60, 90]  # 10 clients, 1.5 batches, 2 gradients
    assert run._replace(config=run.config | {"gradients_per_step": 0}).gradients_per_round == 10  # one a client
    assert metric.curves[0].along("seconds").tolist() == pytest.approx([0.02, 0.04, 0.06])
    path = tmp_path / "0" / "history.jsonl"
    path.write_text(path.read_text().replace('"seconds"', '"virtual_seconds": 5, "seconds"'))
    metrics = find_metrics(group_runs(load_runs(tmp_path)))
    assert find_axes(metrics)[-1].title == "Virtual time (s)"
    assert metrics[0].curves[0].along("virtual_seconds").tolist() == [5, 10, 15]
