"""Flower with shorter waits and one process for each site that stays: the only file that uses private names of flwr.

It is imported through `waits.faster`; a Flower in which a name or a parameter is not as expected is an ImportError, and
then Flower's own way is used. What it changes, in Holdfast's own processes alone:

- A SuperNode asks for work every 3 s and looks for its app's reply every 0.5 s; whoever finds a message whose parts are
  still on their way, here or at the moderator, waits a second and then longer. These waits are shorter.
- A node that was killed is missed, and let in again, after two heartbeats of 10 s in place of 30 s.
- Flower starts Python, PyTorch and the app anew for every message. The Executor is one process that stays.
- A SuperNode forgets a message that it could not receive. Flower's own keeps it when its run has ended meanwhile (a
  SuperLink that was killed, say), and whoever works for the node then waits for the rest of it for hours.

`python -m holdfast.flower.engine.fast ...` is flower-supernode, with the same arguments. It needs no PyTorch, so
nothing here imports it: a node starts in half the time and takes 200 MB less.
"""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
from flwr.app import Error
from flwr.app import Message as Packet
from flwr.cli.install import install_from_fab
from flwr.clientapp import ClientApp
from flwr.clientapp.utils import get_load_client_app_fn
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, AcquireTaskResponse
from flwr.supercore import heartbeat as heartbeats
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid import http_grid
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli import flower_supernode
from flwr.supernode.runtime import run_clientapp
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from holdfast.core.errors import NOT_DONE
from holdfast.flower.engine.waits import MOST, NEAR, pace

log = logging.getLogger("holdfast")
HEARTBEAT = 10  # seconds, the least that a SuperLink takes: a node is missed after two of them
IDLE = 1.0  # seconds: who would sleep longer than this has no work
TASK = 0.5  # seconds between two looks for a task, at most
BACKOFF = "initial_backoff backoff_cap max_tries_per_object"
link: Any = http_grid  # modules whose names are bound anew
node: Any = start_client_internal
fleet: Any = fleet_http_connection
heartbeat: Any = heartbeats
work: Any = run_clientapp
TAKES: list[tuple[Callable[..., Any], str]] = [
    (link.pull_objects, BACKOFF),
    (node.pull_objects, BACKOFF),
    (work.pull_and_inflate_object_from_tree, BACKOFF),
    (node._pull_and_store_message, "receive state object_store"),
    (pull_task_input, "client"),
    (push_message, "client message context"),
    (push_task_output, "client context sub_status details"),
    (install_from_fab, "fab_file skip_prompt"),
    (get_load_client_app_fn, "default_app_ref app_path multi_app"),
    (make_task_heartbeat_fn_http, "client"),
    (RuntimeTokenHttpInterceptor, "token"),
    (RuntimeVersionHttpInterceptor, "component_name"),
    (RuntimeHttpClient.AcquireTask, "request"),
    (RuntimeHttpClient.from_server_address, "server_address insecure root_certificates interceptors retry_invoker"),
]
FIELDS: list[tuple[Any, str]] = [(AcquireTaskRequest, "supported_task_types"), (AcquireTaskResponse, "token task")]


def check() -> None:
    """Refuse a Flower whose private parts are not those that this file was written for."""
    wanted = [(function.__qualname__, words, inspect.signature(function).parameters) for function, words in TAKES]
    wanted += [(kind.__name__, word, kind.DESCRIPTOR.fields_by_name) for kind, word in FIELDS]
    for name, words, found in wanted:
        if missing := sorted(set(words.split()) - set(found)):
            raise ImportError(f"{name} takes no {missing[0]}")
    if node.time is not time or {heartbeat.HEARTBEAT_DEFAULT_INTERVAL, fleet.HEARTBEAT_DEFAULT_INTERVAL} != {30}:
        raise ImportError("it waits by other names")


check()


class Sleep:
    """A sleep in place of a SuperNode's: a tenth of its idle time so far while it has no work, else hardly any."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._idle_since: float | None = None

    def __call__(self, seconds: float) -> None:
        if seconds < IDLE:  # it waits for its app
            self._idle_since = None
            self._sleep(min(seconds, NEAR))
            return
        now = self._clock()
        if self._idle_since is None:
            self._idle_since = now
        self._sleep(min(seconds, pace(now - self._idle_since)))


def impatient(pull: Callable[..., Any]) -> Callable[..., Any]:
    """A function of Flower's that pulls a message's parts; it now looks again soon, and for as long as ever."""
    return partial(pull, initial_backoff=NEAR, backoff_cap=MOST / 2, max_tries_per_object=None)


def forgetful(pull_and_store: Callable[..., int | None]) -> Callable[..., int | None]:
    """Flower's function that receives one message, which leaves nothing of one that it could not receive."""

    def pull(*, receive: Callable[[], Any], state: Any, object_store: Any, **more: Any) -> int | None:
        received: list[str] = []

        def noting() -> Any:
            found = receive()
            if found is not None:
                received.append(found[0].metadata.message_id)
            return found

        run = pull_and_store(receive=noting, state=state, object_store=object_store, **more)
        if run is None and received:
            state.delete_messages(message_ids=received)
            object_store.delete(received[0])
        return run

    return pull


def bind(home: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Give a name in one of Flower's modules another meaning, for this process."""
    setattr(home, name, change(getattr(home, name)))


def shorten_grid() -> None:
    """Let the moderator of this process wait for less long; once is enough."""
    if not isinstance(link.pull_objects, partial):
        bind(link, "pull_objects", impatient)


def main() -> None:
    """flower-supernode, with shorter waits."""
    bind(node, "time", lambda own: SimpleNamespace(**{**vars(own), "sleep": Sleep()}))
    bind(node, "pull_objects", impatient)
    bind(node, "_pull_and_store_message", forgetful)
    bind(heartbeat, "HEARTBEAT_DEFAULT_INTERVAL", lambda _: HEARTBEAT)  # sent so often ...
    bind(fleet, "HEARTBEAT_DEFAULT_INTERVAL", lambda _: HEARTBEAT)  # ... and promised
    flower_supernode()


class Executor:
    """Takes the tasks of one SuperNode (`--isolation process`), one after the other, and calls the app.

    The app keeps its plan and its samples from message to message. With `own`, the site runs that app and never the
    code that the moderator sends along. Of an error in the app the moderator is told `failed` and nothing else.
    """

    def __init__(self, address: str, look: Callable[[], None], failed: str, own: ClientApp | None = None) -> None:
        bind(work, "pull_and_inflate_object_from_tree", impatient)
        self._address = address
        self._look = look  # after the SuperNode
        self._failed = failed
        self._own = own
        self._apps: dict[str, ClientApp] = {}  # by the hash of the moderator's app
        self._client = self._connect(tries=1)

    def serve(self) -> None:
        """Work until the process that started this one is gone."""
        parent, idle_since = os.getppid(), time.monotonic()
        while os.getppid() == parent:
            self._look()
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
                time.sleep(pace(time.monotonic() - idle_since, NEAR, TASK))

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
                details = self._failed
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


if __name__ == "__main__":
    main()
