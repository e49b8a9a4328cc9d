"""The named tasks: data, partition, model, loss, metrics, and the settings a comparison starts from."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fedoptax.data.datasets import cifar, digits, emnist, mnist
from fedoptax.errors import UsageError, check_choice
from fedoptax.tasks.recipe import CENTRAL, MODELS, PREFIX, TASK_OPTIONS, TEXT_PREFIX, Recipe, TaskOptions, defer_import

if TYPE_CHECKING:
    from fedoptax.tasks.task import Task

_labelled = partial(defer_import, "tasks.images:labelled_images")
_images = partial(Recipe, models=MODELS, num_clients=100, options=("devices",), partitions=CENTRAL)
_cifar = partial(
    _images,
    model="resnet18",
    num_clients=500,
    options=("augment", "devices"),
    defaults={"rounds": 1000, "cohort_size": 10, "batch_size": 20, "eval_every": 50, "local_epochs": 1},
)
_TRANSFORMERS = {"gpt": defer_import("models:gpt"), "gpt_small": defer_import("models:gpt", width=64, depth=2)}


def _from_formula(make: "Callable[..., Task]", name: str, recipe: Recipe, options: TaskOptions) -> "Task":
    arguments = {name: value for name, value in options.chosen().items() if name in recipe.options}
    return make(**{"num_clients": recipe.num_clients} | arguments, seed=options.seed)


TASKS: dict[str, Recipe] = {
    "digits": _images(
        _labelled(digits.load, 16),
        "handwritten digits of scikit-learn, 8x8 pixels, 10 classes",
        model="mlp",
        num_clients=50,
        defaults={"rounds": 100, "cohort_size": 10, "batch_size": 10, "eval_every": 1, "local_epochs": 1},
    ),
    "mnist": _images(
        defer_import("tasks.images:mnist_images"),
        "handwritten digits, 28x28 pixels; by label or by writer",
        model="mlp",
        defaults={"rounds": 100, "cohort_size": 10, "batch_size": 20, "eval_every": 2, "local_epochs": 1},
        partitions=(*CENTRAL, "writers"),
    ),
    "fashion-mnist": _images(
        _labelled(mnist.load_fashion, 255),
        "clothes, 28x28 pixels, 10 classes",
        model="cnn",
        defaults={"rounds": 100, "cohort_size": 10, "batch_size": 20, "eval_every": 2, "local_epochs": 1},
    ),
    "cifar10": _cifar(_labelled(cifar.load10, 255), "colour photographs, 32x32 pixels, 10 classes"),
    "cifar100": _cifar(
        _labelled(cifar.load100, 255),
        "colour photographs, 32x32 pixels, 100 classes",
        partitions=("pachinko", *CENTRAL),
    ),
    "cifar100-coarse": _cifar(
        _labelled(partial(cifar.load100, labels="coarse"), 255), "CIFAR-100 with its 20 superclasses"
    ),
    "emnist-cr": _images(
        _labelled(emnist.load, 255),
        "handwritten characters by writer, 28x28 pixels, 62 classes",
        model="emnist_cnn",
        defaults={"rounds": 500, "cohort_size": 10, "batch_size": 20, "eval_every": 25, "local_epochs": 1},
        partitions=("writers", *CENTRAL),
    ),
    "emnist-ae": Recipe(
        defer_import("tasks.images:emnist_autoencoder"),
        "EMNIST characters reconstructed by an autoencoder (MSE x 1000)",
        model="autoencoder",
        num_clients=100,
        partitions=("writers", *CENTRAL),
        defaults={"rounds": 500, "cohort_size": 10, "batch_size": 20, "eval_every": 25, "local_epochs": 1},
    ),
    "shakespeare": Recipe(
        defer_import("tasks.text:shakespeare_characters"),
        "Shakespeare's plays by role: the next of 90 characters",
        model="rnn",
        models={
            "rnn": defer_import("models:shakespeare_rnn"),
            "rnn_small": defer_import("models:shakespeare_rnn", units=(64, 64)),
            **_TRANSFORMERS,
        },
        partitions=("roles",),
        defaults={"rounds": 300, "cohort_size": 10, "batch_size": 4, "eval_every": 50, "local_epochs": 1},
    ),
    "stackoverflow-nwp": Recipe(
        defer_import("tasks.text:stackoverflow_words"),
        "Stack Overflow by user: the next of 10,000 words",
        model="rnn",
        models={"rnn": defer_import("models:so_rnn"), "rnn_small": defer_import("models:so_rnn", units=64)},
        options=("test_examples",),
        partitions=("users",),
        defaults={"rounds": 500, "cohort_size": 50, "batch_size": 16, "eval_every": 50, "local_epochs": 1},
    ),
    "stackoverflow-lr": Recipe(
        defer_import("tasks.text:stackoverflow_tags"),
        "Stack Overflow by user: 500 tags from a bag of 10,000 words",
        model="logistic",
        options=("test_examples",),
        partitions=("users",),
        defaults={"rounds": 500, "cohort_size": 10, "batch_size": 100, "eval_every": 50, "local_epochs": 1},
    ),
    "wikitext-2": Recipe(
        defer_import("tasks.text:wikitext_words"),
        "Wikipedia articles: the next of 33,278 words",
        model="lstm",
        num_clients=16,
        models={
            "lstm": defer_import("models:wikitext_lstm"),
            "lstm_small": defer_import("models:wikitext_lstm", units=128),
            **_TRANSFORMERS,
        },
        partitions=("parts", "articles"),
        defaults={"rounds": 100, "cohort_size": 16, "batch_size": 20, "eval_every": 20, "local_steps": 10},
    ),
    "synthetic": Recipe(
        partial(_from_formula, defer_import("tasks.analytic:synthetic")),
        "logistic regression on data of the FedProx paper",
        model="logistic",
        num_clients=30,
        options=("alpha", "beta", "num_clients"),
        defaults={"rounds": 100, "cohort_size": 10, "batch_size": 10, "eval_every": 1, "local_epochs": 1},
    ),
    "quadratic": Recipe(
        partial(_from_formula, defer_import("tasks.analytic:quadratic")),
        "quadratics in 10 dimensions: the distance to the optimum",
        model="vector",
        num_clients=20,
        options=("num_clients",),
        defaults={"rounds": 100, "cohort_size": 10, "batch_size": 5, "eval_every": 1, "local_epochs": 1},
    ),
    "counterexample": Recipe(
        lambda name, recipe, options: defer_import("tasks.analytic:counterexample")(),
        "the FAFED paper's problem on which naive_adaptive diverges",
        model="scalar",
        num_clients=3,
        defaults={"rounds": 100, "cohort_size": 3, "batch_size": 1, "eval_every": 1, "local_epochs": 1},
    ),
}

CUSTOM = Recipe(
    defer_import("tasks.custom:custom_data"),
    "your own file: .npz, .csv, .tsv, .parquet, or a folder of images",
    model="mlp",
    num_clients=10,
    models={**MODELS, "linear": MODELS["logistic"]},
    options=(
        *("client_column", "label_column", "drop", "test_fraction", "image_size", "separator", "decimal"),
        *("schema", "target", "split", "class_weight", "loss"),
    ),
    partitions=("clients", *CENTRAL),
    defaults={"rounds": 100, "cohort_size": 10, "batch_size": 20, "local_epochs": 1, "eval_every": 1},
)


TEXT = Recipe(
    defer_import("tasks.pretrained:text_data"),
    "your own texts: .jsonl, .parquet, .csv, or a folder; a pretrained model, whole or by adapters (LoRA)",
    model="",
    options=("model", "client_column", "num_clients", "test_fraction", "context", "weight", "lora", "lora_alpha",
             "lora_targets", "lora_dropout", "freeze_a", "base_adapter"),
    defaults={"rounds": 20, "cohort_size": 4, "batch_size": 4, "local_epochs": 1, "eval_every": 5},
)  # fmt: skip


def recipe_of(name: str) -> Recipe:
    """The recipe of a task: one of `TASKS`, of `file:PATH` or of `text:PATH`."""
    for prefix, recipe in ((PREFIX, CUSTOM), (TEXT_PREFIX, TEXT)):
        if isinstance(name, str) and len(name) > len(prefix) and name.startswith(prefix):
            return recipe
    check_choice("task", name, [*TASKS, f"{PREFIX}PATH", f"{TEXT_PREFIX}PATH"])
    return TASKS[name]


def load_task(name: str, **options: Any) -> "Task":
    """Load a named task, `"file:PATH"`, a task on your own file or folder, or `"text:PATH"`, one on your own texts.

    Args:
      name: one of `TASKS`; or `file:` and the path of a `.npz`, `.csv`, `.tsv`, `.parquet` or a folder of images, see
        `fedoptax.data.custom`; or `text:` and the path of texts, with the folder of a pretrained `model`, see
        `fedoptax.tasks.pretrained`.
      options: the fields of `TaskOptions`: `partition`, `num_clients`, `model`, `seed`, `data_dir` and others; which
        ones a task takes is `recipe_of(name).option_types()`.

    Raises:
      UsageError: an unknown name, an option that does not apply to the task, or a number out of range.
      DataError: a data file is missing or broken.

    Example:
      >>> import fedoptax as fx
      >>> fx.load_task("digits", partition="dirichlet", alpha=0.1, num_clients=20, seed=1).num_clients
      20
    """
    from fedoptax.tasks.pretrained import with_lora
    from fedoptax.tasks.task import with_compute_dtype, with_metrics, with_validation

    recipe = recipe_of(name)
    for option in options:
        check_choice(f"option of task '{name}'", option, [*TASK_OPTIONS, "seed", "data_dir"])
    chosen = TaskOptions(**options)
    recipe.check(name, chosen)
    task = recipe.build(name, recipe, chosen)
    if recipe.models and (chosen.lora is None) != (chosen.base is None):
        raise UsageError("lora and base must be set together")
    if chosen.lora is not None and chosen.base is not None:
        task = with_lora(task, chosen.base, chosen.lora)
    if chosen.metrics is not None:
        task = with_metrics(task, chosen.metrics)
    if chosen.validation_fraction is not None:
        task = with_validation(task, chosen.validation_fraction)
    task = with_compute_dtype(task, chosen.compute_dtype or "float32")
    object.__setattr__(task, "loader", partial(load_task, name, **options))  # for pickle; `replace` drops it
    return task
