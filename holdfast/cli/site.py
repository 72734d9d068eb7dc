"""`holdfast site`: a site's dry run before it joins, and the approval of experiments by its people."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from holdfast.core.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.flower.deploy.approval import Case, Proposal

site_app = typer.Typer(help="At a site: look before you join, approve, refuse.", no_args_is_help=True)


@site_app.callback()
def site() -> None:
    """At a site: look before you join, approve, refuse."""


@site_app.command("check")
def check_command(
    name: Annotated[str, typer.Argument(metavar="SITE", help="This site's name.")],
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The experiment, as the moderator gave it.")],
    table: Annotated[Path | None, typer.Option(help="This site's own table, where the task is a schema.")] = None,
    schema: Annotated[Path | None, typer.Option(help="This site's copy of the schema.")] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            "--images", "--series", "--text", help="This site's own records, where the task is a description."
        ),
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="What may be asked of this site.")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder with the task's files.")] = None,
    superlink: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where the SuperLink listens.")] = None,
    ca: Annotated[Path | None, typer.Option(help="The moderator's ca.crt.")] = None,
) -> None:
    """Try all but sending: data, policy, connection, one local step, what would leave; exit code 1 if one fails."""
    from holdfast.flower.deploy.joining import check_address
    from holdfast.flower.deploy.rehearsal import Wish, rehearse_site
    from holdfast.play import one_thread
    from holdfast.runs.experiment import load

    for path in (table, schema, records, policy, data, ca):
        if path is not None and not path.exists():
            raise HoldfastError(f"{path} does not exist.")
    if superlink is not None:
        check_address(superlink)
    console = Console(highlight=False, soft_wrap=True)
    wish = Wish(name, load(file), table, schema, records, policy, data, superlink, ca)
    good = True
    with one_thread():
        for finding in rehearse_site(wish):
            mark = "[green]✓[/]" if finding.good else "[red]✗[/]"
            first, *rest = finding.lines
            console.print(f"{mark} [bold]{finding.what}[/] {escape(first)}")
            for line in rest:
                console.print(f"    {escape(line)}")
            good &= finding.good
    console.print("[green]This site can join.[/] Nothing was sent." if good else "[red]This site cannot join yet.[/]")
    if not good:
        raise typer.Exit(1)


Folder = Annotated[Path, typer.Option(help="The site's folder, which holds identity.json, the ledger and the log.")]
OwnPolicy = Annotated[Path, typer.Option(help="The site's policy, which says how many people must approve.")]
By = Annotated[str, typer.Option(help="Who says so: a person's name.")]
Key = Annotated[Path | None, typer.Option(help="That person's Ed25519 key, where the policy names `approvers`.")]
Page = Annotated[Path | None, typer.Option(help="The privacy page that was read: its SHA-256 is kept in the log.")]
What = Annotated[
    str, typer.Argument(metavar="WHAT", help="A waiting experiment, as `pending` shows it, or its FILE.toml.")
]


@site_app.command("pending")
def pending_command(folder: Folder, policy: OwnPolicy) -> None:
    """List the experiments that wait for approval at this site, and who has approved them so far."""
    from holdfast.flower.deploy.approval import cases, pending
    from holdfast.flower.deploy.policy import read_site_policy

    console = Console(highlight=False, soft_wrap=True)
    wanted = read_site_policy(policy)
    waiting = pending(cases(folder, wanted), wanted.approvals)
    for case in waiting:
        by = f", approved by {', '.join(case.approved)}" if case.approved else ""
        console.print(escape(f"{case.proposal.experiment[:16]}/{case.proposal.code[:8]}  {case.about}"))
        console.print(escape(f"    since {case.since}; {len(case.approved)} of {wanted.approvals}{by}"))
    if not waiting:
        console.print("Nothing waits for approval.")


@site_app.command("approve")
def approve_command(what: What, folder: Folder, policy: OwnPolicy, by: By, key: Key = None, page: Page = None) -> None:
    """Approve an experiment, with this code and this policy; another of these needs a new approval."""
    decide_here("approved", what, folder, policy, by, key, page)


@site_app.command("refuse")
def refuse_command(what: What, folder: Folder, policy: OwnPolicy, by: By, key: Key = None) -> None:
    """Refuse an experiment, approved before or not; from now on nothing of it is answered."""
    decide_here("refused", what, folder, policy, by, key, None)


@site_app.command("withdraw")
def withdraw_command(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The experiment, as the site has it.")],
    folder: Folder,
    by: By,
    request: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a signed request too, for a run that has ended.")
    ] = None,
    site: Annotated[str | None, typer.Option(help="Of a request: this site's name, as the moderator knows it.")] = None,
    key: Annotated[Path | None, typer.Option(help="Of a request: this site's own key, SITE.key.")] = None,
) -> None:
    """Leave an experiment for good: at its next question the moderator is told to delete this site's digest.

    After a run has ended nobody asks any more: send the moderator a request then.
    """
    from holdfast.core.files import write_file
    from holdfast.flower.deploy.policy import fingerprint_of, withdraw
    from holdfast.flower.deploy.withdrawal_request import request_of
    from holdfast.runs.experiment import load

    experiment = load(file)
    if request is not None and (site is None or key is None):
        raise HoldfastError("--request: say which site asks and sign it, with --site NAME and --key SITE.key.")
    signed = b"" if request is None else request_of(experiment, str(site), by, Path(str(key)))
    fingerprint = fingerprint_of(experiment)
    withdraw(folder / fingerprint[:16], by)
    console = Console(highlight=False, soft_wrap=True)
    console.print(escape(f"This site has withdrawn from {fingerprint[:16]}; nothing of it is answered from now on."))
    if request is not None:
        write_file(request, signed)
        console.print(escape(f"Send {request} to the moderator, for `holdfast forget RUN --request`."))


@site_app.command("pause")
def pause_command(folder: Folder, by: By) -> None:
    """Answer nothing for now, whichever experiment asks; to the others this site is away."""
    from holdfast.flower.deploy.approval import check_person
    from holdfast.flower.deploy.home import pause

    check_person(by)
    pause(folder, by)
    Console(highlight=False, soft_wrap=True).print("This site is paused; `holdfast site resume` lets it go on.")


@site_app.command("resume")
def resume_command(folder: Folder) -> None:
    """Let a paused site go on."""
    from holdfast.flower.deploy.home import go_on

    go_on(folder)
    Console(highlight=False, soft_wrap=True).print("This site goes on.")


@site_app.command("console")
def console_command(
    folder: Folder,
    policy: Annotated[Path | None, typer.Option(help="The site's policy, as the site was started with.")] = None,
    by: Annotated[str, typer.Option(help="Who decides here: a person's name; else it is asked for each time.")] = "",
    key: Key = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0: a free one.", min=0, max=65535)] = 0,
) -> None:
    """Look at this site in the browser: who asks for what, what has left; approve, refuse, pause, withdraw."""
    from holdfast.console.server import serve_console

    console = Console(highlight=False, soft_wrap=True)
    with serve_console(folder, policy, by, key, port) as address:
        console.print(f"The site's console: {address}", markup=False)
        console.print("Whoever has this address can decide here: it is for you alone. Ctrl-C ends it.")
        while True:
            time.sleep(3600)


def decide_here(
    event: str, what: str, folder: Path, policy: Path, by: str, key: Path | None, page: Path | None
) -> None:
    """Enter a person's word in the site's log, and say what holds now."""
    from holdfast.flower.deploy.approval import cases, proposal_of, sha256_of_file, speak
    from holdfast.flower.deploy.policy import read_site_policy
    from holdfast.runs.experiment import load

    wanted = read_site_policy(policy)
    if what.endswith(".toml"):
        found = [proposal_of(load(Path(what)), Path(what).resolve().parent, policy)]
    else:
        found = named(what, [case.proposal for case in cases(folder, wanted)])
        if event == "approved":
            found = one_of([proposal for proposal in found if proposal.policy == sha256_of_file(policy)], what, folder)
    for proposal in found:
        say(event, by, speak(folder, policy, proposal, event, by, key, page), wanted.approvals)


def named(what: str, known: list[Proposal]) -> list[Proposal]:
    """The proposals whose fingerprint, and code after a slash, begin as said."""
    experiment, _, code = what.lower().partition("/")
    found = [one for one in known if one.experiment.startswith(experiment) and one.code.startswith(code)]
    if not found or len({one.experiment for one in found}) > 1:
        what_is = "several experiments begin with that" if found else "no such experiment was asked for here"
        raise HoldfastError(f"{what!r}: {what_is}; see `holdfast site pending`.")
    return found


def one_of(found: list[Proposal], what: str, folder: Path) -> list[Proposal]:
    if len(found) != 1:
        why = (
            "has waited with several versions of its code; name one, as"
            if found
            else "has not waited with this policy;"
        )
        raise HoldfastError(f"{what!r} {why} `holdfast site pending --folder {folder}` shows them.")
    return found


def say(event: str, by: str, case: Case, needed: int) -> None:
    console = Console(highlight=False, soft_wrap=True)
    mark = f"{case.proposal.experiment[:16]}/{case.proposal.code[:8]}"
    console.print(escape(f"{by} has {event} {mark}."))
    if event == "approved":
        missing = needed - len(case.approved)
        console.print("It may be played." if missing <= 0 else f"{missing} more must approve it.")
