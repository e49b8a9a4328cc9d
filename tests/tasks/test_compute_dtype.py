"""Training in bfloat16: products and activations are narrow, statistics and losses are not, and casts are few."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedoptax as fx
from fedoptax.engine.batches import Minibatch, task_grad_fn
from fedoptax.models import resnet18, shakespeare_rnn
from fedoptax.tasks.images import crop, cross_entropy
from fedoptax.tasks.recipe import MODELS
from fedoptax.tasks.task import Task
from fedoptax.tasks.text import next_token

BATCH = 4


def image_task(model, augment=None):
    rng = np.random.default_rng(0)
    examples = {"x": rng.integers(0, 256, (BATCH, 32, 32, 3), dtype=np.uint8), "y": np.arange(BATCH) % 10}
    return task_of(examples, cross_entropy(model, 255.0, augment))


def text_task():
    ids = np.random.default_rng(0).integers(0, 20, (BATCH, 7))
    return task_of({"x": ids[:, :-1], "y": ids[:, 1:]}, next_token(shakespeare_rnn(20), ["a"] * 20))


def task_of(examples, learned):
    narrow = {name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in examples.items()}
    return fx.with_compute_dtype(Task("task", clients=fx.FederatedData.from_clients([narrow]), **learned), "bfloat16")


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda a: hasattr(a, "eqns")):
            if hasattr(inner, "eqns"):
                yield from equations(inner)


@pytest.mark.parametrize(
    ("task", "statistics"),
    [
        (lambda: image_task(resnet18((24, 24, 3), 10, width=4), crop), {"rsqrt", "exp", "log"}),
        (lambda: image_task(MODELS["cnn"]((32, 32, 3), 10)), {"exp", "log"}),
        (text_task, {"exp", "log"}),
    ],
    ids=["resnet18", "cnn", "lstm"],
)
def test_products_are_narrow_and_statistics_are_not(task, statistics):
    made = task()
    params = jax.eval_shape(made.init, jax.random.key(0))
    examples = {name: jnp.asarray(array) for name, array in made.clients.examples.items()}
    batch = Minibatch({**examples, "mask": jnp.ones(BATCH, bool)}, jax.random.key(0))
    jaxpr, (loss, gradients) = jax.make_jaxpr(task_grad_fn(made), return_shape=True)(params, batch)
    assert loss.dtype == jnp.float32 and {leaf.dtype for leaf in jax.tree.leaves(gradients)} == {jnp.dtype("float32")}
    seen = list(equations(jaxpr.jaxpr))
    products = [e for e in seen if e.primitive.name in ("dot_general", "fedoptax_conv")]
    assert products and {v.aval.dtype for e in products for v in e.invars} == {jnp.dtype("bfloat16")}
    wide = [e for e in seen if e.primitive.name in statistics]
    assert {e.primitive.name for e in wide} == statistics
    assert {e.outvars[0].aval.dtype for e in wide} == {jnp.dtype("float32")}
    kernels = [leaf.shape for leaf in jax.tree.leaves(params) if len(leaf.shape) > 1]
    narrowed = [e for e in seen if e.primitive.name == "convert_element_type" and e.outvars[0].aval.dtype == "bfloat16"]
    casts = [e.invars[0].aval.shape for e in narrowed]
    assert all(casts.count(shape) == kernels.count(shape) for shape in set(kernels))
