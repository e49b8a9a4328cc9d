"""The options of a run, each declared once: name, type, default, check and help.

The command line, config.json, what may change when a run is resumed, and the settings of a deployment follow from these
fields. Nothing here imports JAX before a value needs it, so that the command line refuses a wrong value at once.
"""

# ruff: noqa: RUF009 (option returns a field)

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from fedoptax.errors import UsageError, check_choice, check_flag, check_int, check_number, check_type, parse_number

if TYPE_CHECKING:
    from fedoptax.engine.aggregation import Aggregator
    from fedoptax.engine.batches import LocalWork
    from fedoptax.engine.faults import Faults

Class = TypeVar("Class", bound=type)
Check = Callable[[str, Any], Any]
"""Takes an argument's name and value, raises `UsageError` if it is wrong, and returns the value to use, or None."""


@dataclass(frozen=True)
class Option:
    """The description of an option, besides its name, type and default."""

    help: str  # for `--help` and for the docstring
    group: str = "Output"  # its heading in `--help`
    check: Check | None = None  # of a value; None is only checked if the default is not None
    default_text: str = ""  # describes the default if the field's default does not
    metavar: str | None = None  # the value's name in `--help`
    flags: tuple[str, ...] = ()  # for the command line, if not the field's name
    in_config: str = "if set"  # config.json has it "always", "if set" (not to the default) or "never"
    needs: str = ""  # the option without which this one has no effect, and is not in config.json
    may_change: bool = False  # whether a resumed run may have another value
    changes_result: bool = True  # whether reports separate runs that differ in it
    none: Any = None  # replaces None in the settings of a deployment, which have no null


OF_TASK = {"default_text": "the task's", "in_config": "always"}
FROM_0 = partial(check_number, low=0)
POSITIVE = partial(check_number, low=0, open_low=True)
TEXT = partial(check_type, kinds=str)


def option(default: Any, help: str, check: Check | None = None, **about: Any) -> Any:
    """Declare a field that is an option; `about` are further fields of `Option`."""
    return field(default=default, metadata={"option": Option(help, check=check, **about)})


of_rounds, of_evaluation, of_hardware, of_network, of_algorithm = (
    partial(option, group=group) for group in ("Rounds", "Evaluation", "Hardware", "Network", "Algorithm")
)


def options_of(kind: type) -> dict[str, Option]:
    """Return the options that a dataclass declares, by name."""
    return {f.name: f.metadata["option"] for f in fields(kind) if "option" in f.metadata}


def with_attributes(kind: Class) -> Class:
    """Add the options' help to the docstring of their class."""
    entries = (f"{name}: {about.help}" for name, about in options_of(kind).items())
    lines = [textwrap.fill(entry, 112, initial_indent="  ", subsequent_indent="    ") for entry in entries]
    kind.__doc__ = "\n".join([inspect.cleandoc(str(kind.__doc__)), "", "Attributes:", *lines, ""])
    return kind


def parse_keep(text: str) -> str | None:
    """Return the metric of `best:METRIC`, or None for `best`."""
    word, _, metric = str(text).partition(":")
    check_choice("keep", word, ("best",))
    return metric or None


def parse_stop_after(text: str | int) -> tuple[int, str | None]:
    """Return the number and the metric of `N:METRIC`; the metric is None for `N`."""
    count, metric = _split_count("stop_after", text)
    return count, metric or None


def parse_eval_last(text: str | int) -> tuple[int, int]:
    """Return K and STEP of `K:STEP`; STEP is 1 for `K`."""
    count, step = _split_count("eval_last", text)
    return count, check_int("eval_last", int(step) if step.isdecimal() else step) if step else 1


def is_evaluated(round: Any, last: Any, evaluations: Any) -> Any:
    """Return whether rounds (numbers or arrays, from 1) are evaluated; see `RoundOptions.evaluations`."""
    every, tail, step = evaluations
    return (round % every == 0) | (round == last) | ((round > last - tail) & (round % step == 0))


def parse_personalize(text: str | int) -> tuple[int, float | None]:
    """Return the steps and the learning rate of `STEPS:LR`; the rate is None for `STEPS`."""
    steps, lr = _split_count("personalize", text)
    return steps, parse_number("personalize's LR", lr, 0, open_low=True) if lr else None


