"""The algorithms, one paper per file, and the one dictionary from command-line names to constructors.

A constructor raises `UsageError` for a number outside the range that its docstring gives. Every number may be
a traced value, as in a sweep.
"""

from collections.abc import Callable

from fedoptax import names
from fedoptax.algorithm import FedAlgorithm
from fedoptax.algorithms.delta_sgd import delta_sgd
from fedoptax.algorithms.diloco import diloco
from fedoptax.algorithms.fadamgc import fadamgc
from fedoptax.algorithms.fafed import fafed, fafed_schedule, fafed_theory, naive_adaptive
from fedoptax.algorithms.fedada2 import fedada2
from fedoptax.algorithms.fedadamw import fedadamw
from fedoptax.algorithms.fedcm import fedcm
from fedoptax.algorithms.feddyn import feddyn
from fedoptax.algorithms.fedexp import fedexp
from fedoptax.algorithms.fedlamb import fedlamb, local_amsgrad
from fedoptax.algorithms.fedlion import fedlion
from fedoptax.algorithms.fednova import fednova
from fedoptax.algorithms.fedopt import (
    fedadabound,
    fedadagrad,
    fedadam,
    fedams,
    fedamsgrad,
    fedavg,
    fedavgm,
    fedopt,
    fedyogi,
)
from fedoptax.algorithms.fedprox import fedprox, with_prox
from fedoptax.algorithms.mime import mime, mimelite
from fedoptax.algorithms.muloco import muloco
from fedoptax.algorithms.scaffold import scaffold, scaffold_adam
from fedoptax.algorithms.shared_state import local_adaalter, lookahead
from fedoptax.algorithms.stem import stem

ALGORITHMS: dict[str, Callable[..., FedAlgorithm]] = {name: globals()[name] for name in names.ALGORITHMS}
