"""The folder of a ready Flower app: `pyproject.toml`, two thin modules, certificates and node keys for a local trial.

```
FOLDER/app/      what `flwr run` bundles and sends to every node: nothing secret
FOLDER/keys/     ca.crt, server.crt, server.key, node-0, node-0.pub, …: private keys have mode 600
```
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedoptax import __version__
from fedoptax.deploy.config import Deployment, from_table, to_table
from fedoptax.deploy.keys import make_certificates, make_node_key
from fedoptax.deploy.toml_text import toml_text
from fedoptax.errors import RunError, UsageError
from fedoptax.storage import folder as storage

FLOWER = ">=1.40.0,<1.41"
HOSTS = ("localhost", "127.0.0.1", "::1")

_MODULES = {
    "server_app.py": '"""The server: rounds, quorum, checkpoints."""\n\n'
    "from fedoptax.deploy.flower_server import server_app\n\napp = server_app()\n",
    "client_app.py": '"""A client: one partition of the task."""\n\n'
    "from fedoptax.deploy.flower_client import client_app\n\napp = client_app()\n",
}


def write_app(folder: Path, deployment: Deployment, name: str) -> None:
    """Writes the app into a new or empty folder.

    Args:
      folder: where to.
      deployment: goes into the app's config.
      name: of the app, for Flower.

    Raises:
      UsageError: the folder holds something, or a value cannot stand in the config.
      RunError: it cannot be written.
    """
    check_empty(folder)
    package = folder / "fedoptax_app"
    storage.write_atomically(folder / "pyproject.toml", pyproject(deployment, name).encode())
    storage.write_atomically(folder / "LICENSE", b"As you choose: Flower wants a license file in every app.\n")
    storage.write_atomically(folder / "README.md", _readme(deployment).encode())
    storage.write_atomically(package / "__init__.py", b'"""A federation, made by fedoptax deploy init."""\n')
    for module, text in _MODULES.items():
        storage.write_atomically(package / module, text.encode())


def write_keys(folder: Path, nodes: int, hosts: tuple[str, ...] = HOSTS) -> None:
    """Writes certificates and node keys into a new or empty folder, which only its owner may enter.

    Raises:
      UsageError: the folder holds something.
      RunError: it cannot be written.
    """
    check_empty(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise RunError(f"'{folder}' cannot be written: {error.strerror}") from error
    make_certificates(folder, hosts)
    for node in range(nodes):
        make_node_key(folder / f"node-{node}")


def read_app(folder: Path) -> Deployment:
    """The deployment of an app folder.

    Raises:
      UsageError: it is not an app's, or its config is wrong.
    """
    path = folder / "pyproject.toml"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"'{path}' given, allowed is the pyproject.toml of an app by fedoptax deploy init") from error
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
    return from_table(flat)


def check_empty(folder: Path) -> None:
    """Checks that a folder is new or empty.

    Raises:
      UsageError: it is not.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"folder: '{folder}' given, allowed is a new or empty folder")


def pyproject(deployment: Deployment, name: str) -> str:
    """The app's `pyproject.toml`, as Flower demands it."""
    table = to_table(deployment)
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    outer = {key: value for key, value in table.items() if key not in inner}
    parts = [
        "[build-system]",
        'requires = ["hatchling>=1.25"]',
        'build-backend = "hatchling.build"',
        "",
        "[project]",
        f"name = {_toml(name)}",
        'version = "1.0.0"',
        'description = "A federation by fedoptax"',
        'license = { file = "LICENSE" }',
        f'dependencies = ["flwr{FLOWER}", "fedoptax>={__version__}"]',
        "",
        "[tool.hatch.build.targets.wheel]",
        'packages = ["."]',
        "",
        "[tool.flwr.app]",
        'publisher = "fedoptax"',
        "fab-format-version = 1",
        f'flwr-version-target = "{FLOWER.split(",")[0].removeprefix(">=")}"',
        "",
        "[tool.flwr.app.components]",
        'serverapp = "fedoptax_app.server_app:app"',
        'clientapp = "fedoptax_app.client_app:app"',
        "",
        *_table("tool.flwr.app.config", outer),
    ]
    for key, value in inner.items():
        parts += ["", *_table(f"tool.flwr.app.config.{key}", value)]
    return "\n".join(parts) + "\n"


def _table(name: str, values: Mapping[str, Any]) -> list[str]:
    return [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]


def _toml(value: str | int | float | bool) -> str:
    """A plain value in TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return toml_text(value) if isinstance(value, str) else repr(value)


def _readme(deployment: Deployment) -> str:
    return (
        f"# {deployment.task['name']} by {deployment.algorithm}\n\n"
        "Made by `fedoptax deploy init`. `pyproject.toml` holds the settings of the run; `flwr run . SUPERLINK` runs\n"
        "it where a SuperLink and SuperNodes are up. See docs/deploy.md of fedoptax.\n"
    )
