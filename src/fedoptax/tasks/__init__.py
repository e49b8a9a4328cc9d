"""The named tasks: data, partition, model, loss, metrics, and the settings a comparison starts from."""

from __future__ import annotations

from pathlib import Path

from fedoptax.data import images as files
from fedoptax.errors import UsageError, unknown
from fedoptax.models import MODELS
from fedoptax.tasks import analytic, images, own, reconstruction, tags, text
from fedoptax.tasks.division import CENTRAL
from fedoptax.tasks.images import image_classification
from fedoptax.tasks.precision import with_compute_dtype
from fedoptax.tasks.recipe import Options, Recipe, check_options
from fedoptax.tasks.task import Task

__all__ = ["TASKS", "Options", "Recipe", "image_classification", "load_task", "recipe_of"]

_IMAGE_MODELS = tuple(MODELS)

TASKS: dict[str, Recipe] = {
    "digits": Recipe(
        images.classification(files.digits, 16),
        "UCI handwritten digits, 8x8 pixels, 10 classes; comes with scikit-learn, needs no download",
        model="mlp",
        num_clients=50,
        models=_IMAGE_MODELS,
        options=("devices",),
        partitions=CENTRAL,
        defaults={"rounds": 100, "cohort_size": 10, "batch_size": 10, "local_epochs": 1, "eval_every": 1},
    ),
    "mnist": Recipe(
        images.classification(files.mnist, 255),
        "MNIST handwritten digits, 28x28 pixels, 10 classes; by label, or by writer through QMNIST",
        model="mlp",
        num_clients=100,
        models=_IMAGE_MODELS,
        options=("devices",),
        partitions=(*CENTRAL, "writers"),
        defaults={"rounds": 100, "cohort_size": 10, "batch_size": 20, "local_epochs": 1, "eval_every": 2},
    ),
    "fashion-mnist": Recipe(
        images.classification(files.fashion_mnist, 255),
        "Fashion-MNIST clothes, 28x28 pixels, 10 classes",
        model="cnn",
        num_clients=100,
        models=_IMAGE_MODELS,
        options=("devices",),
        partitions=CENTRAL,
        defaults={"rounds": 100, "cohort_size": 10, "batch_size": 20, "local_epochs": 1, "eval_every": 2},
    ),
    "cifar10": Recipe(
        images.classification(files.cifar10, 255),
        "CIFAR-10 photographs, 32x32 pixels in colour, 10 classes",
        model="resnet18",
        num_clients=500,
        models=_IMAGE_MODELS,
        options=("augment", "devices"),
        partitions=CENTRAL,
        defaults={"rounds": 1000, "cohort_size": 10, "batch_size": 20, "local_epochs": 1, "eval_every": 50},
    ),
    "cifar100": Recipe(
        images.classification(files.cifar100, 255),
        "CIFAR-100 photographs, 32x32 pixels in colour, 100 classes; Pachinko allocation over both levels of labels",
        model="resnet18",
        num_clients=500,
        models=_IMAGE_MODELS,
        options=("augment", "devices"),
        partitions=("pachinko", *CENTRAL),
        defaults={"rounds": 1000, "cohort_size": 10, "batch_size": 20, "local_epochs": 1, "eval_every": 50},
    ),
    "cifar100-coarse": Recipe(
        images.classification(files.cifar100_coarse, 255),
        "CIFAR-100 photographs, 32x32 pixels in colour, its 20 superclasses",
        model="resnet18",
        num_clients=500,
        models=_IMAGE_MODELS,
        options=("augment", "devices"),
        partitions=CENTRAL,
        defaults={"rounds": 1000, "cohort_size": 10, "batch_size": 20, "local_epochs": 1, "eval_every": 50},
    ),
    "emnist-cr": Recipe(
        images.classification(files.emnist, 255),
        "EMNIST characters by writer, 28x28 pixels, 62 classes (TensorFlow Federated's files, or LEAF's FEMNIST)",
        model="emnist_cnn",
        num_clients=100,
        models=_IMAGE_MODELS,
        options=("devices",),
        partitions=("writers", *CENTRAL),
        defaults={"rounds": 500, "cohort_size": 10, "batch_size": 20, "local_epochs": 1, "eval_every": 25},
    ),
    "emnist-ae": Recipe(
        reconstruction.emnist_autoencoder,
        "EMNIST characters by writer, reconstructed by an autoencoder; mean squared error x 1000",
        model="autoencoder",
        num_clients=100,
        partitions=("writers", *CENTRAL),
        defaults={"rounds": 500, "cohort_size": 10, "batch_size": 20, "local_epochs": 1, "eval_every": 25},
    ),
    "shakespeare": Recipe(
        text.shakespeare,
        "Shakespeare's plays by role, the next of 90 characters",
        model="rnn",
        num_clients=0,
        models=tuple(text.SHAKESPEARE_MODELS),
        partitions=("roles",),
        defaults={"rounds": 300, "cohort_size": 10, "batch_size": 4, "local_epochs": 1, "eval_every": 50},
    ),
    "stackoverflow-nwp": Recipe(
        text.stackoverflow,
        "Stack Overflow by user, the next of 10,000 words (TensorFlow Federated's files)",
        model="rnn",
        num_clients=0,
        models=tuple(text.SO_MODELS),
        partitions=("users",),
        defaults={"rounds": 500, "cohort_size": 50, "batch_size": 16, "local_epochs": 1, "eval_every": 50},
    ),
    "stackoverflow-lr": Recipe(
        tags.stackoverflow_tags,
        "Stack Overflow by user, the 500 commonest tags from a bag of 10,000 words (TensorFlow Federated's files)",
        model="logistic",
        num_clients=0,
        partitions=("users",),
        defaults={"rounds": 500, "cohort_size": 10, "batch_size": 100, "local_epochs": 1, "eval_every": 50},
    ),
    "wikitext-2": Recipe(
        text.wikitext,
        "WikiText-2, the next of 33,278 words; 16 contiguous parts, or a client an article; perplexity",
        model="lstm",
        num_clients=16,
        models=tuple(text.WIKITEXT_MODELS),
        partitions=("parts", "articles"),
        defaults={"rounds": 100, "cohort_size": 16, "batch_size": 20, "local_steps": 10, "eval_every": 20},
    ),
    "synthetic": Recipe(
        analytic.synthetic,
        "synthetic(alpha, beta) of the FedProx paper: logistic regression, 60 features, 10 classes, uneven sizes",
        model="logistic",
        num_clients=30,
        options=("alpha", "beta", "num_clients"),
        defaults={"rounds": 100, "cohort_size": 10, "batch_size": 10, "local_epochs": 1, "eval_every": 1},
    ),
    "quadratic": Recipe(
        analytic.quadratic,
        "quadratics of different curvature and centre in 10 dimensions; the distance to the known optimum",
        model="vector",
        num_clients=20,
        options=("num_clients",),
        defaults={"rounds": 100, "cohort_size": 10, "batch_size": 5, "local_epochs": 1, "eval_every": 1},
    ),
    "counterexample": Recipe(
        analytic.counterexample,
        "the FAFED paper's 1-D problem on which adaptive steps with each client's own v diverge; the distance to 0",
        model="scalar",
        num_clients=3,
        defaults={"rounds": 100, "cohort_size": 3, "batch_size": 1, "local_epochs": 1, "eval_every": 1},
    ),
}


