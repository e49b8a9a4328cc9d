"""The LSTM layer, with a backward pass that multiplies for the weights' gradients once, not once a time step."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from fedoptax.errors import UsageError, unknown
from fedoptax.models.checks import check_least

Lowering = Literal["fused", "plain"]
LOWERINGS = ("fused", "plain")
_Residuals = tuple[jax.Array, ...]


def lstm(
    x: jax.Array, kernel: jax.Array, recurrent: jax.Array, bias: jax.Array, lowering: Lowering = "fused"
) -> jax.Array:
    """The hidden states of a long short-term memory that starts at zero.

    With input gate i, forget gate f, candidate g and output gate o, in this order in the 4·units columns, and σ the
    logistic function:

        i, f, g, o = σ, σ, tanh, σ of x[t] @ kernel + h[t−1] @ recurrent + bias
        c[t] = f · c[t−1] + i · g
        h[t] = o · tanh(c[t])

    The input's projection is one matrix multiply before the loop over time. `"plain"` is a scan that JAX
    differentiates: it adds to the recurrent weights' gradient at every step. `"fused"` collects the gradients of the
    gates and does one matrix multiply after the loop: on CPU up to twice as fast, three times with one set of
    weights a client under `vmap`. It can be differentiated once, backwards; `"plain"` in any way.

    Args:
      x: (time, batch, in).
      kernel: (in, 4·units), of x's dtype, like the others.
      recurrent: (units, 4·units).
      bias: (4·units,).
      lowering: `"fused"` or `"plain"`; equal up to rounding.

    Returns:
      h: (time, batch, units), of x's dtype.

    Raises:
      UsageError: an unknown lowering, or shapes that do not fit.
    """
    shapes, gates = (kernel.shape, recurrent.shape, bias.shape), 4 * recurrent.shape[0]
    if x.ndim != 3 or shapes != ((x.shape[2], gates), (recurrent.shape[0], gates), (gates,)):
        raise UsageError(
            f"kernel, recurrent, bias: shapes {', '.join(map(str, shapes))} given for x of shape {x.shape}; "
            f"(in, 4 units), (units, 4 units), (4 units,) for (time, batch, in) is allowed"
        )
    if lowering not in LOWERINGS:
        unknown("lowering", lowering, LOWERINGS)
    project, recur = (_project, _fused) if lowering == "fused" else (jnp.matmul, _plain)
    projected = project(x.reshape(-1, x.shape[2]), kernel) + bias
    return recur(projected.reshape(*x.shape[:2], gates), recurrent)


def _plain(projected: jax.Array, recurrent: jax.Array) -> jax.Array:
    """Hidden states (time, batch, units) of the projected inputs (time, batch, 4·units): the definition."""

    def step(carry: tuple[jax.Array, jax.Array], projected: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = carry
        h, c, _ = _cell(projected + h @ recurrent, c)
        return (h, c), h

    return lax.scan(step, _start(projected, recurrent), projected)[1]


def _cell(gates: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
    """The next h and c, and the gates i, f, g, o."""
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    i, f, g, o = nnx.sigmoid(i), nnx.sigmoid(f), jnp.tanh(g), nnx.sigmoid(o)
    c = f * c + i * g
    return o * jnp.tanh(c), c, (i, f, g, o)


def _start(projected: jax.Array, recurrent: jax.Array) -> tuple[jax.Array, jax.Array]:
    zero = jnp.zeros((projected.shape[1], recurrent.shape[0]), projected.dtype)
    return zero, zero


_fused = jax.custom_vjp(_plain)


def _forward(projected: jax.Array, recurrent: jax.Array) -> tuple[jax.Array, _Residuals]:
    def step(
        carry: tuple[jax.Array, jax.Array], projected: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], _Residuals]:
        h, c = carry
        h, c, gates = _cell(projected + h @ recurrent, c)
        return (h, c), (h, c, *gates)

    _, states = lax.scan(step, _start(projected, recurrent), projected)
    return states[0], (recurrent, *states)


def _backward(residuals: _Residuals, dh: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradients of projected and recurrent, from that of the hidden states; Hochreiter and Schmidhuber (1997)."""
    recurrent, h, c, *gates = residuals
    zero = jnp.zeros_like(h[:1])
    h_before, c_before = (jnp.concatenate([zero, states[:-1]]) for states in (h, c))
    transposed = recurrent.T  # once: transposed in the loop's own product, it is slower on CPU

    def step(carry: tuple[jax.Array, jax.Array], at: _Residuals) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        dh, dc = carry  # what comes back from the next step
        dh_here, c, c_before, i, f, g, o = at
        dh, t = dh + dh_here, jnp.tanh(c)
        dc = dc + dh * o * (1 - t * t)
        di, df, dg, do = dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g * g), dh * t * o * (1 - o)
        dgates = jnp.concatenate([di, df, dg, do], axis=-1)
        return (dgates @ transposed, dc * f), dgates

    _, dgates = lax.scan(step, (zero[0], zero[0]), (dh, c, c_before, *gates), reverse=True)
    return dgates, _weights_gradient(h_before.reshape(-1, h.shape[2]), dgates.reshape(-1, dgates.shape[2]))


