"""Runs a site's ClientApp in one process that stays, in place of Flower's new process for each message.

Flower starts Python, PyTorch and the app anew for every message: seconds each time. A SuperNode with
`--isolation process` leaves that to somebody else, and here is somebody else: it takes the SuperNode's tasks one after
the other and calls the app, which keeps its plan and its samples from message to message. It also starts the SuperNode,
and again whenever that ends: a SuperLink turns a node away that comes back before it was missed. Asked to end
(SIGTERM), it lets the SuperNode take its leave first, so that the moderator knows at once.

With `app`, the site runs its own copy of the app and never the code that the moderator sends along.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import httpx
import torch
from flwr.app import Error
from flwr.app import Message as Packet
from flwr.cli.install import install_from_fab
from flwr.clientapp import ClientApp
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from holdfast.engines.flower.local import end_with_parent
from holdfast.engines.flower.waits import NEAR, pace, shorten_app
from holdfast.errors import NOT_DONE, HoldfastError
from holdfast.failures import SENTENCES

log = logging.getLogger("holdfast")
MOST = 0.5  # seconds between two looks for a task
AGAIN = 3.0  # seconds before a SuperNode that ended is started again
LEAVE = 3.0  # seconds for a SuperNode to take its leave


class Node:
    """A SuperNode that is started again whenever it ends."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._when = 0.0
        self.look()

    def look(self) -> None:
        """Start the SuperNode if it is not running, but not more often than every few seconds."""
        if not self._command or (self._process is not None and self._process.poll() is None):
            return
        if self._process is not None and time.monotonic() - self._when < AGAIN:
            return
        if self._process is not None:
            log.warning("The SuperNode ended with code %s; it is started again.", self._process.returncode)
        self._process, self._when = subprocess.Popen(self._command, preexec_fn=end_with_parent), time.monotonic()

    def leave(self, *_: object) -> NoReturn:
        """End this process, but let the SuperNode, which was asked to end too, tell the SuperLink first."""
        with suppress(subprocess.TimeoutExpired):
            if self._process is not None:
                self._process.wait(LEAVE)
        os._exit(0)


class Executor:
    """Takes the tasks of one SuperNode."""

    def __init__(self, address: str, node: Node, own: ClientApp | None = None) -> None:
        self._address = address
        self._node = node
        self._own = own
        self._apps: dict[str, ClientApp] = {}  # by the hash of the moderator's app
        self._client = self._connect(tries=1)

    def serve(self) -> None:
        """Work until the process that started this one is gone."""
        parent, idle_since = os.getppid(), time.monotonic()
        while os.getppid() == parent:
            self._node.look()
            token = ""
            with suppress(httpx.HTTPError):  # the SuperNode is not up yet, or just going down
                task = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
                token = task.token if task.HasField("task") else ""
            if token:
                try:
                    self.work(token)
                except Exception:  # one task that cannot be taken or delivered must not end the site
                    log.exception("A task failed")
                idle_since = time.monotonic()
            else:
                time.sleep(pace(time.monotonic() - idle_since, NEAR, MOST))

    def work(self, token: str) -> None:
        """Do one task: take the message, call the app, give the reply back."""
        client = self._connect(RuntimeTokenHttpInterceptor(token), tries=3)
        heart = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heart.start()
        context, status, details = None, SubStatus.FAILED, ""
        try:
            packet, context, run, fab = pull_task_input(client)
            try:
                reply = self._app(run, fab)(packet, context)
                status = SubStatus.COMPLETED
            except Exception:  # its text may quote the site's data, so it stays in the site's log
                log.exception("%s the app failed", NOT_DONE)
                details = SENTENCES["internal"]
                reply = Packet(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=packet)
            push_message(client, reply, context)
        finally:
            push_task_output(client, context, status, details)
            heart.stop()
            client.close()

    def _app(self, run: Run, fab: Fab) -> ClientApp:
        if self._own is not None:
            return self._own
        if fab.hash_str not in self._apps:
            install_from_fab(fab.content, skip_prompt=True)
            load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
            self._apps[fab.hash_str] = load(run.fab_id, run.fab_version, fab.hash_str)
        return self._apps[fab.hash_str]

    def _connect(self, *more: ProtobufClientInterceptor, tries: int) -> RuntimeHttpClient:
        retry = make_simple_http_retry_invoker()
        retry.max_tries = tries
        return RuntimeHttpClient.from_server_address(
            server_address=self._address,
            insecure=True,  # the SuperNode's own API, on loopback
            root_certificates=None,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), *more],
            retry_invoker=retry,
        )


def load_own(folder: Path) -> ClientApp:
    """The ClientApp of an app on this machine, as its pyproject.toml names it."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        module, _, name = project["tool"]["flwr"]["app"]["components"]["clientapp"].partition(":")
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise HoldfastError(f"{folder} is not a Flower app: {type(error).__name__}: {error}.") from None
    sys.path.insert(0, str(folder.resolve()))
    app = getattr(importlib.import_module(module), name)
    if not isinstance(app, ClientApp):
        raise HoldfastError(f"{folder}: {module}:{name} is not a ClientApp.")
    return app


def main() -> None:
    """ADDRESS [--app DIR] -- COMMAND: work for the SuperNode that COMMAND starts and that listens on ADDRESS."""
    parser = argparse.ArgumentParser(description="Keeps one SuperNode up and does its tasks.")
    parser.add_argument("address", help="of the SuperNode's own API, as in 127.0.0.1:9094")
    parser.add_argument("--app", type=Path, help="run this app, and no code that the moderator sends")
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:split])
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for noisy in ("httpx", "flwr"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    node = Node(words[split + 1 :])
    signal.signal(signal.SIGTERM, node.leave)
    torch.set_num_threads(1)
    shorten_app()
    importlib.import_module("holdfast.flower")
    Executor(arguments.address, node, load_own(arguments.app) if arguments.app else None).serve()


if __name__ == "__main__":
    main()
