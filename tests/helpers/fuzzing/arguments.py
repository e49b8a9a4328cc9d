"""Argument lists for every command, from the commands' own description: sound values, junk, and both mixed.

What would take long by design is left out, not what is wrong: tasks that need no files, few clients.
"""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

LIGHT = ("digits", "quadratic", "counterexample", "mnist", "file:data.csv", "file:missing.npz", "file:", "file:.")
NUMBERS = ("0", "1", "2", "3", "-1", "4.5", "1e3", "nan", "inf", "-inf", "-0", "9" * 20, "9" * 400, "1e999",
"1_0", " 1",
           "0x1", "١", "1e-320", "18446744073709551616", "")  # fmt: skip
TEXTS = (
    "", " ", "a", "-", "--", "=", ",", ".", "..", "/", "~", "a b", "a\nb", "\x1b[31m", "\u202ea", "联邦",
    "\udcff", "%s",
    "{0}", "$(x)", "../x", "x" * 5000, "none", "auto", "*", "NaN", "null", "[1]", "a=b", "fedavg", "a/b", "-1",
)  # fmt: skip
CODE = (
    "nowhere:x",
    "json:loads",
    "math:pi",
    "os:getcwd",
    ":x",
    "x:",
    "..:x",
    "a b:c",
    ".json:x",
    "json:",
    "json:x.y",
    ":",
    "math:hypot",
)
VALUES: dict[str, tuple[str, ...]] = {
    "task": (*LIGHT, "digit", "mnist "),
    "algorithm": ("fedavg", "fedadam", "scaffold", "fedlamb", *CODE),
    "algorithms": ("fedavg", "fedavg,fedadam", "fedavg,fedavg", ",", *CODE),
    "set_": ("client_lr=0.1", "client_lr=-1", "client_lr=nan", "client_lr=cosine(0.1, 10)", "client_lr=cosine(1e999)",
             "client_lr=[1]", "client_lr={}", "fedavg.client_lr=1", "=", "a=", "=1", "client_lr",
             "client_lr=staircase(1)",
             "client_lr=" + "(" * 300 + ")", "server_lr=1e400", "client_lr=null", "client_lr=true",
             "client_lr=cosine(a=1)",
             "client_lr=" + "9" * 5000, "client_lr=[" + "[" * 2000, "client_lr=warmup(1, **{})"),
    "task_set": ("num_clients=2", "alpha=x", "model=mlp", "partition=dirichlet", "partition_seed=-1", "x=1", "alpha"),
    "preset": ("tuned", "none", "paper", "paper:", "paper:x"),
    "partition": ("iid", "dirichlet", "dirichlet-by-class", "classes", "shards", "similarity", "lognormal", "powerlaw",
                  "clients", "writers", "pachinko"),
    "model": ("mlp", "logistic", "cnn", "rnn"),
    "weighting": ("examples", "uniform"),
    "client_states": ("auto", "device", "host"),
    "examples": ("auto", "device", "stream"),
    "engine": ("compiled", "eager"),
    "augment": ("crop", "none"),
    "client_column": ("client", "label", "f0"),
    "label_column": ("label", "f0", "nothing"),
    "out": ("out/a", "out/b", "out/../out/c", "data.csv", "data.csv/x", "out/" + "y" * 300, "out/\n"),
    "folder": ("runs/one", "runs/pair", "runs", "data.csv", "missing", "runs/one/..", "runs/\n", "out"),
    "data_dir": ("data", "missing", "data.csv", "", "~"),
    "name": ("mnist", "femnist", "nothing", "../x"),
    "names": ("mnist", "femnist", "nothing"),
    "what": ("tasks", "algorithms", "presets", "models"),
    "num_clients": ("1", "2", "3", "50", "51", "100001"),
    "cohort_size": ("1", "2", "3", "51"),
    "nodes": ("0", "-1", "1", "2", "x"),
}  # fmt: skip
WITHOUT = {("deploy",): ("local",), ("data",): ("fetch",)}  # start servers; ask the network
_LARGE = {"num_clients", "nodes"}  # each is a client's data to be drawn, or a key to be made


def commands() -> dict[tuple[str, ...], list[Any]]:
    """Every command by its words, with its parameters as click describes them."""
    from typer.main import get_command

    from fedoptax.cli.main import app

    found: dict[tuple[str, ...], list[Any]] = {}

    def walk(words: tuple[str, ...], command: Any) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            if name not in WITHOUT.get(words, ()):
                walk((*words, name), inner)
        found[words] = list(command.params)

    walk((), get_command(app))
    return found


def _value(rng: random.Random, name: str, parameter: Any) -> str:
    if name in _LARGE:
        return rng.choice((*VALUES[name], "nan", "", "-1", "9" * 400))
    sound: tuple[str, ...] = VALUES.get(name, ())
    if not sound:
        sound = ("1", "2", "3") if parameter.type.name in ("integer", "float") else TEXTS
    if rng.random() < 0.7:
        return rng.choice(sound)
    letters = "".join(
        chr(rng.choice((rng.randrange(1, 128), rng.randrange(1, 0xD800)))) for _ in range(rng.randrange(6))
    )
    junk = rng.choice((*NUMBERS, *TEXTS, letters))
    return "fedavg" if name in ("algorithm", "algorithms") and ":" in junk else junk  # no module by chance


def arguments_of(rng: random.Random, given: dict[tuple[str, ...], list[Any]]) -> list[str]:
    """A command and some of its arguments, most of them sound, and now and then one that no command has."""
    words = rng.choice([words for words in given for _ in range(3 if len(given[words]) > 8 else 1)])
    arguments: list[str] = []
    options = [p for p in given[words] if p.param_type_name == "option"]
    chosen = rng.sample(options, min(len(options), rng.randrange(6)))
    for name, share in (("task", 0.8), ("algorithms", 1.0), ("algorithm", 0.5), ("out", 0.5), ("partition", 0.3)):
        chosen += [p for p in options if p.name == name and p not in chosen and rng.random() < share]
    for parameter in chosen:
        flag = rng.choice(parameter.opts)
        if parameter.is_flag:
            arguments.append(flag)
            continue
        value = _value(rng, parameter.name, parameter)
        arguments += [f"{flag}={value}"] if rng.random() < 0.5 else [flag, value]
    for parameter in given[words]:
        if parameter.param_type_name == "argument" and rng.random() < 0.95:
            arguments.append(_value(rng, parameter.name, parameter))
    if rng.random() < 0.05:
        extra = rng.choice(("--nothing", "--help", "--version", "-x", "--", "extra", "--out", "\udcff"))
        arguments.insert(rng.randrange(len(arguments) + 1), extra)
    return [*words, *arguments]


def argument_lists(given: dict[tuple[str, ...], list[Any]]) -> st.SearchStrategy[list[str]]:
    """The same as a strategy; one draw each, as what hypothesis builds piece by piece is mostly refused at once."""
    return st.integers(0, 2**64 - 1).map(lambda seed: arguments_of(random.Random(seed), given))
