"""The console's server: on this machine alone, for whoever has its secret address.

The token is part of the address's path, not a cookie: cookies of 127.0.0.1 go to every port of the machine, also to
other people's servers. A form must come from this very page (Origin), by the name of this machine (Host) and with the
token, and names what its reader saw: an approval of something that has changed meanwhile is refused.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from holdfast.audit.findings import examine
from holdfast.audit.target import subject_at
from holdfast.console.site_page import POLICY, site_page
from holdfast.console.site_state import FOLDER, check_site, news_mark, page_name, read_asked, read_note, read_site
from holdfast.core.errors import HoldfastError
from holdfast.core.files import write_file
from holdfast.digests.origin import load_key
from holdfast.flower.deploy.approval import APPROVED, REFUSED, Proposal, case_of, check_person, speak
from holdfast.flower.deploy.home import go_on, pause
from holdfast.flower.deploy.policy import carry_privacy, read_site_policy, withdraw
from holdfast.flower.deploy.site import Site
from holdfast.privacy.gate import house_of
from holdfast.privacy.noise import system
from holdfast.report.privacy_page import as_html
from holdfast.report.serving import LocalHandler, serving

LARGEST = 8192  # bytes of a form
PAGE_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; sandbox"  # of a privacy page
TRIALS = 200  # canaries of the audits behind a privacy page
log = logging.getLogger("holdfast")


class SiteConsole:
    """One site, looked at and decided for by one person."""

    def __init__(self, folder: Path, policy: Path | None, by: str = "", key: Path | None = None) -> None:
        check_site(folder)
        if by:
            check_person(by)
        if key is not None:
            load_key(key)
        self.folder, self.policy, self.by, self.key = folder.resolve(), policy, by, key
        self.token = secrets.token_urlsafe(32)
        self._lock = threading.Lock()
        self._said: tuple[bool, str] | None = None  # what the last form came to; told once
        self._making: set[str] = set()

    @property
    def mark(self) -> str:
        return news_mark(self.folder, self.policy) + str(len(self._making))

    def page(self) -> str:
        with self._lock:
            said, self._said = self._said, None
        made = {path.name for path in self.folder.glob("*/privacy-*.html")}
        made |= {f"{name} is being made" for name in self._making}
        mark = self.mark
        return site_page(read_site(self.folder, self.policy), self.by, self.key is not None, said, mark, made)

    def privacy_page(self, name: str) -> bytes | None:
        """A privacy page that was made here."""
        if not re.fullmatch(r"privacy-[0-9a-f]{16}\.html", name):
            return None
        return next((path.read_bytes() for path in self.folder.glob(f"*/{name}")), None)

    def act(self, action: str, told: dict[str, str]) -> bool:
        """Do what a form says, one at a time; false: there is no such form."""
        if action not in ACTIONS:
            return False
        with self._lock:
            try:
                self._said = True, ACTIONS[action](self, told)
            except HoldfastError as error:
                self._said = False, str(error).replace("--by: e", "E")
        return True

    def who(self, told: dict[str, str]) -> str:
        by = self.by or told.get("by", "").strip()
        check_person(by)
        return by

    def proposal(self, told: dict[str, str]) -> tuple[Proposal, Path]:
        """What the form's reader saw, if it still waits here like that, and the policy's file."""
        asked = Proposal(*(told.get(name, "") for name in ("experiment", "code", "policy")))
        if self.policy is None or case_of(self.folder, read_site_policy(self.policy), asked) is None:
            raise HoldfastError("This is not what is asked for here; look at the page again.")
        return asked, self.policy

    def memory(self, mark: str) -> Path:
        """The site's folder of an experiment that has asked."""
        if not re.fullmatch(r"[0-9a-f]{16}", mark) or not any(
            one.mark == mark for one in read_site(self.folder, self.policy).asked
        ):
            raise HoldfastError("No such experiment has asked here; look at the page again.")
        return self.folder / mark

    def decide(self, event: str, told: dict[str, str]) -> str:
        proposal, policy = self.proposal(told)
        by = self.who(told)
        page = self.folder / proposal.experiment[:FOLDER] / page_name(proposal)
        read = page if page.is_file() and event == APPROVED else None
        case = speak(self.folder, policy, proposal, event, by, self.key, read)
        if event == REFUSED:
            return f"{by} has refused {proposal.experiment[:FOLDER]}: nothing of it is answered."
        missing = read_site_policy(policy).approvals - len(case.approved)
        return f"{by} has approved it. " + ("It may be played." if missing <= 0 else f"{missing} more must approve it.")

    def make_page(self, told: dict[str, str]) -> str:
        proposal, _ = self.proposal(told)
        name = page_name(proposal)
        if name not in self._making:
            self._making.add(name)
            threading.Thread(target=self._make, args=(proposal, name), daemon=True).start()
        return "The privacy page is being made; this takes up to a minute."

    def _make(self, proposal: Proposal, name: str) -> None:
        memory = self.folder / proposal.experiment[:FOLDER]
        said = True, "The privacy page is there."
        try:
            write_file(memory / name, write_privacy(self.folder, self.policy, memory).encode())
        except HoldfastError as error:
            said = False, f"The privacy page cannot be made: {error}"
        except Exception as error:  # a user's own code, reading a user's own data
            log.warning("The privacy page cannot be made", exc_info=True)
            said = False, f"The privacy page cannot be made: {type(error).__name__}; the console's terminal says more."
        with self._lock:
            self._said = said
        self._making.discard(name)


