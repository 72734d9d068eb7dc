"""What an experiment with algorithm = "oneshot" must be: one exchange of digests, and nothing that needs updates."""

from __future__ import annotations

from typing import Any

from holdfast.absence import AbsencePolicy
from holdfast.algorithms import ALGORITHMS
from holdfast.algorithms.oneshot import OneShot
from holdfast.context import About
from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.data.kinds import refuse_without_classes
from holdfast.data.task import Task
from holdfast.digests.release_options import ReleaseOptions, check_kind
from holdfast.heads.choosing import SERVER_STEP
from holdfast.heads.of_run import head_of, model_for
from holdfast.privacy.ledger import SECURE_SUM
from holdfast.runs.experiment import Experiment
from holdfast.runs.secure_sums import check_mean, check_total

USUAL = {  # what makes no sense without updates, and why
    "trust": ("auto", "there are no updates to weigh"),
    "protect": ("none", "no updates leave that could be protected; noise on digests is absence.mode = 'moments'"),
    "compress": ("none", "there are no updates to make smaller"),
    "workload": ("usual", "nobody takes steps"),
    "late": ("none", "there are no rounds to be late for"),
    "server_optimizer": ("none", "there are no steps for it to take"),
}


def sends_one_message(experiment: Experiment) -> bool:
    return experiment.algorithm.name == "oneshot"


def check_one_message(experiment: Experiment, task: Task, absence: AbsencePolicy) -> None:
    """Refuse, in one sentence, what does not go with one message."""
    if not isinstance(absence, ReleaseOptions):
        raise HoldfastError(
            "algorithm 'oneshot' learns from digests alone: say absence = 'feddig', whose mode is what leaves."
        )
    if experiment.rounds != 1:
        raise HoldfastError(f"algorithm 'oneshot' has one exchange and no rounds of training: say rounds = 1, not "
                            f"{experiment.rounds}.")  # fmt: skip
    for key, (usual, why) in USUAL.items():
        choice: Any = getattr(experiment, key)
        if choice.name != usual and not (key == "protect" and choice.name == SECURE_SUM):
            raise HoldfastError(f"{key}: with algorithm 'oneshot' {why}; leave {key} out.")
    check_kind(absence, About(task.name, task.classes, kind=task.kind.spec))
    if experiment.protect.name == SECURE_SUM:
        check_total(experiment, absence)


def model_of_head(experiment: Experiment, task: Task, absence: AbsencePolicy) -> Choice:
    """The model that the head is; where the network is trained on digests, the experiment's own."""
    algorithm: OneShot = choose(ALGORITHMS, experiment.algorithm, "algorithm")
    assert isinstance(absence, ReleaseOptions)
    head = head_of(algorithm.head, absence, task.kind, total=experiment.protect.name == SECURE_SUM)
    wanted = Choice.parse(model_for(head), "model")
    own = experiment.model
    if own.name != "auto" and (own.name != wanted.name if head == SERVER_STEP else own != wanted):
        network = f", or choose algorithm = 'oneshot:{SERVER_STEP}'" if own.name == "features" else ""
        raise HoldfastError(f"model: with algorithm 'oneshot' and this head it is {wanted}; leave model out{network}.")
    return wanted if own.name == "auto" else own


def check_in_rounds(experiment: Experiment, task: Task, absence: AbsencePolicy) -> None:
    """Refuse what cannot stand in, round by round, for a client that is away."""
    if experiment.protect.name == SECURE_SUM:
        check_mean(experiment)
    refuse_without_classes(task.kind, absence, f"absence {str(experiment.absence)!r}", "choose absence = 'none'")
    if not isinstance(absence, ReleaseOptions):
        return
    check_kind(absence, About(task.name, task.classes, kind=task.kind.spec))
    if absence.mode == "sums" and task.kind.has_classes:
        raise HoldfastError(
            "absence.mode: in rounds, classes stand in by rows or moments: choose mode = 'paper' or 'moments', or "
            "algorithm = 'oneshot' with rounds = 1, whose heads follow from sums."
        )
