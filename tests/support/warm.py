"""`holdfast` and `python` without the seconds that importing torch takes: each command is forked from a warm process.

    with warm(commands, os.environ) as variables:  # with these the two commands are found first
        call(variables, folder, "bash", "-c", text)

The command has its own arguments, folder, environment and streams, and ends with its own code. Tests that are about
processes (signals, imports, a fresh interpreter) start real ones.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SHIM = """#!{python} -IS
import json, os, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect({address!r})
words = json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(link, [len(words).to_bytes(8, "big")], [0, 1, 2])
link.sendall(words)
sys.exit(int(link.makefile().read() or 70))
"""


@contextmanager
def warm(folder: Path, variables: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """`variables` with a PATH that leads to warm commands; `folder` is empty, and near: a socket's path is short."""
    address = str(folder / "warm")
    for name in ("holdfast", "python"):
        shim = folder / name
        shim.write_text(SHIM.format(python=sys.executable, address=address, name=name))
        shim.chmod(0o755)
    server = subprocess.Popen([sys.executable, __file__, address], stdout=subprocess.PIPE, env=dict(variables))
    assert server.stdout is not None
    try:
        server.stdout.readline()
        yield {**variables, "PATH": f"{folder}{os.pathsep}{variables['PATH']}"}
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def call(variables: Mapping[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command found by the PATH of `variables`."""
    found = shutil.which(words[0], path=variables["PATH"])
    assert found
    command = [found, *words[1:]]
    return subprocess.run(command, cwd=folder, env=dict(variables), capture_output=True, text=True, timeout=300)


def serve(address: str) -> None:
    for module in ("torch", "holdfast.cli", "holdfast.play", "holdfast.report"):
        importlib.import_module(module)
    os.fsync = lambda fd: None  # as in conftest.py
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who answer
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address)
        door.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            link, _ = door.accept()
            if os.fork() == 0:
                door.close()
                answer(link)
            link.close()


def answer(link: socket.socket) -> None:
    """Run one command in a child, and tell its code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, streams, _, _ = socket.recv_fds(link, 8, 3)
    name, words, folder, variables = json.loads(link.makefile("rb").read(int.from_bytes(head, "big")))
    child = os.fork()
    if child == 0:
        link.close()
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        code = 1
        try:
            code = play(name, words)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    link.sendall(str(os.waitstatus_to_exitcode(status) % 256).encode())
    os._exit(0)


def play(name: str, words: list[str]) -> int:
    try:
        if name == "holdfast":
            from holdfast.cli import main

            sys.argv, sys.path[0] = ["holdfast", *words], str(Path(sys.executable).parent)
            main()
        elif words[:1] == ["-c"]:
            sys.argv, sys.path[0] = words, ""
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv, sys.path[0] = words, str(Path(words[0]).parent.resolve())
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        return 0 if end.code is None else end.code if isinstance(end.code, int) else 1
    return 0


if __name__ == "__main__":
    serve(sys.argv[1])
