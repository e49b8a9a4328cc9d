"""The options of a deployment besides those of its rounds; as for a run, checking them needs no JAX."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from fedoptax.engine.options import FROM_0, POSITIVE, RoundOptions, of_evaluation, of_network, option, with_attributes
from fedoptax.errors import check_int, check_number


@with_attributes
@dataclass(frozen=True, kw_only=True)
class NetworkOptions(RoundOptions):
    """What server and clients of a deployment agree on, besides task and algorithm."""

    quorum: float = of_network(0.5, "Fraction of the cohort, in (0, 1], whose replies are enough for a round; the "
        "round still waits for all until round_timeout.",
        partial(check_number, low=0, high=1, open_low=True, open_high=False))  # fmt: skip
    round_timeout: float = of_network(600.0, "Seconds that a round with a quorum waits for replies; in "
        "asynchronous rounds, that a node may train.", POSITIVE)  # fmt: skip
    wait_limit: float = of_network(600.0, "Seconds that a round waits for a quorum, at least round_timeout; then the "
        "run stops. The first round and the statistics of tables wait as long for all. In asynchronous rounds: for "
        "cohort_size replies; then a quorum of them is enough, or the run stops.", POSITIVE)  # fmt: skip
    max_examples: int = of_network(0, "Maximum number of examples a client may claim in training; 0: as many as the "
        "largest client of the server's task, 10⁹ with tables at the nodes.", partial(check_int, low=0))  # fmt: skip
    eval_fraction: float = of_evaluation(0.0, "Fraction of all nodes, in [0, 1], that evaluate the model on their own "
        "test examples.", partial(check_number, low=0, high=1, open_high=False),
        default_text="0; 1 with --schema")  # fmt: skip
    eval_min_nodes: int = of_evaluation(1, "Minimum number of nodes that are asked to evaluate, and that must "
        "answer.", check_int)  # fmt: skip
    upload_bound: float = of_network(10.0, "How many times larger than usual in the run the norm of an "
        "upload may be; 0: no bound.", FROM_0)  # fmt: skip
    loss_bound: float = of_network(100.0, "How many times the untrained model's loss (or 1) the test loss may be; "
        "a round beyond it is not used. 0: no bound.", FROM_0)  # fmt: skip
    checkpoint_every: float = option(0.0, "Seconds between checkpoints; 0: after every round.", FROM_0)
