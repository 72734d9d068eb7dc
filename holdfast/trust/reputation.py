"""What a jury knows of each client: from this round's reports to its standing (steps 4 to 7 of jury.py).

The memory is tensors with one entry for each client, so that it is saved with the run and resumes to the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from holdfast.core.types import Tensors
from holdfast.trust.consensus import Flags, Values, agreement, consensus, matrix_of

RAMPS = {"reputation": (-0.1, 0.0), "planted": (-0.5, -0.4)}
REPORTS = 20  # members, for whom the first ramp holds: of fewer, each is more of the round, and fewer tell of it
CLEARLY = -0.25  # in units of the usual help: evidence in a round, and a reputation, from which on there are doubts
TELLING = 0.15  # a round whose median evidence is lower raises no doubts: when nobody helps, the odd one out is honest
MOST_CHARGES = 20  # that count: who is charged so often is out for good
ENOUGH = 7  # members, 3f + 1 for f = 2: where two could tip the scales, one kind of evidence takes nobody's say
LEARNT = 0.3  # share of a round in a witness's credibility

Told = Mapping[int, Mapping[int, float]]  # witness -> client -> value in [0, 1]


def first_memory(clients: int) -> Tensors:
    """Nobody is known."""
    values, rounds = torch.zeros(clients, dtype=torch.float64), torch.zeros(clients, dtype=torch.int64)
    return {
        "reputation": values.clone(),
        "planted": values.clone(),
        "grounds": values.clone(),  # what the reputation rests on: how much the rounds count that are in it
        "doubts": rounds.clone(),  # rounds of harm in bad standing, less the good ones since
        "reformed": rounds.clone(),  # rounds without harm in bad standing, less those with
        "credibility": torch.ones(clients, dtype=torch.float64),
        "testified": rounds.clone(),  # in which it was a witness
        "testers": torch.zeros(clients, dtype=torch.bool),
        "charged": values.clone(),  # how often with harm that the floor found, less one for each time of good conduct
        "barred": rounds.clone(),  # rounds for which it counts nothing yet; below 0: rounds since then
        "opposed": values.clone(),  # long average of the cosine of its update with what the others' come to
        "scale": torch.zeros((), dtype=torch.float64),
    }


def remember(memory: Tensors, told: Told, clients: Sequence[int], *, slow: float, most: int) -> Tensors:
    """Steps 4 to 6: what is known of each client after this round's reports on who helps; `most` doubts are counted."""
    known = first_memory(len(memory["planted"]))  # what is changed here; models among the rest are not copied
    after = {name: tensor.clone() if name in known else tensor for name, tensor in wait(memory).items()}
    if not told:
        return after
    witnesses = who_tell(told)
    if not is_quorum(len(witnesses), len(told)):  # nothing is learnt
        return after
    values = matrix_of(told, witnesses, clients)
    credibility = after["credibility"].numpy()
    agreed = agreement(values, credibility[witnesses])
    testified = after["testified"].numpy()
    rate = np.maximum(LEARNT, 1 / (testified[witnesses] + 1))
    credibility[witnesses] += rate * (agreed - credibility[witnesses])
    testified[witnesses] += 1
    help_found = consensus(values, credibility[witnesses])
    scale = max(float(after["scale"]), float(np.median(np.abs(help_found))))
    after["scale"].fill_(scale)
    evidence = np.clip(help_found / scale, -2, 2) if scale > 0 else np.zeros(len(clients))
    reputation, grounds = after["reputation"].numpy(), after["grounds"].numpy()
    counts = max(0.0, float(np.median(evidence))) ** 2
    least = 1.0 if len(reputation) < ENOUGH else np.finfo(np.float64).tiny  # few reports need a round that tells
    fades = 1 - slow * counts  # so many rounds that tell hardly anything cannot outlast what a few told clearly
    total = fades * reputation[clients] * np.maximum(grounds[clients], least) + counts * evidence
    grounds[clients] = fades * grounds[clients] + counts
    reputation[clients] = total / np.maximum(grounds[clients], least)
    plants = planting(after, clients)
    clear = (evidence < CLEARLY) & (np.median(evidence) > TELLING)
    count_rounds(after, clients, (evidence < 0) | plants, clear | plants, most, tells=bool(np.median(evidence) >= 0))
    return after


