"""A trained model on new examples: from a run, or from its folder without the task's code or data.

model.stablehlo  the task's `predict`, (parameters, examples) -> outputs, by `jax.export`
model.json       how examples are read, the names of the classes
schema.toml      of a table, what its columns mean
params.npz       the last parameters; best.npz the best ones, if saved
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from fedoptax._files import pack_arrays, read_arrays, read_json, reading, write_atomically, write_json
from fedoptax.algorithm import Tree
from fedoptax.data.inputs import as_examples, read_inputs
from fedoptax.data.readers import DataFrame, check_columns, read_features
from fedoptax.data.schema import WHOLE, as_texts
from fedoptax.errors import DataError, RunError, UsageError, check_int, check_number, check_output, check_type
from fedoptax.storage.folder import named_leaves
from fedoptax.tasks.metrics import METRICS, confusion, mean, r2, root_mean, total_of
from fedoptax.tasks.task import Task, depends_on_argument

BATCH = 64
"""Examples that are predicted together; the last ones are filled up to as many, so that one program serves all."""
MOST_COLUMNS = 20
"""Classes up to which each has a column of its own."""
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
PROGRAM, DESCRIPTION, LAST, BEST = "model.stablehlo", "model.json", "params.npz", "best.npz"


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A trained model, made by `load_model` or by a run's result.

    Attributes:
      params: the parameters by path, such as `dense1/kernel`.
      program: `(list of parameters, {field: array (n, …)}) -> outputs (n, …)`.
      classes: the names of the classes that outputs (n, C) are probabilities of; None: outputs are values.
      inputs: how examples are read, see `fedoptax.data.inputs`.
    """

    params: dict[str, np.ndarray]
    program: export.Exported
    classes: Sequence[str] | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def predict(self, x: Any) -> np.ndarray:
        """Return the most probable class of each example (n,), or the outputs (n, …) of a model without classes.

        Classes whose names are all whole numbers are int64, others text.

        Args:
          x: an array (n, …) as the model was trained on; a DataFrame with the columns it was trained on; texts, for a
            model of text; or arrays by field.

        Raises:
          DataError: x is not of that form.
        """
        outputs = self.outputs(x)
        return outputs if self.classes is None else self._names[np.argmax(outputs, axis=1)]

    def outputs(self, x: Any) -> np.ndarray:
        """Return the outputs (n, …) of examples as in `predict`; with classes these are their probabilities (n, C)."""
        return self._apply(as_examples(x, self.inputs, self.fields, self.classes or ()))

    def predict_file(self, path: str | Path, top: int = 1, threshold: float | None = None) -> DataFrame:
        """Predict the examples in a .csv, .tsv, .parquet or .npz file, or of a folder of images.

        Args:
          path: with the columns or arrays that the model was trained on; a table's others are passed on to the result.
          top: how many of the most probable classes are named.
          threshold: of two classes, the probability from which the positive one is predicted.

        Returns:
          One row per example, in order: `prediction` and `probability`, for `top` classes also `prediction_2`,
          `prediction_2_probability`, …, and of at most 20 classes `probability_NAME` for each. A model of a number
          gives it as `prediction`, any other without classes `output`, or `output_1`, … if there are several numbers.
          Categories that training did not have are logged.

        Raises:
          UsageError: there is no such file, or the model takes none of its kind.
          DataError: it is broken, or lacks something.
        """
        classes = self.classes or ()
        if threshold is not None:
            check_number("threshold", threshold, 0, 1, open_high=False)
            if self.inputs.get("positive") is None or len(classes) != 2:
                raise UsageError(f"threshold needs a model of a table with two classes, got {threshold}")
        check_int("top", top, 1, max(1, len(classes)))
        examples, table = read_inputs(Path(path), self.inputs, self.fields, classes)
        outputs = self._apply(examples)
        new: dict[str, np.ndarray] = {}
        if self.classes is None:
            flat = outputs.reshape(-1, int(np.prod(outputs.shape[1:])))
            names = ["output"] if flat.shape[1] == 1 else [f"output_{i + 1}" for i in range(flat.shape[1])]
            new = dict(zip(["prediction"] if "schema" in self.inputs else names, flat.T))
        else:
            order = self._rank(outputs, threshold)[:, :top]
            probabilities = np.take_along_axis(outputs, order, axis=1)
            for k, (chosen, values) in enumerate(zip(order.T, probabilities.T), 1):
                name = "prediction" if k == 1 else f"prediction_{k}"
                new |= {name: self._names[chosen], "probability" if k == 1 else f"{name}_probability": values}
            by_class = zip(classes, outputs.T) if len(classes) <= MOST_COLUMNS else ()
            new |= {f"probability_{name}": column for name, column in by_class}
        if twice := [name for name in new if name in table.columns]:
            raise DataError(f"{path}: rename column {twice[0]!r}, as predictions have that name")
        return table.assign(**new)

    def _rank(self, outputs: np.ndarray, threshold: float | None) -> np.ndarray:
        """Return the classes of each example (n, C), what is predicted first."""
        if threshold is None:
            return np.argsort(-outputs, axis=1, kind="stable")
        place = list(self.classes or ()).index(self.inputs["positive"])
        first = np.where(outputs[:, place] >= threshold, place, 1 - place)
        return np.stack([first, 1 - first], axis=1)

    def evaluate_file(self, path: str | Path, label: str, threshold: float | None = None) -> dict[str, float]:
        """Measure the model on labelled rows of a table.

        Returns:
          Of classes `fedoptax.metrics.METRICS`, `commonest_class`, its share, and
          `confusion_ACTUAL_as_PREDICTED`; of a number `mae`, `rmse` and `r2`. What is not defined is NaN.

        Raises:
          UsageError, DataError: as `predict_file`; or there is no such column, or a label is none of the model's.
        """
        if "schema" not in self.inputs or len(self.classes or ()) > MOST_COLUMNS:
            raise UsageError(f"evaluate needs a model of a table with at most {MOST_COLUMNS} classes")
        table = self.predict_file(path, threshold=threshold)
        made = {"prediction", *([] if self.classes is None else ["probability"])}
        made |= {f"probability_{name}" for name in self.classes or ()}
        check_columns(path, [name for name in table.columns if name not in made], [label])
        if not len(table):
            raise DataError(f"{path} has no rows")
        if self.classes is None:
            actual, predicted = read_features(path, table, [label])[:, 0], table["prediction"].to_numpy(np.float32)
            errors = {"mae": mean(jnp.abs(predicted - actual)), "rmse": root_mean(jnp.square(predicted - actual))}
            standard = [(jnp.array(numbers) - actual.mean()) / (actual.std() or 1) for numbers in (predicted, actual)]
            return {name: total_of(metric) for name, metric in (errors | {"r2": r2(*standard)}).items()}
        names, texts = list(self.classes), as_texts(table[label])
        if wrong := [row for row, text in enumerate(texts, 1) if text not in names]:
            text = texts[wrong[0] - 1]
            raise DataError(f"{path}: column {label!r}, row {wrong[0]} must be a class of the model, got {text!r}")
        y = jnp.array([names.index(str(text)) for text in texts])
        outputs = jnp.array(table[[f"probability_{name}" for name in names]].to_numpy())
        chosen = jnp.eye(len(names))[jnp.array([names.index(str(name)) for name in table["prediction"]])]
        place = names.index(self.inputs.get("positive") or names[-1])
        of_chosen = ("accuracy", "f1", "balanced_accuracy")
        metrics = {name: make(chosen if name in of_chosen else outputs, y, place) for name, make in METRICS.items()}
        values = {name: total_of(metric) for name, metric in (metrics | confusion(chosen, y, names)).items()}
        return {"commonest_class": float(jnp.bincount(y).max() / len(y)), **values}

    def save(self, path: str | Path) -> Path:
        """Write the parameters as .npz or .safetensors, or all of the model as .stablehlo, by the path's ending.

        The last is `{field: array (n, …)} -> outputs`, which `jax.export.deserialize` reads. Another ending is a
        `UsageError`.
        """
        path = Path(path)
        if path.suffix == ".npz":
            write_atomically(path, pack_arrays(self.params))
        elif path.suffix == ".safetensors":
            from safetensors.numpy import save

            write_atomically(path, save({name: np.ascontiguousarray(a) for name, a in self.params.items()}))
        elif path.suffix == ".stablehlo":
            call = jax.jit(partial(self.program.call, self._leaves))
            write_atomically(path, bytes(export.export(call, platforms=PLATFORMS)(self._forms[1]).serialize()))
        else:
            raise UsageError(f"path must end in .npz, .safetensors or .stablehlo, got '{path.name}'")
        return path

    @cached_property
    def fields(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The form of one example: name -> shape and type."""
        return {name: jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for name, a in self._forms[1].items()}

    @property
    def _forms(self) -> tuple[list[Any], dict[str, Any]]:  # of parameters and of a batch
        return jax.tree.unflatten(self.program.in_tree, self.program.in_avals)[0]

    @cached_property
    def _call(self) -> Callable[..., jax.Array]:
        return jax.jit(self.program.call)

    @property
    def _names(self) -> np.ndarray:
        names = list(self.classes or ())
        return np.array(names, np.int64 if all(map(WHOLE.fullmatch, names)) else object)

    @property
    def _leaves(self) -> list[np.ndarray]:
        return [np.asarray(a, form.dtype) for a, form in zip(self.params.values(), self._forms[0], strict=True)]

    def _apply(self, examples: Mapping[str, np.ndarray]) -> np.ndarray:
        leaves, size = jax.device_put(self._leaves), self.program.in_avals[-1].shape[0]
        size = size if isinstance(size, int) else BATCH
        outputs = [np.zeros((0, *self.program.out_avals[0].shape[1:]), self.program.out_avals[0].dtype)]
        count = len(next(iter(examples.values())))
        for start in range(0, count, size):
            rows = {name: array[start : start + size] for name, array in examples.items()}
            filled = {name: np.resize(array, (size, *array.shape[1:])) for name, array in rows.items()}
            outputs.append(np.asarray(self._call(leaves, filled))[: count - start])
        return np.concatenate(outputs)


def load_model(folder: str | Path, params: str | None = None) -> TrainedModel:
    """Load the model of a run from its folder; neither the task's data nor its code are needed.

    Args:
      folder: of a run, or of one run of a comparison or a search.
      params: `"best"` or `"last"`; None uses the best if they were saved, else the last.

    Raises:
      UsageError: it is not a run's folder, or has no model for examples.
      RunError: a file is missing or damaged, or the best parameters were not saved.
    """
    check_type("folder", folder, str | Path)
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UsageError(f"'{folder}' is not the folder of a run")
    if not (folder / DESCRIPTION).is_file():
        raise UsageError(f"'{folder}' has no model for examples: its task has no `predict`, or each client has its own")
    path, described = choose_params(folder, params), read_json(folder / DESCRIPTION)
    with reading(f"'{folder}'", "a model"):
        program = export.deserialize(bytearray((folder / PROGRAM).read_bytes()))
        return TrainedModel(read_arrays(path), program, described["classes"], described["inputs"])


def choose_params(folder: Path, params: str | None) -> Path:
    """Return the file of a run's best or last parameters; of None, the best if they were saved."""
    names = {"best": BEST, "last": LAST, None: BEST if (folder / BEST).is_file() else LAST}
    if params not in names:
        raise UsageError(f"params must be best or last, got {params!r}")
    if not (path := folder / names[params]).is_file():
        reason = "the run saved no best parameters" if params == "best" else "the run has not ended"
        raise RunError(f"'{path}' is missing: {reason}")
    return path


def model_of(task: Task, params: Tree) -> TrainedModel:
    """Return the model of a task with parameters; raise a `UsageError` if the task has no `predict`."""
    program = export_predict(task)
    return TrainedModel(named_leaves(params), program, _classes(task, program), task.inputs)


def write_model(folder: Path, task: Task) -> None:
    """Write a run's `model.stablehlo` and `model.json`; its task has a `predict`."""
    program = export_predict(task)
    write_atomically(folder / PROGRAM, bytes(program.serialize()))
    if "schema" in task.inputs:
        write_atomically(folder / "schema.toml", task.inputs["schema"].encode())
    write_json(folder / DESCRIPTION, {"task": task.name, "classes": _classes(task, program), "inputs": task.inputs})


@lru_cache(maxsize=4)
def export_predict(task: Task) -> export.Exported:
    """Export a task's `predict` as `(list of parameters, examples) -> outputs`.

    It takes any number of examples, or at most `BATCH` if the computation depends on their number.
    """
    predict = task.predict
    if predict is None:
        raise UsageError(f"task '{task.name}' must have a predict")
    params = jax.eval_shape(task.init, jax.random.key(0))
    unflatten = partial(jax.tree.unflatten, jax.tree.structure(params))

    def apply(leaves: list[jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
        outputs, size = predict(unflatten(leaves), batch), next(iter(batch.values())).shape[0]
        axes = getattr(outputs, "shape", ())[1:] if task.classes is None else (len(task.classes) or None,)
        return check_output(f"predict of task '{task.name}'", outputs, (size, *axes), "real")

    leaves, fields = jax.tree.leaves(params), dict(task.clients.examples)

    def form(n: Any) -> dict[str, jax.ShapeDtypeStruct]:
        return {name: jax.ShapeDtypeStruct((n, *a.shape[1:]), a.dtype) for name, a in fields.items()}

    def drop_unread(leaves: list[jax.Array], batch: dict[str, jax.Array]) -> None:
        def apply_to(name: str, array: jax.Array) -> jax.Array:
            return apply(leaves, {**batch, name: array})

        for name in batch:
            if not depends_on_argument(partial(apply_to, name), batch[name]):
                del fields[name]

    jax.eval_shape(drop_unread, leaves, form(2))
    if not fields:
        names = ", ".join(task.clients.examples)
        raise UsageError(f"predict of task '{task.name}' must read a field of the examples: {names}")
    exporting = export.export(jax.jit(apply), platforms=PLATFORMS)
    try:
        return exporting(leaves, form(*export.symbolic_shape("n")))
    except Exception:  # code that asks for the number of examples fails in many ways
        return exporting(leaves, form(min(BATCH, task.eval_batch)))


def _classes(task: Task, program: export.Exported) -> list[str] | None:
    if task.classes is None:
        return None
    return list(map(str, task.classes)) or list(map(str, range(program.out_avals[0].shape[-1])))
