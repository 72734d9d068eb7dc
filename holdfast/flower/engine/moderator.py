"""The moderator as a Flower ServerApp: the same rounds as everywhere, played over Flower's grid.

What `flwr run --run-config` may say (each has a default):

    out               folder of the run; one that is there already is resumed
    data, device      the moderator's own, in place of the experiment's
    test              a table of the moderator's own to test on, where the task is a schema; without one the results are
                      the sites' own metrics
    sites             names of the sites, separated by commas, in the order of the clients
    members           folder of the sites' public keys, SITE.pub: only updates that their site's key signed count, and
                      secure sums are of these members alone
    deadline-times, deadline-least, deadline-longest    when a round closes: see deadline.py
    enough            do not wait for more replies than this (0: wait for all until the deadline)
    half              float16 on the wire: "none", "updates", or "both" ways
    max-bytes         the largest message
    gather            seconds to wait for the sites at the start
    approval          seconds, over the run, to wait for sites whose people have not approved the experiment yet
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from holdfast.core.errors import HoldfastError, nearest
from holdfast.core.logs import JsonLines, wants_json
from holdfast.core.types import Federation
from holdfast.digests.origin import known_keys
from holdfast.flower.deploy.policy import fingerprint_of
from holdfast.flower.deploy.signing import SignedFederation
from holdfast.flower.engine.codec import BOUND
from holdfast.flower.engine.deadline import Deadline
from holdfast.flower.engine.exchange import Wire
from holdfast.flower.engine.federation import GridFederation
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.flower.engine.puller import Puller
from holdfast.flower.engine.sites import Sites, usual_names
from holdfast.flower.engine.waits import faster
from holdfast.play import Engine, Watch, resume, run
from holdfast.record import Record, tell_round
from holdfast.runs.experiment import Experiment, load
from holdfast.runs.history import History
from holdfast.runs.plan import Plan
from holdfast.runs.store import EXCHANGES, Run

log = logging.getLogger("flwr")  # Flower sends what is logged here to whoever follows the run
SETTINGS: dict[str, Any] = {
    "out": "run",
    "data": "",
    "test": "",
    "device": "",
    "sites": "",
    "members": "",
    "deadline-times": 2.0,
    "deadline-least": 10.0,
    "deadline-longest": 600.0,
    "enough": 0,
    "half": "none",
    "max-bytes": BOUND,
    "gather": 120.0,
    "approval": 0.0,
}
HALF = {"none": (False, False), "updates": (True, False), "both": (True, True)}


def server_app(experiment: Experiment | Path | str) -> ServerApp:
    """The ServerApp of an experiment."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = read_settings(context.run_config)
        wanted = experiment if isinstance(experiment, Experiment) else load(Path(experiment))
        if settings["data"]:
            wanted = replace(wanted, data=settings["data"])
        if settings["test"]:
            wanted = replace(wanted, test=settings["test"])
        if settings["device"]:
            wanted = replace(wanted, device=settings["device"])
        if wants_json():
            for handler in log.handlers:
                handler.setFormatter(JsonLines())
        history = play_over(grid, wanted, settings, watch=partial(log_round, wanted.name_of))
        log.info("Final %s %s; everything is in %s", history.measure.words, history.final_text, history.folder)

    return app


def play_over(
    grid: Grid, experiment: Experiment, settings: Mapping[str, Any] | None = None, watch: Watch | None = None
) -> History:
    """Play an experiment over a grid, or go on with it where its folder says."""
    chosen = read_settings(settings or {})
    out = Path(chosen["out"]).expanduser()
    engine = engine_over(grid, chosen)
    secret = None if isinstance(grid, InProcessGrid) else secrets.randbits(62)
    if chosen["sites"] and experiment.names is None and experiment.clients == len(site_names(chosen)):
        experiment = replace(experiment, names=tuple(site_names(chosen)))
    if not (out / "experiment.json").exists():
        return run(experiment, out, watch, engine, secret)
    if fingerprint_of(Run.open(out).experiment) != fingerprint_of(experiment):
        raise HoldfastError(f"{out} holds a run of another experiment; name a new folder with --run-config 'out=...'.")
    return resume(out, watch, engine, secret=secret)


def engine_over(grid: Grid, settings: Mapping[str, Any]) -> Engine:
    """The engine that asks Flower's nodes."""

    def engine(plan: Plan, folder: Path | None) -> Federation:
        if plan.method.secure is not None and not settings["members"]:
            raise HoldfastError(
                "protect: 'secure-sum' needs the sites' public keys: say members=\"FOLDER\" of SITE.pub."
            )
        clients = plan.experiment.clients
        names = site_names(settings) or usual_names(clients)
        if len(names) != clients:
            raise HoldfastError(f"sites: {len(names)} names for {clients} clients; name each.")
        check_enough(settings, clients)
        if plan.method.compress.keeps and settings["half"] != "none":
            raise HoldfastError("half: with compress updates are sent in fewer bytes already; leave out one of them.")
        half_up, half_down = HALF[settings["half"]]
        puller = None
        if not isinstance(grid, InProcessGrid):
            if fast := faster():
                fast.shorten_grid()
            puller = Puller(grid)
        federation = GridFederation(
            grid,
            Sites(names, folder and folder / "sites.json"),
            clients,
            fingerprint_of(plan.experiment),
            Deadline(
                settings["deadline-times"],
                settings["deadline-least"],
                settings["deadline-longest"],
                settings["enough"] or None,
            ),
            Wire(half_up, half_down, settings["max-bytes"]),
            folder and folder / EXCHANGES,
            puller,
            patience=settings["approval"],
            takes_late=plan.method.late.takes,
        )
        keys = known_keys(Path(settings["members"]).expanduser()) if settings["members"] else None
        fingerprint = fingerprint_of(plan.experiment)
        signed = None if keys is None else SignedFederation(federation, fingerprint, keys, names, half_down)
        federation.gather(settings["gather"])
        return signed or federation

    return engine


def site_names(settings: Mapping[str, Any]) -> list[str]:
    """The sites that the settings name; none: they are called site-0, site-1, ..."""
    return [name.strip() for name in settings["sites"].split(",")] if settings["sites"] else []


def read_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with what was given; an unknown key or a wrong type is refused."""
    settings = dict(SETTINGS)
    for key, value in given.items():
        if key not in SETTINGS:
            raise HoldfastError(f"run config: there is no key {key!r}; {nearest(key, SETTINGS)}")
        kind = type(SETTINGS[key])
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise HoldfastError(f"run config: {key} must be {kind.__name__}, got {value!r}.")
        settings[key] = value
    if settings["half"] not in HALF:
        raise HoldfastError(f"run config: half is {settings['half']!r}; {nearest(settings['half'], HALF)}")
    return settings


def check_enough(settings: Mapping[str, Any], clients: int) -> None:
    """Refuse to wait for more answers than there are sites."""
    if not 0 <= settings["enough"] <= clients:
        raise HoldfastError(f"enough is {settings['enough']}, but there are {clients} sites; 0 is to wait for all.")


def log_round(name_of: Callable[[int], str], record: Record) -> None:
    tell_round(log, record, name_of)
    if wants_json():
        return
    for client, why in [*record.absent.items(), *record.refused.items()]:
        log.info("  client %d %s", client, why)
