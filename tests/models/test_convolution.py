"""A convolution has the derivatives of `lax` on every platform, and is lowered by platform and kind of kernel."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from fedoptax.models.layers import conv
from small_models import assert_close_by_size, gradients, gradients_of_gradients, normal

SHAPES = [
    # x (n, h, w, in), kernel (h, w, in, out), strides, padding
    pytest.param((2, 6, 7, 3), (3, 3, 3, 4), (1, 1), "SAME", marks=pytest.mark.long),
    ((1, 9, 8, 5), (3, 2, 5, 2), (1, 1), "VALID"),  # of which the gradient of x is a product of patches
    ((1, 9, 8, 2), (4, 3, 2, 5), (3, 2), "SAME"),
    pytest.param((2, 5, 5, 3), (1, 1, 3, 2), (2, 2), "VALID", marks=pytest.mark.long),
    ((2, 1, 2, 9), (3, 5, 9, 4), (1, 1), "SAME"),  # weights that meet padding alone
    pytest.param((2, 2, 2, 4), (3, 3, 4, 3), (2, 2), "SAME", marks=pytest.mark.long),
]
CLIENTS = 3


def by_lax(x, kernel, strides=(1, 1), padding="VALID"):
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


DERIVATIVES = {
    "gradients": lambda f, x, k: jax.vmap(gradients(f))(x, k),
    "kernel shared": lambda f, x, k: jax.vmap(gradients(f), (0, None))(x, k[0]),
    "x shared": lambda f, x, k: jax.vmap(gradients(f), (None, 0))(x[0], k),
    "one client": lambda f, x, k: gradients(f)(x[0], k[0]),
    "all pairs": lambda f, x, k: jax.vmap(jax.vmap(gradients(f), (0, None)), (None, 0))(x, k),
    "pairs of clients": lambda f, x, k: jax.vmap(jax.vmap(gradients(f)))(x[None], k[None]),
    "of gradients": lambda f, x, k: jax.vmap(gradients_of_gradients(f))(x, k),
    "forward": lambda f, x, k: jax.vmap(lambda x, k: jax.jvp(f, (x, k), (x, k)))(x, k),
    "forward of gradients": lambda f, x, k: jax.vmap(lambda x, k: jax.jvp(gradients(f), (x, k), (k.sum() * x, k)))(
        x, k
    ),
}


@pytest.mark.parametrize(("x_shape", "k_shape", "strides", "padding"), SHAPES)
def test_every_derivative_is_that_of_lax(x_shape, k_shape, strides, padding):
    @partial(jax.jit, static_argnums=0)
    def all_derivatives(f, x, kernel):
        return [derive(f, x, kernel) for derive in DERIVATIVES.values()]

    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        x, kernel = (normal(i, (CLIENTS, *shape), jnp.float64) for i, shape in enumerate((x_shape, k_shape)))
        expected = all_derivatives(partial(by_lax, strides=strides, padding=padding), x, kernel)
        for lowering in ("auto", "patches"):  # on a CPU and, with several clients, on a GPU
            ours = all_derivatives(partial(conv, strides=strides, padding=padding, lowering=lowering), x, kernel)
            assert_close_by_size(jax.tree.leaves(ours), jax.tree.leaves(expected), 1e-12)


def program_for_cuda(f, *shapes):
    """The program that a GPU would run, which needs none."""
    forms = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.export.export(jax.jit(f), platforms=["cuda"])(*forms).mlir_module()


X, KERNEL = (20, 6, 6, 64), (3, 3, 64, 64)


@pytest.mark.parametrize(
    ("x_shape", "k_shape", "axes", "is_convolution"),
    [
        ((10, *X), (10, *KERNEL), (0, 0), False),
        ((10, *X), KERNEL, (0, None), True),  # one kernel for all
        ((1, *X), (1, *KERNEL), (0, 0), True),  # one client
        ((10, 20, 112, 112, 64), (10, *KERNEL), (0, 0), True),  # patches of 5.8 GB
    ],
)
def test_on_a_gpu_clients_with_kernels_of_their_own_are_products(x_shape, k_shape, axes, is_convolution):
    forward = jax.vmap(lambda x, kernel: conv(x, kernel, padding="SAME"), axes)
    backward = jax.vmap(gradients(lambda x, kernel: conv(jnp.tanh(x), kernel, padding="SAME")), axes)
    programs = [program_for_cuda(forward, x_shape, k_shape)]
    if axes == (0, 0):  # kernels' gradients differ, even where the kernel is shared
        programs.append(program_for_cuda(backward, x_shape, k_shape))
    for program in programs:
        assert ("stablehlo.convolution" in program) == is_convolution
        assert "stablehlo.scatter" not in program
