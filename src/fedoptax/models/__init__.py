"""The papers' models, each as a pair of pure functions.

Image classifiers take `(input_shape, num_classes)`; the autoencoder and the models of text have sizes of their own.
"""

from fedoptax.models.classifiers import (
    autoencoder,
    cifar_cnn,
    cnn,
    emnist_cnn,
    fafed_cifar_cnn,
    fafed_fmnist_cnn,
    lenet,
    logistic,
    mlp,
)
from fedoptax.models.model import Model, count_params, functional
from fedoptax.models.resnet import resnet9, resnet18
from fedoptax.models.text import shakespeare_rnn, so_logistic, so_rnn, wikitext_lstm
from fedoptax.models.transformer import gpt, vit
