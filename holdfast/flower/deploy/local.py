"""A SuperLink and SuperNodes on loopback, for trying out: started, and taken down with everything they started.

FOLDER/flower/      what Flower keeps: its configuration, its logs, keys unless insecure
FOLDER/sites/       one folder for each site: what it remembers
FOLDER/run/         the run, as always
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.errors import HoldfastError
from holdfast.core.files import make_folder
from holdfast.core.tables import pairs, toml
from holdfast.digests.origin import make_key
from holdfast.flower.deploy.keys import make_keys

NAME = "up"  # of the connection in Flower's configuration
START = 120.0  # seconds a loaded machine may take to start a SuperLink
GRACE = 5.0  # seconds for processes to end when asked to
FLWR = """import json, sys
from importlib.metadata import entry_points
[command] = entry_points(group="console_scripts", name="flwr")
run = command.load()
for words in json.loads(sys.argv[1]):
    sys.argv = ["flwr", *words]
    try:
        run()
    except SystemExit as end:
        if end.code:
            raise
"""


@dataclass
class Local:
    """The processes of one try, each the head of a process group of its own."""

    folder: Path
    secure: bool = True
    durable: bool = False  # whether the SuperLink's state is on disk: slower, but it may be killed and started again
    port: int = 0
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _begun: tuple[Path, dict[str, Any]] | None = None
    _again: int = 2  # how often a run that Flower dropped is begun once more

    @property
    def home(self) -> Path:
        return self.folder / "flower"

    @property
    def keys(self) -> Path:
        return self.home / "keys"

    @property
    def members(self) -> Path:
        """The sites' signing keys, where they have some; in a real federation each is made and kept at its site."""
        return self.home / "members"

    @property
    def environment(self) -> dict[str, str]:
        """Of every process: its own Flower home, Flower's commands on the path, no telemetry."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return {
            **os.environ,
            "PATH": path,
            "FLWR_HOME": str(self.home / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
            "OMP_NUM_THREADS": "1",
        }

    def start_link(self) -> None:
        """Start the SuperLink and wait until it listens."""
        self.port = self.port or free_port()
        make_folder(self.home / "home")
        security = ["--insecure"]
        connection: dict[str, Any] = {"address": f"127.0.0.1:{self.port}", "insecure": True}
        if self.secure:
            security = ["--ssl-ca-certfile", str(self.keys / "ca.crt"), "--ssl-certfile", str(self.keys / "server.crt")]
            security += ["--ssl-keyfile", str(self.keys / "server.key"), "--enable-supernode-auth"]
            connection = {"address": f"127.0.0.1:{self.port}", "root-certificates": str(self.keys / "ca.crt")}
        config = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n{toml(connection)}\n'
        (self.home / "home" / "config.toml").write_text(config)
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation", *security]
        if self.durable:
            command += ["--database", str(self.home / "state.db")]
        self._start("superlink", command)
        wait_for(lambda: listens(self.port), "the SuperLink listens", START, self.processes["superlink"])

    def register(self, *sites: str) -> None:
        """Let the sites' keys in, each under its site's name."""
        self.flwr(*(["supernode", "register", str(self.keys / f"{s}.pub"), NAME, "--name", s] for s in sites))

    def start_node(
        self,
        site: str,
        superlink: str = "",
        ca: Path | None = None,
        key: Path | None = None,
        config: Mapping[str, Any] | None = None,
        app: Path | None = None,
    ) -> None:
        """Start a site: the process that keeps its SuperNode up."""
        own = self.folder / "sites" / site
        make_folder(own)
        words = {"site": site, "folder": str(own.resolve()), **(config or {})}
        if not superlink and "policy" not in words:  # a rehearsal on this machine: the experiment's own numbers count
            policy: dict[str, Any] = {"min_records": 0}
            if (signing := self.members / f"{site}.key").exists():
                words["signing-key"], policy["members"] = str(signing), str(self.members)
            (own / "rehearsal.toml").write_text(f"{toml(policy)}\n")
            words["policy"] = str((own / "rehearsal.toml").resolve())
        security = ["--insecure"]
        if self.secure:
            security = ["--root-certificates", str(ca or self.keys / "ca.crt")]
            security += ["--auth-supernode-private-key", str(key or self.keys / f"{site}.key")]
        port = str(free_port())
        node = ["--superlink", superlink or f"127.0.0.1:{self.port}", "--port", port]
        node += ["--node-config", pairs(words), *security]
        keeper = [sys.executable, "-m", "holdfast.flower.deploy.keeper", f"127.0.0.1:{port}"]
        self._start(site, [*keeper, *(["--app", str(app.resolve())] if app else []), "--", *node])

    def begin(self, app: Path, **settings: Any) -> subprocess.Popen[bytes]:
        """Begin a run of an app; the process that is returned follows its log and ends with it."""
        self._begun = app, settings
        command = ["flwr", "run", str(app.resolve()), NAME, "--stream"]
        if settings:
            command += ["--run-config", pairs(settings)]
        return self._start("moderator", command)

    def goes_on(self, out: Path) -> bool:
        """Whether the run that was begun still plays; one that Flower dropped is begun again, and resumes."""
        if self.processes["moderator"].poll() is None:
            return True
        said = self.log("moderator").read_text(errors="replace")
        failed = "ServerApp raised an exception" in said and "\nhttpx." not in said  # httpx: the SuperLink was gone
        if failed or (out / "model.safetensors").exists():
            return False
        runs = json.loads(self.flwr(["ls", NAME, "--format", "json"]))["runs"]
        if any(not run["status"].startswith("finished") for run in runs):
            return True  # only its log is no longer followed
        if self._again == 0 or self._begun is None:
            return False
        self._again -= 1
        app, settings = self._begun
        self.begin(app, **settings)
        return True

    def flwr(self, *commands: list[str]) -> str:
        """Some of Flower's own commands, in one process: it takes a second to start."""
        done = subprocess.run(
            [sys.executable, "-c", FLWR, json.dumps(commands)],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            words = " ".join(commands[0])
            raise HoldfastError(f"`flwr {words}` failed: {(done.stderr or done.stdout).strip()[-600:]}")
        return done.stdout

    def log(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process and all that it started."""
        process = self.processes[name]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if number == signal.SIGKILL:
            process.wait()

    def close(self) -> None:
        """Take everything down: ask, wait a little, then insist; a second Ctrl-C ends the waiting."""
        try:
            for process in self.processes.values():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGCONT)
                    os.killpg(process.pid, signal.SIGTERM)
            patience = time.monotonic() + GRACE
            for process in self.processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, patience - time.monotonic()))
        finally:
            for process in self.processes.values():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also what outlived the head of its group
                process.wait()
            self.processes.clear()
            self._end_strays()

    def _end_strays(self) -> None:
        """Kill what Flower started in sessions of its own (the moderator's ServerApp), known by its Flower home."""
        mark = f"\0FLWR_HOME={self.environment['FLWR_HOME']}\0".encode()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has ended meanwhile, or is not ours to see
                if mark in b"\0" + path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    while path.read_bytes():  # until it is gone: then this is an error, or empty
                        time.sleep(0.01)

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        make_folder(self.home)
        with open(self.log(name), "ab") as file:
            process = subprocess.Popen(
                [self._command(command[0]), *command[1:]],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        self.processes[name] = process
        return process

    def _command(self, name: str) -> str:
        found = shutil.which(name, path=self.environment["PATH"])
        if found is None:
            raise HoldfastError(f"{name} is not installed; pip install 'holdfast[flower]'.")
        return found


@contextmanager
def local(
    folder: Path,
    sites: list[str],
    secure: bool = True,
    durable: bool = False,
    tables: Mapping[str, Path] | None = None,
    signing: bool = False,
) -> Iterator[Local]:
    """A SuperLink with a SuperNode for each site, taken down at the end whatever happens; `tables` are theirs, and with
    `signing` each has a signing key that the others know.
    """
    here = Local(folder.resolve(), secure, durable)
    try:
        if secure and not here.keys.exists():
            make_keys(here.keys, sites)
        for site in sites if signing and not here.members.exists() else ():
            make_key(here.members, site)
        here.start_link()
        if secure:
            here.register(*sites)
        for site in sites:
            here.start_node(site, config={"table": str(tables[site])} if tables else None)
        yield here
    finally:
        here.close()


def end_with_parent() -> None:
    """In a new process: be killed when the process that started it is, so that nothing is left behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for(
    condition: Callable[[], object], what: str, seconds: float, process: subprocess.Popen[bytes] | None = None
) -> None:
    """Wait until something is so; not in time, or with its process ended, is an error."""
    end = time.monotonic() + seconds
    while not condition():
        if process is not None and process.poll() is not None:
            raise HoldfastError(f"Waited until {what}, but its process ended with code {process.returncode}.")
        if time.monotonic() > end:
            raise HoldfastError(f"Waited {seconds:.0f} s in vain until {what}.")
        time.sleep(0.1)