def who_tell(told: Told) -> list[int]:
    """The witnesses that can tell: who holds one class only has no gradient, says 0.5 of everybody, and abstains."""
    return sorted(witness for witness, said in told.items() if any(value != 0.5 for value in said.values()))


def is_quorum(tell: int, heard: int) -> bool:
    """Whether so many who can tell, of those heard, are enough to learn of anybody: three, and more than half."""
    return tell >= 3 and 2 * tell > heard


def charge(memory: Tensors, culprits: Sequence[int]) -> Tensors:
    """Those count nothing in the rounds that follow: two after the first charge, four after the second, eight ..."""
    charged, barred = memory["charged"].clone(), memory["barred"].clone()
    for client in culprits:
        charged[client] = min(float(charged[client]) + 1, MOST_CHARGES)
        barred[client] = 1 + 2 ** int(charged[client])  # one less once the next round begins
    return {**memory, "charged": charged, "barred": barred}


def wait(memory: Tensors) -> Tensors:
    """A round later; who was heard again for as long as it was out, and not charged, has one charge less."""
    charged = memory["charged"].round()  # fractions are of earlier versions, in which charges faded
    barred = torch.where(charged > 0, memory["barred"] - 1, 0)
    free = barred <= -(2**charged)
    return {
        **memory,
        "charged": torch.where(free, (charged - 1).clamp_min(0), charged),
        "barred": torch.where(free, 0, barred),
    }


def count_rounds(
    memory: Tensors, clients: Sequence[int], harmed: Flags, clearly: Flags, most: int, *, tells: bool
) -> None:
    """Rounds for and against each client, to be doubted only where it harmed clearly; who was in bad standing and does
    no more harm is pardoned after `most`. Where the median member harms, as late in training on noised digests, who
    does not is the odd one out, and has not reformed.

    A pardoned client is as one never heard of. Late in training, when hardly any round tells much, a reputation would
    not mend by itself.
    """
    doubts, reformed = memory["doubts"].numpy(), memory["reformed"].numpy()
    change = np.where(doubtful(memory, clients), clearly.astype(int), -1)
    doubts[clients] = np.clip(doubts[clients] + change, 0, most)
    unheard = standing(memory, clients) < 0.5
    change = np.where(harmed, -1, 1) * tells
    reformed[clients] = np.where(unheard, np.maximum(reformed[clients] + change, 0), 0)
    pardoned = [client for client in clients if reformed[client] >= most]
    for name in ("reputation", "grounds", "planted", "doubts", "reformed"):
        memory[name][pardoned] = 0


def blame(memory: Tensors, innocence: Told, clients: Sequence[int]) -> Tensors:
    """Step 7: what is known after this round's search for backdoors, if there was one: what is found now, then the mean
    of that and what was known before, as a single search may mistake somebody who is alone in what it knows.

    All witnesses count alike: those who are most credible late in training may be few, and hold the same classes.
    """
    if not innocence:
        return memory
    found = beside_helpers(said_by_most(matrix_of(innocence, sorted(innocence), clients)), helping(memory, clients))
    planted = memory["planted"].clone()
    known, new = planted[list(clients)], torch.from_numpy(found)
    planted[list(clients)] = torch.where(known == 0, new, (known + new) / 2)
    return {**memory, "planted": planted}


def beside_helpers(found: Values, help: Flags) -> Values:
    """What is found beyond the median of those who help, where that is more than the median of all: who sends noise or
    nothing plants nothing, and beside such members all others would look as if they did.

    >>> beside_helpers(np.array([-0.75, -0.5, -0.5, 0.9, 0.9]), np.array([True, True, True, False, False]))
    array([-0.5 ,  0.  ,  0.  ,  0.95,  0.95])
    """
    times = np.where(found < 0, 1 / np.maximum(1 + found, np.finfo(float).eps), 1 - found)  # the median of all
    usual = max(1.0, float(np.median(times[help]))) if help.any() else 1.0
    return np.asarray((usual - times) / np.maximum(times, usual))