def _split_count(name: str, text: str | int) -> tuple[int, str]:
    """Return the whole number N of `N:REST`, and the rest."""
    number, _, rest = str(text).partition(":")
    return check_int(name, int(number) if number.isdecimal() else number), rest


def _one_of(*allowed: str) -> Check:
    return partial(check_choice, allowed=allowed)


def _accepted_by(parse: Callable[[Any], Any]) -> Check:
    """Check that `parse` accepts a value, which is not changed."""
    return lambda name, value: (parse(value), None)[1]


def _converted_by(module: str, function: str) -> Check:
    """Check and convert by a function of the engine that is imported when it is called."""
    return lambda name, value: getattr(import_module(f"fedoptax.engine.{module}"), function)(value)


@dataclass(frozen=True, kw_only=True)
class Options:
    """A dataclass of options; a value outside its range raises `UsageError`."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value, about = getattr(self, f.name), f.metadata.get("option")
            if about is not None and about.check and not (value is None and f.default is None):
                converted = about.check(f.name, value)
                object.__setattr__(self, f.name, value if converted is None else converted)


@with_attributes
@dataclass(frozen=True, kw_only=True)
class RoundOptions(Options):
    """The options of rounds, in a simulation or on a network."""

    rounds: int = of_rounds(100, "Communication rounds in total.", check_int, **OF_TASK, may_change=True)
    cohort_size: int = of_rounds(10, "Clients per round, sampled uniformly without replacement.", check_int, **OF_TASK)
    batch_size: int = of_rounds(20, "Examples per local step.", check_int, **OF_TASK)
    local_epochs: int = of_rounds(1, "Epochs of a client per round.", check_int, **OF_TASK)
    local_steps: int | None = of_rounds(None, "Local steps of a client per round, instead of epochs.", check_int,
        in_config="always", none=0)  # fmt: skip
    weighting: str | None = of_rounds(None, "Weights of uploads in the mean: examples, uniform, or paper (as in "
        "the algorithm's paper).", _one_of("examples", "uniform", "paper"), default_text="paper; in compare and "
        "tune examples, with privacy uniform", in_config="always", none="")  # fmt: skip
    seed: int = of_rounds(0, "Seed of initialisation, cohorts, order of examples and dropout. Equal seeds give equal "
        "runs, and the same initialisation and cohorts for every algorithm.", partial(check_int, low=0, high=2**32 - 1),
        in_config="always")  # fmt: skip
    eval_every: int = of_evaluation(1, "Rounds between evaluations on the test examples; the last round is always "
        "evaluated.", check_int, **OF_TASK, may_change=True)  # fmt: skip
    eval_last: str | int | None = of_evaluation(None, "Also evaluate each of the last K rounds, or every STEP-th of "
        "them.", _accepted_by(parse_eval_last), metavar="K[:STEP]", may_change=True, none="")  # fmt: skip
    asynchronous: int | None = of_rounds(None, "Asynchronous rounds (FedBuff): number of clients that train at any "
        "time; after every cohort_size uploads the server makes a step, which counts as a round. Only for algorithms "
        "without client states.", check_int, metavar="CLIENTS", none=0)  # fmt: skip
    staleness_exponent: float = of_rounds(0.5, "In asynchronous rounds, an upload with staleness s has the weight (1 + "
        "s)^-EXPONENT.", FROM_0, metavar="EXPONENT", needs="asynchronous")  # fmt: skip
    aggregate: str | Aggregator = of_rounds("mean", "How uploads are combined: mean, median, trimmed_mean:FRACTION, "
        "norm_clipping:NORM, krum:F or krum:F,keep=M.", _converted_by("aggregation", "as_aggregator"))  # fmt: skip
    secure_aggregation: float | None = of_rounds(None, "Sum uploads as fixed-point numbers, clipped to -RANGE ... "
        "RANGE; in a deployment the server sees only the sum.", POSITIVE, metavar="RANGE", none=0.0)  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.asynchronous is None and self.staleness_exponent != 0.5:
            raise UsageError("staleness_exponent needs asynchronous")
        if self.secure_aggregation is None:
            return
        from fedoptax.engine.aggregation import MEAN, SecureMean

        if self.aggregate != MEAN:
            raise UsageError(f"aggregate must be mean with secure_aggregation, got {self.aggregate}")
        if self.cohort_size < (least := SecureMean.min_uploads):
            raise UsageError(f"secure_aggregation needs cohort_size >= {least}, got {self.cohort_size}")

    @property
    def evaluations(self) -> tuple[int, int, int]:
        """`eval_every`, then K and STEP of `eval_last`; for `is_evaluated`."""
        return (self.eval_every, *(parse_eval_last(self.eval_last) if self.eval_last is not None else (0, 1)))

    @property
    def work(self) -> LocalWork:
        """A client's local work per round."""
        from fedoptax.engine.batches import LocalWork

        return LocalWork(self.batch_size, self.local_epochs, self.local_steps)


