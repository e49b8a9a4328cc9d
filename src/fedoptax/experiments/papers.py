"""The papers' own settings by task: what `--preset paper` sets. Facts are the papers'; what is not theirs is said.

A task may have settings of several papers; the first is its `paper`, each can be asked for by name (`paper:fafed-low`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedoptax.errors import unknown


@dataclass(frozen=True)
class PaperSetting:
    """One experiment of a paper.

    Attributes:
      source: the paper and the place.
      convention: which convention the learning rates belong to, and what is not the paper's.
      task: options of `load_task`.
      run: options of `fedoptax.run`.
      hyperparameters: by algorithm; an algorithm that is not named keeps what the task has tuned for it.
    """

    source: str
    convention: str
    task: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    hyperparameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_AFO = 'Reddi et al. 2021, "Adaptive Federated Optimization"'
_DEBIASED = (
    "found with the released code, where Adam and Yogi are bias-corrected (debias=true; the paper's Algorithm 2 is not)"
)
_LAMB = 'Karimi, Li, Li, "Fed-LAMB: Layerwise and Dimensionwise Locally Adaptive Optimization"'
_FAFED = 'Wu, Huang, Hu, Huang, "Faster Adaptive Federated Learning" (FAFED)'


def _afo(client: Sequence[float], server: Sequence[float], tau: Sequence[float]) -> dict[str, dict[str, float | bool]]:
    """Exponents of 10 as in AFO's tables: Adagrad, Adam, Yogi, AvgM, Avg; τ of the first three."""
    names = ("fedadagrad", "fedadam", "fedyogi", "fedavgm", "fedavg")
    rates: dict[str, dict[str, float | bool]] = {
        name: {"client_lr": 10**c, "server_lr": 10**s} for name, c, s in zip(names, client, server, strict=True)
    }
    for name, exponent in zip(names, tau):
        rates[name]["tau"] = 10.0**exponent
    rates["fedadagrad"]["b1"] = 0.0
    for name in ("fedadam", "fedyogi"):
        rates[name] |= {"b1": 0.9, "b2": 0.99, "debias": True}
    rates["fedavgm"]["momentum"] = 0.9
    return rates


def _afo_run(rounds: int, batch_size: int, cohort_size: int = 10, eval_every: int = 50) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "cohort_size": cohort_size,
        "batch_size": batch_size,
        "local_epochs": 1,
        "weighting": "examples",
        "eval_every": eval_every,
    }


def _lamb(partition: str, rounds: int, epochs: int = 1, model: str = "mlp_dropout", **options: Any) -> PaperSetting:
    return PaperSetting(
        _LAMB,
        "learning rates are tuned, not published: those here were found by this project; b1 = 0.9, b2 = 0.999 are the "
        "paper's; its identity for phi is clipped to [0.001, 10] here, so that biases, which start at 0, can move",
        {"partition": partition, "num_clients": 50, "model": model} | options,
        {
            "rounds": rounds,
            "cohort_size": 25,
            "batch_size": 32,
            "local_epochs": epochs,
            "weighting": "uniform",
            "eval_every": 1,
        },
        {
            "fedlamb": {"lr": 0.003, "b1": 0.9, "b2": 0.999},
            "local_amsgrad": {"lr": 0.003, "b1": 0.9, "b2": 0.999},
            "fedavg": {"client_lr": 0.1, "server_lr": 1.0},
        },
    )


def _fafed(model: str, partition: str, **options: Any) -> PaperSetting:
    return PaperSetting(
        _FAFED,
        "steps are tuned over {.001, .01, .02, .05, .1}, server steps over 10^{-1.5, -2, -2.5}; the values here are "
        "points of these grids; tau = rho = 0.01, momenta of {0.1, 0.9}; the network is a likely one, not published",
        {"partition": partition, "num_clients": 20, "model": model, **options},
        {
            "rounds": 100,
            "cohort_size": 20,
            "batch_size": 50,
            "local_steps": 10,
            "weighting": "uniform",
            "eval_every": 1,
        },
        {
            "fedavg": {"client_lr": 0.1, "server_lr": 1.0},
            "scaffold": {"client_lr": 0.1, "server_lr": 1.0},
            "stem": {"lr": 0.1, "alpha": 0.1},
            "fedadam": {"client_lr": 0.1, "server_lr": 0.01, "b1": 0.9, "b2": 0.9, "tau": 0.01},
            "fedams": {"client_lr": 0.1, "server_lr": 0.01, "b1": 0.9, "b2": 0.9, "eps": 0.01},
            "fafed": {"lr": 0.01, "alpha": 0.1, "beta": 0.9, "rho": 0.01},
        },
    )


def _fafed_levels(model: str) -> dict[str, PaperSetting]:
    return {
        "fafed-low": _fafed(model, "similarity", similarity=95.0),
        "fafed-moderate": _fafed(model, "iid"),
        "fafed-high": _fafed(model, "classes", classes=5),
    }


