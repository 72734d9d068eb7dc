"""The live page: a small server on this machine alone pushes each new round of a run to the browser."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.core.errors import HoldfastError
from holdfast.core.files import read_lines
from holdfast.report.page import page
from holdfast.report.payload import payload
from holdfast.report.run_data import is_run, read_story
from holdfast.report.serving import LocalHandler, serving
from holdfast.report.sites_now import sites_now
from holdfast.runs.presence import PRESENCE

LOOK = 0.3  # seconds between two looks at the folder
BREATH = 10.0  # seconds after which an idle stream says that it is alive
PATIENCE = 15.0  # seconds without a new round before a run can be taken for stopped


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
            with suppress(FileNotFoundError):
                found.append((run / PRESENCE).stat().st_mtime_ns)
        return tuple(found)

    def finished(self) -> bool:
        """A run is over when its final model is there, a comparison when its results are."""
        last = "model.safetensors" if is_run(self.path) else "results.json"
        return (self.path / last).exists()

    def payload(self) -> dict[str, Any]:
        runs = self.runs()
        stories = [read_story(run) for run in runs]
        told = payload(stories)
        for story, words in zip(stories, told["runs"], strict=True):
            words["stopped"] = has_stopped(story.folder)
            words["now"] = sites_now(story)
        return {**told, "live": True}


class Handler(LocalHandler):
    """Answers two questions: the page, and what is new."""

    def __init__(self, folder: Folder, *args: Any) -> None:
        self.folder = folder
        super().__init__(*args)

    def get(self) -> None:
        if self.path == "/":
            self.head("text/html; charset=utf-8")
            self.wfile.write(page({"headline": [], "runs": []}, live=True).encode())
        elif self.path == "/events":
            self.head("text/event-stream")
            self.folder.streams += 1
            try:
                with suppress(ConnectionError, TimeoutError):  # the browser's window was closed
                    self._stream()
            finally:
                self.folder.streams -= 1
        else:
            self.send_error(404)

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


@contextmanager
def serve(folder: Path | str, open_browser: bool = True, port: int = 0) -> Iterator[str]:
    """Serve the live page of a run (which may not have begun yet) on 127.0.0.1, and give its address."""
    watched = Folder(Path(folder))
    with serving(partial(Handler, watched), port) as address:
        try:
            if open_browser and has_screen():
                webbrowser.open(address)
            yield address
        finally:
            watched.stopped.set()
            until = time.monotonic() + 3.0  # open pages are told the end first
            while watched.streams and time.monotonic() < until:
                time.sleep(0.05)


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
