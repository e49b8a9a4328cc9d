"""The numbers of a report against values computed by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedoptax as fx
from fedoptax._files import write_json
from fedoptax.experiments.selection import is_higher_better
from fedoptax.report import final_table, group_runs, load_runs, to_markdown
from fedoptax.report.clients import QUANTILES, find_client_bands, tabulate_clients
from fedoptax.report.curves import make_curve
from fedoptax.report.figures import draw_client_bands, draw_clients
from fedoptax.report.page import list_incomplete, render
from fedoptax.report.paired import compare_seeds
from fedoptax.report.partition import find_partitions
from fedoptax.report.report import find_verdicts, load_report
from fedoptax.report.tables import short_table, to_latex
from run_folders import ramp, write_run
from small import small_task


def test_final_values_by_hand(tmp_path):
    write_run(tmp_path / "0", ramp(0.90), seed=0)
    write_run(tmp_path / "1", ramp(0.80), seed=1)
    write_run(tmp_path / "2", [*ramp(0.70)[:-1], 0.60], seed=2)
    row = final_table(load_runs(tmp_path)).iloc[0]
    assert row["seeds"] == row["counted"] == 3
    assert row["final"] == pytest.approx((0.9 + 0.8 + 0.6) / 3)
    # deviations from 23/30: 4/30, 1/30, −5/30; squares 42/900 over n − 1 = 2
    assert row["final_std"] == pytest.approx((21 / 900) ** 0.5)
    assert row["best"] == pytest.approx((0.9 + 0.8 + 0.665) / 3)
    assert (row["best_metric"], row["best_round"]) == ("test_accuracy", 20)
    assert row["last_window"] == 2
    assert row["last_mean"] == pytest.approx(((0.9 + 0.855) / 2 + (0.8 + 0.76) / 2 + (0.6 + 0.665) / 2) / 3)
    assert row["train_loss"] == pytest.approx(2.0 / 20)
    assert row["bytes_up"] == row["bytes_down"] == 49380
    assert row["total_bytes"] == 20 * 2 * 493800
    assert row["seconds_per_round"] == pytest.approx(0.02)


def test_rounds_and_bytes_to_a_target_by_hand(tmp_path):
    counts = [[20], [21]]  # 1 and 2 minibatches of 20
    for seed, values in enumerate([[0.5, 0.7, 0.9, 1.0], [0.2, 0.96, 0.97, 1.0], [0.95, 0.9, 0.9, 1.0]]):
        write_run(tmp_path / f"good-{seed}", values, seed=seed, counts=counts, gradients_per_step=2)
    for seed, values in enumerate([[0.1, 0.2, 0.99, 0.5], [0.1, 0.2, 0.3, 0.4]]):
        write_run(tmp_path / f"weak-{seed}", values, seed=seed, name="fedavg", counts=counts)
    table = final_table(load_runs(tmp_path)).set_index("algorithm")
    assert table["target"].tolist() == pytest.approx([0.95, 0.95])
    assert table.loc["fedadam", "rounds_to_target"] == 2  # median of 4, 2, 1
    assert table.loc["fedadam", "bytes_to_target"] == 2 * 2 * 493800
    assert table.loc["fedadam", "gradients_to_target"] == 2 * 10 * 1.5 * 2  # rounds, clients, steps, gradients a step
    assert table.loc["fedavg", "rounds_to_target"] == float("inf")  # one of two seeds never reached it
    given = final_table(load_runs(tmp_path), target=0.25).set_index("algorithm")
    assert given["rounds_to_target"].tolist() == [1, 3]


def test_the_best_round_is_chosen_by_validation_where_there_is_some(tmp_path):
    for seed, (round, value) in enumerate([(2, 0.7), (4, 0.9)]):
        best = {"round": round, "metric": "val_accuracy", "value": value}
        write_run(tmp_path / f"{seed}", [0.1, 0.5, 0.8, 0.6], seed=seed, notes={"best": best}, status="stopped early")
    table = final_table(load_runs(tmp_path))
    row = table.iloc[0]
    assert row["complete"] and row["counted"] == 2
    assert (row["best_metric"], row["best"], row["best_round"]) == ("val_accuracy", pytest.approx(0.8), 3)
    assert row["at_best"] == pytest.approx((0.5 + 0.6) / 2) and row["final"] == pytest.approx(0.6)
    header, _, cells = to_markdown(table).splitlines()
    shown = dict(zip(*([cell.strip() for cell in line.split("|")] for line in (header, cells)), strict=True))
    assert (shown["Best val accuracy"], shown["Best round"], shown["Test accuracy then"]) == ("0.8000", "3", "0.5500")


def test_only_evaluated_rounds_count(tmp_path):
    write_run(tmp_path, [None, None, 0.5, None, 0.6] * 8)
    runs = load_runs(tmp_path)
    row = final_table(runs).iloc[0]
    assert (row["final"], row["last_window"]) == (0.6, 4)
    assert row["last_mean"] == pytest.approx(0.55)  # of rounds 37 to 40 the 38th and 40th were evaluated
    curve = make_curve(group_runs(runs)[0], "test_accuracy")
    assert curve is not None and curve.along("round").tolist()[:3] == [3, 5, 8]


def test_a_run_that_ends_without_a_finite_value_is_not_judged_by_an_earlier_one(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", [0.9, 0.9, None if seed else 0.8], seed=seed)  # such as an infinite perplexity
        write_run(tmp_path / f"b{seed}", [0.5] * 3, name="fedavg", seed=seed)
        write_run(tmp_path / f"c{seed}", [None if seed else 0.9] * 3, name="mime", seed=seed)
    table = final_table(load_runs(tmp_path)).set_index("algorithm")
    assert np.isnan(table.loc["fedadam", "final"]) and table.loc["fedadam", "counted"] == 1
    assert table["complete"].to_dict() == {"fedadam": False, "fedavg": True, "mime": False}


def test_diverged_seeds_do_not_enter_final_values_and_are_named(tmp_path):
    write_run(tmp_path / "0", ramp(0.9), seed=0)
    write_run(tmp_path / "1", ramp(0.1, 4), seed=1, status="diverged", message="loss is not finite", rounds=20)
    write_run(tmp_path / "2", ramp(0.5), name="fedavg")
    runs = load_runs(tmp_path)
    table = final_table(runs)
    assert table.loc[0, ["final", "status", "counted"]].tolist() == [0.9, "1 of 2 diverged", 1]
    assert find_verdicts(table) == []
    write_run(tmp_path / "3", ramp(0.4), name="fedyogi")
    (verdict,) = find_verdicts(final_table(load_runs(tmp_path)))
    assert verdict.leader == "fedavg" and "fedadam, of which not all seeds completed, cannot be ranked" in verdict.text
    assert list_incomplete(group_runs(runs)) == ["fedadam, seed 1: diverged after 4 of 20 rounds: loss is not finite"]
    assert "1 of 2 diverged" in to_markdown(table)


def write_seeds(folder: Path, name: str, finals: list[float]) -> None:
    for seed, final in enumerate(finals):
        write_run(folder / f"{name}-{seed}", ramp(final), seed=seed, name=name)


def test_a_winner_needs_a_paired_test(tmp_path):
    """Seeds move all methods alike: spreads overlap, yet the differences are 0.02 ± 0.002."""
    write_seeds(tmp_path, "fedadam", [0.90, 0.93, 0.87])
    write_seeds(tmp_path, "fedavg", [0.88, 0.912, 0.848])
    table = final_table(load_runs(tmp_path)).set_index("algorithm")
    # differences 0.02, 0.018, 0.022: mean 0.02, deviation 0.002, t = 0.02 / (0.002 / √3) = 17.32 with 2 degrees
    assert table.loc["fedavg", "behind"] == pytest.approx(0.02)
    assert table.loc["fedavg", "p"] == pytest.approx(0.0033167, rel=1e-3)
    half = 4.302653 * 0.002 / 3**0.5  # the 97.5 % quantile of t with 2 degrees
    assert table.loc["fedavg", ["low", "high"]].tolist() == pytest.approx([0.02 - half, 0.02 + half], rel=1e-4)
    assert table.loc["fedadam", ["behind", "standing"]].tolist() == [0, "best"]
    (clear,) = find_verdicts(table.reset_index())
    assert clear.is_clear and clear.leader == "fedadam"
    assert "best final test accuracy, 0.9000 ± 0.0300 (3 seeds); fedavg is significantly lower, by 0.020 " in clear.text
    assert "[0.015, 0.025] (p 0.0033). " in clear.text
    assert "Early, as the mean of the first 4 rounds, fedadam has the best, 0.1125;" in clear.text
    write_seeds(tmp_path, "fedyogi", [0.899, 0.931, 0.868])
    table = final_table(load_runs(tmp_path)).set_index("algorithm")
    (near,) = find_verdicts(table.reset_index())
    assert not near.is_clear and "fedadam has the highest final test accuracy" in near.text
    assert "the difference from fedyogi is not significant (p ≥ 0.53)" in near.text
    assert "Equivalent within a percentage point: fedyogi." in near.text
    assert table.loc["fedavg", "p"] == pytest.approx(2 * 0.0033167, rel=1e-3)  # Holm: the smallest of three, 0.0003,
    assert table.loc["fedyogi", "p"] == pytest.approx(0.52860, rel=1e-3)  # is that of fedyogi against fedavg
    shown = to_markdown(table.reset_index())
    assert "within a point" in shown and " highest |" in shown and " best |" not in shown.splitlines()[2][:60]
    lines = [" ".join(row) for row in short_table(table.reset_index())]
    assert lines[1].startswith("fedadam 0.9000 ± 0.0300 highest ") and "0.020, p 0.0066" in lines[2]
    assert r"fedadam & 0.9000 $\pm$ 0.0300 & highest &" in to_latex(table.reset_index())
    assert 'class="best"' not in render(load_report(tmp_path), {}, tmp_path)
    write_run(tmp_path / "stray", ramp(0.1), name="fedprox", seed=2)  # where fedyogi would lead
    assert find_verdicts(final_table(load_runs(tmp_path)))[0].leader == "fedadam"


def test_where_lower_is_better_the_lowest_is_best(tmp_path):
    kind = {"higher_is_better": False, "metrics": {"accuracy": {"higher_is_better": False, "format": "number"}}}
    for name, finals in (("fedadam", [0.10, 0.07, 0.13]), ("fedavg", [0.12, 0.088, 0.152])):
        for seed, value in enumerate(finals):
            write_run(tmp_path / f"{name}-{seed}", [1, 0.5, value - 0.01, value], seed=seed, name=name, **kind)
    table = final_table(load_runs(tmp_path))
    assert table["standing"].tolist() == ["best", ""] and table["behind"].tolist() == pytest.approx([0, 0.02])
    assert table["p_within_point"].isna().all()  # which is said of shares
    assert table["target"].tolist() == pytest.approx([0.105] * 2) and table["best_round"].tolist() == [3, 3]
    assert table["best"].tolist() == pytest.approx([0.09, 0.11]) and table["rounds_to_target"].tolist() == [3, math.inf]


def test_early_progress_has_tests_of_its_own(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"fast-{seed}", [0.8, 0.8 + seed / 100, 0.9, 0.9], seed=seed)
        write_run(tmp_path / f"slow-{seed}", [0.1, 0.1, 0.9, 0.9], seed=seed, name="fedavg", weighting="uniform")
    table = final_table(load_runs(tmp_path), target=0.8, early=2).set_index("algorithm")
    assert table["early"].tolist() == pytest.approx([0.805, 0.1])
    assert table["early_standing"].tolist() == ["best", ""] and table.loc["fedavg", "early_p"] < 0.001
    assert (table.loc["fedavg", "rounds_behind"], table.loc["fedavg", "rounds_p"]) == (2, 0.25)
    assert table.loc["fedavg", "p"] == 1 and table.loc["fedadam", "standing"] == "highest"
    assert find_verdicts(table.reset_index())[0].text.count("significant") == 2
    for seed in range(3):
        write_run(tmp_path / f"rare-{seed}", [None, 0.99, 0.9, 0.9], seed=seed, name="mime")  # of fewer rounds, no mean
    table = final_table(load_runs(tmp_path), early=2).set_index("algorithm")
    assert table.loc["fedadam", "early_standing"] and np.isnan(table.loc["mime", "early_p"])


def test_groups_of_other_rounds_and_seeds_are_compared_by_what_they_share(tmp_path):
    for seed, values in enumerate([[0.5, 0.6], [0.7, 0.8], [0.6, 0.7], [0.1, 0.1]]):
        write_run(tmp_path / f"a-{seed}", values, seed=seed)  # ahead of b in each seed, not in the mean of its own
        if seed < 3:
            behind = [value - 0.05 + (seed - 1) / 1000 for value in values] * 10
            write_run(tmp_path / f"b-{seed}", behind, seed=seed, name="fedavg", faults={"dropout": 0.5})
    table = final_table(load_runs(tmp_path))
    assert table["early_window"].tolist() == [1, 1] and table["standing"].tolist() == ["best", ""]
    assert table["algorithm"].tolist() == ["fedadam (rounds=2)", "fedavg (rounds=20, faults=dropout 0.5)"], "unlike"
    assert table.loc[1, "behind"] == pytest.approx(0.05) and table.loc[1, "early_behind"] == pytest.approx(0.05)
    for seed, status in enumerate(["completed", "running"]):  # highest, but not compared, as one run did not complete
        write_run(tmp_path / f"c-{seed}", [0.9] * (2 - seed), seed=seed, name="mime", status=status, rounds=2)
    assert "best" not in final_table(load_runs(tmp_path))["standing"].tolist()
    assert "by the mean over the 3 seeds in common" in find_verdicts(table)[0].text


def test_a_metric_says_itself_whether_more_is_better(tmp_path):
    metrics = {"accuracy": {"higher_is_better": False, "format": "number"}}
    write_run(tmp_path / "a", ramp(0.9), higher_is_better=True, metrics=metrics)
    assert not load_runs(tmp_path)[0].higher_is_better
    fx.run(
        replace(task := small_task(), primary_metric=None), fx.fedavg(0.1), rounds=1, cohort_size=2, out=tmp_path / "b"
    )
    run = load_runs(tmp_path / "b")[0]
    assert run.metric == "test_nll" and run.higher_is_better == is_higher_better(task, "test_nll")


def test_two_seeds_are_too_few_for_a_verdict_and_one_shows_no_spread(tmp_path):
    for seeds, says in (([0.0, 0.01], "0.80, too few seeds"), ([0.0], "0.80")):
        folder = tmp_path / str(len(seeds))
        write_seeds(folder, "fedadam", [0.9 + more for more in seeds])
        write_seeds(folder, "fedavg", [0.1 + more for more in seeds])
        table = final_table(load_runs(folder))
        (verdict,) = find_verdicts(table)
        assert not verdict.is_clear and ("too few seeds" in verdict.text) == (len(seeds) > 1)
        assert says in to_markdown(table) and ("±" in to_markdown(table)) == (len(seeds) > 1)


def test_equal_differences_decide_without_a_t_test():
    one = {0: 0.5, 1: 0.7, 2: 0.6}
    assert compare_seeds(one, one) == (3, 0.0, 0.0, 0.0, 1.0, 0.125)
    apart = compare_seeds(one, {seed: value - 0.25 for seed, value in one.items()})
    assert (apart.p_differs, apart.p_within_point) == (0.25, 1.0)
    shares = {seed: float(np.float32(correct / 48)) for seed, correct in enumerate((31, 40, 22))}
    more = {seed: float(np.float32(value + 1 / 48)) for seed, value in shares.items()}  # equal but for rounding
    assert compare_seeds(more, shares).p_differs == 0.25
    assert compare_seeds(one, {seed: value * (1 + 1e-7) for seed, value in one.items()}).p_differs == 1.0


def test_markdown_escapes(tmp_path):
    write_run(tmp_path / "a", ramp(0.9), name="a|b\n<b>x</b>")
    lines = to_markdown(final_table(load_runs(tmp_path))).splitlines()
    assert "Bytes to 0.855" in lines[0]
    assert r"a\|b &lt;b&gt;x&lt;/b&gt;" in lines[2]


def test_columns_of_clients_privacy_and_time_by_hand(tmp_path):
    for seed in (0, 1):
        others = {"spread": 0.2, "worst_decile": 0.1}
        parts: dict[str, Any] = {w: {"mean": m + seed / 10, **others} for w, m in (("before", 0.4), ("after", 0.6))}
        run = write_run(tmp_path / f"{seed}", ramp(0.9, 3), seed=seed, notes={"personalized": {"steps": 5, **parts}})
        rows = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
        for row in rows:
            row |= {"client_accuracy_spread": 0.3, "client_accuracy_worst_decile": 0.5 + seed / 10}
            row |= {"epsilon": row["round"] + seed, "seconds": 10.0 if row["round"] == 3 else 1.0}
        (run / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    row = final_table(load_runs(tmp_path)).loc[0]
    found = [row[name] for name in ("before", "after", "client_spread", "client_worst", "epsilon", "seconds_per_round")]
    assert found == pytest.approx([0.45, 0.65, 0.3, 0.55, 4, 1])


def test_quantiles_are_over_clients_and_their_mean_over_seeds(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.random((2, 3, 20))  # seeds, rounds, clients
    for seed, by_round in enumerate(values):
        run = write_run(tmp_path / f"{seed}", ramp(0.9, 6), seed=seed)
        rounds, clients = np.repeat([2, 4, 6], 20), np.tile(np.arange(20), 3)
        table = pd.DataFrame({"round": rounds, "client": clients, "accuracy": by_round.reshape(-1)})
        table.insert(2, "name", [f"site {client}" for client in clients])
        table.to_parquet(run / "clients.parquet")
    write_run(tmp_path / "other", ramp(0.8, 6), name="fedavg")
    report = load_report(tmp_path)
    (bands,) = find_client_bands(report.groups)
    assert bands.rounds.tolist() == [2, 4, 6] and bands.group.algorithm == "fedadam"
    np.testing.assert_allclose(bands.values, np.quantile(values, QUANTILES, axis=2).mean(1).T)
    ends = [bands.end[f"site {client}"] for client in range(20)]
    np.testing.assert_allclose(ends, values[:, -1].mean(0))
    names = [text.get_text() for text in draw_clients([bands]).axes[0].get_xticklabels()]
    assert names == [f"site {client}" for client in np.argsort(ends)]
    assert len(draw_client_bands([bands]).axes) == 1 and "Clients over rounds" in render(report, {}, tmp_path)


def test_a_comparison_is_judged_by_the_metric_that_its_searches_ranked_by(tmp_path: Path) -> None:
    write_run(tmp_path / "fedadam" / "seed-0", ramp(0.9, 2), primary_metric=None, higher_is_better=False)
    (judged,) = load_runs(tmp_path)
    assert judged.metric == "train_loss" and not judged.higher_is_better
    for metric, column in {"val_accuracy": "test_accuracy", "val_loss": "train_loss"}.items():
        search = {"rule": {"metric": metric, "higher_is_better": column != "train_loss"}}
        write_json(tmp_path / "compare.json", {"format": 1, "algorithms": [], "tunings": {"fedadam": search}})
        (judged,) = load_runs(tmp_path)
        assert judged.metric == column and judged.higher_is_better == search["rule"]["higher_is_better"]


def test_each_client_is_shown_with_its_data_and_its_gain_over_training_alone(tmp_path: Path) -> None:
    names, means = ["north", "<b>south</b>", "of one class"], {"fedavg": (0.8, 0.6), "local": (0.7, 0.65)}
    config: dict[str, Any] = {"client_names": names, "positive": [1, "yes"]}
    config["partition"] = {"sizes": [40, 1000, 9], "label_counts": [[30, 10], [900, 100], [9, 0]]}
    for algorithm, values in means.items():
        for seed, shift in enumerate((-0.01, 0.0, 0.01)):
            run = write_run(tmp_path / f"{algorithm}-{seed}", ramp(0.9, 2), name=algorithm, seed=seed, **config)
            rows = {
                "round": [2, 2],
                "client": [0, 1],
                "name": names[:2],
                "accuracy": [value + shift for value in values],
            }
            pd.DataFrame(rows).to_parquet(run / "clients.parquet")
    report = load_report(tmp_path)
    table = tabulate_clients(report.client_bands).T
    assert table["north"].tolist() == [
        "40", "0.250", "0.8000 [0.775, 0.825]", "+0.1000 [0.100, 0.100]", "0.7000 [0.675, 0.725]",
    ]  # fmt: skip
    assert table[names[2]].tolist() == ["9", "0.00", "–", "–", "–"]
    band, pooled = report.client_bands[0], {"algorithm": {"name": "centralized"}, "partition": {"sizes": [1049]}}
    first = band._replace(group=replace(band.group, config={**band.group.config, **pooled}))
    assert tabulate_clients([first, band]).T["north"].iloc[0] == "40"
    assert find_partitions([first.group, band.group])[0].sizes.tolist() == [40, 1000, 9]
    assert table.index[:2].tolist() == ["Training examples", "Share of yes"] and table.columns[0] == names[1]
    lower = [band._replace(group=replace(band.group, higher_is_better=False)) for band in report.client_bands]
    assert tabulate_clients(lower).T["north"].tolist()[3] == "-0.1000 [-0.100, -0.100]"
    assert "<td>1,000</td><td>0.100</td>" in (page := render(report, {}, tmp_path)) and names[1] not in page
