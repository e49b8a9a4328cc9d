"""Who finishes when: the clients' speeds, and the schedule of asynchronous rounds that follows from them.

Which clients an asynchronous server step hears of, and how old their models are, depends on speeds and sampling alone,
never on the training: it is planned ahead, on the host, and the round takes its cohort from the plan.
"""

from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedoptax.data.readers import TABLES, check_columns, read_features, read_frame
from fedoptax.engine.faults import sample_speeds
from fedoptax.errors import DataError, UsageError, parse_number

_STREAM = 5  # of the seed, beside those of `engine.sampling` and `engine.faults`


class ArrivalSchedule(NamedTuple):
    """The server steps of an asynchronous run, one row per step; R steps over the uploads of S clients each."""

    clients: np.ndarray  # whose uploads make the step, int32 (R, S), increasing, none twice
    staleness: np.ndarray  # steps of the server since each of them received its model, int32 (R, S)
    weights: np.ndarray  # of the uploads by their staleness s, (1 + s)^−exponent, (R, S)
    slots: np.ndarray  # the place of the message that each of them received, int32 (R, S)
    slot: np.ndarray  # the place of the message that is sent during this step, int32 (R,)
    sent: np.ndarray  # to how many clients, int32 (R,)
    seconds: np.ndarray  # virtual time since the step before, (R,)


def make_schedule(
    seconds: np.ndarray, buffer: int, concurrency: int, rounds: int, seed: int, exponent: float = 0.5
) -> ArrivalSchedule:
    """Plan the server steps of FedBuff (Nguyen et al. 2022, Algorithm 1).

    `concurrency` clients work at any time. One that finishes is replaced by one drawn uniformly from those that neither
    work nor wait in the buffer; if there is none, its place stays empty until the next step. After every S = `buffer`
    uploads the server makes a step, R = `rounds` times; a schedule of more rounds begins with the same rows. `seconds`
    (N,) is how long each client works for an upload, `exponent` that of the weights. `concurrency` is at most N, and as
    many messages are in memory.
    """
    rng, durations = np.random.default_rng([seed, _STREAM]), seconds.tolist()
    free, working, slot_of = list(range(len(durations))), list[tuple[float, int, int]](), dict[int, int]()
    now, elapsed, rows = 0.0, list[float](), []
    for step in range(rounds):
        in_use = {start for _, _, start in working}  # fewer than `concurrency`: whoever came last is not yet replaced
        slot_of = {start: slot for start, slot in slot_of.items() if start in in_use}
        slot_of[step] = min(set(range(concurrency)) - set(slot_of.values()))
        start_of_step, arrived, number_before = now, list[tuple[int, int]](), len(working)
        while len(arrived) < buffer:
            while free and len(working) < concurrency:
                drawn = rng.integers(len(free))
                free[drawn], free[-1] = free[-1], free[drawn]
                client = free.pop()
                heappush(working, (now + durations[client], client, step))
            now, client, start = heappop(working)
            arrived.append((client, start))
        free += [client for client, _ in arrived]
        arrived.sort()
        ids, starts = zip(*arrived)
        ages, places = [step - start for start in starts], [slot_of[start] for start in starts]
        rows.append((ids, ages, places, slot_of[step], len(working) + buffer - number_before))
        elapsed.append(now - start_of_step)
    clients, staleness, slots, slot, sent = (np.asarray(column, np.int32) for column in zip(*rows))
    weights = staleness_weights(staleness, exponent)
    return ArrivalSchedule(clients, staleness, weights, slots, slot, sent, np.asarray(elapsed))


def staleness_weights(staleness: np.ndarray, exponent: float) -> np.ndarray:
    """Return the weights of uploads from models that are s ≥ 0 steps old, (1 + s)^−exponent (Xie et al. 2019)."""
    return np.asarray((1.0 + staleness) ** -exponent, jnp.result_type(float))


def client_speeds(speeds: str, key: jax.Array, num_clients: int) -> np.ndarray:
    """Return the virtual seconds of each client's local step, (N,); a table that lacks some is a `DataError`."""
    parsed = parse_speeds(speeds)
    if parsed == 0:
        return np.ones(num_clients, np.float32)
    if isinstance(parsed, float):
        return np.asarray(sample_speeds(key, jnp.arange(num_clients), parsed))
    frame = read_frame(parsed, ())
    check_columns(parsed, frame, ("client", "seconds"))
    clients, seconds = (read_features(parsed, frame, [name])[:, 0] for name in ("client", "seconds"))
    order = np.argsort(clients)
    if not np.array_equal(clients[order], np.arange(num_clients)):
        raise DataError(f"{parsed}: column 'client' must have each number from 0 to {num_clients - 1} once")
    if not np.all((seconds > 0) & np.isfinite(seconds)):
        raise DataError(f"{parsed}: column 'seconds' must hold numbers > 0")
    return seconds[order]


def parse_speeds(text: str) -> float | Path:
    """Return σ of `lognormal:SIGMA`, or the path of a table."""
    name, _, sigma = str(text).partition(":")
    if name == "lognormal":
        return parse_number("speeds' sigma", sigma, 0)
    if Path(text).suffix.lower() in TABLES:
        return Path(text)
    raise UsageError(f"speeds must be lognormal:SIGMA or a table such as speeds.csv, got {text!r}")
