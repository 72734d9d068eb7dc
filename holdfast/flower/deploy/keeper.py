"""The process of a site: it keeps the SuperNode up and, where fast.py fits, does its work in one process that stays.

It starts the SuperNode again whenever that ends: a SuperLink turns a node away that comes back before it was missed.
Asked to end (SIGTERM), it lets the SuperNode take its leave first, so that the moderator knows at once.

Where fast.py does not fit, the SuperNode is Flower's own and starts a process for each message. That runs the app which
the moderator sends, so a site that has an app of its own is then refused.
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

import torch
from flwr.clientapp import ClientApp

from holdfast.core.errors import HoldfastError
from holdfast.core.failures import SENTENCES
from holdfast.flower.deploy.local import end_with_parent
from holdfast.flower.engine.waits import MOST, faster

log = logging.getLogger("holdfast")
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
        if self._process is not None:
            if self._process.poll() is None or time.monotonic() - self._when < AGAIN:
                return
            log.warning("The SuperNode ended with code %s; it is started again.", self._process.returncode)
        self._process, self._when = subprocess.Popen(self._command, preexec_fn=end_with_parent), time.monotonic()

    def keep(self) -> None:
        """Look after it until the process that started this one is gone."""
        parent = os.getppid()
        while os.getppid() == parent:
            self.look()
            time.sleep(MOST)

    def leave(self, *_: object) -> NoReturn:
        """End this process, but let the SuperNode, which was asked to end too, tell the SuperLink first."""
        with suppress(subprocess.TimeoutExpired):
            if self._process is not None:
                self._process.wait(LEAVE)
        os._exit(0)


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
    """ADDRESS [--app DIR] -- ARGUMENTS: run a site, with these arguments for its SuperNode that listens on ADDRESS."""
    parser = argparse.ArgumentParser(description="Keeps one SuperNode up and does its tasks.")
    parser.add_argument("address", help="of the SuperNode's own API, as in 127.0.0.1:9094")
    parser.add_argument("--app", type=Path, help="run this app, and no code that the moderator sends")
    split = sys.argv.index("--")
    chosen, words = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for noisy in ("httpx", "flwr"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    fast = faster()
    if fast is None and chosen.app:
        raise HoldfastError(
            "This Flower cannot be kept from running code that the moderator sends, so --app would promise too much; "
            "install a flwr that docs/real-sites.md names as tested, or leave --app out and trust the moderator's app."
        )
    command = ["flower-supernode", *words]
    if fast is not None:
        command = [sys.executable, "-m", fast.__name__, *words, "--isolation", "process"]
    node = Node(command)
    signal.signal(signal.SIGTERM, node.leave)
    if fast is None:
        node.keep()
    else:
        torch.set_num_threads(1)
        importlib.import_module("holdfast.flower")
        own = load_own(chosen.app) if chosen.app else None
        fast.Executor(chosen.address, node.look, SENTENCES["internal"], own).serve()


if __name__ == "__main__":
    main()
