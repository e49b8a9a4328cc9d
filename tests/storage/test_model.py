"""Trained models on new examples: equal to the task's own metrics, from memory and from the folder alone."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax import export
from PIL import Image
from safetensors.numpy import load_file

import fedoptax as fx
from command_line import fedoptax
from fedoptax._files import read_arrays
from fedoptax.data.inputs import as_examples
from fedoptax.models import autoencoder
from fedoptax.storage.folder import read_params
from fedoptax.storage.model import model_of
from fedoptax.tasks.images import reconstruction
from files import real_data
from refusals import refused
from small import line

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """A folder with a table of three hospitals, a run on it in `run`, and the run's result."""
    folder = tmp_path_factory.mktemp("hospitals")
    rows = 240
    frame = pd.DataFrame(
        {"year": RNG.integers(1930, 2000, rows), "weight": RNG.normal(75, 12, rows), "dose": RNG.uniform(0, 1e-3, rows)}
    )
    score = (frame["year"] - 1965) / 20 + (frame["weight"] - 75) / 12
    frame.insert(1, "label", np.where(score > 0, "sick", "well"))
    frame["client"] = np.array(["north", "east", "west"])[np.arange(rows) % 3]
    frame.to_csv(folder / "data.csv", index=False)
    task = fx.load_task(f"file:{folder / 'data.csv'}", model="logistic")
    return folder, fx.run(task, fx.fedavg(0.5), rounds=20, cohort_size=3, out=folder / "run")


def test_a_table_is_predicted_by_its_columns(hospitals):
    """In any order, among others, standardised by the model: as accurate as the run says on the same examples."""
    folder, result = hospitals
    frame = pd.read_csv(folder / "data.csv")
    test, names = result.task.test, np.array(["sick", "well"])
    accuracy = result.history.last("test_accuracy")
    assert accuracy is not None and accuracy > 0.9
    assert np.mean(result.predict(test["x"]) == names[test["y"]]) == pytest.approx(accuracy)
    model = fx.load_model(folder / "run")
    shuffled = frame[["dose", "client", "year", "weight"]]
    assert list(model.predict(shuffled)) == list(result.predict(frame))
    outputs = model.outputs(frame)
    np.testing.assert_allclose(outputs.sum(1), 1, rtol=1e-6)
    assert model.predict(frame[:0]).shape == (0,)


def test_predict_reads_and_writes_files(hospitals, capsys):
    folder, result = hospitals
    frame = pd.read_csv(folder / "data.csv").drop(columns="label")
    expected = list(result.predict(frame))
    frame.to_csv(folder / "new.csv", index=False)
    frame.to_parquet(folder / "new.parquet")
    np.savez(folder / "new.npz", x=frame[["year", "weight", "dose"]].to_numpy())
    readers: dict[str, Callable[[Path], Any]] = {"csv": pd.read_csv, "parquet": pd.read_parquet, "npz": read_arrays}
    for ending, read in readers.items():
        out = folder / f"out.{ending}"
        assert fedoptax("predict", folder / "run", "--input", folder / f"new.{ending}", "--out", out, "--top", 2) == 0
        found = read(out)
        assert list(found["prediction"]) == expected
        np.testing.assert_allclose(found["probability"] + found["prediction_2_probability"], 1, rtol=1e-6)
        assert ending == "npz" or list(found["client"]) == list(frame["client"])
    capsys.readouterr()
    assert fedoptax("predict", folder / "run", "--input", folder / "new.csv") == 0
    assert capsys.readouterr().out.splitlines()[0] == "client,prediction,probability,probability_sick,probability_well"


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        (["run", "--input", "no.csv"], 2, "no.csv"),
        (["run", "--input", "short.csv"], 1, "'dose'"),
        *((["run", "--input", "data.csv", "--out", name], 2, "--out") for name in ("a.txt", "./data.csv")),
        (["run", "--input", "data.csv", "--top", "3"], 2, "top"),
        (["run", "--input", "data.csv", "--params", "best"], 1, "saved no best"),
        ([".", "--input", "data.csv"], 2, "not the folder of a run"),
        (["run", "--input", "."], 2, "input"),
    ],
)
def test_a_wrong_argument_is_one_line(hospitals, arguments, status, named, monkeypatch, capsys):
    monkeypatch.chdir(hospitals[0])
    Path("short.csv").write_text("year,weight\n1950,70\n")
    assert fedoptax("predict", *arguments) == status
    assert named in (error := capsys.readouterr().err) and error.count("\n") == 1


