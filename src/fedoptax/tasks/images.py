"""Images: classification of digits, MNIST, Fashion-MNIST, CIFAR and EMNIST; reconstruction of EMNIST; augmentation."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedoptax.algorithm import Tree
from fedoptax.data.datasets import emnist, mnist
from fedoptax.data.datasets.source import Load
from fedoptax.data.federated import FederatedData
from fedoptax.errors import UsageError, check_choice
from fedoptax.models import Model, autoencoder
from fedoptax.tasks.recipe import Recipe, TaskOptions, make_task
from fedoptax.tasks.task import Batch, Task, at_least_float32, masked_mean

Augmentation = Callable[[jax.Array, jax.Array | None], jax.Array]
CROP = 24  # height and width of an image after `crop`


def labelled_images(load: Load, scale: float, name: str, recipe: Recipe, options: TaskOptions) -> Task:
    """Classification of `load`'s images; models see x / scale, augmented if the options say so."""
    model = options.model or recipe.model
    if "augment" in recipe.options and options.augment is None:
        options = replace(options, augment="crop" if model.startswith("resnet18") else "none")
    augment = options.augment or "none"
    check_choice("augment", augment, AUGMENTATIONS)
    source = load(options.data_dir)
    shape = (CROP, CROP, *source.input_shape[2:]) if augment in ("crop", "center") else source.input_shape
    learned = cross_entropy(recipe.models[model](shape, source.num_classes), scale, AUGMENTATIONS[augment])
    return make_task(name, recipe, options, source, **learned, inputs={"white": scale})


def mnist_images(name: str, recipe: Recipe, options: TaskOptions) -> Task:
    """Classification of MNIST; the writers, in separate files, are only read if they are the clients."""
    return labelled_images(partial(mnist.load, writers=options.partition == "writers"), 255, name, recipe, options)


def image_classification(
    name: str, model: Model, scale: float, clients: FederatedData, test: Mapping[str, np.ndarray] | None,
    augment: Augmentation | None = None, **attributes: Any,
) -> Task:  # fmt: skip
    """Cross-entropy on examples `x` (n, …), which the model gets as x / scale, with labels `y` (n,).

    Metrics: `accuracy`, and `loss`, the cross-entropy in nats. `augment`, `(x / scale, key) -> x`, is applied to each
    batch; the key is None in evaluation. All else is as in `Task`.
    """
    y, test_y = (np.asarray(part.get("y", -1)) for part in (clients.examples, test or clients.examples))
    if y.ndim != 1 or y.dtype.kind not in "iu" or min(y.min(), test_y.min()) < 0:
        raise UsageError(f"y of task '{name}' must be classes (n,) numbered from 0, got {y.dtype}{list(y.shape)}")
    return Task(name=name, clients=clients, test=test, **cross_entropy(model, scale, augment), **attributes)


