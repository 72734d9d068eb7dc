"""The live page: a small server on this machine alone pushes each new round of a run to the browser."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from holdfast.core.errors import HoldfastError
from holdfast.core.files import read_lines
from holdfast.report.page import page
from holdfast.report.payload import payload
from holdfast.report.run_data import is_run, read_story

LOOK = 0.3  # seconds between two looks at the folder
BREATH = 10.0  # seconds after which an idle stream says that it is alive
MOST = 32  # connections at a time; a browser that is turned away asks again
IDLE = 30.0  # seconds for a request to arrive, and for a page to take what it is sent
PATIENCE = 15.0  # seconds without a new round before a run can be taken for stopped
log = logging.getLogger(__name__)


class Folder:
    """A run, or a folder of runs, that others write: looked at until it is over, or whoever serves it stops."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stopped = threading.Event()
        self.streams = 0

    def runs(self) -> list[Path]:
        if is_run(self.path):
            return [self.path]
        return sorted(file.parent for file in self.path.glob("*/experiment.json"))

    def mark(self) -> tuple[object, ...]:
        """Changes when there is something new to show."""
        found: list[object] = []
        for run in self.runs():
            with suppress(FileNotFoundError):
                size = (run / "rounds.jsonl").stat().st_size
                found.append((run, (run / "model.safetensors").exists(), size, has_stopped(run)))
        return tuple(found)

    def finished(self) -> bool:
        """A run is over when its final model is there, a comparison when its results are."""
        last = "model.safetensors" if is_run(self.path) else "results.json"
        return (self.path / last).exists()

    def payload(self) -> dict[str, Any]:
        runs = self.runs()
        told = payload([read_story(run) for run in runs])
        for run, words in zip(runs, told["runs"], strict=True):
            words["stopped"] = has_stopped(run)
        return {**told, "live": True}


class Handler(BaseHTTPRequestHandler):
    """Answers two questions: the page, and what is new."""

    timeout = IDLE

    def __init__(self, folder: Folder, *args: Any) -> None:
        self.folder = folder
        super().__init__(*args)

    def do_GET(self) -> None:
        _, port = self.connection.getsockname()
        if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            self.send_error(403, "Only for this machine")  # a stranger's page must not read a run through its own name
        elif self.path == "/":
            self._head("text/html; charset=utf-8")
            self.wfile.write(page({"headline": [], "runs": []}, live=True).encode())
        elif self.path == "/events":
            self._head("text/event-stream")
            self.folder.streams += 1
            try:
                with suppress(ConnectionError, TimeoutError):  # the browser's window was closed
                    self._stream()
            finally:
                self.folder.streams -= 1
        else:
            self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)

    def _head(self, kind: str) -> None:
        self.send_response(200)
        for name, value in (("Content-Type", kind), ("Cache-Control", "no-store"), ("X-Frame-Options", "DENY")):
            self.send_header(name, value)
        self.end_headers()

    def _stream(self) -> None:
        """Send everything again whenever there is news: a page that joins late, or again, needs no special case."""
        seen: object = None
        spoken = time.monotonic()
        while True:
            over = self.folder.stopped.is_set() or self.folder.finished()  # asked first: the last news is then sent too
            mark = self.folder.mark()
            if mark != seen:
                self._send_news()
                seen, spoken = mark, time.monotonic()
            if over:
                self._say("event: end\ndata: over\n\n")
                return
            if time.monotonic() - spoken > BREATH:
                self._say(": still here\n\n")
                spoken = time.monotonic()
            self.folder.stopped.wait(LOOK)

    def _send_news(self) -> None:
        try:
            text = json.dumps(self.folder.payload(), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            self._say(f"event: payload\ndata: {text}\n\n")
        except HoldfastError as error:
            self._say(f"event: trouble\ndata: {json.dumps(str(error))}\n\n")

    def _say(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    """A server that turns away whoever comes when it is busy: each connection takes a thread."""

    daemon_threads = True
    request_queue_size = MOST

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self._free = threading.Semaphore(MOST)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("A request failed", exc_info=True)  # whoever asked in another way than browsers do


@contextmanager
def serve(folder: Path | str, open_browser: bool = True, port: int = 0) -> Iterator[str]:
    """Serve the live page of a run (which may not have begun yet) on 127.0.0.1, and give its address."""
    watched = Folder(Path(folder))
    try:
        server = Server(("127.0.0.1", port), partial(Handler, watched))
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "there is no such port"
        raise HoldfastError(f"Cannot listen on 127.0.0.1, port {port}: {reason}; choose another --port.") from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    try:
        if open_browser and has_screen():
            webbrowser.open(address)
        yield address
    finally:
        watched.stopped.set()
        until = time.monotonic() + 3.0  # open pages are told the end first
        while watched.streams and time.monotonic() < until:
            time.sleep(0.05)
        server.shutdown()
        server.server_close()
        thread.join()


def has_stopped(run: Path) -> bool:
    """Whether a run was left unfinished: nothing new for a while, and the process that began it is gone."""
    with suppress(OSError):
        if (run / "model.safetensors").exists() or time.time() - (run / "rounds.jsonl").stat().st_mtime < PATIENCE:
            return False
    starts = read_lines(run / "environment.jsonl")
    pid = starts[-1].get("pid") if starts else None
    if not isinstance(pid, int) or not 0 < pid < 1 << 31:
        return False
    try:
        os.kill(pid, 0)  # asks only whether it is there
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def has_screen() -> bool:
    """Whether a browser can be opened; without a screen, a text browser would take the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def wait_until_finished(folder: Path) -> None:
    watched = Folder(folder)
    while not watched.finished():
        time.sleep(LOOK)
