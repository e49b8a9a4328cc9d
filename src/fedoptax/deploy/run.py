"""A deployment's run at the server: rounds until the end, and the same folder as a simulated run writes.

Besides, `network.jsonl` tells of every round who took part, who was left out and why, and the bytes on the wire.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax import storage, threefry
from fedoptax.algorithm import Tree
from fedoptax.checkpoint import Checkpoints
from fedoptax.deploy.config import Deployment
from fedoptax.deploy.memory import INITIAL, checked_experiment
from fedoptax.deploy.rounds import Limits, Network, NoQuorum, RoundReport, gather, wait_for_nodes
from fedoptax.deploy.server import RawReply, Reply, check_reply, next_state, upload_form
from fedoptax.deploy.wire import pack
from fedoptax.engine.compiled import Fixed, program
from fedoptax.engine.evaluation import column_names, evaluate, evaluation_data
from fedoptax.engine.plan import Plan, check_privacy, checked_plan
from fedoptax.engine.sampling import cohort_of_round
from fedoptax.engine.states import OnDevice
from fedoptax.errors import RunError, UsageError
from fedoptax.experiment import Settings, check_numbers
from fedoptax.history import History, Row, finite_or_none
from fedoptax.history_file import HistoryFile
from fedoptax.history_parquet import write_parquet
from fedoptax.record import refuse_another, run_config
from fedoptax.summary import write_summary
from fedoptax.task import Task
from fedoptax.wrapping import WRAPPERS

Log = Callable[[str], None]
MOST_EXAMPLES = 10**9  # believed of a client where nothing tells how many there can be


class Run:
    """One deployment from its first or its last whole round on; all files in `deployment.out`.

    Args:
      deployment: what is run.
      task: as the server sees it.
      log: takes lines for people.

    Raises:
      UsageError: the deployment cannot be carried out on the task, or its folder holds a run and is not to be resumed.
      RunError: the folder cannot be written, or the run there is another.
    """

    def __init__(self, deployment: Deployment, task: Task, log: Log) -> None:
        check_numbers(deployment.rounds, deployment.eval_every, deployment.seed)
        self.deployment, self.task, self._log = deployment, task, log
        self.algorithm = deployment.build_algorithm()
        self.plan = checked_plan(deployment.plan(self.algorithm), task)
        self.num_clients = task.clients.num_clients
        check_privacy(self.algorithm, self.plan)
        self.limits = Limits(deployment.quorum, deployment.round_timeout, deployment.wait_limit)
        _check_quorum(self.limits, self.plan)
        self.folder = Path(deployment.out).expanduser().absolute()
        self._built = program(task, Fixed(self.algorithm), self.plan)
        self._upload = upload_form(task, self.algorithm, self.plan.work)
        self._most = deployment.max_examples or int(task.clients.sizes.max()) or MOST_EXAMPLES
        self._key = threefry.key(deployment.seed)
        self._settings = Settings(
            self.plan,
            deployment.rounds,
            deployment.seed,
            deployment.eval_every,
            deployment.algorithm,
            self.folder,
            hyperparameters=dict(deployment.hyperparameters),
            wrappers={name: text for name in WRAPPERS if (text := getattr(deployment, name))},
        )
        self._stack = ExitStack()
        self.history = History()
        self.done = 0
        self._accepted = np.full(self.num_clients, INITIAL, np.int32)
        self._kept = [self._accepted] * 2  # of the last two checkpoints
        self.server: Tree = self._built.start({}, self._key)[0]
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise

    def go(self, network: Network) -> None:
        """Runs what is left of the rounds.

        Raises:
          NoQuorum: too few clients answered for too long; the state after the last whole round is saved.
          RunError: the run diverged, or its files cannot be written.
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
            status, message = "diverged", str(error)
            raise
        finally:
            self._finish(status, message or None)

    def _round(self, network: Network) -> None:
        begun = time.perf_counter()
        number = self.done
        cohort = [int(i) for i in cohort_of_round(self._key, number, self.num_clients, self.plan.cohort_size)]
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
            raise RunError(
                f"{self.deployment.algorithm} diverged in round {number + 1} (seed {self.deployment.seed}): loss or "
                f"state is not finite; the state after round {number} is kept"
            )
        self.server = server
        self._accepted = self._accepted.copy()
        self._accepted[list(report.replies)] = number
        self.done = number + 1
        row: Row = {
            "round": self.done,
            "train_loss": loss,
            **self._evaluate(),
            "bytes_down": report.sent * self._built.bytes_down,
            "bytes_up": len(report.replies) * self._built.bytes_up,
            **self._privacy(),
            "seconds": time.perf_counter() - begun,
        }
        self.history.rows.append(row)
        self._rows.append([row])
        self._tell(cohort, report)
        if self.done % self.deployment.checkpoint_every == 0 or self.done == self.deployment.rounds:
            self._save()
        left_out = f", {len(cohort) - len(report.replies)} left out" if len(report.replies) < len(cohort) else ""
        self._log(f"round {self.done} of {self.deployment.rounds}: train_loss {loss:.4g}{left_out}")

    def _order(self, partition: int) -> dict[str, Any]:
        keep = min(int(kept[partition]) for kept in self._kept)
        return {
            "experiment": self.experiment,
            "round": self.done,
            "base": int(self._accepted[partition]),
            "keep": keep,
        }

    def _check(self, raw: RawReply) -> Reply:
        return check_reply(raw, self._upload, self._most)

    def _evaluate(self) -> Row:
        data = evaluation_data(self.task)
        due = self.done % self.deployment.eval_every == 0 or self.done == self.deployment.rounds
        params = self.algorithm.params(self.server)
        if data is None:
            return {}
        if not due:
            return dict.fromkeys(column_names(self.task, params, data))
        values = jax.jit(lambda p, d: evaluate(self.task, p, d))(params, data)
        return {name: finite_or_none(float(value)) for name, value in sorted(values.items())}

    def _privacy(self) -> Row:
        if self.algorithm.epsilon is None:
            return {}
        spent = self.algorithm.epsilon(self.done, self.plan.cohort_size, self.num_clients)
        return {"epsilon": finite_or_none(float(spent))}

    def _tell(self, cohort: list[int], report: RoundReport) -> None:
        line = {
            "round": self.done,
            "cohort": cohort,
            "accepted": list(report.replies),
            "faults": [{"partition": i, "node": node, "reason": reason} for i, node, reason in report.faults],
            "wire_bytes_down": report.bytes_down,
            "wire_bytes_up": report.bytes_up,
        }
        try:
            with (self.folder / "network.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise RunError(f"'{self.folder / 'network.jsonl'}' cannot be written: {error.strerror}") from error

    def _open(self) -> None:
        config = run_config(self.task, self._settings, self._built)
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
        write_summary(self.folder, "running", None, self.history, 0.0)
        self._rows = HistoryFile(self.folder, self.history.rows)
        self._save()

    def _resume(self, config: dict[str, Any]) -> dict[str, Any]:
        there = storage.read_json(self.folder / "config.json")
        refuse_another(self.folder, there, config)
        if not isinstance(there.get("deployment"), dict):
            raise RunError(f"'{self.folder}' holds a simulation; continue it with fedoptax resume")
        if self._checkpoints.rounds():
            states = (self.server, jnp.asarray(self._accepted))
            self.done, (self.server, accepted) = self._checkpoints.restore(states, _none(), self.deployment.rounds)
            self._accepted = np.asarray(accepted)
        self.history = History(storage.read_rows(self.folder, self.done))
        self._log(f"continuing after round {self.done}")
        return there["deployment"]

    def _save(self) -> None:
        states = (self.server, jnp.asarray(self._accepted))
        self._checkpoints.save(self.done, states, _none(), self._rows.mark())
        self._kept = [self._kept[1], self._accepted]

    def _finish(self, status: str, message: str | None) -> None:
        try:
            self._save()
            storage.write_params(self.folder / "params.npz", self.algorithm.params(self.server))
            write_parquet(self.folder / "history.parquet", self.history.rows)
            write_summary(self.folder, status, message, self.history, 0.0, self._rows.mark())
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
