"""A deployment's run at the server: its rounds for the run loop of `experiments.run`, in the same kind of folder.

Besides, `network.jsonl` has one line per round: who took part, who was left out and why, and the seconds of each phase.
"""

import json
import math
import random
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax._files import finite_or_none, read_json
from fedoptax.algorithm import Cohort, Tree, decoded
from fedoptax.deploy.client import INITIAL
from fedoptax.deploy.config import TABLE, Deployment
from fedoptax.deploy.evaluation import NodeEvaluation
from fedoptax.deploy.rounds import Limits, Log, Network, NoQuorum, RoundReport, Sleep, Workers, gather, wait_for_nodes
from fedoptax.deploy.secure import FALSE_SUM, SecureSum, decode_mean, threshold
from fedoptax.deploy.server import Reply, UploadBound, advance, check_reply, next_state, norm
from fedoptax.deploy.status import FILE, NodeReport, list_left_out
from fedoptax.deploy.tables import build_table_task, gather_statistics
from fedoptax.deploy.wire import pack
from fedoptax.engine.aggregation import SecureMean, Sent
from fedoptax.engine.batches import minibatch_form
from fedoptax.engine.client_states import OnDevice
from fedoptax.engine.evaluation import evaluate, evaluation_data, primary_metric
from fedoptax.engine.options import is_evaluated
from fedoptax.engine.plan import make_plan
from fedoptax.engine.program import Fixed, program
from fedoptax.engine.sampling import sample_cohort
from fedoptax.errors import RunError, UsageError, check_int
from fedoptax.experiments.rounds import Rounds, RoundsResult, without_held_out
from fedoptax.experiments.run import Record, run_rounds
from fedoptax.experiments.selection import is_higher_better
from fedoptax.experiments.signals import interruptible_sleep
from fedoptax.storage.checkpoint import KEEP, least_total
from fedoptax.storage.config import metrics_record, run_config
from fedoptax.storage.folder import Status, locked, prepare, read_params
from fedoptax.storage.history import HistoryFile, Row, read_lines
from fedoptax.tasks.metrics import Column
from fedoptax.tasks.task import Task, jit
from fedoptax.wrappers.uploads import upload_form

# Times a message, measured (results/network.md): at the server, there for each node of a cohort, and at a node.
MEMORY, MEMORY_OF_REPLY, NODE_MEMORY = 5, 8, 13
MOST_EXAMPLES = 10**9  # that a client may claim where nothing tells how many it can have


def run_deployment(deployment: Deployment, task: Task | None, network: Network, log: Log) -> None:
    """Run a deployment from its first round, or from its last checkpoint; all files go to `deployment.out`.

    `task` None is the one that follows from the tables of the nodes, see `fedoptax.deploy.tables`.

    Raises:
      UsageError: the deployment cannot be carried out on the task, its folder holds a run that is not to be resumed,
        or more rounds are done there than it is to have.
      RunError: a file cannot be written, the run in the folder is another, too few clients answered for too long, or
        loss or state became NaN or infinite; the state after the last completed round is saved.
    """
    folder = Path(deployment.out).expanduser().absolute()
    if deployment.resume:
        config = folder / "config.json"
        identity = read_json(config).get("deployment") if config.is_file() else None
        if identity is None:
            raise UsageError(f"resume must name the folder of a deployment, got '{folder}'")
        log(f"waiting, at most {deployment.wait_limit:.0f} s, until no other process uses '{folder}'")
        with locked(folder, deployment.wait_limit):  # a ServerApp outlives a SuperLink that was killed for a while
            pass
        check_int("rounds", deployment.rounds, least_total(folder, deployment.resume_round))
    else:
        prepare(folder)
        identity = {"experiment": uuid.uuid4().hex}
    identity |= {"session": max(int(time.time()), identity.get("session", 0) + 1)}
    if task is None and deployment.evaluate:  # the features are prepared as in training
        config = Path(deployment.evaluate).expanduser() / "config.json"
        trained = read_json(config).get("deployment", {}) if config.is_file() else {}
        if "prepared" not in trained:
            raise UsageError(f"evaluate must be the folder of a deployment with tables, got '{deployment.evaluate}'")
        identity["prepared"] = trained["prepared"]
    if task is None:
        with interruptible_sleep() as (_, sleep):
            prepared = identity.get("prepared") or gather_statistics(deployment, network, identity, log, sleep)
        identity, task = identity | {"prepared": prepared}, build_table_task(deployment, prepared)
    if deployment.build_algorithm().client_params is not None:  # only the nodes can evaluate theirs
        task = without_held_out(task)
    make = EvaluationOnly if deployment.evaluate else NetworkRounds
    rounds = make(deployment, task, network, folder, identity, log)
    algorithm = {"name": deployment.algorithm, "hyperparameters": dict(deployment.hyperparameters)}
    trackers, wrappers = deployment.tracker_names, deployment.wrappers
    described = run_config(task, algorithm, deployment.run_options, rounds.plan, rounds.program, wrappers, trackers)
    described |= {"partition": {}} if deployment.task["name"] == TABLE else {}  # the server has none of the rows
    if deployment.eval_fraction and task.test is None:
        described |= {"primary_metric": str(Column("nodes", primary_metric(task))), "metrics": metrics_record(task)}
    record = Record(
        label=deployment.algorithm, hyperparameters=deployment.hyperparameters, wrappers=wrappers, trackers=trackers,
        out=folder, resume_from=folder if deployment.resume else None, resume_round=deployment.resume_round,
        checkpoint_every=deployment.checkpoint_every, progress=False,
    )  # fmt: skip
    result = run_rounds(rounds, deployment.rounds, described | {"deployment": identity}, record)
    log(f"{result.status} after round {len(result.history)} of {deployment.rounds}: {folder}")
    if result.status != Status.COMPLETED:
        raise RunError(str(result.message))


