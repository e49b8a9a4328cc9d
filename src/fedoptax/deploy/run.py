"""A deployment's run at the server: rounds until the end, and the same folder as a simulated run writes.

Besides, `network.jsonl` tells of every round who took part, who was left out and why, and the bytes on the wire.

A round is done at one moment: its lines are on the file, then the run's state is replaced as a whole. So whatever ends
the run, a signal or a full disk, each saved state has its rows, and the run can be resumed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax._files import finite_or_none
from fedoptax.algorithm import Tree
from fedoptax.deploy.config import Deployment
from fedoptax.deploy.memory import INITIAL, checked_experiment
from fedoptax.deploy.network_file import NetworkFile
from fedoptax.deploy.resuming import refuse_fewer
from fedoptax.deploy.rounds import Limits, Network, NoQuorum, gather, wait_for_nodes
from fedoptax.deploy.server import RawReply, Reply, check_reply, next_state, upload_form
from fedoptax.deploy.wire import pack
from fedoptax.engine.client_states import OnDevice
from fedoptax.engine.evaluation import column_names, evaluate, evaluation_data
from fedoptax.engine.plan import Plan, make_plan
from fedoptax.engine.program import Fixed, program
from fedoptax.engine.sampling import sample_cohort
from fedoptax.errors import RunError, UsageError
from fedoptax.experiments.build import WRAPPERS
from fedoptax.storage import folder as storage
from fedoptax.storage.checkpoint import Checkpoints
from fedoptax.storage.config import check_same_experiment, run_config
from fedoptax.storage.history import History, HistoryFile, Row, read_rows
from fedoptax.tasks.task import Task

Log = Callable[[str], None]
MOST_EXAMPLES = 10**9  # believed of a client where nothing tells how many there can be


class Diverged(RunError):
    """Loss or state became NaN or infinite."""


class Done(NamedTuple):
    """What a run has after `rounds` rounds: the server's state, and in which round each client was last heard."""

    rounds: int
    server: Tree
    accepted: np.ndarray


