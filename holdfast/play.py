"""Plays an experiment from its first round, or from where it stopped, to its last."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from holdfast.attacks.adversary import Adversary
from holdfast.core.errors import HoldfastError, nearest
from holdfast.core.memory import Memory
from holdfast.core.tensors import state_like
from holdfast.core.types import WITHDREW, Federation, State, has_withdrawn
from holdfast.core.validate import misfit
from holdfast.data.task import Task
from holdfast.engines.checked import Checked
from holdfast.engines.delayed import Delayed
from holdfast.engines.embedded import Crashed, Embedded, cores
from holdfast.engines.inline import Inline
from holdfast.engines.staged import Staged
from holdfast.record import Record
from holdfast.round import play_round
from holdfast.runs.build import make_plan
from holdfast.runs.choose_model import target_range
from holdfast.runs.curves import draw_curves
from holdfast.runs.early_stopping import has_stopped
from holdfast.runs.evaluation import Evaluator
from holdfast.runs.experiment import Experiment
from holdfast.runs.export import about_model
from holdfast.runs.history import History
from holdfast.runs.notebook import notebook_bar
from holdfast.runs.plan import Plan
from holdfast.runs.rehearse import without_effect
from holdfast.runs.scaling import learn_scaling
from holdfast.runs.store import EXCHANGES, Run
from holdfast.runs.withdrawal import (
    NEVER_KNEW,
    REPLAYED,
    STILL_KNOWS,
    TRAINED_AGAIN,
    Forgotten,
    Without,
    delete_files,
    first_heard,
    forgotten_in,
    write_forgotten,
)
from holdfast.scenarios import delays_of

Watch = Callable[[Record], None]
PLAIN_LAYOUT = (
    "A worker process crashed at its first batch in the layout channels-last, so this run is computed in the plain one."
)
Engine = Callable[[Plan, Path | None], Federation]  # the experiment's clients, wherever they are


def this_machine(plan: Plan, folder: Path | None) -> Federation:
    """The experiment's clients on this machine: in worker processes, or in this one."""
    workers = plan.experiment.workers
    if plan.task.bare:
        raise HoldfastError(
            f"task: {plan.task.name} has no records on this machine; say in `data` where they are, or play it over "
            "Flower, where each site has its own."
        )
    if plan.experiment.given is not None:  # an object of this process, which no other one has
        if workers:
            raise HoldfastError("workers: a task given as an object is computed in this process; leave out workers.")
        workers = 0
    workers = usual_workers(plan.device) if workers is None else workers
    if workers == 0:
        model = plan.model()
        return Inline({id: plan.client(id, model, folder) for id in range(plan.experiment.clients)}, folder)
    plan.encode_ahead(workers)
    return Embedded(plan.experiment, plan.stage.sizes, folder, workers)


def usual_workers(device: torch.device) -> int:
    """As many workers as cores, one where clients queue for an accelerator, or what HOLDFAST_WORKERS in the environment
    says (a shared machine, a small container)."""
    told = os.environ.get("HOLDFAST_WORKERS")
    if told is None:
        return cores() if device.type == "cpu" else 1
    if not told.isdecimal():
        raise HoldfastError(f"HOLDFAST_WORKERS must be a whole number, got {told!r}; 0 computes in one process.")
    return int(told)


def run(
    experiment: Experiment,
    out: Path | str | None = None,
    watch: Watch | None = None,
    engine: Engine = this_machine,
    secret: int | None = None,
) -> History:
    """Run an experiment; with `out`, leave a run folder there that can be resumed, compared and reported.

    With a `secret` whom the moderator asks to testify is drawn by that: where sites are real they know the seed.
    `watch` is called with the record of each round; without one, a notebook shows a bar.
    """
    plan = with_secret(make_plan(experiment), secret)
    watch = watch or notebook_bar(experiment.rounds)
    if out is None:
        return _play(plan, plan.start(), [], None, watch, engine)
    held = Run.create(Path(out), plan.experiment)
    try:
        held.keep_schema(plan.task.schema)
        return _play(plan, plan.start(), [], held, watch, engine)
    finally:
        held.close()


def with_secret(plan: Plan, secret: int | None) -> Plan:
    return dataclasses.replace(plan, method=dataclasses.replace(plan.method, secret=secret))


