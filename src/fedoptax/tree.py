"""Arithmetic on trees of arrays (parameters, gradients, states) in which a scalar never changes a leaf's dtype.

A hyper-parameter may be a Python float or a traced float32 (in a sweep); multiplied as it is, the latter would
turn bfloat16 parameters into float32. Here each scalar takes the dtype of the leaf it meets.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

Tree = Any
"""Any pytree of arrays: parameters, states, messages."""

zeros_like = partial(jax.tree.map, jnp.zeros_like)  #: 0 everywhere
add = partial(jax.tree.map, jnp.add)  #: x + y
sub = partial(jax.tree.map, jnp.subtract)  #: x − y
divide = partial(jax.tree.map, jnp.divide)  #: x / y
square = partial(jax.tree.map, jnp.square)  #: x²


def leaf_names(x: Tree) -> list[str]:
    """The names of the leaves in files and messages: key paths as in RFC 6901, without the first slash.

    The keys are joined by `/`, with `~` and `/` inside a key written `~0` and `~1`; a single array's name is empty.
    """

    def key(entry: Any) -> str:
        text = str(next(getattr(entry, name) for name in ("key", "name", "idx") if hasattr(entry, name)))
        return text.replace("~", "~0").replace("/", "~1")

    return ["/".join(map(key, path)) for path, _ in jax.tree_util.tree_leaves_with_path(x)]


def sum_dtype(x: Tree) -> Any:
    """The dtype in which the leaves of `x` are summed: at least float32, also under strict promotion."""
    dtypes = [jax.dtypes.canonicalize_dtype(a.dtype) for a in jax.tree.leaves(x)]
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(jnp.float32, *dtypes)


def full_like(x: Tree, value: ArrayLike) -> Tree:
    """`value` everywhere, in the shape and dtype of `x`."""
    return jax.tree.map(lambda a: jnp.broadcast_to(jnp.asarray(value, a.dtype), a.shape), x)


def root_plus(v: Tree, eps: ArrayLike) -> Tree:
    """√v + ε, the denominator of the adaptive methods."""
    return jax.tree.map(lambda a: jnp.sqrt(a) + jnp.asarray(eps, a.dtype), v)


def square_norm(x: Tree) -> jax.Array:
    """‖x‖², all leaves together, a scalar of at least float32."""
    wide = sum_dtype(x)
    return sum((jnp.sum(jnp.square(a.astype(wide))) for a in jax.tree.leaves(x)), jnp.zeros((), wide))


def norm(x: Tree) -> jax.Array:
    """‖x‖, the 2-norm of all leaves together, a scalar of at least float32."""
    return jnp.sqrt(square_norm(x))


def scale(a: ArrayLike, x: Tree) -> Tree:
    """a·x."""
    return jax.tree.map(lambda u: jnp.asarray(a, u.dtype) * u, x)


def add_scaled(x: Tree, a: ArrayLike, y: Tree) -> Tree:
    """x + a·y."""
    return jax.tree.map(lambda u, w: u + jnp.asarray(a, w.dtype) * w, x, y)


def ema(decay: ArrayLike, old: Tree, new: Tree) -> Tree:
    """decay·old + (1 − decay)·new, an exponential moving average."""

    def leaf(o: jax.Array, n: jax.Array) -> jax.Array:
        return jnp.asarray(decay, o.dtype) * o + jnp.asarray(1 - decay, o.dtype) * n

    return jax.tree.map(leaf, old, new)


def take(x: Tree, i: ArrayLike | slice) -> Tree:
    """Row i, or the rows i, of stacked trees."""
    return jax.tree.map(lambda a: a[i], x)


def put(x: Tree, i: ArrayLike, rows: Tree) -> Tree:
    """Stacked trees with another row i, or other rows i; what goes past the end is dropped."""
    return jax.tree.map(lambda a, new: a.at[i].set(new, mode="drop"), x, rows)


def all_finite(x: Tree) -> jax.Array:
    """Whether every floating-point number of `x` is finite; 0 · a is 0 only if a is."""
    sums = [jnp.sum(0 * jnp.asarray(a)) for a in jax.tree.leaves(x) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.isfinite(s) for s in sums], bool))


def select(condition: ArrayLike, x: Tree, y: Tree) -> Tree:
    """`x` where the scalar `condition` is true, else `y`."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), x, y)


def accumulate_zero(like: Tree) -> Tree:
    """An empty sum for uploads like `like` (arrays or shape/dtype structs), each leaf at least float32."""
    return jax.tree.map(lambda a: jnp.zeros(a.shape, sum_dtype(a)), like)


def accumulate(total: Tree, weight: ArrayLike, upload: Tree) -> Tree:
    """total + weight·upload; an upload of weight 0 adds nothing, even where it is not finite."""

    def leaf(t: jax.Array, u: jax.Array) -> jax.Array:
        w = jnp.asarray(weight, t.dtype)
        return t + jnp.where(w == 0, jnp.zeros((), t.dtype), w * u.astype(t.dtype))

    return jax.tree.map(leaf, total, upload)


def accumulate_result(total: Tree, like: Tree) -> Tree:
    """The finished sum in the dtypes of `like`; integers are rounded."""

    def leaf(t: jax.Array, a: Any) -> jax.Array:
        dtype = jax.dtypes.canonicalize_dtype(a.dtype)  # NumPy's doubles are float32 here
        return (jnp.round(t) if jnp.issubdtype(dtype, jnp.integer) else t).astype(dtype)

    return jax.tree.map(leaf, total, like)