class Run:
    """One deployment from its first or its last whole round on; all files in `deployment.out`.

    Args:
      deployment: what is run.
      task: as the server sees it.
      log: takes lines for people.

    Raises:
      UsageError: the deployment cannot be carried out on the task, its folder holds a run and is not to be resumed, or
        more rounds are done there than it is to have.
      RunError: the folder cannot be written, or the run there is another.
    """

    def __init__(self, deployment: Deployment, task: Task, log: Log) -> None:
        self.deployment, self.task, self._log = deployment, task, log
        self.algorithm = deployment.build_algorithm()
        self.plan = make_plan(deployment.options, task, self.algorithm)
        self.num_clients = task.clients.num_clients
        self.limits = Limits(deployment.quorum, deployment.round_timeout, deployment.wait_limit)
        _check_quorum(self.limits, self.plan)
        self.folder = Path(deployment.out).expanduser().absolute()
        self._built = program(task, Fixed(self.algorithm), self.plan)
        self._upload = upload_form(task, self.algorithm, self.plan.work)
        self._most = deployment.max_examples or int(task.clients.sizes.max()) or MOST_EXAMPLES
        self._key = jax.random.key(deployment.seed)
        self._stack = ExitStack()
        self.history = History()
        never = np.full(self.num_clients, INITIAL, np.int32)
        self._kept: list[np.ndarray | None] = [never] * 2  # `accepted` of the last two checkpoints, None if not known
        self._at = Done(0, self._built.start({}, self._key)[0], never)
        self._evaluated = jax.jit(lambda params, data: evaluate(task, params, data))  # one for all rounds
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise

    @property
    def done(self) -> int:
        """Rounds done."""
        return self._at.rounds

    @property
    def server(self) -> Tree:
        """The server's state after them."""
        return self._at.server

    def go(self, network: Network) -> None:
        """Runs what is left of the rounds.

        Raises:
          NoQuorum: too few clients answered for too long; the state after the last whole round is saved.
          Diverged: loss or state is not finite; likewise.
          RunError: the files cannot be written.
        """
        status, message = "interrupted", "the server was stopped"
        try:
            wait_for_nodes(network, self.num_clients, self.limits, self._log)
            while self.done < self.deployment.rounds:
                self._round(network)
            status, message = "completed", ""
        except NoQuorum as error:
            message = str(error)
            raise NoQuorum(f"round {self.done + 1}: {error}; resume continues it") from error
        except RunError as error:
            status, message = "diverged" if isinstance(error, Diverged) else status, str(error)
            raise
        finally:
            self._finish(status, message or None)

    def _round(self, network: Network) -> None:
        begun = time.perf_counter()
        number = self.done
        cohort = [int(i) for i in sample_cohort(self._key, number, self.num_clients, self.plan.cohort_size)]
        message = pack(jax.device_get(self.algorithm.broadcast(self.server)))
        network.begin(message, self._order)
        report = gather(network, cohort, self._check, self.limits, self._log)
        server, loss, finite = next_state(
            self.algorithm,
            self.server,
            list(report.replies.values()),
            self.plan.weighting,
            self.num_clients,
            self.plan.aggregate,
        )
        if not finite:
            raise Diverged(
                f"{self.deployment.algorithm} diverged in round {number + 1} (seed {self.deployment.seed}): loss or "
                f"state is not finite; the state after round {number} is kept"
            )
        accepted = self._at.accepted.copy()
        accepted[list(report.replies)] = number
        done = Done(number + 1, server, accepted)
        row: Row = {
            "round": done.rounds,
            "train_loss": loss,
            **self._evaluate(done),
            "bytes_down": report.sent * self._built.bytes_down,
            "bytes_up": len(report.replies) * self._built.bytes_up,
            **self._privacy(done),
            "seconds": time.perf_counter() - begun,
        }
        self._network.append(done.rounds, cohort, report)
        self._rows.append([row])
        self.history.rows.append(row)
        self._at = done  # all at once, and only now that the files tell of it
        if self.done % self.deployment.checkpoint_every == 0 or self.done == self.deployment.rounds:
            self._save()
        left_out = f", {len(cohort) - len(report.replies)} left out" if len(report.replies) < len(cohort) else ""
        self._log(f"round {self.done} of {self.deployment.rounds}: train_loss {loss:.4g}{left_out}")

    def _order(self, partition: int) -> dict[str, Any]:
        kept = [int(accepted[partition]) for accepted in self._kept if accepted is not None]
        known = len(kept) == len(self._kept)
        return {
            "experiment": self.experiment,
            "round": self.done,
            "base": int(self._at.accepted[partition]),
            "keep": min(kept) if known else INITIAL,
            **({"kept": kept} if known else {}),
        }

    def _check(self, raw: RawReply) -> Reply:
        return check_reply(raw, self._upload, self._most, self.algorithm.decode)

    def _evaluate(self, done: Done) -> Row:
        data = evaluation_data(self.task)
        due = done.rounds % self.deployment.eval_every == 0 or done.rounds == self.deployment.rounds
        params = self.algorithm.params(done.server)
        if data is None:
            return {}
        if not due:
            return dict.fromkeys(column_names(self.task, params, data))
        values = self._evaluated(params, data)
        return {name: finite_or_none(float(value)) for name, value in sorted(values.items())}

    def _privacy(self, done: Done) -> Row:
        if self.algorithm.epsilon is None:
            return {}
        spent = self.algorithm.epsilon(done.rounds, self.plan.cohort_size, self.num_clients)
        return {"epsilon": finite_or_none(float(spent))}

    def _open(self) -> None:
        deployment = self.deployment
        named = {"name": deployment.algorithm, "hyperparameters": dict(deployment.hyperparameters)}
        wrappers = {name: text for name in WRAPPERS if (text := getattr(deployment, name))}
        config = run_config(self.task, named, deployment.options, self.plan, self._built, wrappers)
        there = (self.folder / "config.json").is_file()
        if self.deployment.resume and not there:
            raise UsageError(f"resume: '{self.folder}' given, allowed is the folder of a deployment")
        if not self.deployment.resume:
            storage.prepare(self.folder)
            config["deployment"] = {"experiment": uuid.uuid4().hex, "quorum": self.deployment.quorum}
        self._stack.enter_context(storage.locked(self.folder, new=not self.deployment.resume))
        self._checkpoints = Checkpoints(self.folder)
        if self.deployment.resume:
            config["deployment"] = self._resume(config)
        self.experiment = checked_experiment(config["deployment"]["experiment"])
        storage.write_json(self.folder / "config.json", config)
        storage.write_summary(self.folder, "running", None, self.history, 0.0)
        self._rows = HistoryFile(self.folder, self.history.rows)
        self._network = NetworkFile(self.folder, self.done)
        self._save()

    def _resume(self, config: dict[str, Any]) -> dict[str, Any]:
        there = storage.read_json(self.folder / "config.json")
        check_same_experiment(self.folder, there, config)
        if not isinstance(there.get("deployment"), dict):
            raise RunError(f"'{self.folder}' holds a simulation; continue it with fedoptax resume")
        if self._checkpoints.rounds() or storage.read_summary(self.folder).get("status", "running") != "running":
            refuse_fewer(self.folder, self.deployment.rounds)
            self._at, rows = self._restored()
            self._kept = [None, None]
            self.history = History(rows)
        self._log(f"continuing after round {self.done}")
        return there["deployment"]

    def _restored(self) -> tuple[Done, list[Row]]:
        """The newest sound checkpoint of whose rounds the history has all rows, and these."""
        at_most, reason = self.deployment.rounds, None
        while reason is None or any(round <= at_most for round in self._checkpoints.rounds()):
            self._checkpoints = Checkpoints(self.folder)  # anew: it would not save again what it has read
            states = (self.server, jnp.asarray(self._at.accepted))
            done, (server, accepted) = self._checkpoints.restore(states, _none(), at_most)
            try:
                return Done(done, server, np.asarray(accepted)), read_rows(self.folder, done)
            except RunError as error:
                at_most, reason = done - 1, reason or error
        raise reason

    def _save(self) -> None:
        states = (self.server, jnp.asarray(self._at.accepted))
        self._checkpoints.save(self.done, states, _none(), self._rows.sync())
        self._kept = [self._kept[1], self._at.accepted]

    def _finish(self, status: str, message: str | None) -> None:
        history = History(self.history.rows[: self.done])  # a signal may have come between row and state
        try:
            self._save()
            storage.write_params(self.folder / "params.npz", self.algorithm.params(self.server))
            storage.write_summary(self.folder, status, message, history, 0.0)
        finally:
            self._stack.close()


def _check_quorum(limits: Limits, plan: Plan) -> None:
    """Refuses a quorum with which a round could have too few uploads for the aggregator."""
    enough, least = limits.needed(plan.cohort_size), plan.aggregate.least
    if enough < least:
        raise UsageError(
            f"quorum: {limits.quorum:g} given, {enough} of {plan.cohort_size} clients, allowed with {plan.aggregate} "
            f"is at least {least / plan.cohort_size:.3g}, {least} clients"
        )


def _none() -> OnDevice:
    """In the place of the clients' states, which are with the clients."""
    return OnDevice((), 0)