def recipe_of(name: str) -> Recipe:
    """The recipe of a task: one of `TASKS`, or of `file:PATH`.

    Raises:
      UsageError: there is no such task.
    """
    if not isinstance(name, str):
        raise UsageError(f"task: {name!r} given, allowed is the name of one, such as 'digits'")
    if name.startswith(own.PREFIX):
        return own.RECIPE
    if name not in TASKS:
        unknown("task", name, [*TASKS, f"{own.PREFIX}PATH"])
    return TASKS[name]


def load_task(
    name: str,
    *,
    partition: str | None = None,
    alpha: float | None = None,
    alpha_fine: float | None = None,
    beta: float | None = None,
    classes: int | None = None,
    shards: int | None = None,
    similarity: float | None = None,
    sigma: float | None = None,
    exponent: float | None = None,
    num_clients: int | None = None,
    devices: int | None = None,
    model: str | None = None,
    augment: str | None = None,
    client_column: str | None = None,
    label_column: str | None = None,
    test_fraction: float | None = None,
    image_size: int | None = None,
    compute_dtype: str | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Task:
    """Loads a named task, or `"file:PATH"`, a task on a file or folder of one's own.

    Args:
      name: one of `TASKS`; or `file:` and the path of a `.npz`, `.csv` or `.parquet` file or of a folder of images, see
        `fedoptax.data.own`.
      partition: how the training examples are divided: `"iid"`, `"dirichlet"` (equal sizes, each client its own class
        distribution), `"dirichlet-by-class"` (unequal sizes), `"pachinko"` (CIFAR-100), `"classes"` (a few classes a
        client), `"shards"` (a few runs of sorted labels), `"similarity"` (a part iid, the rest sorted), `"lognormal"`
        or `"powerlaw"` (iid in unequal sizes), or the data's own clients (`"writers"`, `"roles"`, `"users"`,
        `"articles"`, `"parts"`, `"clients"`); None takes the task's default.
      alpha: concentration of the Dirichlet partitions, > 0, smaller is less iid, default 0.3; over the coarse labels
        of `"pachinko"`, default 0.1; of `synthetic` its α, >= 0, default 1.
      alpha_fine: concentration over the fine labels of `"pachinko"`, > 0; default 10.
      beta: of `synthetic` its β, the variance between the devices' data, >= 0, default 1.
      classes: classes a client, for `partition="classes"`; default 2.
      shards: shards a client, for `partition="shards"`; default 2.
      similarity: percent of the examples that are divided iid, for `partition="similarity"`; default 0.
      sigma: deviation of the logarithm of the sizes, for `partition="lognormal"`; default 1.
      exponent: of the sizes' tail, for `partition="powerlaw"`; default 1.5.
      num_clients: N; of natural clients the first N are taken; None takes the default.
      devices: of image tasks: so many devices without data of their own, >= N; each round N active ones, which must be
        the cohort, are allocated the N shares (a reading of Fed-LAMB's experiments).
      model: `"logistic"`, `"mlp"`, `"cnn"`, …; None takes the task's default.
      augment: of CIFAR: `"crop"` (24×24, flip, standardise; default for ResNet-18), `"standardize"` or `"none"`.
      client_column, label_column, test_fraction, image_size: of `file:PATH`, see `fedoptax.data.own.load_file`.
      compute_dtype: `"bfloat16"` computes the training loss and its gradients in it, see `with_compute_dtype`; default
        `"float32"`.
      seed: of the partition, or of the data where a task draws them.
      data_dir: folder with one subfolder a data set; see `fedoptax.data.location.find_data_dir`.

    Raises:
      UsageError: an unknown name, an option that does not apply to the task, or a number out of range.
      DataError: a data file is missing or broken.
    """
    recipe = recipe_of(name)
    given = Options(
        partition,
        alpha,
        alpha_fine,
        beta,
        classes,
        shards,
        similarity,
        sigma,
        exponent,
        num_clients,
        devices,
        model,
        augment,
        client_column,
        label_column,
        test_fraction,
        image_size,
        compute_dtype,
        seed,
        data_dir,
    )
    check_options(name, recipe, given)
    return with_compute_dtype(recipe.make(name, recipe, given), compute_dtype or "float32")