@with_attributes
@dataclass(frozen=True, kw_only=True)
class RunOptions(RoundOptions):
    """The options of a simulation, besides task, algorithm and folder."""

    faults: Faults | Mapping[str, Any] | None = of_rounds(None, "Simulated failures: dropout (a probability), "
        "deadline and step_seconds (virtual seconds), speed_spread.",
        _converted_by("faults", "as_faults"), metavar="NAME=VALUE", flags=("--fault",))  # fmt: skip
    speeds: str | None = of_rounds(None, "Virtual seconds of each client's local step: lognormal:SIGMA, or a table "
        "with columns client and seconds.",
        _accepted_by(partial(_converted_by("schedule", "parse_speeds"), "speeds")))  # fmt: skip
    keep: str | None = of_evaluation(None, "Also save the parameters of the best evaluated round, by the task's "
        "metric on validation examples (else on test examples), or by another such as best:val_loss.",
        _accepted_by(parse_keep), metavar="best[:METRIC]", changes_result=False)  # fmt: skip
    stop_after: str | int | None = of_evaluation(None, "Stop early after N evaluations (not rounds) without "
        "improvement of the metric (default: that of `keep`).", _accepted_by(parse_stop_after),
        metavar="N[:METRIC]")  # fmt: skip
    personalize: str | int | None = of_evaluation(None, "After the run, evaluate each client before and after STEPS "
        "local SGD steps from the global model, with rate LR or else the run's client_lr.",
        _accepted_by(parse_personalize), metavar="STEPS[:LR]", changes_result=False)  # fmt: skip
    evaluate_start: bool | None = of_evaluation(None, "Also evaluate the initial parameters, and print the result "
        "at the end.", check_flag, default_text="for a pretrained model", changes_result=False)  # fmt: skip
    save_every: int | None = of_evaluation(None, "Also save the parameters after every N-th round, as "
        "params-ROUND.npz.", check_int, metavar="N", may_change=True, changes_result=False)  # fmt: skip
    client_metrics: bool = of_evaluation(False, "Write each client's metrics at every evaluated round to "
        "clients.parquet.", check_flag, changes_result=False)  # fmt: skip
    client_loop: str = of_hardware("auto", "How a device runs its clients: loop (one after another), vmap (all at "
        "once), or auto (the faster one).", _one_of("auto", "loop", "vmap"), may_change=True,
        changes_result=False)  # fmt: skip
    mesh: int | None = of_hardware(None, "Devices (or CPU cores) that share each round's cohort; results agree up to "
        "rounding.", check_int, default_text="all", metavar="DEVICES", in_config="always", may_change=True,
        changes_result=False)  # fmt: skip
    client_states: str = of_hardware("auto", "Where client states are stored: device, host, or auto (the device if "
        "they fit).", _one_of("auto", "device", "host"), in_config="always", may_change=True,
        changes_result=False)  # fmt: skip
    examples: str = of_hardware("auto", "Where training examples are stored: device, stream (read from disk for each "
        "cohort), or auto (the device if they fit).", _one_of("auto", "device", "stream"), in_config="never",
        may_change=True)  # fmt: skip
    engine: str = of_hardware("compiled", "compiled, or eager (plain Python with the same result, for debugging).",
        _one_of("compiled", "eager"), may_change=True, changes_result=False)  # fmt: skip
