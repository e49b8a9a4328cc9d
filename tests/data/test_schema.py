"""Tables of any kind: no text becomes a number, no number to predict becomes classes, no name gets lost."""

from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

import fedoptax as fx
from fedoptax.data.custom import load_file
from fedoptax.data.describe import find_faults, infer_file, infer_schema
from fedoptax.data.schema import EMPTY, ColumnSchema, Schema, Target
from fedoptax.data.statistics import add_up, add_up_clients, prepare
from fedoptax.tasks.images import cross_entropy
from fedoptax.tasks.tables import class_weights
from files import patients
from refusals import refused

CELL = st.one_of(
    st.sampled_from(["", "007", "3+", "1_yes", "0_no", "NA", "true", "no", "2020-01-01", "1,5", "mid 50%", "Ünï 1"]),
    st.integers(-9, 9).map(str),
    st.floats(-99, 99, width=32).map(repr),
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=6),
)


def is_number(text):
    try:
        return np.isfinite(float(text))
    except ValueError:
        return False


COLUMN = st.one_of(st.lists(CELL, min_size=30, max_size=30), CELL.flatmap(lambda cell: st.just([cell] * 30)))


@settings(max_examples=25, deadline=None)
@given(st.lists(COLUMN, min_size=1, max_size=3), st.lists(CELL.filter(str.strip), min_size=2, max_size=2, unique=True))
def test_no_text_becomes_a_number_and_no_name_gets_lost(tmp_path_factory, columns, clients):
    """What is read as a number is written as one; a client keeps its name; the schema is read as it was written."""
    path = tmp_path_factory.mktemp("tables") / "a.csv"
    cells = {f"f{i}": column for i, column in enumerate(columns)} | {"x": list(map(str, range(30)))}
    frame = pd.DataFrame(cells | {"client": clients * 15, "label": ["a", "a", "b"] * 10})
    frame.to_csv(path, index=False, encoding="utf-8")
    schema = infer_file(path, "label", "client")
    assert Schema.read(schema.to_toml()) == schema
    numbers = [name for name, column in schema.columns.items() if column.kind == "number"]
    texts = {name: [text.strip() for text in frame[name] if text.strip()] for name in frame}
    if wrong := [n for n in numbers if any(t.lower() not in EMPTY and not is_number(t) for t in texts[n])]:
        refused(lambda: load_file(path, schema=schema, test_fraction=0.0), f"column {wrong[0]!r}, row")
        return
    for name, column in schema.columns.items():
        if column.kind == "category":
            assert set(column.categories) == set(texts[name])
        if column.kind == "number":
            x = load_file(path, schema=schema, test_fraction=0.0).train["x"][:, schema.features.index(name)]
            for text, value in zip(frame[name], x):
                assert np.isnan(value) or (np.float32(text) == value and not text.strip().startswith("00"))
    source = load_file(path, schema=schema, test_fraction=0.0)
    assert set(map(str, source.train_groups)) == {name.strip() for name in clients}


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 120), st.booleans())
def test_a_number_to_predict_becomes_no_classes(count, is_decimal):
    labels = [f"{i}{'.,'[count % 2]}5" if is_decimal else str(i) for i in range(count)]
    frame = pd.DataFrame({"f": range(count), "label": labels})
    if count <= (20 if is_decimal else 50):
        assert len(infer_schema(frame, "label").target.classes) == count
    else:
        refused(lambda: infer_schema(frame, "label"), "'label'", "target=number")
    assert infer_schema(frame, "label", target="number").target == Target("label", "number")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("patients") / "patients.csv"
    patients().to_csv(path, index=False)
    return path


def test_what_a_person_would_warn_of_is_said(table):
    schema = infer_file(table, "outcome", "hospital")
    kinds = {name: column.kind for name, column in schema.columns.items()}
    assert kinds == {
        "id": "number", "age": "number", "dose": "number", "ward": "category", "smokes": "boolean", "visit": "date",
        "cost": "number",
    }  # fmt: skip
    assert schema.columns["dose"].missing == "median" and schema.columns["dose"].indicator
    assert schema.columns["ward"].missing == "own-category" and schema.target.positive == "1_yes"
    sites = pd.DataFrame({"site": ["a", "b"] * 15, "region": ["n", "s"] * 15, "cells": [[1, 2]] * 30, "y": [0, 1] * 15})
    assert "'region' is constant within each client" in infer_schema(sites, "y", "site").notes[0]
    lines = "\n".join([*schema.notes, *find_faults(pd.read_csv(table, dtype={"visit": str}), schema)])
    expected = "'id' differs in every row", "'cost' determines", "fewer than 10 rows: 4_small (3)", "'visit' is a date"
    assert all(words in lines for words in expected), lines
    rare = pd.DataFrame({"note": ["yes", *[None] * 3] * 6, "y": [0, 1, 0] * 8})  # yes or empty tells something
    assert "in every row" not in "".join(find_faults(rare, infer_schema(rare, "y")))


