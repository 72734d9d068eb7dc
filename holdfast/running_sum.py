"""A large model's updates are summed up as they arrive, so that the moderator holds one of them at a time:

    sum_i m_i delta_i / sum_i m_i          m_i: what an update weighs by its samples alone (`Trust.mass`)

Only where no part of the round looks at one update beside another. Others are kept and averaged when it is known who
has answered, as those of small models are: sum_i a_i delta_i with a_i = m_i / sum m, which rounds differently. The sum
is taken in the order of clients. An update whose m_i hangs on what others have yet to claim is kept until they have.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from holdfast.absence import AbsencePolicy
from holdfast.algorithms.fedavg import FedAvg
from holdfast.core.types import Absent, Reply, State, Tensors, Update, is_large, pack, unpack
from holdfast.core.validate import find_fault, moved
from holdfast.learning.workload import Workload
from holdfast.method import Method
from holdfast.selection.informed import Informed


def sums_up(state: State, method: Method) -> bool:
    """Whether the updates of a round are summed up as they arrive."""
    return (
        is_large(state.model)
        and method.trust.mass(1) is not None
        and type(method.algorithm).aggregate is FedAvg.aggregate
        and type(method.absence) is AbsencePolicy
        and type(method.workload) is Workload
        and not method.late.takes
        and not isinstance(method.selection, Informed)
    )


class RunningSum:
    """The sum of a round's updates so far, and what was found wrong with those that are not in it."""

    def __init__(self, state: State, asked: Collection[int], method: Method) -> None:
        self._state, self._asked, self._method = state, asked, method
        self._expected, self._frozen = method.expected(state), method.frozen()
        self._sum: Tensors = {}
        self.faults: dict[int, str | None] = {}  # of each update that has arrived
        self.bytes_up = 0

    def take(self, answer: Reply | Absent) -> Reply | Absent:
        """The answer, without the update where that is in the sum or refused; its tensors may be gone afterwards."""
        if isinstance(answer, Absent):
            return answer
        self.bytes_up += self._method.compress.bytes_up(answer.tensors)
        fault = find_fault(answer, self._expected, self._method.max_norm) or moved(answer, self._frozen)
        self.faults[answer.client] = fault
        if fault:
            return replace(answer, tensors={})
        buffers = pack(buffers=unpack(answer.tensors, "buffers"))
        claim = self._state.claims.get(answer.client, answer.scalars["samples"])
        samples = self._method.sizes.surely(answer.client, claim, self._state.claims, self._asked)
        if samples is None:
            return replace(answer, tensors={name: tensor.clone() for name, tensor in answer.tensors.items()})
        self._add(unpack(answer.tensors, "delta"), samples)
        return replace(answer, tensors={name: tensor.clone() for name, tensor in buffers.items()})

    def mean(self, updates: Sequence[Update]) -> Tensors:
        """The mean of the updates that count, those among them that were kept included; the sum is gone afterwards."""
        for update in updates:
            if update.delta:
                self._add(update.delta, update.samples)
        total = sum(self._mass(update.samples) for update in updates)
        return {name: self._sum.pop(name).div_(total) for name in list(self._sum)}

    def _add(self, delta: Tensors, samples: int) -> None:
        mass = self._mass(samples)
        if not self._sum:
            self._sum = {name: tensor * mass for name, tensor in delta.items()}
            return
        for name, tensor in delta.items():
            self._sum[name].add_(tensor, alpha=mass)

    def _mass(self, samples: int) -> float:
        mass = self._method.trust.mass(samples)
        assert mass is not None
        return mass
