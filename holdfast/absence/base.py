"""Nothing stands in: a missing client is missed. The other absences change what they need of this."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from holdfast.context import Context, Owner
from holdfast.core.types import Reply, State, Tensors, Update
from holdfast.data.task import Samples
from holdfast.digests.moments import MomentDigest
from holdfast.digests.sums import SumDigest


class NoStandIns:
    """The stand-ins of nobody."""

    def result(self, absent: Collection[int], received: Sequence[Update]) -> list[Update]:
        """The updates of the absent clients' stand-ins; called once, when it is known who is absent."""
        return []


@dataclass(frozen=True)
class AbsencePolicy:
    """A missing client is missed."""

    needs_features: ClassVar[bool] = False  # whether the model must read encoded features
    needs_classes: ClassVar[bool] = False  # whether what stands in is made of classes

    @property
    def noised(self) -> bool:
        """Whether what stands in leaves a client with noise, under a promise about single records."""
        return False

    @property
    def protects(self) -> bool:
        """Whether what leaves with it carries a promise of privacy."""
        return False

    def begin(self, context: Context) -> Tensors:
        """The moderator's memory before round 1."""
        return {}

    def wants_digest(self, state: State, client: int) -> bool:
        """Whether the client is asked for its digest along with this round's update."""
        return False

    @property
    def named_policy(self) -> str | None:
        """The policy file that the experiment names for clients that have none of their own."""
        return None

    def with_policy(self, named: str) -> Self:
        """The same with this policy file for clients that have none of their own."""
        return self

    def make_digest(self, owner: Owner, samples: Samples, round: int) -> Tensors:
        """At the client: the digest of its samples that it is willing to leave with the moderator."""
        return {}

    def memory_for(self, state: State, client: int) -> Tensors:
        """What a returning client takes over from its stand-in (its control variate, as the stand-in left it)."""
        return {}

    def receive(
        self, state: State, replies: Sequence[Reply], context: Context
    ) -> tuple[Mapping[int, Tensors], dict[int, str]]:
        """All digests in force after this round's replies, and the clients whose new digest is refused, with why."""
        return state.digests, {}

    def believed(self, state: State) -> Mapping[int, Tensors]:
        """The digests that stand in, teach and testify."""
        return state.digests

    def doubts(self, state: State) -> dict[int, str]:
        """The clients whose digest is not believed, and why."""
        return {}

    def testimony(self, state: State, context: Context) -> Mapping[int, Samples]:
        """What the digests that are believed say, as samples, for trust rules that hear them."""
        return {}

    def recall_samples(self, state: State, context: Context, client: int) -> tuple[Samples, int] | None:
        """The samples on which an absent client's stand-in trains, and how many they count as; none: it has none."""
        return None

    def stand_ins(self, state: State, asked: Collection[int], context: Context) -> NoStandIns:
        """Start what stands in for the clients asked that were away in the last round, while the others train."""
        return NoStandIns()

    def review(self, before: State, after: State, context: Context) -> State:
        """The state with new digests judged by the others, for trust rules that doubt digests."""
        return after

    def server_step(self, before: State, after: State, updates: Sequence[Update], context: Context) -> State:
        """The state after the moderator's own step, given that before the round and after the averaging."""
        return after

    def fit_head(self, state: State, context: Context) -> tuple[Tensors, Tensors]:
        """Weights and buffers of a model that is fitted to the digests alone, for algorithm "oneshot"."""
        raise NotImplementedError

    def fit_total(self, total: MomentDigest | SumDigest, context: Context) -> tuple[Tensors, Tensors]:
        """The same, fitted to what all members' records say together."""
        raise NotImplementedError

    def model_of(self, state: State) -> Tensors:
        """The model to be tested and used."""
        return state.model