def test_sums_of_few_rows_are_left_out():
    """Of a value, of a truth value, and of a category."""
    columns = 'lab = {kind = "number"}\nsmokes = {kind = "boolean", categories = ["n", "y"]}\nage = {kind = "number"}'
    schema = Schema.read(f'min_count = 5\ntarget = {{column = "y", classes = ["0", "1"]}}\n[columns]\n{columns}\n')
    x = np.full((20, 3), np.nan, np.float32)
    x[0, 0], x[:, 1], x[:, 2] = 37.25, np.arange(20) == 3, 40
    sums = add_up(schema, x, np.arange(20) >= 17)
    assert sums["classes"].tolist() == [17, 0]
    assert [sums[name][:3].tolist() for name in ("count", "total")] == [[0, 20, 20], [0, 0, 800]]
    assert sums["squares"][:3].tolist() == [0, 0, 32000]


def test_an_empty_cell_becomes_the_most_frequent_value():
    common = 'categories = ["a", "b"], missing = "most-frequent"'
    columns = f'sex = {{kind = "boolean", {common}}}\nward = {{kind = "category", {common}}}'
    schema = Schema.read(f'target = {{column = "y", classes = ["0", "1"]}}\n[columns]\n{columns}\n')
    x = schema.encode("table", pd.DataFrame({"sex": ["b", "b", "a", None], "ward": ["b", "a", "a", None]}))
    assert add_up_clients(schema, x, np.array([0, 1, 0, 1]), None).fill_in(x)[3].tolist() == [1, 1, 0]


def test_commas_in_quoted_numbers_are_said(tmp_path):
    pd.DataFrame({"f": ["1,5", "2,25", "3"] * 10, "label": ["a", "b"] * 15}).to_csv(tmp_path / "a.csv", index=False)
    assert "'f' has commas in its numbers" in infer_file(tmp_path / "a.csv", "label").notes[0]
    assert infer_file(tmp_path / "a.csv", "label", decimal=",").columns["f"].kind == "number"


def test_a_number_to_predict_may_have_decimal_commas(tmp_path):
    pd.DataFrame({"f": range(30), "y": [f"{i},5" for i in range(30)]}).to_csv(tmp_path / "a.csv", sep=";", index=False)
    refused(lambda: infer_file(tmp_path / "a.csv", "y"), "30 different decimals")
    assert infer_schema(pd.DataFrame({"y": [*map(str, range(60)), "NA"]}), "y", target="guess").target.kind == "number"
    for target in ("number", "guess"):
        assert infer_file(tmp_path / "a.csv", "y", target=target).decimal == ","
    assert load_file(tmp_path / "a.csv", label="y", target="number", test_fraction=0.0).train["y"][-1] == 29.5


ODD = {  # cells of a column -> its kind, or words of the note
    "decimal commas": (["1,5", "2,25", "3"] * 10, "number"),
    "thousands": (["1,500", "225", "13"] * 10, "commas in its numbers"),
    "a split": (["train", "test"] * 15, "set the task option `split`"),
    "padded": (["007", "7", "012"] * 10, "category"),
    "ambiguous dates": (["01/02/2020", "03/04/2020"] * 15, "ambiguous dates"),
    "German dates": (["01.02.2020", "23.04.2020"] * 15, "date"),
    "words for empty": (["1", "NA", "2.5"] * 10, "number"),
    "Namibia": (["NA", "DE", "FR"] * 10, "category"),
    "free text": ([f"note {i}" for i in range(30)], "30 different texts"),
    "nothing": ([""] * 30, "is empty"),
    "a stray text": ([*map(str, range(29)), "high"], "'high' in row 30"),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_columns(tmp_path, kind):
    cells, expected = ODD[kind]
    frame = pd.DataFrame({"f": cells, "label": ["a", "b"] * 15})
    frame.to_csv(tmp_path / "a.csv", index=False, sep=";")
    schema = infer_file(tmp_path / "a.csv", "label")
    assert expected in ({schema.columns["f"].kind} if expected.isalpha() else "".join(schema.notes))
    find_faults(frame.replace("", None), schema)  # whatever stands in the cells


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('kind = "number"', 'kind = "numbers"'), "column 'age': kind must be one of"),
        (('missing = "mean"', 'mising = "mean"'), "did you mean 'missing'"),
        (('positive = "1_yes"', 'positive = "yes"'), "positive must be one of"),
        (("[columns]", "[colums]"), "schema"),
        (("client =", "cliant ="), "client"),
        (('start = "2021', 'start = "soon 2021'), "start"),
        (('["0_no", "1_yes"]', '"01"'), "classes must be of type list"),
    ],
)
def test_a_wrong_entry_of_a_schema_is_named(table, change, words):
    text = infer_file(table, "outcome", "hospital").without(["id"]).to_toml()
    assert change[0] in text
    refused(lambda: Schema.read(text.replace(*change, 1)), words)


