"""A node's worker: real processes behind the thin app that Flower starts for every message."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.inflatable import inflatable_utils

from federations import wait_until
from fedoptax.deploy import worker
from fedoptax.deploy.supernode import shorten_backoff

APP = """
import os
import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from fedoptax.deploy.worker import end_after_reply

app, calls = ClientApp(), []


@app.train()
def train(message, context):
    order = message.content["order"]
    calls.append(order["word"])
    context.state["seen"] = ConfigRecord({"words": list(calls)})
    if order["word"] == "hang":
        time.sleep(60)
    if order["word"] == "fail":
        raise ValueError("no such column: age")
    if order["word"] == "last":
        end_after_reply()
    content = RecordDict({"told": ConfigRecord({"pid": os.getpid(), "words": list(calls)})})
    return Message(content, reply_to=message)
"""


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def ask(tmp_path, monkeypatch, inside_a_flower_run):
    """Give a message to the node's worker, and return its process, the words it has seen and the context."""
    (tmp_path / "node_app.py").write_text(APP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(worker.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(worker.os, "getppid", os.getpid)  # the node is this process
    workers = set()

    def give(word: str, run: int = 1, ttl: float = 60.0) -> tuple[int, list[str], Context]:
        message = Message(RecordDict({"order": ConfigRecord({"word": word})}), 7, "train", ttl=ttl)
        message.metadata.__dict__["_message_id"] = word
        context = Context(run, 7, {}, RecordDict(), {})
        reply = worker.worker_app("node_app:app")(message, context)
        told = reply.content["told"]
        workers.add(told["pid"])
        return told["pid"], told["words"], context

    yield give
    for pid in workers:
        if psutil.pid_exists(pid):
            os.kill(pid, signal.SIGKILL)


def test_one_worker_serves_the_messages_of_a_run_and_keeps_the_context(ask):
    first, words, context = ask("a")
    assert words == ["a"] and context.state["seen"]["words"] == ["a"] and first != os.getpid()
    assert ask("b")[:2] == (first, ["a", "b"])


@pytest.mark.long
def test_a_killed_worker_and_another_run_cost_a_new_worker(ask):
    first, *_ = ask("a")
    os.kill(first, signal.SIGKILL)
    second, words, _ = ask("b")
    assert second != first and words == ["b"]
    third, words, _ = ask("c", run=2)
    assert third != second and words == ["c"]
    wait_until(lambda: has_ended(second), 20, "the worker of the run before ended")


@pytest.mark.long
def test_an_error_comes_out_as_itself_and_a_message_nobody_waits_for_any_more_holds_up_no_other(ask):
    first, *_ = ask("a")
    with pytest.raises(ValueError, match="no such column: age") as error:
        ask("fail")
    assert "node_app.py" in str(error.value.__notes__)
    assert ask("b")[0] == first
    with pytest.raises(TimeoutError, match="no answer within 1 s"):
        ask("hang", ttl=1.0)
    assert ask("c")[0] != first
    last, *_ = ask("last")
    wait_until(lambda: has_ended(last), 20, "the worker ended")


@pytest.mark.long
def test_the_thin_app_imports_no_jax_and_a_worker_ends_with_its_node(tmp_path):
    code = "import sys\nfrom fedoptax.deploy.worker import worker_app\nworker_app('a:b')\nprint('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
    node = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    command = [sys.executable, "-m", "fedoptax.deploy.worker", str(tmp_path / "socket"), str(node.pid)]
    process = subprocess.Popen(command)
    wait_until((tmp_path / "socket").exists, 60, "the worker listens")
    node.communicate(b"\n")
    assert process.wait(20) == 0 and not (tmp_path / "socket").exists()


def test_a_folder_that_others_may_enter_is_refused(tmp_path, ask):
    (tmp_path / f"fedoptax-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="must belong to this user alone"):
        ask("a")


FORKS = """
import json, psutil, subprocess, sys, time
from pathlib import Path

from fedoptax.deploy.supernode import start_fork_server

def note():
    subprocess.Popen(["inner"]) if sys.argv[0] == "outer" else None
    Path(sys.argv[0]).write_text(str("json" in sys.modules))

start_fork_server({"outer": note, "inner": note})
(server,) = psutil.Process().children()
print(subprocess.Popen(["outer", "x"]), subprocess.run(["echo", "exec"], capture_output=True).stdout)
while not Path("inner").exists():
    time.sleep(0.05)
server.kill()
server.wait()
try:
    subprocess.Popen(["outer"])
except FileNotFoundError:
    print("no fork")
"""


def test_flowers_programs_are_forked_from_one_process_until_it_ends(tmp_path):
    done = subprocess.run([sys.executable, "-c", FORKS], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("None b'exec\\n'\nno fork\n", "")
    assert (tmp_path / "outer").exists() and (tmp_path / "inner").read_text() == "True"


def test_an_object_that_is_not_there_yet_is_pulled_again_after_a_tenth_of_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_flower = inflatable_utils.pull_objects
    monkeypatch.setattr(of_flower, "__kwdefaults__", dict(of_flower.__kwdefaults__))
    answers = iter([None, b"content"])

    def pull(name: str) -> bytes:
        if (content := next(answers)) is None:
            raise inflatable_utils.ObjectUnavailableError(name)
        return content

    shorten_backoff()
    begun = time.monotonic()
    assert of_flower(["name"], pull) == {"name": b"content"} and time.monotonic() - begun < 0.7