def resume(
    folder: Path | str,
    watch: Watch | None = None,
    engine: Engine = this_machine,
    task: Task | None = None,
    secret: int | None = None,
) -> History:
    """Go on with a run where it stopped; a finished one is only read. A task that was an object is given again."""
    held = Run.resume(Path(folder))
    try:
        if task is not None:
            held.experiment = same_task(held.experiment, task, folder)
        state = held.last_state()
        held.drop_damaged_model()
        records = held.records()
        if held.finished and state is not None and (state.round >= held.experiment.rounds or has_stopped(records)):
            return History(held.experiment, records, held.folder, state)
        plan = with_secret(make_plan(held.experiment), secret)
        held.check_schema(plan.task.schema)
        if held.schema < 3 and target_range(held.experiment, plan.task):
            raise HoldfastError(f"{folder}: begun before numbers were learnt in their public range; run it anew.")
        start = plan.start()
        if state is not None and (odd := misfit(state.model, start.model) or misfit(state.buffers, start.buffers)):
            raise HoldfastError(f"{folder}: its checkpoint does not fit the experiment: {odd}.")
        return _play(plan, state_like(start, state) if state else start, records, held, watch, engine)
    finally:
        held.close()  # also when it fails: who catches the error may want to resume in this very process


def forget(folder: Path | str, site: str, replay: bool = False, watch: Watch | None = None) -> Forgotten:
    """Delete what a run keeps of a member, and what its model learnt of it as far as that can be done.

    A model made of digests alone ("oneshot") is fitted again to the others', exactly as if the member had never been
    asked. A model of rounds is played again from the newest checkpoint before the member joined or, with `replay`, from
    the first round; without either it still knows what it learnt, and the run says so.
    """
    held = Run.resume(Path(folder))
    try:
        client = client_called(held.experiment, site)
        states = held.states()
        if not states:
            raise HoldfastError(f"{folder}: no checkpoint is whole, so there is nothing to forget in; see its files.")
        joined = first_heard(held.records(), client)
        deleted = delete_files(held, client)
        over = held.finished
        if joined is None:
            return write_forgotten(held.folder, client, site, deleted, NEVER_KNEW)
        if make_plan(held.experiment).method.algorithm.one_message:
            done = write_forgotten(held.folder, client, site, deleted, TRAINED_AGAIN)
            fit_again(held, states[-1].without([client]))
            return done
        before = [state.round for state in states if state.round < joined]
        if not before and not replay:
            done = write_forgotten(held.folder, client, site, deleted, STILL_KNOWS)
            [*_, last] = held.records()
            held.amend(dataclasses.replace(last, notes=[*last.notes, done.sentence]))
            return done
        start = max(before, default=0)
        done = write_forgotten(held.folder, client, site, deleted, REPLAYED.format(start + 1))
        held.go_back(start)
        if over and not (held.folder / EXCHANGES).exists():  # else the moderator resumes it, with its sites
            held.close()
            resume(folder, watch)
        return done
    finally:
        held.close()


def client_called(experiment: Experiment, site: str) -> int:
    """The number of the client with this name."""
    names = [experiment.name_of(client) for client in range(experiment.clients)]
    usual = [f"site-{client}" for client in range(experiment.clients)]
    found = {known.index(site) for known in (names, usual) if site in known}
    if len(found) > 1:
        raise HoldfastError(f"--site: {site!r} names one client in the experiment and another over Flower; rename it.")
    if found:
        return found.pop()
    raise HoldfastError(f"--site: there is no {site!r} in this run; {nearest(site, names)}")


def fit_again(held: Run, state: State) -> None:
    """The one round of a run of digests, ended again with those that are left; nobody is asked for a digest."""
    plan = make_plan(held.experiment)
    [*_, record] = held.records()
    counted = plan.method.sizes.counted({client: state.claims[client] for client in state.digests})
    gone = {one.client: WITHDREW for one in forgotten_in(held.folder)}
    with one_thread(), ExitStack() as stack:
        start = plan.start()
        model, buffers = start.model, start.buffers
        state = dataclasses.replace(state, model=model, buffers=buffers)
        if state.digests:
            model, buffers = plan.method.absence.fit_head(state, plan.method)
            state = dataclasses.replace(state, model=model, buffers=buffers)
        record = dataclasses.replace(
            record,
            absent={**record.absent, **gone},
            weights={client: count / sum(counted.values()) for client, count in counted.items()},
            notes=[*record.notes, *(one.sentence for one in forgotten_in(held.folder))],
        )
        far = plan.task.bare or (held.folder / EXCHANGES).exists()  # the sites are elsewhere
        federation = Inline({}) if far else stack.enter_context(federation_of(plan, held.folder))
        held.save(state, Evaluator(plan, federation).evaluate(state, record), last=True)
        held.finish(model, buffers, about_model(plan), draw_curves(plan, state))


def same_task(experiment: Experiment, task: Task, folder: Path | str) -> Experiment:
    """The experiment with the task that it was begun with."""
    again = dataclasses.replace(experiment, task=task)
    if again.task != experiment.task:
        raise HoldfastError(f"{folder} was begun with the task {experiment.task}, and this one is {again.task}.")
    return again


