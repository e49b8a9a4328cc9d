"""pfl-research's simulation: `OMP_NUM_THREADS=1 python run_pfl.py SHAPE` (its sampling process spins)."""

import logging
import os
import sys
import time
from itertools import pairwise
from typing import Any

import torch
from networks import client_tensors, make_network
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import cross_entropy
from work import CLIENT_LR, SERVER_BETAS, SERVER_EPS, SERVER_LR, SHAPES, TIMED_ROUNDS, report

logging.disable(logging.CRITICAL)
name = sys.argv[1]
shape = SHAPES[name]


class Classifier(torch.nn.Module):
    """The network with the loss and metrics that pfl asks of it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = make_network(name)

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        self.train(not eval)
        return cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = True) -> dict[str, Any]:
        return {"loss": Weighted(cross_entropy(self.network(x), y, reduction="sum").item(), len(y))}


class RoundTimes(TrainingProcessCallback):
    """The clock after every round."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.moments.append(time.perf_counter())
        return False, Metrics()


data = {client: list(client_tensors(name, client)) for client in range(shape.clients)}
sampler = get_user_sampler("minimize_reuse", list(data))
module = Classifier()
times = RoundTimes()
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=TIMED_ROUNDS + 2,
        evaluation_frequency=10**6,
        train_cohort_size=shape.clients,
        val_cohort_size=0,
    ),
    backend=SimulatedBackend(
        training_data=FederatedDataset(lambda user: Dataset(raw_data=data[user]), sampler), val_data=None
    ),
    model=PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.Adam(module.parameters(), lr=SERVER_LR, betas=SERVER_BETAS, eps=SERVER_EPS),
    ),
    model_train_params=NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=CLIENT_LR, local_batch_size=shape.batch
    ),
    callbacks=[times],
)
after = times.moments[1:]  # the first two rounds warm up
report([end - begin for begin, end in pairwise(after)])
os._exit(0)  # its sampling process would keep the program alive
