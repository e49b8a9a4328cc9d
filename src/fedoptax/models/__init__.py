"""The papers' models, each as a pair of pure functions.

Image classifiers are found by name, `MODELS[name](input_shape, num_classes) -> Model`; the autoencoder and the models
of text have sizes of their own and are called directly.
"""

from collections.abc import Callable
from functools import partial

from fedoptax.models.classifiers import autoencoder as autoencoder
from fedoptax.models.classifiers import (
    cifar_cnn,
    cnn,
    emnist_cnn,
    fafed_cifar_cnn,
    fafed_fmnist_cnn,
    lenet,
    logistic,
    mlp,
)
from fedoptax.models.model import Model
from fedoptax.models.model import count_params as count_params
from fedoptax.models.model import functional as functional
from fedoptax.models.resnet import resnet9, resnet18
from fedoptax.models.text import shakespeare_rnn as shakespeare_rnn
from fedoptax.models.text import so_logistic as so_logistic
from fedoptax.models.text import so_rnn as so_rnn
from fedoptax.models.text import wikitext_lstm as wikitext_lstm
from fedoptax.models.transformer import gpt as gpt
from fedoptax.models.transformer import vit

MODELS: dict[str, Callable[..., Model]] = {
    "logistic": logistic,
    "mlp": mlp,
    "mlp_dropout": partial(mlp, dropout=0.5),  # as Fed-LAMB has it on MNIST
    "cnn": cnn,
    "emnist_cnn": emnist_cnn,
    "resnet18": resnet18,
    "resnet18_unstrided": partial(resnet18, strides=False),
    "resnet9": resnet9,
    "cifar_cnn": cifar_cnn,
    "fafed_fmnist_cnn": fafed_fmnist_cnn,
    "fafed_cifar_cnn": fafed_cifar_cnn,
    "lenet": lenet,
    "vit": vit,
    "vit_small": partial(vit, width=64, depth=3, heads=4),
}
"""Builders by name; each takes `(input_shape, num_classes)`."""
