"""What a member planted is found in all that it taught, and is taken out of the model again.

A backdoor in few records shows only once the model has learnt it; then it is not enough to silence who planted it, as
nobody unlearns it. So the moderator keeps account of what the model has from each member. In that a backdoor adds up
round by round, and what others teach too can be taken off:

    1  taught   T_i = sum over rounds of r a_i delta_i: a_i delta_i is i's part in the average of a round, and r how far
                the model went along that average, 1 but for a server optimiser or a server step
    2  alone    P_i = T_i less its projection on the span of what those taught of whom least is said, half of all but i:
                what others teach as well is not in it. P_i, with i's update of this round in it, is what witnesses
                search for backdoors (backdoor_probe.py), from the second search on
    3  out      the model, and the last good one, lose s_i P_i, and T_i does, s_i the share of its say that i lost by
                this evidence (jury.py, 7): nearly all that is right in T_i stays. Not in the last round, since what
                else is lost with it the next rounds have to mend

T_i is a sum of updates that the moderator has seen; it is deleted when a member withdraws. A round that the floor undid
is not in it, though what the last good model lacks of the rounds before that is. Where members sign their updates,
testers accept no directions that the moderator made: they are sent the round's updates alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from holdfast.core.names import Called
from holdfast.core.rows import inner_products, norms_of
from holdfast.core.tensors import unflat
from holdfast.core.types import State, Tensors, Update, pack
from holdfast.trust.base import Judgement
from holdfast.trust.consensus import Values
from holdfast.trust.floor import WitnessPanel
from holdfast.trust.panel import CONFIRM, NEW, PanelRequest
from holdfast.trust.reputation import ramp
from holdfast.trust.robust.merging import stacked
from holdfast.trust.words import compare

RIDGE = 0.01  # of a row's own length, by which spans are blurred: a trace of a backdoor in one row explains no other's
MANY = 13  # members: half of fewer have too little in common with each of them, which is too large a part of the whole
HALVES = 4  # how often what is taken out is halved until the witnesses do not lose by it
TOLD = 0.1  # of the length of what it taught: less goes without saying


def account(before: State, after: State, judged: Judgement) -> State:
    """Step 1: the state with what the model has from each member, one row each in the rule's memory."""
    rows, members = stacked(judged.updates), len(judged.memory["planted"])
    taught = before.trust.get("taught", rows.new_zeros(members, rows.shape[1]))
    if before.round in after.accepted.values():  # else the round was undone
        weights = torch.tensor(judged.weights, dtype=torch.float64)
        average = weights @ rows.double()
        went = torch.cat([(after.model[n] - before.model[n]).flatten() for n in judged.updates[0].delta]).double()
        length = float(average @ average)
        reach = max(0.0, float(went @ average) / length) if length > 0 else 0.0
        parts = (reach * weights)[:, None].to(rows.dtype) * rows
        taught = taught.index_add(0, torch.tensor([update.client for update in judged.updates]), parts)
    return replace(after, trust={**after.trust, "taught": taught})


def alone(rows: Tensor, planted: Values) -> Tensor:
    """Step 2: of each row what is not in the span of the others of whom least is said.

    >>> rows = torch.tensor([[2.0, 0.0, 0.0], [1.0, 1.0, 0.0], [5.0, 4.0, 3.0], [1.0, 0.0, 4.0]])
    >>> alone(rows, np.array([0.0, 0.0, -0.1, -0.2])).round().abs().tolist()[2:]
    [[0.0, 0.0, 3.0], [0.0, 0.0, 4.0]]
    """
    products = inner_products(rows)
    products += RIDGE * products.diag().diag()
    least, mixing = planted >= np.median(planted), torch.eye(len(rows), dtype=torch.float64)
    for row in range(len(rows)):
        others = torch.from_numpy(least & (np.arange(len(rows)) != row)).nonzero().flatten()
        known = products[others][:, others]
        mixing[row, others] = -products[row, others] @ torch.linalg.pinv(known, rtol=1e-10, hermitian=True)
    return mixing.to(rows.dtype) @ rows


def taught_alone(state: State, updates: Sequence[Update]) -> Tensors:
    """What testers search, directions of length one stacked name by name; none, before anything was said of anybody."""
    clients, taught = [update.client for update in updates], state.trust.get("taught")
    planted, rows = state.trust["planted"].numpy()[clients], stacked(updates)
    if taught is None or not planted.any():
        return {}
    found = alone(taught[clients] + rows / len(rows), planted)
    found /= norms_of(found).clamp_min(1e-30).to(found.dtype)[:, None]
    parts = found.split([tensor.numel() for tensor in updates[0].delta.values()], 1)
    return {
        name: part.reshape(len(rows), *tensor.shape)
        for (name, tensor), part in zip(updates[0].delta.items(), parts, strict=True)
    }


def take_out(after: State, judged: Judgement, panel: WitnessPanel, lose: float) -> tuple[State, Judgement]:
    """Step 3: the state without what members planted, and the judgement with a note of it."""
    taught, lost = after.trust["taught"], 1 - ramp(after.trust, "planted")
    if not lost.any():
        return after, judged
    out = torch.from_numpy(lost).to(taught.dtype)[:, None] * alone(taught, after.trust["planted"].numpy())
    shifts = {str(k): unflat(out.sum(0) / 2**k, judged.updates[0].delta) for k in range(HALVES)}
    models = {NEW: after.model} | {name: {**after.model, **less(after.model, shift)} for name, shift in shifts.items()}
    asked = PanelRequest(pack(**models), pack(**dict.fromkeys(models, after.buffers)))
    words = panel.ask(CONFIRM, asked)
    found = {name: compare(words, name, NEW) for name in shifts}
    fine = [name for name, one in found.items() if one is not None and one.change >= -lose]
    judged = panel.billed(judged)
    if not fine:
        return after, judged
    name = min(fine, key=int)
    out = out / 2 ** int(name)
    trust = {**after.trust, "taught": taught - out, **less(after.trust, shifts[name], "good/")}
    shares = out.norm(dim=1) / taught.norm(dim=1).clamp_min(1e-30)
    told = [client for client, share in enumerate(shares.tolist()) if share >= TOLD]
    return replace(after, model=models[name], trust=trust), noted(judged, told, panel.hearing.context.called)


def less(tensors: Tensors, shift: Tensors, prefix: str = "") -> Tensors:
    """The tensors that are shifted, less the shift."""
    return {
        prefix + name: tensors[prefix + name] - change for name, change in shift.items() if prefix + name in tensors
    }


def noted(judged: Judgement, clients: Sequence[int], called: Called) -> Judgement:
    if not clients:
        return judged
    names = ", ".join(called(client) for client in clients)
    return replace(judged, notes=[*judged.notes, f"what {names} alone taught was taken out of the model"])