_fused.defvjp(_forward, _backward)
_project = jax.custom_vjp(jnp.matmul)
_project.defvjp(
    lambda x, kernel: (x @ kernel, (x, kernel)),
    lambda residuals, dy: (dy @ residuals[1].T, _weights_gradient(residuals[0], dy)),
)


def _weights_gradient(x: jax.Array, dy: jax.Array) -> jax.Array:
    """xᵀ dy, (in, out), of x (rows, in) and dy (rows, out).

    A CPU transposes x first. Of a product over time and batch, or with a transposed left side, XLA would rather
    transpose dy, which is larger, and multiply on a path that is slower for hundreds of rows.
    """
    return lax.platform_dependent(
        x, dy, cpu=lambda x, dy: lax.optimization_barrier(x.T) @ dy, default=lambda x, dy: x.T @ dy
    )


class LSTM(nnx.Module):
    """A layer of long short-term memory; 4·units·(in + units + 1) parameters, one bias a gate as in Keras.

    Args:
      in_features: size of x[t].
      units: size of h[t].
      kernel_init: initializer of the kernel (in, 4·units); by default Glorot uniform.
      recurrent_init: initializer of the recurrent kernel (units, 4·units); by default orthonormal rows.
      forget_bias: of the forget gate at first; the other gates' biases start at 0.
      lowering: as in `lstm`.
      rngs: where the kernels' keys come from.

    Raises:
      UsageError: a size is less than 1.
    """

    def __init__(
        self,
        in_features: int,
        units: int,
        *,
        kernel_init: jax.nn.initializers.Initializer | None = None,
        recurrent_init: jax.nn.initializers.Initializer | None = None,
        forget_bias: float = 1.0,
        lowering: Lowering = "fused",
        rngs: nnx.Rngs,
    ) -> None:
        check_least("in_features", in_features, 1)
        check_least("units", units, 1)
        kernel_init = kernel_init or jax.nn.initializers.glorot_uniform()
        recurrent_init = recurrent_init or jax.nn.initializers.orthogonal()
        bias = jnp.zeros((4 * units,), jnp.float32).at[units : 2 * units].set(forget_bias)
        self.kernel = nnx.Param(kernel_init(rngs.params(), (in_features, 4 * units), jnp.float32))
        self.recurrent = nnx.Param(recurrent_init(rngs.params(), (units, 4 * units), jnp.float32))
        self.bias = nnx.Param(bias)
        self.lowering = lowering

    def __call__(self, x: jax.Array) -> jax.Array:
        """(time, batch, in) to the hidden states (time, batch, units)."""
        return lstm(x, self.kernel[...], self.recurrent[...], self.bias[...], self.lowering)