def test_exports_are_read_by_their_libraries(hospitals):
    folder, result = hospitals
    for name in ("m.npz", "m.safetensors", "m.stablehlo"):
        assert fedoptax("export", folder / "run", "--out", folder / name) == 0
    kernel = np.asarray(jax.tree.leaves(result.params)[1])
    for stored in (read_arrays(folder / "m.npz"), load_file(folder / "m.safetensors")):
        assert list(stored) == list(result.model.params)
        np.testing.assert_array_equal(list(stored.values())[1], kernel)
    program = export.deserialize(bytearray((folder / "m.stablehlo").read_bytes()))
    assert str(program.in_avals[0]) == "float32[n,3]"
    x = result.task.test["x"]
    np.testing.assert_allclose(program.call({"x": x}), result.model.outputs(x), rtol=1e-5)


def test_personal_adapters_are_not_exported(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"task": {"name": "text:a"}, "wrappers": {"personal": "v_proj"}}')
    (tmp_path / "params.npz").touch()
    assert fedoptax("export", tmp_path, "--out", tmp_path / "adapter") == 2
    assert "each client has its own" in capsys.readouterr().err


def test_a_pickled_result_keeps_all_but_the_task(hospitals):
    copy = pickle.loads(pickle.dumps(hospitals[1]))
    assert copy.history.rows == hospitals[1].history.rows
    refused(lambda: copy.predict([[1.0, 2.0, 3.0]]), "copy")


def test_images_of_any_size_and_colour_are_read_as_the_model_takes_them(tmp_path):
    """A digit as a grey or a coloured image is the array that the model was trained on."""
    task = fx.load_task("digits", model="logistic")
    result = fx.run(task, fx.fedavg(0.1), rounds=2, out=tmp_path / "run")
    digits = task.test["x"][:70]
    for i, digit in enumerate(digits):
        grey = Image.fromarray(np.rint(digit[:, :, 0] * (255 / 16)).astype(np.uint8))
        place = tmp_path / "images" / f"{i % 2}" / f"{i:02d}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        image = grey if i % 3 else grey.convert("RGB")
        (image if i < 69 else image.resize((20, 16))).save(place)
    table = fx.load_model(tmp_path / "run").predict_file(tmp_path / "images")
    order = [*range(0, 70, 2), *range(1, 70, 2)]
    assert list(table["file"][:2]) == ["0/00.png", "0/02.png"]
    expected = result.predict(digits[order])
    assert list(table["prediction"][:-1]) == list(expected[:-1])  # the last one was resized


def test_texts_of_shakespeare_are_numbered_as_in_training():
    task = fx.load_task("shakespeare", model="rnn_small", data_dir=real_data("shakespeare"), num_clients=3)
    x, tokens = task.clients.examples["x"], task.classes or ()
    begun = np.array(x[x[:, 0] == tokens.index("<begin>")][:20])
    begun[begun == tokens.index("<end>")] = 0  # what follows a text that ends is no part of a prediction
    texts = ["".join(tokens[i] for i in row[1:] if i) for row in begun]
    assert any(" " in text for text in texts)
    found = as_examples(texts, task.inputs, {"x": jax.ShapeDtypeStruct((80,), np.uint8)}, tokens)
    np.testing.assert_array_equal(found["x"], begun)


def test_words_are_numbered_as_in_training():
    """Of a long sentence the last words count, of a bag the first, and of the bag all are counted."""
    fields = {"x": jax.ShapeDtypeStruct((4,), np.uint16)}
    tokens = ("<pad>", "to", "sort", "<unknown>", "<begin>", "<end>")
    inputs = {"text": "words", "start": "<begin>", "unknown": "<unknown>", "pad": 0}
    found = as_examples(["how to sort", "to", "a to sort to sort"], inputs, fields, tokens)
    assert found["x"].tolist() == [[4, 3, 1, 2], [4, 1, 0, 0], [1, 2, 1, 2]]
    fields["words"] = jax.ShapeDtypeStruct((), np.uint16)
    found = as_examples(["how to sort", "to to to to to"], {"text": "bag", "vocabulary": ["to", "sort"]}, fields, ())
    assert found["x"].tolist() == [[1, 2, 0, 0], [1, 1, 1, 1]] and found["words"].tolist() == [3, 5]


