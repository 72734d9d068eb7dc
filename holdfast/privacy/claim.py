"""The claim: what a release truly promises, in fields for the machine and sentences for the user."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import HoldfastError, brief
from holdfast.privacy.noise import SEEDED

RECORD, PATIENT = "one record", "one patient"  # whom a promise is for
REPLACE_ONE = f"replace {RECORD}"
REPLACE_FEATURES = "replace one record's features; labels and counts are public"


@dataclass(frozen=True)
class Claim:
    """The truth about one release. Scale and sensitivity are in grid steps; an infinite epsilon means no guarantee."""

    mode: str
    adjacency: str
    epsilon_nominal: float  # what was asked for
    epsilon_features: float
    epsilon_labels: float
    epsilon_total: float
    delta: float
    noise: str
    scale: float
    sensitivity: float
    grid: str
    clip: float
    entropy: str
    spd: int = 0  # records that every digest is sure to mix; 0 where digests are not mixed
    ratio: float = 0.0  # sensitivity / scale of Gaussian noise: what the accountant composes; 0 if there is none
    epsilon_pure: float = 0.0  # the part that holds at delta = 0: Laplace noise and randomised response
    epsilon_grid: float = 0.0  # what discrete Gaussian noise costs beyond continuous noise
    delta_factor: float = 1.0
    delta_grid: float = 0.0
    multiplier: float = 0.0  # DP-SGD: scale / clip of each step's noise; 0 if there are no steps
    rate: float = 0.0  # DP-SGD: the chance of a record to be in a step's batch
    steps: int = 0  # DP-SGD: steps in this release
    notes: tuple[str, ...] = ()

    @property
    def for_patients(self) -> bool:
        """Whether the promise is for a patient with all records."""
        return PATIENT in self.adjacency

    @property
    def guarantee(self) -> str:
        """One sentence.

        >>> paper(features=256, spd=4, S=20000, epsilon=0.005).guarantee
        'no guarantee: epsilon is infinite (nominal 0.005)'
        """
        if self.entropy == SEEDED:
            return SEEDED
        if not math.isfinite(self.epsilon_nominal):
            return "no guarantee: there is no noise, so epsilon is infinite"
        if not math.isfinite(self.epsilon_total):
            return f"no guarantee: epsilon is infinite (nominal {self.epsilon_nominal:g})"
        return f"({self.epsilon_total:.4g}, {self.delta:g})-differential privacy: {self.adjacency}"

    def as_json(self) -> dict[str, Any]:
        """What from_json reads back; an infinite number is written as text, as JSON has none."""
        fields = dataclasses.asdict(self)
        return {
            name: "infinite" if isinstance(value, float) and math.isinf(value) else value
            for name, value in fields.items()
        } | {"notes": list(self.notes)}

    @classmethod
    def from_json(cls, fields: object) -> Claim:
        """The claim that as_json wrote; anything of another form is refused."""
        if not isinstance(fields, Mapping):
            raise HoldfastError(f"claim: expected its fields, got {brief(fields)}.")
        values: dict[str, Any] = {name: math.inf if value == "infinite" else value for name, value in fields.items()}
        known = {field.name: field.default is dataclasses.MISSING for field in dataclasses.fields(cls)}
        odd = (values.keys() - known.keys()) | {name for name, needed in known.items() if needed and name not in values}
        if odd:
            raise HoldfastError(f"claim: the fields {', '.join(sorted(odd))} are missing or not known.")
        for field in dataclasses.fields(cls):
            if field.name in values and not _fits(values[field.name], str(field.type)):
                raise HoldfastError(f"claim: {field.name} is {brief(fields[field.name])}, which makes no sense.")
        return cls(**{**values, "notes": tuple(values.get("notes", ()))})


def _fits(value: object, kind: str) -> bool:
    """Whether a value from JSON is of the kind that a field is declared to be; numbers are never negative."""
    if kind == "str":
        return isinstance(value, str)
    if kind.startswith("tuple"):
        return isinstance(value, list) and all(isinstance(note, str) for note in value)
    if isinstance(value, bool) or not isinstance(value, int if kind == "int" else int | float):
        return False
    return 0 <= value <= 2**53 or (isinstance(value, float) and value > 0)


def paper(
    features: int, spd: int, S: int, epsilon: float, heaviest: float | None = None, signed: bool = False
) -> Claim:
    """The claim of the published mixed digest: float Laplace noise of scale tau / (S epsilon) on means of SpD records.

    Were tau = max |feature| public, replacing r by r' would change a digest by w (r' - r), w being the heaviest weight
    of mixing (usually 1/SpD). Features that are never negative, as after the paper's ReLU, lie in [0, tau]: at most
    w tau in each of l coordinates, L1 sensitivity w l tau, hence epsilon = w l S epsilon. Signed ones lie in
    [-tau, tau], and r = (-tau, ..., -tau), r' = (tau, ..., tau) reach twice that: 2 w l S epsilon. As tau is the
    client's largest feature and the labels are released exactly, strictly it is infinite.

    >>> paper(features=256, spd=4, S=20000, epsilon=0.005).epsilon_features
    6400.0
    >>> paper(features=256, spd=4, S=20000, epsilon=0.005, signed=True).epsilon_features
    12800.0
    """
    w = 1 / spd if heaviest is None else heaviest
    change = (2 if signed else 1) * w * features  # in units of tau
    return Claim(
        mode="paper",
        adjacency=REPLACE_ONE,
        epsilon_nominal=epsilon,
        epsilon_features=change * S * epsilon,
        epsilon_labels=math.inf,
        epsilon_total=math.inf,
        delta=0.0,
        noise="laplace (floating point)",
        scale=1 / (S * epsilon),
        sensitivity=change,
        grid="none; scale and sensitivity in units of tau",
        clip=math.inf,
        entropy="pseudo-random floats",
        spd=spd,
        notes=(
            f"Epsilon {epsilon:g} is nominal: were tau public, the features alone would cost {change * S * epsilon:g}.",
            "Strictly epsilon is infinite: tau is taken from the data and the mixed labels are released exactly.",
            "Floating-point noise leaks through its low bits.",
        ),
    )


def of_sums(
    mode: str,
    asked: tuple[float, float],
    spent: float,
    ratio: float,
    grid_cost: tuple[float, float, float],
    *,
    scale: float,
    sensitivity: float,
    grid: str,
    entropy: str,
    notes: tuple[str, ...],
    noise: str = "discrete gaussian",
) -> Claim:
    """Sums of records with Gaussian noise: `asked` is (epsilon, delta); one epsilon covers features and targets."""
    epsilon, delta = asked
    extra, factor, tail = grid_cost
    return Claim(
        mode=mode,
        adjacency=REPLACE_ONE,
        epsilon_nominal=epsilon,
        epsilon_features=spent,
        epsilon_labels=spent,
        epsilon_total=spent,
        delta=delta,
        noise=noise,
        scale=scale,
        sensitivity=sensitivity,
        grid=grid,
        clip=1.0,
        entropy=entropy,
        ratio=ratio,
        epsilon_grid=extra,
        delta_factor=factor,
        delta_grid=tail,
        notes=(*notes, "The number of records is public under this adjacency; in a federation it leaves exactly."),
    )


def unprotected() -> Claim:
    """The claim of updates that leave as they are: none.

    >>> unprotected().guarantee
    'no guarantee: there is no noise, so epsilon is infinite'
    """
    return dataclasses.replace(
        only_mixing(features=1, spd=1),
        mode="none",
        sensitivity=math.inf,
        grid="none",
        spd=0,
        notes=("Updates of the model leave as they are; records can be reconstructed from them.",),
    )


def only_mixing(features: int, spd: int) -> Claim:
    """The claim of a mixed digest without noise: none.

    >>> only_mixing(features=64, spd=4).guarantee
    'no guarantee: there is no noise, so epsilon is infinite'
    """
    return dataclasses.replace(
        paper(features, spd, 1, 1.0),
        epsilon_nominal=math.inf,
        epsilon_features=math.inf,
        noise="none",
        scale=0.0,
        entropy="none",
        notes=(
            "There is no noise, so there is no differential privacy of any epsilon.",
            "Who knows all records of a digest but one knows the last one; the mixed labels are released exactly.",
        ),
    )
