"""What a member planted is found in all that it taught, and is taken out of the model again.

A backdoor in few records shows only once the model has learnt it; then it is not enough to silence who planted it, as
nobody unlearns it. So the moderator keeps account of what the model has from each member, where a backdoor adds up
round by round, and of what the model was spared, so that who was found stays found once the model is clean:

    1  taught   T_i = sum over rounds of r a_i delta_i: a_i delta_i is i's part in the average of a round, and r how far
                the model went along that average, 1 but for a server optimiser or a server step
       aside    A_i = what was taken out (3), and s_i delta_i / n of each of n updates, at most as long as the median
                one, s_i the share of its say that i lost by this evidence (jury.py, 7). It fades by `slow` in a round
    2  alone    U_i = T_i + A_i, and P_i = U_i less its projection on the span of the U_j of others: of those who help
                (reputation.py), as members who send noise explain nothing, the half of whom least is said. What others
                teach as well is not in it. P_i, with i's update of this round in it, is what witnesses search for
                backdoors (backdoor_probe.py), from the second search on, and where the model with all A_i in it is, at
                most two updates away: it has whatever they planted
    3  out      of what i alone taught s_i is taken out of the model, and of the last good one: they, and T_i, lose
                P(T_i) in proportion. Nearly all that is right in T_i stays. Nothing is put back: A_i has what i would
                have planted. Not in the last round, since what else is lost with it the next rounds have to mend

All this is sums of updates that the moderator has seen; it is deleted when a member withdraws. A round that the floor
undid is not in T_i, though what the last good model lacks of the rounds before that is. Where members sign their
updates, testers accept nothing that the moderator made: they are sent the round's updates alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from holdfast.core.names import Called
from holdfast.core.rows import inner_products, norms_of
from holdfast.core.tensors import unflat
from holdfast.core.types import State, Tensors, Update, pack, unpack
from holdfast.trust.base import Judgement
from holdfast.trust.consensus import Flags, Values
from holdfast.trust.measures import TestRequest
from holdfast.trust.panel import CONFIRM, NEW, PanelRequest
from holdfast.trust.reputation import helping, ramp
from holdfast.trust.robust.merging import stacked
from holdfast.trust.witnesses import WitnessPanel
from holdfast.trust.words import compare

RIDGE = 0.01  # of a row's own length, by which spans are blurred: a trace of a backdoor in one row explains no other's
MANY = 13  # members: half of fewer have too little in common with each of them, which is too large a part of the whole
HALVES = 4  # how often what is taken out is halved until the witnesses do not lose by it
AWAY = 2.0  # median lengths of an update, at most, from the model to where witnesses search
TOLD = 0.1  # of the length of what it taught: less goes without saying


def account(before: State, after: State, judged: Judgement, slow: float) -> State:
    """Step 1: the state with what the model has from each member, one row each in the rule's memory, and lacks."""
    rows, members = stacked(judged.updates), len(judged.memory["planted"])
    taught = before.trust.get("taught", rows.new_zeros(members, rows.shape[1]))
    clients, lost = [update.client for update in judged.updates], lost_by_planting(judged.memory)
    aside = {client: (1 - slow) * row for client, row in set_aside(after.trust).items()}
    lengths = norms_of(rows)
    usual = float(lengths.quantile(0.5))
    for client, row, length in zip(clients, rows, lengths.tolist(), strict=True):
        if lost[client] > 0:
            part = float(lost[client]) / len(rows) * min(1.0, usual / max(length, 1e-30))
            aside[client] = aside.get(client, torch.zeros_like(row)) + part * row
    if before.round in after.accepted.values():  # else the round was undone
        weights = torch.tensor(judged.weights, dtype=torch.float64)
        average = weights @ rows.double()
        went = torch.cat([(after.model[n] - before.model[n]).flatten() for n in judged.updates[0].delta]).double()
        square = float(average @ average)
        reach = max(0.0, float(went @ average) / square) if square > 0 else 0.0
        parts = (reach * weights)[:, None].to(rows.dtype) * rows
        taught = taught.index_add(0, torch.tensor(clients), parts)
    gone = (1 - slow) * after.trust.get("gone", torch.zeros(members, dtype=torch.float64))
    return replace(after, trust={**after.trust, "taught": taught, "gone": gone, **as_memory(aside)})


def lost_by_planting(memory: Tensors) -> Values:
    """The share of its say that each member lost by what it planted."""
    return 1 - ramp(memory, "planted")


def set_aside(memory: Tensors) -> dict[int, Tensor]:
    """What the model lacks of what members taught, as rows, of those of whom it lacks any; in their order, in which a
    file does not keep them."""
    return dict(sorted((int(client), row) for client, row in unpack(memory, "aside").items()))


def as_memory(aside: Mapping[int, Tensor]) -> Tensors:
    return pack(aside={str(client): row.clone() for client, row in aside.items()})


def all_taught(memory: Tensors) -> Tensor:
    """U: what each member taught, whether the model has it or lacks it."""
    rows = memory["taught"]
    for client, row in set_aside(memory).items():
        rows = rows.index_add(0, torch.tensor([client]), row[None])
    return rows


