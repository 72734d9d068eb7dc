"""A round's first exchange where the algorithm needs it (Mime): clients' gradients at the model, averaged to one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from holdfast.client import GRADIENT, GradientRequest
from holdfast.core.tensors import in_order
from holdfast.core.types import Absent, Federation, Reply, State, Tensors, Update, has_withdrawn, size, weighted_sum
from holdfast.core.validate import too_long
from holdfast.learning.loop import full_gradient
from holdfast.learning.objective import TaskLoss
from holdfast.method import Method
from holdfast.models.networks import fill
from holdfast.trust import Hearing
from holdfast.trust.base import check_judgement


@dataclass(frozen=True)
class Opening:
    """What a round begins with: the state with what the clients agreed on, and those who gave nothing to it."""

    state: State
    absent: dict[int, str] = field(default_factory=dict)  # they are not asked to train
    bytes_up: int = 0
    bytes_down: int = 0


def open_round(state: State, federation: Federation, asked: Iterable[int], method: Method) -> Opening:
    """The state in which the algorithm knows the mean gradient of clients and stand-ins, weighed by the trust rule."""
    if not method.algorithm.asks_gradients:
        return Opening(state)
    request = GradientRequest(**method.shared(state.model, state.buffers))
    messages = [GRADIENT.message(client, state.round, request) for client in asked]
    replies = federation.ask(messages)
    heard = [reply for reply in replies if isinstance(reply, Reply)]
    absent = {reply.client: reply.reason for reply in replies if isinstance(reply, Absent)}
    told = {reply.client: GRADIENT.read(reply) for reply in heard}
    lr = method.learning_in(state.round).lr
    for client, one in list(told.items()):
        if fault := too_long(step_along(one.gradient, lr), method.max_norm):
            absent[client] = f"its gradient is refused: as a step {fault}"
            del told[client]
    claims = {**{client: one.samples for client, one in told.items()}, **state.claims}
    counted = method.sizes.counted(claims)
    found = [(client, in_order(one.gradient, state.model), counted[client]) for client, one in told.items()]
    found += [
        one for client, why in absent.items() if not has_withdrawn(why) for one in of_stand_in(state, client, method)
    ]
    down = sum(size(message.tensors) for message in messages if message.client not in absent)
    server = state.algorithm
    if found:
        server = method.algorithm.agreed(
            server, mean_gradient(sorted(found, key=lambda one: one[0]), state, federation, method)
        )
    return Opening(replace(state, algorithm=server), absent, sum(size(reply.tensors) for reply in heard), down)


def of_stand_in(state: State, client: int, method: Method) -> list[tuple[int, Tensors, int]]:
    """The gradient of what stands in for a client, if anything that has samples does."""
    recalled = method.absence.recall_samples(state, method, client)
    if recalled is None:
        return []
    samples, count = recalled
    bench = method.bench
    fill(bench.model, state.model, state.buffers)
    return [(client, full_gradient(bench.model, samples, method.learning, TaskLoss(bench.loss)), count)]


def mean_gradient(
    found: list[tuple[int, Tensors, int]], state: State, federation: Federation, method: Method
) -> Tensors:
    """c; the rule judges each gradient as an update of one step."""
    lr = method.learning_in(state.round).lr
    steps = [Update(client, step_along(gradient, lr), count, 1) for client, gradient, count in found]
    judged = check_judgement(
        method.trust, method.trust.judge(steps, Hearing(method, federation, received=steps), state)
    )
    weight = dict(zip([update.client for update in judged.updates], judged.weights, strict=True))
    return weighted_sum([gradient for _, gradient, _ in found], [weight.get(client, 0.0) for client, _, _ in found])


def step_along(gradient: Tensors, lr: float) -> Tensors:
    """The update of one plain step."""
    return {name: -lr * tensor for name, tensor in gradient.items()}
