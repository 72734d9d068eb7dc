"""What a client's digest may be: the options of a release, and which of them cannot go together or with the data."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from holdfast.context import About
from holdfast.core.errors import HoldfastError
from holdfast.data.kinds import Survival, kind_of
from holdfast.digests.compact import Compact
from holdfast.digests.mixing import given_weights, read_weights
from holdfast.digests.sums import NUMBERS, bounds_of

COMPACT = {  # how a digest travels, by the bits of a feature
    "32": Compact("float32"),
    "16": Compact("float16", compress=True),
    "8": Compact("int8", compress=True),
    "6": Compact("int6", compress=True),
    "4": Compact("int4", compress=True),
}
EPSILON = 3.0  # of the strict modes where none is named
EXACT = ("paper", "sums")  # modes without a true promise


@dataclasses.dataclass(frozen=True)
class ReleaseOptions:
    """What a client releases of its records."""

    spd: int = 4  # samples per digest
    strategy: Literal["across", "within"] = "within"  # mix across classes, or within a class
    weights: str = "balanced"  # of mixing; or "random", or numbers for the spd samples, as in 0.7/0.3
    epsilon: float | None = None  # mode paper: nominal; none: only mixing. Strict modes: true, for all of a release
    size: int = 20_000  # the paper's S, in the noise scale tau / (S epsilon)
    bits: Literal["32", "16", "8", "6", "4"] = "8"  # of each feature on the wire; all but 32 are compressed
    refresh: int = 0  # ask for a new digest every so many rounds; 0: once
    mode: Literal["paper", "dp-label-public", "dp-full", "moments", "sums"] = "paper"
    delta: float = 1e-5  # of the strict modes; 0: Laplace noise (not for moments)
    large_delta: bool = False  # insist on a delta above 1e-3 or 1 / records
    clip: float = 1.0  # strict modes: the public bound on a feature vector's length; longer ones are shortened
    label_share: float = 0.5  # of epsilon that dp-full spends on labels
    policy: str | None = None  # a policy file for clients that have none of their own
    target_range: tuple[float, float] | None = None  # public, of a regression's or a count's targets: needed for noise
    printed: bool = False  # use digests as printed: rows as they are, no warm start, a server step at the full lr

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def true_epsilon(self) -> float:
        """What a strict release may cost."""
        return EPSILON if self.epsilon is None else self.epsilon


def check_options(options: ReleaseOptions) -> None:
    """Refuse options that the mode does not have or that would break its promise."""
    if options.spd < 1 or options.refresh < 0 or options.size < 1:
        raise ValueError("spd and size must be at least 1, refresh not negative.")
    if options.epsilon is not None and not 0 < options.epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, got {options.epsilon}; leave it out for no noise.")
    strict = options.mode != "paper"
    if strict and options.weights != "balanced":
        raise ValueError(f"mode {options.mode!r} mixes with equal weights; leave out weights = {options.weights!r}.")
    if not 0 <= options.delta < 1 or (options.mode == "moments" and not options.delta):
        raise ValueError(f"delta must lie between 0 and 1, for mode 'moments' above 0, got {options.delta}.")
    if not 0 < options.clip < math.inf:
        raise ValueError(f"clip must be positive, got {options.clip}.")
    if options.mode == "moments" and options.clip != 1.0:
        raise ValueError("mode 'moments' is proved for features within a length of 1; leave clip out.")
    if not 0 < options.label_share < 1:
        raise ValueError(f"label_share must lie between 0 and 1, got {options.label_share}.")
    if not isinstance(weights := read_weights(options.weights), str):
        given_weights(weights, options.spd)
    if options.mode == "sums" and options.epsilon is not None:
        raise ValueError("mode 'sums' has no noise; leave epsilon out, or choose mode = 'moments'.")
    if (
        options.target_range is not None
        and not -math.inf < options.target_range[0] < options.target_range[1] < math.inf
    ):
        raise ValueError(f"target_range must be two rising numbers, as in 0/100, got {options.target_range}.")


def check_kind(options: ReleaseOptions, about: About) -> None:
    """Refuse a mode that cannot work for the kind of target, with the reason."""
    kind = kind_of(about.kind)
    if kind.has_classes:
        return
    if options.mode == "paper" and isinstance(kind, Survival):
        raise HoldfastError(
            "absence.mode: 'paper' mixes records, and a mean of times and events is no time; of survival only sums can "
            "leave: choose the kind 'hazards' with public cuts, and mode = 'sums' or 'moments'."
        )
    if options.mode not in ("sums", "moments"):
        raise HoldfastError(
            f"absence.mode: {options.mode!r} is made for classes, and the targets are of kind {kind.name!r}; choose "
            "mode = 'moments', or 'sums' without a promise."
        )
    bounds_of(kind, about.classes)
    if options.mode == "moments" and kind.name in NUMBERS and options.target_range is None:
        raise HoldfastError(
            f"absence.target_range: noise on targets of kind {kind.name!r} needs their public range, as in "
            "target_range = [0, 100]; take it from what is known of them, never from the records."
        )


def check_features(options: ReleaseOptions, about: About) -> None:
    """Refuse an encoder whose features have no public bound: whatever is in a digest must lie within it."""
    if options.mode == "paper" and about.feature_shape and about.norm_bound is None:
        raise HoldfastError(
            "encoder: it names no norm_bound, so nobody could tell a digest's features from absurd ones; "
            "give the Encoder the length that no feature vector exceeds."
        )
    if options.mode != "paper" and len(about.feature_shape) != 1:
        shape = "x".join(map(str, about.feature_shape))
        raise HoldfastError(
            f"absence.mode: {options.mode!r} needs features within a public norm bound, and the encoder's {shape} "
            "features have none; choose encoder = 'scattering', or mode = 'paper'."
        )


def noisy(options: ReleaseOptions) -> bool:
    """Whether the release holds noise, so that making it again would be another release."""
    return options.mode not in EXACT or options.epsilon is not None


def check_weighted(options: ReleaseOptions, weighted: bool) -> None:
    """Refuse digests in which a record's weight would be lost, or would break the promise."""
    if not weighted or options.mode == "sums":
        return
    why = "the rows of a digest all count alike"
    if options.mode not in EXACT:
        why = "its noise covers records that count once"
    raise HoldfastError(
        f"absence.mode: {options.mode!r} cannot carry the weights of records, as {why}; choose mode = 'sums', or leave "
        "weight out of the schema."
    )


def sums_leave(options: ReleaseOptions, about: About) -> bool:
    """Whether what leaves are joint sums of features and targets."""
    return options.mode == "sums" or (options.mode == "moments" and not kind_of(about.kind).has_classes)