PAPERS: dict[str, dict[str, PaperSetting]] = {
    "cifar10": {
        "afo": PaperSetting(
            _AFO,
            "rates of an independent configuration; Adam and Yogi bias-corrected (debias=true)",
            {"partition": "dirichlet", "alpha": 0.1, "num_clients": 500, "model": "resnet18_unstrided"},
            _afo_run(4000, 20),
            _afo((-1.5, -1.5, -1.5, -1.5, -0.5), (-1, -2, -2, -0.5, 0), (-2, -3, -3)),
        ),
        "fedlamb-iid": _lamb("iid", 100, 3, "cifar_cnn"),
        "fedlamb": _lamb("classes", 100, 3, "cifar_cnn", classes=1),
        "fedlamb-resnet9": _lamb("classes", 100, 3, "resnet9", classes=1),
        **_fafed_levels("fafed_cifar_cnn"),
    },
    "cifar100": {
        "afo": PaperSetting(
            _AFO,
            _DEBIASED,
            {
                "partition": "pachinko",
                "alpha": 0.1,
                "alpha_fine": 10.0,
                "num_clients": 500,
                "model": "resnet18_unstrided",
            },
            _afo_run(4000, 20),
            _afo((-1, -1.5, -1.5, -1.5, -1), (-1, 0, 0, 0, 0.5), (-2, -1, -1)),
        )
    },
    "emnist-cr": {
        "afo": PaperSetting(
            _AFO,
            _DEBIASED,
            {"partition": "writers", "model": "emnist_cnn"},
            _afo_run(1500, 20),
            _afo((-1.5, -1.5, -1.5, -1.5, -1), (-1, -2.5, -2.5, -0.5, 0), (-2, -4, -4)),
        )
    },
    "emnist-ae": {
        "afo": PaperSetting(
            _AFO,
            _DEBIASED + "; the loss is a sum over the batch",
            {"partition": "writers"},
            _afo_run(3000, 20),
            _afo((1.5, 1, 1, 0.5, 1), (-1.5, -1.5, -1.5, 0, 0), (-3, -3, -3)),
        )
    },
    "shakespeare": {
        "afo": PaperSetting(
            _AFO,
            _DEBIASED + "; 1,200 rounds as in the tables of the released code, the paper says 1,500",
            {"model": "rnn"},
            _afo_run(1200, 4),
            _afo((0, 0, 0, 0, 0), (-0.5, -2, -2, -0.5, 0), (-1, -3, -3)),
        )
    },
    "stackoverflow-nwp": {
        "afo": PaperSetting(
            _AFO,
            _DEBIASED,
            {"model": "rnn"},
            _afo_run(1500, 16, 50),
            _afo((-0.5, -0.5, -0.5, -0.5, -0.5), (-1.5, -2, -2, 0, 0), (-4, -5, -5)),
        )
    },
    "stackoverflow-lr": {
        "afo": PaperSetting(
            _AFO,
            _DEBIASED + "; the loss is a sum over the batch",
            {},
            _afo_run(1500, 100),
            _afo((2, 2, 2, 2, 2), (1, -0.5, -0.5, 0, 0), (-2, -5, -5)),
        )
    },
    "mnist": {
        "fedlamb": _lamb("classes", 50, classes=1),
        "fedlamb-shards": _lamb("shards", 50, shards=2),
        "fedlamb-active": _lamb("classes", 50, classes=1, num_clients=25, devices=50),
        "fedlamb-iid": _lamb("iid", 50),
        "fedlamb-cnn": _lamb("classes", 50, 1, "cnn", classes=1),
        "fedlamb-5-epochs": _lamb("classes", 50, 5, classes=1),
        **_fafed_levels("fafed_fmnist_cnn"),
    },
    "fashion-mnist": _fafed_levels("fafed_fmnist_cnn"),
    "wikitext-2": {
        "fafed": PaperSetting(
            _FAFED,
            "the paper's learning rates; equation (5) for FAFED and STEM; gradients clipped to norm 0.25; windows of "
            "35 words start from a zero state (the paper does not say)",
            {"partition": "parts", "num_clients": 16, "model": "lstm"},
            {
                "rounds": 400,
                "cohort_size": 16,
                "batch_size": 20,
                "local_steps": 10,
                "weighting": "uniform",
                "eval_every": 20,
            },
            {
                "fedavg": {"client_lr": 10.0, "server_lr": 1.0},
                "scaffold": {"client_lr": 10.0, "server_lr": 1.0},
                "fedadam": {"client_lr": 10.0, "server_lr": 0.03, "b1": 0.9, "b2": 0.9, "tau": 0.01},
                "fedams": {"client_lr": 10.0, "server_lr": 0.03, "b1": 0.9, "b2": 0.9, "eps": 0.01},
                "stem": {"lr": "cube_root(20, w=1)", "alpha": 0.1},
                "fafed": {"lr": "cube_root(1, w=1)", "alpha": 0.1, "beta": 0.9, "rho": 0.01},
            },
        )
    },
}
"""Paper settings by task and name; the first of a task is what `--preset paper` means."""


def paper_setting(task: str, preset: str) -> PaperSetting:
    """The setting that `paper` or `paper:NAME` means for a task.

    Raises:
      UsageError: the task has no paper setting, or none of that name.
    """
    settings = PAPERS.get(task, {})
    name = preset.partition(":")[2] or next(iter(settings), "")
    if name not in settings:
        allowed = ["tuned", "none", *(f"paper:{known}" for known in settings), *(["paper"] if settings else [])]
        unknown(f"--preset (of task '{task}')", preset, allowed)
    return settings[name]
