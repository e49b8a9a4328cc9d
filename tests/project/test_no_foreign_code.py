"""Nothing in the package turns data into code: a walk over its syntax, and the few places that may, each with why."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "fedoptax"

DANGEROUS = {
    "eval", "exec", "compile", "__import__", "execfile", "breakpoint", "input",
    "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open", "dill.load",
    "dill.loads", "cloudpickle.load", "cloudpickle.loads", "joblib.load", "pandas.read_pickle", "pd.read_pickle",
    "yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "os.system", "os.popen", "os.execv",
    "os.execve",
    "os.execvp", "os.spawnv", "subprocess.getoutput", "subprocess.getstatusoutput", "subprocess.run", "subprocess.call",
    "subprocess.check_output", "subprocess.check_call", "subprocess.Popen", "importlib.import_module", "import_module",
    "import_kept",
    "runpy.run_path", "runpy.run_module", "code.interact", "types.FunctionType", "types.CodeType", "tempfile.mktemp",
    "jinja2.Environment", "Environment", "Markup", "markupsafe.Markup", "np.load", "numpy.load", "torch.load",
    "np.lib.format.read_array", "np.fromregex", "ctypes.CDLL", "urllib.request.urlopen", "tarfile.open", "extractall",
    "xml.etree.ElementTree.parse", "pa.ipc.open_file", "h5py.File", "importlib.util.spec_from_file_location",
}  # fmt: skip
"""Calls that run what they are given, unpack objects, import, start programs, or read more than they should."""

ALLOWED = {
    ("garbage.py", "import_module"): "what `import_kept` is given, which the commands' files do, see below",
    ("__init__.py", "import_module"): "names of a table in that file, loaded when they are first used",
    ("cli.py", "import_kept"): "a name in that file",
    ("data_cli.py", "import_kept"): "a name in that file",
    ("deploy_cli.py", "import_kept"): "a name in that file",
    ("data/check.py", "import_module"): "names of a table in that file",
    ("trackers/__init__.py", "import_module"): "names of a table in that file",
    ("torch/__init__.py", "import_module"): "names of a table in that file",
    ("naming.py", "importlib.import_module"): "MODULE:FUNCTION that the user typed; from a folder only with --trust",
    ("deploy/config.py", "importlib.import_module"): "MODULE:FUNCTION of a Flower app, which is code itself",
    ("deploy/processes.py", "subprocess.Popen"): "lists of arguments, no shell: Flower's programs and our own guard",
    ("supervision.py", "subprocess.Popen"): "the command itself with the arguments that the user typed, no shell",
    ("report/html.py", "Environment"): "the package's own templates, autoescape on",
    ("report/html.py", "Markup"): "the package's own style and script, and JSON without any special character",
    ("engine/states.py", "np.load"): "allow_pickle=False",
    ("data/own/npz.py", "np.lib.format.read_array"): "allow_pickle=False",
    ("data/sources/hdf5.py", "h5py.File"): "links, filters and heaps are checked before they are followed",
}
"""Where they may be, and why that is safe."""


def calls(path: Path) -> list[tuple[str, ast.Call]]:
    """All calls of a file by the name under which they are made."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def dangerous(name: str, call: ast.Call) -> bool:
    """Whether a call can turn data into code; a method such as `module.eval()` is another thing than `eval`."""
    shell = any(
        k.arg == "shell" and not (isinstance(k.value, ast.Constant) and k.value.value is False) for k in call.keywords
    )
    last = name.rpartition(".")[2]
    return shell or name in DANGEROUS or last in ("extractall", "import_module", "read_pickle_file")


def found(root: Path = SOURCE) -> dict[tuple[str, str], list[ast.Call]]:
    places: dict[tuple[str, str], list[ast.Call]] = {}
    for path in sorted(root.rglob("*.py")):
        for name, call in calls(path):
            if dangerous(name, call):
                places.setdefault((path.relative_to(root).as_posix(), name), []).append(call)
    return places


def test_every_such_call_is_known_and_every_exception_is_used() -> None:
    places = found()
    assert places.keys() - ALLOWED.keys() == set(), (
        "a new call that may run data: remove it, or say in ALLOWED why it is safe"
    )
    assert ALLOWED.keys() - places.keys() == set(), "an exception that nothing needs any more"


def test_arrays_are_read_without_pickle() -> None:
    for path in SOURCE.rglob("*.py"):
        for name, call in calls(path):
            given = {k.arg: ast.unparse(k.value) for k in call.keywords}
            assert given.get("allow_pickle", "False") == "False", path
            if name in ("np.load", "np.lib.format.read_array"):
                assert given.get("allow_pickle") == "False", path
            if name in ("Environment", "jinja2.Environment"):
                assert given.get("autoescape") == "True", path
            if name.startswith("torch.load"):
                assert given.get("weights_only") == "True", path


def test_no_module_of_unsafe_formats_is_imported() -> None:
    unsafe = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "xml", "code", "runpy"}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & unsafe, path


def test_templates_escape_everything() -> None:
    for path in (SOURCE / "report" / "templates").iterdir():
        text = path.read_text(encoding="utf-8")
        assert "|safe" not in text.replace(" ", "") and "autoescape" not in text, path
        if path.suffix == ".js":
            for word in (
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "Function(",
                'setTimeout("',
            ):
                assert word not in text, (path, word)


@pytest.mark.parametrize(
    "line",
    [
        "eval(x)", "exec(x)", "pickle.load(f)", "yaml.load(f)", "np.load(p)", "subprocess.run(c)", "f(c, shell=True)",
        "f(c, shell=flag)", "torch.load(p)", "os.system(c)", "importlib.import_module(n)", "tar.extractall()",
        "jinja2.Environment()", "Markup(x)",
    ],
)  # fmt: skip
def test_the_walk_finds_what_it_looks_for(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.py").write_text(f"{line}\n")
    assert len(found(tmp_path)) == 1
    (tmp_path / "a.py").write_text("module.eval()\nx.compile()\nf(shell=False)\n'eval(x)'\n")
    assert found(tmp_path) == {}