def said_by_most(values: Values) -> Values:
    """Of each column what more than half of those who can tell, and more than a third of all, say, or worse.

    Who says 0 cannot tell. Liars must be more than a third, and more than those who contradict them.

    >>> said_by_most(np.array([[-0.4, -0.9, 0.1], [-0.3, 0.0, -0.1], [0.0, 0.0, -0.2], [0.2, 0.0, -0.3]]))
    array([-0.3,  0. , -0.1])
    """
    found = np.zeros(values.shape[1])
    for column in range(values.shape[1]):
        said = values[~np.isnan(values[:, column]) & (values[:, column] != 0), column]
        count = max(len(said) // 2, len(values) // 3) + 1
        if len(said) >= count:
            found[column] = np.sort(said)[count - 1]
    return found


def standing(memory: Tensors, clients: Sequence[int]) -> Values:
    """From 0 (its updates do harm) to 1; who was never heard of is in good standing."""
    found = np.ones(len(clients))
    excused = (memory["opposed"].numpy()[list(clients)] >= 0) & (len(memory["opposed"]) < ENOUGH)
    for name in RAMPS:
        left = ramp(memory, name)[list(clients)]
        found *= np.where(excused, 1.0, left) if name == "reputation" else left
    found *= memory["barred"].numpy()[list(clients)] <= 0
    return found


def ramp(memory: Tensors, name: str) -> Values:
    """What one kind of evidence leaves each member of its say."""
    known, (low, high) = memory[name].numpy(), RAMPS[name]
    if name == "reputation":
        low *= max(1.0, REPORTS / len(known))
    return np.asarray(np.clip((known - low) / (high - low), 0, 1))


def doubtful(memory: Tensors, clients: Sequence[int]) -> Flags:
    """Who harms clearly, or plants something, as far as the witnesses can tell: more than what ends a member's say."""
    return np.asarray(memory["reputation"].numpy()[list(clients)] < CLEARLY) | planting(memory, clients)


def planting(memory: Tensors, clients: Sequence[int]) -> Flags:
    """Whose updates make a backdoor, as far as the witnesses can tell."""
    return np.asarray(memory["planted"].numpy()[list(clients)] < RAMPS["planted"][0])


def compare_with_others(
    memory: Tensors, products: Tensor, weights: Values, clients: Sequence[int], acting: Sequence[int], slow: float
) -> Tensors:
    """Step 9: from the updates' inner products, how each lies to the weighted sum of all others', which no witness has
    a say in; of those who act themselves, by their places."""
    shares, squares = torch.from_numpy(weights), products.diagonal()
    along = products @ shares  # <row_i, total>, of which <row_i, total - share_i row_i> and the latter's length follow
    others = (shares @ along - 2 * shares * along + shares.square() * squares).clamp_min(0)
    cosines = (along - shares * squares) / (squares * others).sqrt().clamp_min(1e-16)
    opposed, who = memory["opposed"].clone(), [clients[place] for place in acting]
    opposed[who] += slow * (cosines[list(acting)] - opposed[who])
    return {**memory, "opposed": opposed}


def opposes(memory: Tensors, client: int) -> bool:
    """Whether a client's updates go against what the others' come to, on the long average."""
    return float(memory["opposed"][client]) < 0


def helping(memory: Tensors, clients: Sequence[int]) -> Flags:
    """Of whom witnesses have found that its updates help; of who was never heard of nobody has."""
    return np.asarray(memory["reputation"].numpy()[list(clients)] > 0)


def why(memory: Tensors, client: int) -> str:
    """What witnesses say against a client."""
    help_given = float(memory["reputation"][client])
    if planting(memory, [client])[0]:
        return (
            "its updates give a meaning to what is in nobody's records, as a backdoor does "
            f"({memory['planted'][client]:+.2f})"
        )
    what = "its updates harm what others hold" if help_given < CLEARLY else "its updates help nobody"
    return f"{what} (help {help_given:+.2f} of the usual)"
