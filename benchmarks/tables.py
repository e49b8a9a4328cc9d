"""Real tables of hospitals, clinics, districts and schools: federated training against scikit-learn on pooled rows.

    FEDOPTAX_DATA=… python benchmarks/tables.py --out benchmarks/results/tables.md

Each table is described at first look, as `fedoptax data describe` does, and the columns that its warnings name
(identifiers, what is known only afterwards) are ignored. For each of five partition seeds 16 pairs of learning rates
are searched on a validation split, and the best one is measured on the test rows, as is scikit-learn's model fitted on
the same training rows (logistic regression or ridge with the default penalty, on the same features, standardised).
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedoptax as fx
from fedoptax.data.describe import infer_file

TABLES = {  # file: client column, label, positive class, columns that are ignored, rounds, allowed difference
    "contraception": ("district", "use", "Y", ["woman"], 100, 0.02),
    "indo_rct": ("site", "outcome", "1_yes", ["id", "bleed", "train"], 100, 0.05),
    "exam": ("school", "normexam", None, ["student"], 100, 0.02),
    "covid_testing": ("clinic_name", "result", "positive", ["subject_id", "test_id", "ct_result"], 30, 0.02),
}
GRID = {"client_lr": [0.01, 0.03, 0.1, 0.3], "server_lr": [0.1, 0.3, 1.0, 3.0]}


def measure(name: str, seed: int, folder: Path) -> tuple[float, float, int]:
    """Return the federated and the pooled result of a table and partition seed, and the number of test rows."""
    client, label, positive, ignored, rounds, _ = TABLES[name]
    path = folder / f"{name}.csv"
    schema = infer_file(path, label, client, None if positive else "number").without(ignored)
    schema = replace(schema, min_count=5)
    task = fx.load_task(f"file:{path}", schema=schema.to_toml(), model="linear", validation_fraction=0.2, seed=seed)
    select, sign = ("val_r2", 1) if positive is None else ("val_loss", -1)
    options = {"rounds": rounds, "cohort_size": task.num_clients, "batch_size": 20, "eval_every": rounds // 4}
    points = fx.sweep(task, fx.fedavg, grid=GRID, **options)
    best = max(points, key=lambda point: -np.inf if (v := point.history.last(select)) is None else sign * v)
    train, test = task.clients.examples, task.test
    predicted = np.asarray(task.predict(best.params, test))
    if positive is None:
        pooled = make_pipeline(StandardScaler(), Ridge()).fit(train["x"], train["y"])
        return r2_score(test["y"], predicted), r2_score(test["y"], pooled.predict(test["x"])), len(test["y"])
    place = list(task.classes).index(positive)
    pooled = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(train["x"], train["y"])
    truth = test["y"] == place
    other = pooled.predict_proba(test["x"])[:, list(pooled.classes_).index(place)]
    return roc_auc_score(truth, predicted[:, place]), roc_auc_score(truth, other), len(test["y"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    folder = Path(os.environ["FEDOPTAX_DATA"]) / "tables"
    lines = [
        "# Tables of real sites", "", "*Made by `benchmarks/tables.py`.*", "",
        "| table | metric | test rows | federated | pooled scikit-learn | difference | allowed | by seed |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, (*_, positive, _, _, allowed) in TABLES.items():
        pairs = []
        for seed in range(arguments.seeds):
            *pair, rows = measure(name, seed, folder)
            pairs.append(pair)
            print(name, seed, *pair, flush=True)
        ours, pooled = np.mean(pairs, axis=0)
        by_seed = ", ".join(f"{a - b:+.3f}" for a, b in pairs)
        metric = "R²" if positive is None else f"AUROC of {positive}"
        row = (
            f"| {name} | {metric} | {rows} | {ours:.3f} | {pooled:.3f} | {ours - pooled:+.3f} | {allowed} | {by_seed} |"
        )
        lines.append(row)
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