def test_every_task_with_a_model_has_a_prediction():
    assert fx.load_task("quadratic").predict is None and "predict" in reconstruction(autoencoder())
    task = fx.load_task("synthetic", num_clients=4)
    model = model_of(task, task.init(jax.random.key(0)))
    assert model.predict(np.zeros((3, 60))).dtype == np.int64
    refused(lambda: model_of(fx.load_task("quadratic"), {"x": np.zeros(10)}), "predict")
    refused(lambda: model.predict(np.zeros((3, 59))), "shape")
    refused(lambda: model.predict(np.full((3, 60), np.nan)), "NaN")


NAMES: dict[str, Any] = {
    "a slash": {"a/b": 1.0, "a": {"b": 2.0}}, "arguments of savez": {"file": 1.0, "allow_pickle": 2.0},
    "npy": {"x": 1.0, "x.npy": 2.0}, "empty": {"": {"": 1.0}, "a": {"": 2.0}},
    "dots": {".": 1.0, "..": 2.0, "../x": 3.0}, "tilde": {"a~1b": 1.0, "a/b": 2.0}, "numbers": {0: 1.0, 1: 2.0},
    "lists and None": (1.0, [2.0, 3.0], None, {"n": None, "a": 4.0}), "one array": 1.0,
    "not ASCII": {"é": 1.0, "e\u0301": 2.0, "a b": 3.0, "a\nb": 4.0},
}  # fmt: skip


def named_task(tree: Any) -> fx.Task:
    params = jax.tree.map(lambda a: jnp.full(2, a, jnp.float32), tree)
    return replace(
        line(),
        init=lambda key: params,
        loss=lambda p, batch, key: sum(jnp.sum(a) for a in jax.tree.leaves(p)),
        predict=lambda p, batch: batch["x"][:, :1] * jnp.stack([a[0] for a in jax.tree.leaves(p)]),
    )


QUICK = ("a slash", "npy", "lists and None")


@pytest.mark.parametrize(
    "which", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.long) for name in NAMES]
)
def test_parameters_of_any_names_come_back(which, tmp_path):
    task = named_task(NAMES[which])
    result = fx.run(task, fx.fedavg(0.1), rounds=1, cohort_size=2, out=tmp_path / "run", engine="eager")
    forms = jax.eval_shape(task.init, jax.random.key(0))
    model, again = fx.load_model(tmp_path / "run"), read_params("params", tmp_path / "run", forms)
    model.save(tmp_path / "copy.npz")
    for params in (again, read_params("params", tmp_path / "copy.npz", forms)):
        jax.tree.map(np.testing.assert_array_equal, params, result.params)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(model.outputs(x), result.predict(x))


@pytest.mark.parametrize("name", ["x\0", "\ud800", "x" * 70_000], ids=["null", "surrogate", "long"])
def test_a_name_that_no_file_can_hold_is_refused_before_the_first_round(name, tmp_path):
    with pytest.raises(fx.UsageError, match="parameters must have unique names"):
        fx.run(named_task({name: 1.0}), fx.fedavg(0.1), rounds=1, cohort_size=2, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("predict", "classes", "form"), [
    (lambda p, batch: jnp.sum(batch["x"]), None, "(64,), got float32[]"), (lambda p, batch: None, None, "None"),
    (lambda p, batch: batch["x"], ("a", "b"), "(64, 2), got float32[64, 3]"),
    (lambda p, batch: batch["x"][:, 0], (), "(64, any), got float32[64]"),
    (lambda p, batch: (batch["x"], 1), None, "tuple"),
], ids=["a sum", "none", "classes", "no classes", "with more"])  # fmt: skip
def test_a_predict_of_another_shape_is_refused_before_the_first_round(predict, classes, form, tmp_path):
    task = replace(line(), predict=predict, classes=classes)
    refused(lambda: fx.run(task, fx.fedavg(0.1), rounds=1, cohort_size=2, out=tmp_path / "run"), "return numbers", form)