def test_statistics_of_clients_add_up_to_those_of_all(table):
    schema = infer_file(table, "cost", "hospital", "number")
    source = load_file(table, schema=schema, test_fraction=0.0)
    x, y, clients = source.train["x"], source.train["y"], source.train_groups
    frame, whole = pd.read_csv(table), add_up_clients(schema, x, y, None)
    features = dict(zip(schema.features, range(x.shape[1])))
    for name in ("age", "dose"):
        i = features[name]
        assert (whole.shift[i], whole.scale[i]) == pytest.approx((frame[name].mean(), frame[name].std(ddof=0)))
    assert whole.fill[features["dose"]] == pytest.approx(frame.dose.median(), abs=0.02 * frame.dose.std())
    assert whole.target == pytest.approx((frame.cost.mean(), frame.cost.std(ddof=0)))

    def pool(first=None):
        sums = [add_up(schema, x[clients == name], y[clients == name], first) for name in set(clients)]
        return {name: sum(one[name] for one in sums) for name in sums[0]}

    first = pool()
    for part, other in zip(whole, prepare(schema, first, pool(first))):
        np.testing.assert_allclose(part, other, rtol=1e-6, atol=1e-6)
    bins = pool(first)["bins"]
    assert bins.any() and not (bins % schema.min_count).any()  # of few rows a histogram tells nothing
    few = add_up(replace(schema, min_count=5), x[clients == "4_small"], y[clients == "4_small"])
    assert all(not values.any() for values in few.values())  # three rows tell nothing


