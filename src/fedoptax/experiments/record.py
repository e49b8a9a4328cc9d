"""The options of a run besides those of its rounds: what it writes, and where."""

# ruff: noqa: RUF009 (option returns a field)

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import jax

from fedoptax._files import read_json
from fedoptax._progress import Update
from fedoptax.engine.options import FROM_0, TEXT, Option, Options, RunOptions, option, with_attributes
from fedoptax.errors import UsageError, check_choice, check_flag, check_type
from fedoptax.experiments.build import WRAPPERS
from fedoptax.trackers import Tracker, as_trackers

PATH = partial(check_type, kinds=str | PathLike)


def mapping(help: str) -> Any:
    """Declare an option that is a dictionary, empty by default."""
    return field(default_factory=dict, metadata={"option": Option(help, check=partial(check_type, kinds=Mapping))})


@with_attributes
@dataclass(frozen=True, kw_only=True)
class Record(Options):
    """What a run writes, and where; a value outside its range raises `UsageError`."""

    label: str = option("algorithm", "The algorithm's name in files and messages.", TEXT)
    hyperparameters: Mapping[str, Any] = mapping("Those of the algorithm, for the config.")
    wrappers: Mapping[str, str] = mapping("The algorithm's wrappers as texts, also for the config: privacy, compress, "
        "personal.")  # fmt: skip
    rates: str = option("", "The source of the algorithm's learning rates, for reports: preset, tuned ...")
    command: str = option("", "The command line that reports show as the way to reproduce the run.")
    out: str | Path | None = option(None, "A new folder for config, history, checkpoints, summary and final "
        "parameters; None writes nothing.", PATH)  # fmt: skip
    overwrite: bool = option(False, "Empty `out` if it has earlier results.", check_flag)
    resume_from: str | Path | None = option(None, "A run folder to continue from its last checkpoint, by the same "
        "algorithm, as only the command line checks; results go to `out`, by default there.", PATH)  # fmt: skip
    resume_round: int | None = option(None, "The round of the checkpoint to start from; later rounds are repeated.")
    checkpoint_every: float = option(60.0, "Seconds between checkpoints, at least ten times what one takes.", FROM_0)
    trackers: Sequence[str | Tracker] = option((), "Names in `fedoptax.trackers.TRACKERS`, or objects that are such a "
        "`Tracker`; they need a folder.", partial(check_type, kinds=list | tuple))  # fmt: skip
    progress: bool | Update | None = option(None, "Show a bar on standard error; None shows it on a terminal; a "
        "function (rounds done, note) is called instead.",
        lambda name, value: None if callable(value) else check_flag(name, value))  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume_round is not None and self.resume_from is None:
            raise UsageError("resume_round needs a run to resume")
        for name in self.wrappers:
            check_choice("wrappers", name, WRAPPERS)
        as_trackers(self.trackers)

    @property
    def folder(self) -> Path | None:
        """The folder that is written."""
        place = self.resume_from if self.out is None else self.out
        return None if place is None else Path(place)


def split_options(options: Mapping[str, Any]) -> tuple[RunOptions, Record]:
    """Return the options of `run` as those of the rounds and those of the folder."""
    of_rounds, of_folder = ({f.name for f in fields(kind)} for kind in (RunOptions, Record))
    for name in options:
        check_choice("option", name, sorted(of_rounds | of_folder))
    rounds, folder = ({n: v for n, v in options.items() if n in names} for names in (of_rounds, of_folder))
    return RunOptions(**rounds), Record(**folder)


def with_original_placement(options: RunOptions, folder: Path) -> RunOptions:
    """Return options with the devices and the place of client states that a run began with, for equal bits."""
    config = read_json(folder / "config.json")
    has_devices = jax.process_count() == 1 and (config.get("mesh") or 1) <= jax.device_count()
    if options.mesh is None and options.engine == "compiled" and has_devices:
        options = replace(options, mesh=config.get("mesh", 1))
    if options.client_states == "auto":
        options = replace(options, client_states=config.get("client_states", "auto"))
    return options
