"""Real tables of hospitals, clinics, districts and schools: federated training against scikit-learn on pooled rows.

    FEDOPTAX_DATA=… python benchmarks/tables.py --work FOLDER --out benchmarks/results/tables.md

By the command line, as a user does it: `fedoptax data describe`, the columns that its warnings name (identifiers, what
is known only afterwards) set to `ignore`, then for each of five partition seeds `fedoptax compare --tune --budget 16`
by the loss on a validation split. The model of the final run is measured on the test rows, as is scikit-learn's model
fitted on the same training rows (logistic regression or ridge with the default penalty, on the same features,
standardised). What is finished in the work folder is not done again.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fedoptax as fx

TABLES = {  # file: client column, label, positive class, columns that are ignored, options of the run, allowed
    "contraception": ("district", "use", "Y", ["woman"], ["--rounds", "100"], 0.02),
    "indo_rct": ("site", "outcome", "1_yes", ["id", "bleed", "train"], ["--rounds", "100"], 0.05),
    "exam": ("school", "normexam", None, ["student"], ["--rounds", "100"], 0.02),
    "covid_testing": (
        *("clinic_name", "result", "positive", ["subject_id", "test_id", "ct_result"]),
        ["--rounds", "30", "--batch-size", "100"],
        0.02,
    ),
}


def call(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "fedoptax.cli.main", *map(str, arguments)], check=True, stdout=sys.stderr)


def describe(name: str, path: Path, folder: Path) -> Path:
    """Write the schema of a table, and ignore what should be."""
    client, label, _, ignored, *_ = TABLES[name]
    schema, columns = folder / f"{name}.toml", ("--client-column", client, "--label-column", label)
    call("data", "describe", path, *columns, "--out", schema, "--overwrite")
    lines = re.sub(rf'^"({"|".join(ignored)})" = .*$', r'"\1" = {kind = "ignore"}', schema.read_text(), flags=re.M)
    schema.write_text(lines)
    return schema


def measure(name: str, seed: int, path: Path, schema: Path, folder: Path) -> dict[str, float]:
    """Return the federated and the pooled result of a table and partition seed, and the number of test rows."""
    *_, positive, _, options, _ = TABLES[name]
    task = fx.load_task(f"file:{path}", schema=schema, model="linear", validation_fraction=0.2, seed=seed)
    call(
        "compare", "--task", f"file:{path}", "--schema", schema, "--model", "linear", "--partition-seed", seed,
        "--validation-fraction", 0.2, "--algorithms", "fedavg", "--cohort-size", task.num_clients, *options,
        "--tune", "--budget", 16, "--select", "val_loss", "--seeds", 1, "--out", folder,
    )  # fmt: skip
    model = fx.load_model(folder / "fedavg" / "seed-0")
    train, test = task.clients.examples, task.test
    predicted = np.asarray(model.outputs(test))
    if positive is None:
        pooled = make_pipeline(StandardScaler(), Ridge()).fit(train["x"], train["y"])
        scores = [r2_score(test["y"], values) for values in (predicted, pooled.predict(test["x"]))]
    else:
        place = list(task.classes).index(positive)
        pooled = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(train["x"], train["y"])
        others = pooled.predict_proba(test["x"])[:, list(pooled.classes_).index(place)]
        scores = [roc_auc_score(test["y"] == place, values) for values in (predicted[:, place], others)]
    return {"federated": float(scores[0]), "pooled": float(scores[1]), "rows": len(test["y"])}


def row_of(name: str, results: list[dict[str, float]]) -> str:
    *_, positive, _, _, allowed = TABLES[name]
    federated, pooled = (np.array([result[kind] for result in results]) for kind in ("federated", "pooled"))
    metric = "R²" if positive is None else f"AUROC of {positive}"
    by_seed = ", ".join(f"{difference:+.3f}" for difference in federated - pooled)
    means = f"{federated.mean():.3f} | {pooled.mean():.3f} | {(federated - pooled).mean():+.3f}"
    return f"| {name} | {metric} | {results[0]['rows']} | {means} | {allowed} | {by_seed} |"


MADE = """*Made by `python benchmarks/tables.py --work FOLDER --out benchmarks/results/tables.md`: FedAvg with 16 \
searched points on clients that keep their rows, beside scikit-learn's model on the pooled rows, five partitions. \
Difference: federated − pooled, the mean over partitions; allowed: how far that mean may be below 0; by seed: of each \
partition; test rows: of the first.*"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    lines = [
        "# Tables of real sites", "", MADE, "",
        "| table | metric | test rows | federated | pooled scikit-learn | difference | allowed | by seed |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    arguments.work.mkdir(parents=True, exist_ok=True)
    for name in TABLES:
        path = Path(os.environ["FEDOPTAX_DATA"]) / "tables" / f"{name}.csv"
        schema, results = describe(name, path, arguments.work), []
        for seed in range(arguments.seeds):
            folder = arguments.work / f"{name}-{seed}"
            stored = folder.with_suffix(".json")
            if not stored.exists():
                stored.write_text(json.dumps(measure(name, seed, path, schema, folder)))
            results.append(json.loads(stored.read_text()))
            print(name, seed, results[-1], flush=True)
        lines.append(row_of(name, results))
        arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
