"""The folder of a ready Flower app that `flwr run` sends to every node: `pyproject.toml` and two thin modules."""

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import tomli_w
from flax.traverse_util import flatten_dict

from fedoptax import __version__
from fedoptax._files import write_atomically
from fedoptax.deploy.config import TABLE, Deployment, build_task, from_table, is_own_function, to_table
from fedoptax.deploy.tables import PLACEHOLDER, build_table_task
from fedoptax.engine.plan import make_plan
from fedoptax.errors import UsageError, check_int

NAME, PACKAGE = "federation", "fedoptax_app"
FLOWER, FLOWER_END = "1.41.0", "1.43"
FILES = {
    "LICENSE": "As you choose: Flower demands a license file in every app.\n",
    "fedoptax_app/__init__.py": '"""Made by `fedoptax deploy init`, see docs/deploy.md of fedoptax."""\n',
    "fedoptax_app/server_app.py": "from fedoptax.deploy.flower import server_app\n\napp = server_app()\n",
    "fedoptax_app/client_app.py": (
        "from fedoptax.deploy.worker import worker_app\n\napp = worker_app('fedoptax_app.client:app')\n"
    ),
    "fedoptax_app/client.py": "from fedoptax.deploy.flower import client_app\n\napp = client_app()\n",
}
TASK = '''"""The federation's task; put your data and model in the place of digits (docs/own-task.md of fedoptax)."""

from dataclasses import replace

import fedoptax as fx


def FUNCTION(partition):
    """Make the task as the server sees it (`partition` is None), or as the node of a partition does."""
    task = fx.load_task("digits", num_clients=NODES)
    if partition is None:
        return task
    return replace(task, clients=fx.FederatedData.from_clients([task.clients.client(partition)]))
'''


def write_app(folder: Path, deployment: Deployment, name: str = NAME) -> None:
    """Write the app into a new or empty folder.

    A task or algorithm MODULE:FUNCTION of the current folder becomes part of it, as `fedoptax_app.task:FUNCTION` or
    `fedoptax_app.algorithm:FUNCTION`; where that is the task's name, an example does. A folder that is not empty, or a
    value that cannot stand in the config, is a `UsageError`, a file that cannot be written a `RunError`.
    """
    check_empty(folder)
    files, (module, _, function) = dict(FILES), str(deployment.task["name"]).rpartition(":")

    def copy_module(name: str, place: str) -> str:
        module, _, function = name.rpartition(":")
        source = Path(f"{module.replace('.', '/')}.py")
        if not is_own_function(name) or not source.is_file():
            return name
        files[f"{PACKAGE}/{place}.py"] = source.read_text(encoding="utf-8")
        return f"{PACKAGE}.{place}:{function}"

    task = {**deployment.task, "name": copy_module(str(deployment.task["name"]), "task")}
    deployment = replace(deployment, task=task, algorithm=copy_module(deployment.algorithm, "algorithm"))
    if module.startswith(PACKAGE) and (path := f"{module.replace('.', '/')}.py") not in files:
        files[path] = TASK.replace("FUNCTION", function).replace("NODES", str(len(deployment.nodes)))
    for path, text in ({"pyproject.toml": make_pyproject(deployment, name)} | files).items():
        write_atomically(folder / path, text.encode())


def check_task(folder: Path, nodes: int) -> None:
    """Call the task function of an app, if it has one, as the server will.

    If it fails, or its task has another number of clients or does not fit the options, that is a `UsageError`.
    """
    deployment = read_app(folder)
    if is_own_function(name := str(deployment.task["name"])):
        sys.path.insert(0, str(folder.absolute()))
        for module in [module for module in sys.modules if module.startswith(PACKAGE)]:
            del sys.modules[module]  # of another app
        try:
            task = build_table_task(deployment, PLACEHOLDER) if name == TABLE else build_task(deployment)
            check_int("clients", task.num_clients, nodes, nodes)
        except Exception as error:  # whatever a user's module raises
            raise UsageError(f"task '{name}' fails at the server: {type(error).__name__}: {error}") from error
        make_plan(deployment.run_options, task, deployment.build_algorithm(), deployment.algorithm)


def read_app(folder: Path) -> Deployment:
    """Return the deployment of an app folder; a `UsageError` if it is no such folder, or its config is wrong."""
    path = folder / "pyproject.toml"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"'{path}' must be the pyproject.toml of an app by fedoptax deploy init") from error
    return from_table(flatten_dict(table, sep="."))  # as Flower hands it to an app


def place_node(folder: Path, partition: int | None, node: str) -> int:
    """Give a partition to a key in the app's table of nodes, in place of the key that had it, and return the partition.

    `partition` None takes the next after all in the table; `node` is what the table holds, as by `keys.describe_node`.
    Another folder, no such partition, or a key that has another one is a `UsageError`, an app that cannot be written a
    `RunError`.
    """
    path, deployment = folder / "pyproject.toml", read_app(folder)
    count, can_grow = len(deployment.nodes), is_own_function(str(deployment.task["name"]))
    if partition is None and not can_grow:
        raise UsageError(f"partition must be set, as the task has {count} clients and no more")
    partition = check_int("partition", count if partition is None else partition, 0, count - (not can_grow))
    nodes = {**deployment.nodes, str(partition): node}
    replace(deployment, nodes=nodes)  # checks that no key is there twice
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    document["tool"]["flwr"]["app"]["config"]["nodes"] = nodes
    write_atomically(path, tomli_w.dumps(document).encode())
    return partition


def check_empty(folder: Path) -> None:
    """Raise a `UsageError` unless a folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"folder must be new or empty, got '{folder}'")


def make_pyproject(deployment: Deployment, name: str = NAME) -> str:
    """Return the app's `pyproject.toml`, as Flower demands it."""
    build = {"requires": ["hatchling>=1.25"], "build-backend": "hatchling.build"}
    project = {
        "name": name,
        "version": "1.0.0",
        "description": "A federation by fedoptax",
        "license": {"file": "LICENSE"},
        "dependencies": [f"flwr>={FLOWER},<{FLOWER_END}", f"fedoptax>={__version__}"],
    }
    app = {
        "publisher": "fedoptax",
        "fab-format-version": 1,
        "flwr-version-target": FLOWER,
        "components": {"serverapp": "fedoptax_app.server_app:app", "clientapp": "fedoptax_app.client_app:app"},
        "config": to_table(deployment),
    }
    tool = {"hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}}, "flwr": {"app": app}}
    return tomli_w.dumps({"build-system": build, "project": project, "tool": tool})
