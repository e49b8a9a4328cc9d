"""The laws of all algorithms hold for private and for compressed ones."""

from __future__ import annotations

from typing import Any

import pytest

import fedoptax as fx
import laws
from fedoptax.algorithm import FedAlgorithm
from laws import LAWS, Factory


def private_fedavg(client_lr: float = 0.1, clip: float = 0.5, noise_multiplier: float = 0.1) -> FedAlgorithm:
    return fx.with_privacy(fx.fedavg(client_lr), clip, noise_multiplier, 1e-3)


def private_fedadam(server_lr: float = 0.05, clip: float = 0.5, noise_multiplier: float = 0.1) -> FedAlgorithm:
    return fx.with_privacy(fx.with_prox(fx.fedadam(0.1, server_lr), 0.1), clip, noise_multiplier, 1e-3)


def quantised_fedadam(client_lr: float = 0.1, server_lr: float = 0.05) -> FedAlgorithm:
    return fx.with_prox(fx.with_compression(fx.fedadam(client_lr, server_lr), fx.codecs.qsgd(bits=2, bucket=4)), 0.1)


def sparse_fafed(lr: float = 0.05, rho: float = 0.1) -> FedAlgorithm:
    return fx.with_compression(fx.fafed(lr, rho=rho), fx.codecs.topk(0.25))


def quantised_private_stem(lr: float = 0.05, clip: float = 1.0, noise_multiplier: float = 0.1) -> FedAlgorithm:
    return fx.with_compression(fx.with_privacy(fx.stem(lr), clip, noise_multiplier, 1e-3), fx.codecs.qsgd(bits=4))


ROWS: dict[str, Factory] = {
    f.__name__: f for f in (private_fedadam, quantised_fedadam, sparse_fafed, private_fedavg, quantised_private_stem)
}
SHORT = {
    ("private_fedadam", law)
    for law in (laws.weight_zero_counts_for_nothing, laws.compiles_once, laws.bytes_are_what_is_sent)
}
SHORT |= {
    ("sparse_fafed", law)
    for law in (laws.weight_zero_counts_for_nothing, laws.continues_in_another_process, laws.bytes_are_what_is_sent)
}
"""The others run with the long tests: each row compiles its programs anew."""


@pytest.mark.parametrize(
    ("name", "law"),
    [
        pytest.param(name, law, id=f"{name}-{law.__name__}", marks=[] if (name, law) in SHORT else pytest.mark.long)
        for name in ROWS
        for law in LAWS
    ],
)
def test_law(name: str, law: Any) -> None:
    law(ROWS[name])
