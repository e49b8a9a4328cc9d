"""The public names, for type checkers and editors; `__init__.py` loads each when it is first used."""

# ruff: noqa: I001 (isort writes one line per name)

from fedoptax import (
    algorithm as algorithm, algorithms as algorithms, data as data, engine as engine, errors as errors,
    models as models, report as report, schedules as schedules, tasks as tasks, torch as torch, tree as tree,
)  # fmt: skip
from fedoptax.algorithm import (
    Batches as Batches, BatchList as BatchList, Cohort as Cohort, FedAlgorithm as FedAlgorithm,
    local_steps as local_steps, nbytes as nbytes, num_steps as num_steps, weighted_mean as weighted_mean,
)  # fmt: skip
from fedoptax.algorithms import (
    ALGORITHMS as ALGORITHMS, delta_sgd as delta_sgd, diloco as diloco, fadamgc as fadamgc, fafed as fafed,
    fafed_schedule as fafed_schedule, fafed_theory as fafed_theory, fedada2 as fedada2, fedadabound as fedadabound,
    fedadagrad as fedadagrad, fedadam as fedadam, fedadamw as fedadamw, fedams as fedams, fedamsgrad as fedamsgrad,
    fedavg as fedavg, fedavgm as fedavgm, fedcm as fedcm, feddyn as feddyn, fedexp as fedexp, fedlamb as fedlamb,
    fedlion as fedlion, fednova as fednova, fedopt as fedopt, fedprox as fedprox, fedyogi as fedyogi,
    local_adaalter as local_adaalter, local_amsgrad as local_amsgrad, lookahead as lookahead, mime as mime,
    mimelite as mimelite, muloco as muloco, naive_adaptive as naive_adaptive, scaffold as scaffold,
    scaffold_adam as scaffold_adam, stem as stem, with_prox as with_prox,
)  # fmt: skip
from fedoptax.data.federated import FederatedData as FederatedData
from fedoptax.engine import eager as eager
from fedoptax.engine.aggregation import (
    Krum as Krum, Median as Median, NormClipping as NormClipping, TrimmedMean as TrimmedMean,
)  # fmt: skip
from fedoptax.engine.evaluation import evaluate_clients as evaluate_clients
from fedoptax.engine.faults import Faults as Faults
from fedoptax.engine.program import Point as Point
from fedoptax.errors import DataError as DataError, RunError as RunError, UsageError as UsageError
from fedoptax.experiments.comparison import Compared as Compared, compare as compare
from fedoptax.experiments.result import RunResult as RunResult
from fedoptax.experiments.run import run as run
from fedoptax.experiments.grids import sweep as sweep
from fedoptax.experiments.tuning import SearchResult as SearchResult, tune as tune
from fedoptax.storage.model import TrainedModel as TrainedModel, load_model as load_model
from fedoptax.tasks import TASKS as TASKS, load_task as load_task, metrics as metrics
from fedoptax.tasks.pretrained import with_lora as with_lora
from fedoptax.tasks.task import (
    Task as Task, masked_mean as masked_mean, with_compute_dtype as with_compute_dtype, with_metrics as with_metrics,
    with_validation as with_validation,
)  # fmt: skip
from fedoptax.wrappers import (
    codecs as codecs, with_clipping as with_clipping, with_compression as with_compression,
    with_personal as with_personal, with_privacy as with_privacy,
)  # fmt: skip

__version__: str
__all__: list[str]