def cross_entropy(
    model: Model, scale: float | np.ndarray, augment: Augmentation | None = None, shift: np.ndarray | None = None,
    weights: np.ndarray | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the attributes of `Task` for `image_classification`; `shift` is first subtracted from x.

    `weights` (classes,) weigh the examples of each class in the training loss, not in the metrics.
    """

    def logits_of(params: Tree, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        x = scaled(params, batch["x"], scale, shift)
        return at_least_float32(model.apply(params, x if augment is None else augment(x, key), key))

    def classify(params: Tree, batch: Batch, key: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        logits = logits_of(params, batch, key)
        return logits, optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])

    def loss(params: Tree, batch: Batch, key: jax.Array) -> jax.Array:
        losses = classify(params, batch, key)[1]
        if weights is not None:
            losses = losses * jnp.asarray(weights, losses.dtype)[batch["y"]]
        return masked_mean(losses, batch)

    def metrics(params: Tree, batch: Batch) -> dict[str, jax.Array]:
        logits, losses = classify(params, batch)
        return {"accuracy": (jnp.argmax(logits, axis=-1) == batch["y"]).astype(jnp.float32), "loss": losses}

    def predict(params: Tree, batch: Batch) -> jax.Array:
        return jax.nn.softmax(logits_of(params, batch))

    learned = {"init": model.init, "loss": loss, "metrics": metrics, "predict": predict}
    return learned | {"classes": (), "primary_metric": "accuracy"}


def scaled(params: Tree, x: jax.Array, scale: float | np.ndarray, shift: np.ndarray | None = None) -> jax.Array:
    """Return (x − shift) / scale in the parameters' type, at least float32: the model casts its input."""
    dtype = np.promote_types(jax.tree.leaves(params)[0].dtype, np.float32)
    x = x.astype(dtype)
    return (x if shift is None else x - jnp.asarray(shift, dtype)) / jnp.asarray(scale, dtype)


def emnist_autoencoder(name: str, recipe: Recipe, options: TaskOptions) -> Task:
    """EMNIST AE of "Adaptive Federated Optimization"; metric `mse_x1000`, lower is better."""
    source = emnist.load(options.data_dir)._replace(class_names=None)  # the outputs are images
    learned = reconstruction(autoencoder())
    learned |= {"primary_metric": "mse_x1000", "higher_is_better": False, "inputs": {"white": 255}}
    return make_task(name, recipe, options, source, **learned)


def reconstruction(model: Model) -> dict[str, Any]:
    """Return the attributes of `Task` for reconstructing images, inverted (ink 1, background 0) and flattened.

    The loss is the *sum* over the batch of each example's mean squared error, as in the paper's released code, so the
    paper's client learning rates apply as they are (Reddi et al. 2021, Appendix C and Table 8).
    """

    def inverted(params: Tree, batch: Batch) -> jax.Array:
        x = batch["x"]
        return 1 - scaled(params, x.reshape(x.shape[0], -1), 255)

    def errors(params: Tree, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        """Mean squared error of each example, (batch,)."""
        x = inverted(params, batch)
        return jnp.mean(jnp.square(at_least_float32(model.apply(params, x, key)) - x), axis=1)

    def loss(params: Tree, batch: Batch, key: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(batch["mask"], errors(params, batch, key), 0))

    def metrics(params: Tree, batch: Batch) -> dict[str, jax.Array]:
        return {"mse_x1000": 1000 * errors(params, batch)}

    def predict(params: Tree, batch: Batch) -> jax.Array:
        """The reconstructed images, in the form of the inputs."""
        return 255 * (1 - model.apply(params, inverted(params, batch)).reshape(batch["x"].shape))

    return {"init": model.init, "loss": loss, "metrics": metrics, "predict": predict}


def crop(x: jax.Array, key: jax.Array | None) -> jax.Array:
    """Crop images (n, height, width, channels) to (n, 24, 24, channels) and standardise them.

    With a key (in training) at random places and flipped at random, else the centre: the CIFAR preprocessing of
    "Adaptive Federated Optimization" (Reddi et al. 2021).
    """
    n, height, width, channels = x.shape
    rows, columns = height - CROP, width - CROP
    if key is None:
        return standardize(x[:, rows // 2 : rows // 2 + CROP, columns // 2 : columns // 2 + CROP])
    keys = jax.random.split(key, 3)
    top = jax.random.randint(keys[0], (n,), 0, rows + 1)
    left = jax.random.randint(keys[1], (n,), 0, columns + 1)
    flip = jax.random.bernoulli(keys[2], 0.5, (n, 1, 1, 1))
    window = partial(jax.lax.dynamic_slice, slice_sizes=(CROP, CROP, channels))
    cropped = jax.vmap(lambda image, i, j: window(image, (i, j, 0)))(x, top, left)
    return standardize(jnp.where(flip, cropped[:, :, ::-1], cropped))


def center(x: jax.Array, key: jax.Array | None = None) -> jax.Array:
    """Crop the centre and standardise, also in training, as AFO's released trainer does now."""
    return crop(x, None)


def standardize(x: jax.Array, key: jax.Array | None = None) -> jax.Array:
    """Give every image mean 0 and deviation 1; a blank one, whose deviation is taken as 1/√(its numbers), is 0."""
    axes = (1, 2, 3)
    smallest = jnp.asarray(1 / math.sqrt(math.prod(x.shape[1:])), x.dtype)
    mean, deviation = jnp.mean(x, axes, keepdims=True), jnp.std(x, axes, keepdims=True)
    return (x - mean) / jnp.maximum(deviation, smallest)


AUGMENTATIONS = {"none": None, "crop": crop, "center": center, "standardize": standardize}
"""`load_task(augment=...)`: nothing, the papers' crop and flip, the centre alone, or only each image standardised."""
