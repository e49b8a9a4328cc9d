"""The LSTM layer, with a backward pass that multiplies for the weights' gradients once, not once per time step."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.nn.initializers import Initializer, glorot_uniform, orthogonal

from fedoptax.errors import UsageError

Arrays = tuple[jax.Array, ...]


def lstm(x: jax.Array, kernel: jax.Array, recurrent: jax.Array, bias: jax.Array) -> jax.Array:
    """The hidden states of a long short-term memory that starts at zero.

    With input gate i, forget gate f, candidate g and output gate o, in this order in the 4·units columns, and σ the
    logistic function:

        i, f, g, o = σ, σ, tanh, σ of x[t] @ kernel + h[t−1] @ recurrent + bias
        c[t] = f · c[t−1] + i · g
        h[t] = o · tanh(c[t])

    The input's projection is one matrix multiply before the loop over time. It can be differentiated once, backwards.

    Takes x (time, batch, in), kernel (in, 4·units), recurrent (units, 4·units) and bias (4·units,), all of one dtype;
    shapes that do not fit are a `UsageError`. Returns h (time, batch, units).
    """
    units = recurrent.shape[0]
    fitting = ((x.shape[-1], 4 * units), (units, 4 * units), (4 * units,))
    if x.ndim != 3 or (kernel.shape, recurrent.shape, bias.shape) != fitting:
        raise UsageError(
            "kernel, recurrent and bias must be (in, 4 units), (units, 4 units) and (4 units,) for x (time, batch, in),"
            f" got {kernel.shape}, {recurrent.shape} and {bias.shape} for {x.shape}"
        )
    return _hidden_states(x, kernel, recurrent, bias)


# A scan that JAX differentiates adds to the recurrent weights' gradient at every time step. Collecting the gates'
# gradients and multiplying once after the loop, as `_weights_gradient` does, takes 0.52 of a round of `lstm` (2 cores).
@jax.custom_vjp
def _hidden_states(x: jax.Array, kernel: jax.Array, recurrent: jax.Array, bias: jax.Array) -> jax.Array:
    return _forward(x, kernel, recurrent, bias)[0]


def _forward(x: jax.Array, kernel: jax.Array, recurrent: jax.Array, bias: jax.Array) -> tuple[jax.Array, Arrays]:
    def step(carry: tuple[jax.Array, jax.Array], projected: jax.Array) -> tuple[tuple[jax.Array, jax.Array], Arrays]:
        h, c = carry
        i, f, g, o = jnp.split(projected + h @ recurrent, 4, axis=-1)
        i, f, g, o = nnx.sigmoid(i), nnx.sigmoid(f), jnp.tanh(g), nnx.sigmoid(o)
        c = f * c + i * g
        h = o * jnp.tanh(c)
        return (h, c), (h, c, i, f, g, o)

    time, batch, _ = x.shape
    projected = (_rows(x) @ kernel + bias).reshape(time, batch, -1)
    zero = jnp.zeros((batch, recurrent.shape[0]), x.dtype)
    _, states = lax.scan(step, (zero, zero), projected)
    return states[0], (x, kernel, recurrent, *states)


def _backward(residuals: Arrays, dh: jax.Array) -> Arrays:
    """The gradients of x and the weights, from that of the hidden states; Hochreiter and Schmidhuber (1997)."""
    x, kernel, recurrent, h, c, *gates = residuals
    zero = jnp.zeros_like(h[:1])
    h_before, c_before = (jnp.concatenate([zero, states[:-1]]) for states in (h, c))
    transposed = recurrent.T  # once: transposed in the loop's own product, it is slower on a CPU

    def step(carry: tuple[jax.Array, jax.Array], saved: Arrays) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        dh, dc = carry  # the gradients that come back from the next time step
        dh_here, c, c_before, i, f, g, o = saved
        dh, t = dh + dh_here, jnp.tanh(c)
        dc = dc + dh * o * (1 - t * t)
        di, df, dg, do = dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g * g), dh * t * o * (1 - o)
        dgates = jnp.concatenate([di, df, dg, do], axis=-1)
        return (dgates @ transposed, dc * f), dgates

    _, dgates = lax.scan(step, (zero[0], zero[0]), (dh, c, c_before, *gates), reverse=True)
    dgates = _rows(dgates)
    dx = (dgates @ kernel.T).reshape(x.shape)
    return dx, _weights_gradient(_rows(x), dgates), _weights_gradient(_rows(h_before), dgates), dgates.sum(axis=0)


_hidden_states.defvjp(_forward, _backward)


def _rows(x: jax.Array) -> jax.Array:
    """(time, batch, size) to (time · batch, size)."""
    return x.reshape(-1, x.shape[2])


def _weights_gradient(x: jax.Array, dy: jax.Array) -> jax.Array:
    """xᵀ dy of x (rows, in) and dy (rows, out), on a CPU with x transposed: XLA would transpose dy, which is larger."""
    return lax.platform_dependent(
        x, dy, cpu=lambda x, dy: lax.optimization_barrier(x.T) @ dy, default=lambda x, dy: x.T @ dy
    )


class LSTM(nnx.Module):
    """A layer of `lstm`; 4·units·(in + units + 1) parameters, one bias per gate as in Keras.

    It starts as in Keras by default: a Glorot uniform kernel, a recurrent kernel of orthonormal rows, a bias of 1 for
    the forget gate and of 0 for the others.
    """

    def __init__(
        self,
        in_features: int,
        units: int,
        *,
        kernel_init: Initializer | None = None,
        recurrent_init: Initializer | None = None,
        forget_bias: float = 1.0,
        rngs: nnx.Rngs,
    ) -> None:
        self.kernel = nnx.Param((kernel_init or glorot_uniform())(rngs.params(), (in_features, 4 * units), jnp.float32))
        self.recurrent = nnx.Param((recurrent_init or orthogonal())(rngs.params(), (units, 4 * units), jnp.float32))
        self.bias = nnx.Param(jnp.zeros((4 * units,), jnp.float32).at[units : 2 * units].set(forget_bias))

    def __call__(self, x: jax.Array) -> jax.Array:
        """(time, batch, in) to the hidden states (time, batch, units)."""
        return lstm(x, self.kernel[...], self.recurrent[...], self.bias[...])
