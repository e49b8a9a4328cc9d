"""Argument lists for every command, from the commands' own description: sound values, junk, and both mixed.

What would take long by design is left out, not what is wrong: tasks that need no files, few clients.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

LIGHT = ("digits", "quadratic", "counterexample", "mnist", "file:data.csv", "file:missing.npz", "file:", "file:.")
NUMBERS = ("0", "1", "2", "3", "-1", "4.5", "1e3", "nan", "inf", "-inf", "-0", "9" * 20, "9" * 400, "1e999", "1_0", " 1",
           "0x1", "١", "1e-320", "18446744073709551616", "")  # fmt: skip
TEXTS = (
    "", " ", "a", "-", "--", "=", ",", ".", "..", "/", "~", "a b", "a\nb", "\x1b[31m", "\u202ea", "联邦", "\ud800", "%s",
    "{0}", "$(x)", "../x", "x" * 5000, "all", "none", "auto", "*", "NaN", "null", "[1]", "a=b", "fedavg", "a/b", "-1",
)  # fmt: skip
CODE = ("nowhere:x", "json:loads", "math:pi", "os:getcwd", ":x", "x:", "..:x", "a b:c", ".json:x", "json:", "json:x.y", ":")
VALUES: dict[str, tuple[str, ...]] = {
    "task": (*LIGHT, "digit", "mnist "),
    "algorithm": ("fedavg", "fedadam", "scaffold", "fedlamb", "all", *CODE),
    "algorithms": ("fedavg", "fedavg,fedadam", "fedavg,fedavg", "all", ",", *CODE),
    "set_": ("client_lr=0.1", "client_lr=-1", "client_lr=nan", "client_lr=cosine(0.1, 10)", "client_lr=cosine(1e999)",
             "client_lr=[1]", "client_lr={}", "fedavg.client_lr=1", "=", "a=", "=1", "client_lr", "client_lr=staircase(1)",
             "client_lr=" + "(" * 300 + ")", "server_lr=1e400", "client_lr=null", "client_lr=true", "client_lr=cosine(a=1)",
             "client_lr=" + "9" * 5000, "client_lr=[" + "[" * 2000, "client_lr=warmup(1, **{})"),
    "task_set": ("num_clients=2", "alpha=x", "model=mlp", "partition=dirichlet", "partition_seed=-1", "x=1", "alpha"),
    "preset": ("tuned", "none", "paper", "paper:", "paper:x"),
    "partition": ("iid", "dirichlet", "dirichlet-by-class", "classes", "shards", "similarity", "lognormal", "powerlaw",
                  "clients", "writers", "pachinko"),
    "model": ("mlp", "logistic", "cnn", "rnn"),
    "weighting": ("examples", "uniform"),
    "client_states": ("auto", "device", "host", "disk"),
    "examples": ("auto", "device", "stream"),
    "engine": ("compiled", "eager"),
    "augment": ("crop", "none"),
    "client_column": ("client", "label", "f0"),
    "label_column": ("label", "f0", "nothing"),
    "out": ("out/a", "out/b", "out/../out/c", "data.csv", "data.csv/x", "out\x00", "out/" + "y" * 300, "out/\n"),
    "folder": ("runs/one", "runs/pair", "runs", "data.csv", "missing", "runs/one/..", "\x00", "runs/\n", "out"),
    "data_dir": ("data", "missing", "data.csv", "", "~", "\x00"),
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

    from fedoptax.cli import app

    found: dict[tuple[str, ...], list[Any]] = {}

    def walk(words: tuple[str, ...], command: Any) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            if name not in WITHOUT.get(words, ()):
                walk((*words, name), inner)
        found[words] = list(command.params)

    walk((), get_command(app))
    return found


def _value(name: str, parameter: Any) -> st.SearchStrategy[str]:
    known = st.sampled_from(VALUES[name]) if name in VALUES else None
    numeric = parameter.type.name in ("integer", "float")
    if name in _LARGE:
        return st.sampled_from((*VALUES[name], "nan", "", "-1", "9" * 400))
    if name == "task":
        return st.sampled_from((*VALUES[name], *TEXTS))
    if name in ("algorithm", "algorithms"):
        return st.sampled_from((*VALUES[name], *(text for text in TEXTS if ":" not in text)))
    junk = st.sampled_from((*NUMBERS, *TEXTS)) | st.text(max_size=8)
    if numeric:
        return st.sampled_from(("1", "2", "3")) | st.sampled_from(NUMBERS) | junk
    return known | known | junk if known is not None else junk


@st.composite
def argument_lists(draw: st.DrawFn, given: dict[tuple[str, ...], list[Any]]) -> list[str]:
    """A command and some of its arguments, one of which may be what no command has."""
    words = draw(st.sampled_from(sorted(given)))
    arguments: list[str] = []
    parameters = {parameter.name: parameter for parameter in given[words]}
    positional = [p for p in parameters.values() if p.param_type_name == "argument"]
    options = [p for p in parameters.values() if p.param_type_name == "option"]
    for parameter in draw(st.lists(st.sampled_from(options), max_size=5)) if options else []:
        flag = draw(st.sampled_from([*parameter.opts]))
        if parameter.is_flag:
            arguments.append(flag)
        else:
            value = draw(_value(parameter.name, parameter))
            arguments += [f"{flag}={value}"] if draw(st.booleans()) else [flag, value]
    for parameter in positional:
        if draw(st.integers(0, 9)):
            arguments.append(draw(_value(parameter.name, parameter)))
    if draw(st.integers(0, 9)) == 0:
        extra = draw(st.sampled_from(("--nothing", "--help", "--version", "-x", "--", "extra", "--out", "\x00")))
        arguments.insert(draw(st.integers(0, len(arguments))), extra)
    return [*words, *arguments]