def write_privacy(folder: Path, policy: Path | None, memory: Path) -> str:
    """What leaves this house in an experiment, by its own policy, ledger and records."""
    asked = read_asked(memory, [])
    if asked.experiment is None or asked.node is None:
        raise HoldfastError("the app reads its records by code of its own; `holdfast privacy report` takes its file.")
    if policy is not None:
        carry_privacy(read_site_policy(policy), folder)
    site = Site(asked.experiment, {"site": folder.name, "folder": str(folder), **asked.node})
    names = asked.experiment.names or ()
    bound = (read_note(memory / "client.json") or {}).get("client")
    client = bound if isinstance(bound, int) else names.index(folder.name) if folder.name in names else 0
    plan, _ = site.plan(client)
    guard = plan.guard.options.policy if plan.guard else plan.method.absence.named_policy
    data = Path(asked.node.get("table") or asked.node.get("records") or "").name
    subject = subject_at(folder.name, asked.experiment.method, data, plan, client, house_of(memory, guard))
    return as_html(examine(subject, system(), client, TRIALS, see=False))


def do_pause(console: SiteConsole, told: dict[str, str]) -> str:
    pause(console.folder, console.who(told))
    return "This site is paused."


def do_resume(console: SiteConsole, told: dict[str, str]) -> str:
    go_on(console.folder)
    return "This site goes on."


def do_withdraw(console: SiteConsole, told: dict[str, str]) -> str:
    if told.get("sure") != "yes":
        raise HoldfastError("Say that you are sure: to withdraw is for good.")
    memory = console.memory(told.get("mark", ""))
    withdraw(memory, console.who(told))
    return f"This site has withdrawn from {memory.name}."


ACTIONS: dict[str, Callable[[SiteConsole, dict[str, str]], str]] = {
    "approve": lambda console, told: console.decide(APPROVED, told),
    "refuse": lambda console, told: console.decide(REFUSED, told),
    "page": SiteConsole.make_page,
    "pause": do_pause,
    "resume": do_resume,
    "withdraw": do_withdraw,
}


class Handler(LocalHandler):
    """Answers whoever knows the token."""

    def __init__(self, console: SiteConsole, *args: Any) -> None:
        self.console = console
        super().__init__(*args)

    @property
    def inside(self) -> str | None:
        """The path behind the token; none without it."""
        token, slash, rest = self.path.removeprefix("/").partition("/")
        known = secrets.compare_digest(token.encode(), self.console.token.encode())
        return rest if known and slash else None

    def get(self) -> None:
        inside = self.inside
        if inside is None:
            self.send_error(403, "Open the address that the command printed")
        elif inside == "":
            self.answer(self.console.page().encode(), POLICY)
        elif inside == "mark":
            self.answer(self.console.mark.encode(), "default-src 'none'", "text/plain")
        elif inside.startswith("page/") and (page := self.console.privacy_page(inside.removeprefix("page/"))):
            self.answer(page, PAGE_POLICY)
        else:
            self.send_error(404)

    def post(self) -> None:
        inside = self.inside
        if inside is None:
            self.send_error(403, "Open the address that the command printed")
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LARGEST:
            self.send_error(413)
            return
        try:
            fields = parse_qs(self.rfile.read(int(length)).decode(), max_num_fields=20)
        except ValueError:
            self.send_error(400)
            return
        if self.console.act(inside, {name: values[-1] for name, values in fields.items()}):
            self.head("text/plain", 303, {"Location": f"/{self.console.token}/"})  # a reload posts nothing again
        else:
            self.send_error(404)

    def answer(self, content: bytes, policy: str, kind: str = "text/html") -> None:
        self.head(f"{kind}; charset=utf-8", 200, {"Content-Security-Policy": policy})
        self.wfile.write(content)


@contextmanager
def serve_console(
    folder: Path, policy: Path | None = None, by: str = "", key: Path | None = None, port: int = 0
) -> Iterator[str]:
    """Serve a site's console, and give its secret address.

    It is printed and not opened: other people of a machine see the words that a browser is started with.
    """
    console = SiteConsole(folder, policy, by, key)
    with serving(partial(Handler, console), port) as address:
        yield f"{address}{console.token}/"