def _play(
    plan: Plan, state: State, records: list[Record], folder: Run | None, watch: Watch | None, engine: Engine
) -> History:
    experiment = plan.experiment
    home = folder.folder if folder else None
    found = folder.notes if folder else []  # what resuming found damaged goes into the next record
    if any(PLAIN_LAYOUT in record.notes for record in records):
        plan = in_plain_layout(plan)
    at = [state]  # handed over, so that the first model is not held beside the newest one
    del state
    with one_thread(), ExitStack() as stack:
        if at[0].round < experiment.rounds and not has_stopped(records):
            try:
                federation = stack.enter_context(federation_of(plan, home, engine))
            except Crashed:
                if plan.layout == "plain":
                    raise
                plan, found = in_plain_layout(plan), [*found, PLAIN_LAYOUT]
                federation = stack.enter_context(federation_of(plan, home, engine))
            at = [_play_rounds(plan, at.pop(), federation, records, folder, watch, found)]
    [state] = at
    if folder is not None:
        model = plan.method.absence.model_of(state)
        folder.finish(model, state.buffers, about_model(plan), draw_curves(plan, state))
    return History(experiment, records, home, state)


def in_plain_layout(plan: Plan) -> Plan:
    """The same plan, computed in the plain layout by everybody."""
    return make_plan(dataclasses.replace(plan.experiment, layout="plain"))


def _play_rounds(
    plan: Plan,
    state: State,
    federation: Federation,
    records: list[Record],
    folder: Run | None,
    watch: Watch | None,
    found: list[str],
) -> State:
    """Play the rounds that are left; each is written down and shown when it is over."""
    experiment = plan.experiment
    evaluator = Evaluator(plan, federation)
    if state.round == 0 and (why := without_effect(experiment)):
        found = [*found, why]
    if state.round == 0:
        state, lacking = learn_scaling(state, federation, plan.method)
        found = [*found, *lacking]
    while state.round < experiment.rounds and not has_stopped(records):
        state, record = play_round(state, federation, plan.method)
        record = forget_withdrawn(folder, state, record)
        if state.round % experiment.evaluate_every == 0 or state.round == experiment.rounds:
            record = evaluator.evaluate(state, record)
        why = None if plan.stop is None or record.measure is None else plan.stop.reason([*records, record])
        record, found = dataclasses.replace(record, notes=[*found, *record.notes, *([why] if why else [])]), []
        records.append(record)
        if folder is not None:
            folder.save(state, record, last=why is not None)
        if watch is not None:
            watch(record)
    return state


def forget_withdrawn(folder: Run | None, state: State, record: Record) -> Record:
    """Delete what the folder keeps of those who withdrew in this round; play_round has ended their digests."""
    known = {one.client for one in forgotten_in(folder.folder if folder else None)}
    notes = []
    for client in sorted(client for client, why in record.absent.items() if has_withdrawn(why)):
        if folder is not None and client not in known:
            heard = first_heard(folder.records(), client) is not None
            deleted, name = delete_files(folder, client), folder.experiment.name_of(client)
            done = write_forgotten(folder.folder, client, name, deleted, STILL_KNOWS if heard else NEVER_KNEW)
            notes.append(done.sentence)
    return dataclasses.replace(record, notes=[*record.notes, *notes]) if notes else record


@contextmanager
def federation_of(plan: Plan, folder: Path | None, engine: Engine = this_machine) -> Iterator[Federation]:
    """The experiment's clients on an engine, with its scenario and its hostile clients played on them."""
    federation = engine(plan, folder)
    if gone := [one.client for one in forgotten_in(folder)]:
        federation = Without(federation, gone)
    if plan.attack is not None:
        memory = hostile_memory(plan, folder)
        federation = Adversary(federation, plan.attack, plan.hostile, plan.experiment.seed, memory)
    played, scenario = Checked(federation, plan.method), str(plan.experiment.scenario)
    slow = delays_of(plan.scenario, plan.stage)
    try:
        yield Staged(
            Delayed(played, slow, scenario, folder, versions(plan)) if slow else played,
            plan.scenario,
            plan.stage,
            scenario,
        )
    finally:
        federation.close()


def hostile_memory(plan: Plan, folder: Path | None) -> Memory:
    """What the hostile clients keep together, with the run, so that it resumes to the same bits."""
    return Memory(folder and folder / "hostile", keep=versions(plan))


def versions(plan: Plan) -> int:
    """How many rounds a memory must reach back for the oldest checkpoint to find its own."""
    return 2 * plan.experiment.checkpoint_every + 2


@contextmanager
def one_thread() -> Iterator[None]:
    """The moderator computes with one thread, as the workers do: the same bits everywhere, and cores left for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