def test_a_table_of_numbers_alone_has_the_same_bits_as_before_there_were_schemas(tmp_path):
    """Features as they stand in the file, standardised by mean and deviation over all training rows, and no others."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(1e6, 3, 60), rng.integers(0, 9, 60), rng.random(60) < 0.5]).astype(np.float32)
    frame = pd.DataFrame(x, columns=list("abc")).assign(client=np.arange(60) % 3, label=np.arange(60) % 2)
    frame.astype({"b": int, "c": bool}).to_csv(tmp_path / "a.csv", index=False)
    task = fx.load_task(f"file:{tmp_path / 'a.csv'}", model="logistic")
    source = load_file(tmp_path / "a.csv")
    train = source.train["x"]
    assert {tuple(row) for row in train} <= {tuple(row) for row in x} and train.dtype == np.float32
    deviation, mean = train.std(0, dtype=np.float64), train.mean(0, dtype=np.float64)
    before = cross_entropy(fx.models.logistic((3,), 2), deviation, shift=mean)
    key, batch = jax.random.key(0), task.clients.client(0)
    params = task.init(key)
    assert np.array_equal(before["loss"](params, batch, key), task.loss(params, batch, key))
    assert np.array_equal(before["predict"](params, batch), task.predict(params, batch))


def test_a_schema_travels_and_new_rows_are_answered_as_in_training(table, tmp_path, caplog):
    """An unseen category, an empty cell, other columns: three answers; a column that lacks: a refusal."""
    schema = infer_file(table, "outcome", "hospital").without(["id", "cost"])
    options = {"schema": schema.to_toml(), "model": "linear", "class_weight": "balanced"}
    task = fx.load_task(f"file:{table}", **options, validation_fraction=0.2)
    assert task.client_names == ("1_north", "2_east", "3_west", "4_small")
    assert not any("4_small" in note for note in task.notes) and "schema" in task.spec
    run = {"rounds": 6, "cohort_size": 4, "batch_size": 20, "client_metrics": True}
    result = fx.run(task, fx.fedavg(0.3), **run, out=tmp_path / "run", keep="best:val_auroc")
    assert Schema.read(tmp_path / "run" / "schema.toml") == schema
    clients = pd.read_parquet(tmp_path / "run" / "clients.parquet").query("round == 6").set_index("name").accuracy
    assert set(clients.index) <= set(task.client_names)
    assert clients[result.history[-1]["worst_client"]] == clients.min()
    assert class_weights("yes=5", ["no", "yes"], np.array([30, 10])).tolist() == [1, 5]
    weights = class_weights("balanced", ["no", "yes"], np.array([30, 10]))
    assert weights is not None and weights.tolist() == [2 / 3, 2]
    new = patients(40, seed=1)
    new.loc[0, ["ward", "dose"]] = ["z", None]
    new["zip"] = "007"
    new.to_csv(tmp_path / "new.csv", index=False)
    model = fx.load_model(tmp_path / "run")
    table_of = model.predict_file(tmp_path / "new.csv")
    assert caplog.messages == ["note: column 'ward': unknown categories in 1 of 40 rows"]
    assert list(table_of.columns[:4]) == ["id", "hospital", "outcome", "cost"] and len(table_of) == 40
    assert set(table_of["zip"]) == {"007"}
    assert ColumnSchema("category", ("1", "x")).codes(pd.Series(["1.0", "x", "2.0"])).tolist() == [0, 1, -1]
    np.testing.assert_allclose(table_of["probability_0_no"] + table_of["probability_1_yes"], 1, atol=1e-6)
    often = model.predict_file(tmp_path / "new.csv", threshold=0.1).prediction == "1_yes"
    assert np.array_equal(often, table_of["probability_1_yes"] >= 0.1)
    three = replace(model, classes=("0_no", "1_yes", "2_both"))
    refused(lambda: three.predict_file(tmp_path / "new.csv", threshold=0.1), "two classes")
    odd = new.assign(age=pd.Categorical(new["age"].where(new.index > 0)))  # the empty cell is none of its categories
    assert len(result.predict(odd)) == 40
    np.testing.assert_allclose(result.predict(new) == "1_yes", table_of.prediction == "1_yes")
    new.drop(columns="dose").to_csv(tmp_path / "less.csv", index=False)
    refused(lambda: model.predict_file(tmp_path / "less.csv"), "less.csv", "'dose'")
    refused(lambda: model.evaluate_file(tmp_path / "new.csv", "prediction"), "'prediction'")
    new.assign(prediction="1_yes").to_csv(tmp_path / "more.csv", index=False)
    refused(lambda: model.predict_file(tmp_path / "more.csv"), "rename column 'prediction'")
    values = model.evaluate_file(tmp_path / "new.csv", "outcome")
    y, score = new.outcome == "1_yes", table_of["probability_1_yes"]
    expected = {
        "auroc": metrics.roc_auc_score(y, score), "auprc": metrics.average_precision_score(y, score),
        "brier": metrics.brier_score_loss(y, score), "accuracy": np.mean(y == (score > 0.5)),
        "balanced_accuracy": metrics.balanced_accuracy_score(y, score > 0.5), "f1": metrics.f1_score(y, score > 0.5),
        "commonest_class": max(y.mean(), 1 - y.mean()), "confusion_1_yes_as_0_no": np.sum(y & (score < 0.5)),
    }  # fmt: skip
    assert {name: values[name] for name in expected} == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("loss", ["squared", "huber", "poisson"])
def test_a_number_is_predicted_in_its_own_units(table, loss):
    options = {"client_column": "hospital", "label_column": "cost", "target": "number", "drop": "id,outcome"}
    task = fx.load_task(f"file:{table}", **options, model="linear", loss=loss)
    result = fx.run(task, fx.fedavg(0.02 if loss == "poisson" else 0.1), rounds=30, cohort_size=4, batch_size=20)
    y, predicted = task.test["y"], np.asarray(task.predict(result.params, task.test))
    row, mean, deviation = result.history[-1], task.clients.examples["y"].mean(), task.clients.examples["y"].std()
    off, rate = np.abs(predicted - y) / deviation, np.abs(predicted / mean)  # the Poisson loss has rates above 0
    losses = {"squared": off**2 / 2, "huber": np.where(off < 1, off**2 / 2, off - 0.5)}
    losses["poisson"] = rate - y / mean * np.log(rate)
    assert row["test_loss"] == pytest.approx(losses[loss].mean(), rel=1e-4) and off.max() > 1
    assert row["test_mae"] == pytest.approx(metrics.mean_absolute_error(y, predicted), rel=1e-4)
    assert row["test_rmse"] == pytest.approx(metrics.mean_squared_error(y, predicted) ** 0.5, rel=1e-4)
    assert row["test_r2"] == pytest.approx(metrics.r2_score(y, predicted), abs=1e-4)
    assert row["test_r2"] > 0.6