def explaining(memory: Tensors, clients: Sequence[int]) -> Flags:
    """Step 2: the half of those who help of whom least is said; of all, as long as nobody has helped."""
    planted, help = memory["planted"].numpy()[list(clients)], helping(memory, clients)
    help = help if help.any() else ~help
    return np.asarray(help & (planted >= np.median(planted[help])))


def alone(rows: Tensor, clients: Sequence[int], taught: Tensor, explain: Flags) -> Tensor:
    """Step 2: of each row, which is the client's, what is not in the span of what the others taught who explain.

    >>> taught = torch.tensor([[2.0, 0.0, 0.0], [1.0, 1.0, 0.0], [5.0, 4.0, 3.0], [1.0, 0.0, 4.0]])
    >>> alone(taught[2:], [2, 3], taught, np.array([True, True, False, False])).round().abs().tolist()
    [[0.0, 0.0, 3.0], [0.0, 0.0, 4.0]]
    """
    known, between = inner_products(taught), (rows @ taught.T).double()
    known += RIDGE * known.diag().diag()
    shares = torch.zeros(len(rows), len(taught), dtype=torch.float64)
    for place, client in enumerate(clients):
        others = torch.from_numpy(explain & (np.arange(len(taught)) != client)).nonzero().flatten()
        own = torch.linalg.pinv(known[others][:, others], rtol=1e-10, hermitian=True)
        shares[place, others] = between[place, others] @ own
    return rows - shares.to(rows.dtype) @ taught


def taught_alone(state: State, updates: Sequence[Update]) -> Tensors:
    """What testers search, directions of length one stacked name by name; none, before anything was said of anybody."""
    clients = [update.client for update in updates]
    rows = stacked(updates)
    if "taught" not in state.trust or not state.trust["planted"].any():
        return {}
    taught = all_taught(state.trust)[clients] + rows / len(rows)
    found = alone(taught, range(len(rows)), taught, explaining(state.trust, clients))
    found /= norms_of(found).clamp_min(1e-30).to(found.dtype)[:, None]
    parts = found.split([tensor.numel() for tensor in updates[0].delta.values()], 1)
    return {
        name: part.reshape(len(rows), *tensor.shape)
        for (name, tensor), part in zip(updates[0].delta.items(), parts, strict=True)
    }


def with_all_taught(asked: TestRequest, memory: Tensors) -> Tensors:
    """Where testers search: the model with what it lacks of what members taught; none, where it lacks nothing."""
    aside = list(set_aside(memory).values())
    if not aside or asked.length is None:
        return {}
    total, most = torch.stack(aside).sum(0), AWAY * float(asked.length)
    total *= min(1.0, most / max(float(total.norm()), 1e-30))
    like = {name: stack[0] for name, stack in asked.units.items()}
    return {**asked.model, **shifted(asked.model, unflat(total, like))}


def take_out(after: State, judged: Judgement, panel: WitnessPanel, lose: float) -> tuple[State, Judgement]:
    """Step 3: the state without what members planted, and the judgement with a note of it."""
    memory, lost, gone = after.trust, lost_by_planting(after.trust), after.trust["gone"].numpy()
    who = np.flatnonzero(lost > gone).tolist()
    if not who:
        return after, judged
    taught, like, more = memory["taught"], judged.updates[0].delta, (lost - gone)[who]
    share = torch.from_numpy(more / (1 - gone[who])).to(taught.dtype)  # of what is still there
    out = share[:, None] * alone(taught[who], who, all_taught(memory), explaining(memory, range(len(taught))))
    shifts = {str(k): unflat(-out.sum(0) / 2**k, like) for k in range(HALVES)}
    models = {NEW: after.model}
    models |= {name: {**after.model, **shifted(after.model, shift)} for name, shift in shifts.items()}
    words = panel.ask(CONFIRM, PanelRequest(pack(**models), pack(**dict.fromkeys(models, after.buffers))))
    found = {name: compare(words, name, NEW) for name in shifts}
    fine = [name for name, one in found.items() if one is not None and one.change >= -lose]
    judged = panel.billed(judged)
    if not fine:
        return after, judged
    name, where = min(fine, key=int), torch.tensor(who)
    part = 0.5 ** int(name)
    out, aside = part * out, set_aside(memory)
    aside |= {client: aside.get(client, torch.zeros_like(row)) + row for client, row in zip(who, out, strict=True)}
    changed = {
        "taught": taught.index_add(0, where, -out),
        "gone": memory["gone"].index_add(0, where, torch.from_numpy(part * more)),
        **as_memory(aside),
        **shifted(memory, shifts[name], "good/"),
    }
    lengths = (out.norm(dim=1) / taught[who].norm(dim=1).clamp_min(1e-30)).tolist()
    told = [client for client, length in zip(who, lengths, strict=True) if length >= TOLD]
    after = replace(after, model=models[name], trust={**memory, **changed})
    return after, noted(judged, told, panel.hearing.context.called)


def shifted(tensors: Tensors, shift: Tensors, prefix: str = "") -> Tensors:
    """Those of the tensors that are shifted."""
    return {
        prefix + name: tensors[prefix + name] + change for name, change in shift.items() if prefix + name in tensors
    }


def noted(judged: Judgement, clients: Sequence[int], called: Called) -> Judgement:
    if not clients:
        return judged
    names = ", ".join(called(client) for client in clients)
    return replace(judged, notes=[*judged.notes, f"what {names} alone taught was taken out of the model"])