class RoundUpdate(NamedTuple):
    """The result of a round's replies: the server's state, mean loss, test metrics, and why it is not used."""

    server: Tree
    loss: float
    metrics: dict[str, float]
    fault: str | None


class NetworkRounds(Rounds):
    """The rounds of a deployment, see `experiments.rounds.Rounds`.

    In place of the clients' states, which are with the clients, checkpoints hold after which round each client's reply
    was last used, now and at the checkpoint before.
    """

    compile_seconds = 0.0  # clients compile, each in its own process

    def __init__(
        self, deployment: Deployment, task: Task, network: Network, folder: Path, identity: Mapping[str, Any], log: Log
    ) -> None:
        self._deployment, self.task, self._network, self._log = deployment, task, network, log
        self.algorithm, self._folder = deployment.build_algorithm(), folder
        self.has_one_model = self.algorithm.client_params is None
        if self.algorithm.exchanges > 1 and not self.has_one_model:  # of which a node may miss one
            raise UsageError("personal parameters need an algorithm with one exchange per step")
        self._identity = {name: identity[name] for name in ("experiment", "session", "prepared") if name in identity}
        self.plan = make_plan(deployment.run_options, task, self.algorithm, deployment.algorithm)
        self._limits = Limits(deployment.quorum, deployment.round_timeout, deployment.wait_limit)
        self._bound = UploadBound(deployment.upload_bound, self.plan.work)
        needed, minimum = self._limits.needed(self.plan.cohort_size), self.plan.aggregate.min_uploads
        if needed < minimum and not isinstance(self.plan.aggregate, SecureMean):
            raise UsageError(f"quorum must leave {self.plan.aggregate} at least {minimum} uploads, got {needed}")
        # Here nothing is trained, and the task's loss is perhaps not the one that clients take.
        untrained = replace(task, loss=lambda params, batch, key: jnp.zeros(()))
        self.program = program(without_held_out(untrained), Fixed(self.algorithm), self.plan)
        params, batch = jax.eval_shape(task.init, jax.random.key(0)), minibatch_form(task, self.plan.work.batch_size)
        self._upload = upload_form(self.algorithm, params, batch)
        largest = 0 if deployment.task["name"] == TABLE else int(task.weights.max())
        self._most = deployment.max_examples or largest or MOST_EXAMPLES
        self._key = jax.random.key(deployment.seed)
        self._evaluate = jit(task, lambda params, data: evaluate(task, params, data))
        self.server: Tree = self.program.start({}, self._key)[0]
        self._untrained = self._measure(self.server)
        self.clients: Any = OnDevice((), 0)
        never = np.full(task.clients.num_clients, INITIAL, np.int32)
        self._checkpoints = deque([never] * KEEP, maxlen=KEEP)
        self._put(never)
        self._is_ready = False
        self._offered: dict[int, Reply] = {}  # keys of nodes for the next round's secure aggregation
        self._workers = Workers(self.plan.concurrency, self.plan.cohort_size) if self.plan.concurrency else None
        self._sent = np.zeros_like(never)  # the last round of which each client received the model
        self._evaluation = NodeEvaluation(deployment, task) if deployment.eval_fraction else None
        self._report = NodeReport(folder, network, task.clients.num_clients)

    def advance(self, done: int) -> RoundsResult:
        """Do one round."""
        with interruptible_sleep() as (stop, sleep):
            try:
                self._make_ready(done, self._report.during(done + 1, "waiting for nodes", sleep))
                step = self._do_round(done, sleep)
            except KeyboardInterrupt:
                return RoundsResult([], Status.INTERRUPTED)
            except NoQuorum as error:
                message = f"round {done + 1}: {error}; resume continues it"
                return RoundsResult([], Status.INTERRUPTED, None if stop() else message)
            if stop() and step.status == Status.RUNNING and done + 1 < self._deployment.rounds:
                return step._replace(status=Status.INTERRUPTED)
        return step

    def _do_round(self, done: int, sleep: Sleep) -> RoundsResult:
        """Do one round, and change the states at its end."""
        begun, total = time.perf_counter(), self._deployment.rounds
        cohort, report = self._gather(done, self._report.during(done + 1, "training", sleep))
        update = self._update_soundly(report)
        if update.fault is not None:
            return RoundsResult([], Status.DIVERGED, update.fault)
        count, is_due = len(report.replies), is_evaluated(done + 1, total, self._deployment.evaluations)
        row: Row = {
            "round": done + 1,
            "train_loss": update.loss,
            **{name: finite_or_none(value) if is_due else None for name, value in update.metrics.items()},
            "bytes_down": report.sent * self.program.bytes_down,
            "bytes_up": count * self.program.bytes_up,
        }
        if self._workers is not None:
            row["staleness"] = float(np.mean([reply.staleness for reply in report.replies.values()]))
        if (epsilon := self.algorithm.epsilon) is not None:
            spent = epsilon(done + 1, self.plan.cohort_size, self.task.clients.num_clients)
            row["epsilon"] = finite_or_none(float(spent))
        accepted = np.array(self._accepted)
        accepted[list(report.replies)] = done
        columns, evaluation = self._evaluate_nodes(update.server, accepted, done, sleep)
        self._bound = self._bound.learn(report.replies if report.mean is None else {0: report.mean})
        report.seconds["evaluating"] = time.perf_counter() - begun - sum(report.seconds.values())
        self._write(done + 1, cohort, report, evaluation)
        self._put(accepted)
        self.server = update.server
        left_out = f", {len(cohort) - count} left out" if count < len(cohort) else ""
        self._log(f"round {done + 1} of {total}: train_loss {update.loss:.4g}{left_out}")
        return RoundsResult([row | columns | {"seconds": time.perf_counter() - begun}])

    def saved(self) -> None:
        """Record the states that the clients must keep for the new checkpoint."""
        self._checkpoints.append(self._accepted)

    def notes(self, done: int) -> dict[str, Any]:
        """Return who was left out, see `list_left_out`."""
        return {"left_out": list_left_out(map(json.loads, read_lines(self._folder, FILE)[:done]))}

    @property
    def _accepted(self) -> np.ndarray:
        """After which round each client's reply was last used."""
        return np.asarray(self.clients.tree[0])

    def _put(self, accepted: np.ndarray) -> None:
        self.clients.put((jnp.asarray(accepted), jnp.asarray(self._checkpoints[-1])))

    def _make_ready(self, done: int, sleep: Sleep) -> None:
        """Wait for the nodes, and restore a checkpoint, before the first round."""
        if self._is_ready:
            return
        self._checkpoints.extend([np.asarray(self.clients.tree[1]), self._accepted])
        lines = [json.loads(line) for line in read_lines(self._folder, FILE)[:done]]
        self._file = HistoryFile(self._folder, lines, FILE)  # without what a killed process left of later rounds
        self._bound = replace(self._bound, **(lines[-1].get("learned", {}) if lines else {}))
        size = 1e-6 * max(self.program.bytes_down, self.program.bytes_up)
        at_server = MEMORY + MEMORY_OF_REPLY * self.plan.cohort_size
        server, node = (1 + times * size / 1000 for times in (at_server, NODE_MEMORY))
        need = f"the server needs about {server:.0f} GB of memory, a node {node:.0f} GB"
        self._log(f"one message holds {size:,.2f} MB; {need}")
        wait_for_nodes(self._network, self.task.clients.num_clients, self._limits, self._log, sleep=sleep)
        self._is_ready = True

    def _gather(self, done: int, sleep: Sleep) -> tuple[list[int], RoundReport]:
        num_clients, workers, coding = self.task.clients.num_clients, self._workers, self.plan.aggregate
        sampled = sample_cohort(self._key, done // self.plan.exchanges, num_clients, self.plan.cohort_size)
        cohort, is_last = [int(i) for i in sampled], self._evaluation is None and not isinstance(coding, SecureMean)
        order = self._order(done, self._accepted, is_last)
        message = jax.device_get(self.algorithm.broadcast(self.server))
        if not isinstance(coding, SecureMean):
            check = partial(check_reply, upload=self._upload, max_examples=self._most, decode=self.algorithm.decode)
            if workers is not None:
                workers.rng = random.Random(f"{self._deployment.seed} {done}")
            self._network.begin(pack(message), order, at_work=workers.at_work if workers else ())
            report = gather(
                self._network, cohort if workers is None else range(num_clients), check, self._limits, self._log,
                sleep=sleep, workers=workers, find_outliers=self._bound.find_outliers,
            )  # fmt: skip
            replies, involved = report.replies.items(), {*report.replies, *(i for i, _, _ in report.faults)}
            report.replies = {i: reply._replace(staleness=done - int(self._sent[i])) for i, reply in replies}
            return cohort if workers is None else sorted(involved), report
        minimum = threshold(len(cohort), self._limits)
        upload = jax.eval_shape(partial(decoded, self.algorithm), self._upload)
        form = Sent(upload, jax.ShapeDtypeStruct((), jnp.result_type(float)))
        size = sum(leaf.size for leaf in jax.tree.leaves(form))
        asking = self._network, self._limits, self._log, sleep, order, minimum, self._most, self._offered
        report, total, weight = SecureSum(*asking).collect(cohort, message, size, self.plan.weighting)
        report.mean = mean = decode_mean(coding, form, len(report.replies), total, weight)
        size, most = norm(mean.upload), norm(decoded(self.algorithm, mean.upload))
        if size > 1.001 * most:  # privacy's clip, up to rounding
            raise NoQuorum(f"{FALSE_SUM} (norm {size:.3g} instead of at most {most:.3g})")
        if self._bound.norm and (reason := self._bound.refuse(mean, size)):
            raise NoQuorum(f"{FALSE_SUM} ({reason})")
        return cohort, report

    def _order(self, done: int, accepted: np.ndarray, is_last: bool) -> Callable[[int], dict[str, Any]]:
        """Return the order for a partition in the round after `done`, its last or not; see `Order`."""
        ends = is_last and done + 1 == self._deployment.rounds

        def order(partition: int) -> dict[str, Any]:
            self._sent[partition] = done
            checkpoints = sorted({int(checkpoint[partition]) for checkpoint in self._checkpoints})
            base = int(accepted[partition])
            return {**self._identity, "round": done, "base": base, "checkpoints": checkpoints, "ends": ends}

        return order

    def _evaluate_nodes(self, server: Tree, accepted: np.ndarray, done: int, sleep: Sleep) -> tuple[Row, RoundReport]:
        """Return the nodes' metrics of a state's model, and who took part; nothing where nodes do not evaluate."""
        if self._evaluation is None:
            return {}, RoundReport()
        params, order = self.algorithm.params(server), self._order(done, accepted, True)
        sleep = self._report.during(done + 1, "being evaluated", sleep)
        return self._evaluation.measure(done + 1, params, self._network, order, self._limits, self._log, sleep)

    def _update_soundly(self, report: RoundReport) -> RoundUpdate:
        """Return the result of the replies; if it is invalid because of one reply, leave that reply out."""
        if report.mean is not None:
            cohort = Cohort(len(report.replies), self.task.clients.num_clients)
            return self._judge(*advance(self.algorithm, self.server, report.mean.upload, report.mean.loss, cohort))
        update = self._update(report.replies)
        if update.fault is None:
            return update
        norms = {i: norm(reply.upload) for i, reply in report.replies.items()}
        largest_first = sorted(norms, key=lambda i: norms[i], reverse=True)
        if len(norms) > self._limits.needed(self.plan.cohort_size):
            for i in largest_first:
                rest = self._update({j: reply for j, reply in report.replies.items() if j != i})
                if rest.fault is None:
                    report.leave_out(i, self._network.names, f"reply left out: with it {update.fault}", self._log)
                    return rest
        names = self._network.names
        named = (f"partition {i} (node {names[i]}) with norm {norms[i]:.3g}" for i in largest_first[:3])
        return update._replace(fault=f"{update.fault}; the largest uploads: {', '.join(named)}")

    def _update(self, replies: Mapping[int, Reply]) -> RoundUpdate:
        return self._judge(*next_state(
            self.algorithm, self.server, list(replies.values()), self.plan.weighting,
            self.task.clients.num_clients, self.plan.aggregate, self._deployment.staleness_exponent,
        ))  # fmt: skip

    def _judge(self, server: Tree, loss: float, is_finite: bool) -> RoundUpdate:
        if not is_finite:
            return RoundUpdate(server, loss, {}, "loss or state is not finite")
        metrics, bound = self._measure(server), self._deployment.loss_bound or math.inf
        name = "test_loss"
        if self.task.test is not None and name not in metrics:
            primary = str(Column("test", primary_metric(self.task)))
            name = name if is_higher_better(self.task, primary) else primary
        value, most = metrics.get(name, 0.0), bound * max(1.0, abs(self._untrained.get(name, 1.0)))
        is_sound = abs(value) <= most and math.isfinite(value)
        fault = None if is_sound else f"{name} is {value:.3g}, the bound is {most:.3g}"
        return RoundUpdate(server, loss, metrics, fault)

    def _measure(self, server: Tree) -> dict[str, float]:
        data = evaluation_data(self.task)
        metrics = self._evaluate(self.algorithm.params(server), data) if data else {}
        return {name: float(value) for name, value in sorted(metrics.items()) if Column.parse(name)}

    def _write(self, round: int, cohort: list[int], report: RoundReport, evaluation: RoundReport) -> None:
        faults = (*report.faults, *evaluation.faults)
        line = {
            "round": round,
            "cohort": cohort,
            "accepted": list(report.replies),
            "evaluated": list(evaluation.replies),
            "faults": [{"partition": i, "node": node, "reason": reason} for i, node, reason in faults],
            **({} if self._workers is None else {"staleness": [reply.staleness for reply in report.replies.values()]}),
            "state_lost": report.lost,
            "seconds": {name: float(f"{seconds:.3f}") for name, seconds in report.seconds.items()},
            "learned": {name: getattr(self._bound, name) for name in ("norm", "rate", "loss")},
        }
        self._file.append([line])


class EvaluationOnly(NetworkRounds):
    """One round in which nothing is trained: the nodes evaluate the model in `Deployment.evaluate`."""

    def __init__(self, deployment: Deployment, task: Task, *rest: Any) -> None:
        super().__init__(deployment, task, *rest)
        params = read_params("evaluate", deployment.evaluate, jax.eval_shape(task.init, jax.random.key(0)))
        self.server = self.algorithm.init(jax.tree.map(jnp.asarray, params))

    def _do_round(self, done: int, sleep: Sleep) -> RoundsResult:
        begun = time.perf_counter()
        columns, report = self._evaluate_nodes(self.server, self._accepted, done, sleep)
        if not columns["evaluated"]:
            raise NoQuorum("too few nodes evaluated the model")
        self._write(1, [], RoundReport(), report)
        row: Row = {"round": 1, "train_loss": None, **self._measure(self.server), "bytes_down": 0, "bytes_up": 0}
        return RoundsResult([row | columns | {"seconds": time.perf_counter() - begun}])
