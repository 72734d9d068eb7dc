"""What protect = "secure-sum" excludes: whatever needs more of a member than its part of a total; one sentence each."""

from __future__ import annotations

from holdfast.algorithms import ALGORITHMS
from holdfast.algorithms.fedavg import FedAvg
from holdfast.algorithms.oneshot import OneShot
from holdfast.attacks import choose_attack
from holdfast.core.config import choose
from holdfast.core.errors import HoldfastError
from holdfast.digests.release_options import ReleaseOptions
from holdfast.heads.choosing import SERVER_STEP
from holdfast.method import Method
from holdfast.privacy.dp_sgd import PROTECTIONS
from holdfast.privacy.ledger import SECURE_SUM
from holdfast.runs.experiment import Experiment
from holdfast.secure_sum.member import FEWEST
from holdfast.secure_sum.options import SecureSum
from holdfast.selection.informed import Informed
from holdfast.trust import BySamples, Uniform


def check_total(experiment: Experiment, absence: ReleaseOptions) -> None:
    """Refuse, in one sentence, what a total of digests cannot give."""
    algorithm: OneShot = choose(ALGORITHMS, experiment.algorithm, "algorithm")
    refuse(
        {
            **common(experiment),
            f"sums moments: say absence.mode = 'moments', not {absence.mode!r}": absence.mode != "moments",
            "has one release: leave out absence.refresh": absence.refresh > 0,
            f"has no rows to train on: choose another head than {SERVER_STEP!r}": algorithm.head == SERVER_STEP,
        }
    )


def check_mean(experiment: Experiment) -> None:
    """Refuse, in one sentence, what cannot be done in rounds with the mean of updates alone."""
    algorithm = choose(ALGORITHMS, experiment.algorithm, "algorithm")
    rule, plain = experiment.trust.name, ("auto", "samples", "uniform")
    refuse(
        {
            **common(experiment),
            f"gives the moderator the mean of updates alone, and trust {rule!r} needs each: leave out trust": (
                rule not in plain
            ),
            f"gives the moderator the mean of updates alone, and algorithm {experiment.algorithm.name!r} needs more of "
            "each client: choose 'fedavg' or 'fedprox'": not averages(algorithm),
            "leaves nothing of a single member that could stand in for it: leave out absence, or learn from the total "
            "of digests with algorithm = 'oneshot'": experiment.absence.name != "none",
            "has one sum a round, and takes nothing of an earlier one: leave out late": experiment.late.name != "none",
            "hides how long an update is: say protect.clip in place of max_norm": experiment.max_norm is not None,
        }
    )


def check_plan(method: Method) -> None:
    """The same of what is known once model and data are."""
    rounds = not method.algorithm.one_message
    refuse(
        {
            "sums weights, and this model has buffers too (BatchNorm): choose another model": rounds
            and bool(list(method.bench.model.buffers())),
            "hides what a selection by losses or updates goes by: choose selection 'all' or 'uniform'": isinstance(
                method.selection, Informed
            ),
            "weighs by records or all alike: leave out trust": rounds
            and not isinstance(method.trust, BySamples | Uniform),
        }
    )


def common(experiment: Experiment) -> dict[str, bool]:
    secure: SecureSum = choose(PROTECTIONS, experiment.protect, "protect")
    attack = choose_attack(experiment.attack)
    least = max(FEWEST, secure.colluding + 2)
    return {
        "keeps single members' sums from the moderator, and scaling = 'federated' sends them: leave out scaling": (
            experiment.scaling != "schema"
        ),
        f"needs {least} clients at least with colluding = {secure.colluding}, and there are {experiment.clients}": (
            experiment.clients < least
        ),
        "hides whose numbers they are, so that an attack can only be played on data": attack is not None
        and "data" not in attack.kind,
    }


def averages(algorithm: object) -> bool:
    """Whether clients send updates and nothing else, and the moderator takes their mean."""
    kind = type(algorithm)
    moments = ("aggregate", "extra", "begin", "broadcast", "remember", "enclose", "shares", "moved", "asks_gradients")
    return isinstance(algorithm, FedAvg) and all(getattr(kind, name) is getattr(FedAvg, name) for name in moments)


def refuse(faults: dict[str, bool]) -> None:
    if wrong := [fault for fault, found in faults.items() if found]:
        raise HoldfastError(f"protect: '{SECURE_SUM}' {wrong[0]}.")
