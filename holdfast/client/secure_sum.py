"""The job `secure-sum`: a client's part of a total of which the moderator learns nothing else (secure_sum/).

Each step of a sum is one question. The vector is a stage of the moments of its records (privacy/total_moments.py), with
the client's share of the noise. It is entered in the client's ledger before it leaves, masked or not: the first stage
pays for both, and whatever is asked for again is paid for again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from holdfast.client.client import Client, house_of_client
from holdfast.client.train import samples_in
from holdfast.context import About, Context
from holdfast.core.failures import Refusal
from holdfast.core.files import make_folder, write_file
from holdfast.core.tensors import bytes_of
from holdfast.core.types import Tensors
from holdfast.digests.release_options import ReleaseOptions
from holdfast.jobs import Job, register
from holdfast.privacy import total_moments as totals
from holdfast.privacy.gate import SITE, check_delta, let_out
from holdfast.privacy.moment_noise import LEAST_RADIUS, Centres
from holdfast.privacy.noise import Whole, system
from holdfast.secure_sum.keys import simulated_key
from holdfast.secure_sum.member import Blame, Member, Terms
from holdfast.secure_sum.options import SecureSum

OPENED = "opened-sums.json"  # in a client's folder
LETTER = "letter"


@dataclass(frozen=True)
class SumRequest:
    """One step of a sum: who is in it, and what the others sent; for the second stage its centres."""

    step: str
    stage: int
    attempt: int
    members: list[int]
    present: list[int]
    records: int
    letters: Tensors
    centres: Tensors


@dataclass(frozen=True)
class SumReply:
    """A letter, letters for other members, or the member whose letter is of no use."""

    sum: Tensors
    samples: int
    blamed: int | None = None


class SecureSumJob(Job[Client, SumRequest, SumReply]):
    name, request, reply = "secure-sum", SumRequest, SumReply
    exact = False  # what leaves is masked, and its total noised and entered in the ledger

    def due(self, round: int, client: Client, context: Context) -> bool:
        return context.algorithm.one_message and context.secure is not None

    def records(self, client: Client, round: int) -> int:
        return len(client.train)

    def perform(self, client: Client, asked: SumRequest, round: int) -> SumReply:
        if client.secure is None or asked.stage not in (1, 2) or at_site(client):
            raise Refusal("job", "a step of a secure sum was asked for, and the run has none.")
        key = (round, asked.stage, asked.attempt)
        letters = {int(name): bytes_of(letter) for name, letter in asked.letters.items() if name.isdecimal()}
        if asked.step == "keys":
            terms = terms_of(client.about, client.seed, client.secure, round, asked.stage, asked.attempt, asked.members)
            client.desk[key] = Member(terms, client.id, simulated_key(client.seed, client.id), opened_by(client))
            return answer(client, client.desk[key].keys())
        member = client.desk.get(key)
        if member is None:
            raise Refusal("sum", "secure sum: a step was asked for of a sum that was not begun.")
        if asked.step == "shares":
            sealed, commitment = member.shares(letters, asked.records)
            return answer(client, commitment, sealed)
        if asked.step == "masked":
            layout = totals.layout_of(stage_of(client, asked.stage), member.extent)
            try:
                return answer(client, member.masked(letters, layout, lambda h: vector(client, asked, round, h)))
            except Blame as blame:
                return SumReply({}, len(client.train), blame.member)
        if asked.step == "sign":
            return answer(client, member.sign(asked.present))
        if asked.step != "open":
            raise Refusal("question", "a secure sum has no such step.")
        shares = member.open(letters)
        keep_opened(client, member.opened)
        return answer(client, b"", shares)


SECURE_SUM = register(SecureSumJob())


def answer(client: Client, letter: bytes, letters: dict[int, bytes] | None = None) -> SumReply:
    named = {LETTER: letter} if letter else {}
    sent = {**named, **{str(other): content for other, content in (letters or {}).items()}}
    return SumReply({name: as_tensor(content) for name, content in sent.items()}, len(client.train))


def as_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def terms_of(
    about: About, seed: int, secure: SecureSum, round: int, stage: int, attempt: int, members: list[int]
) -> Terms:
    """What the members of a sum agree on, by the experiment."""
    experiment = json.dumps([about.task, about.kind, about.classes, about.encoder, seed, asdict(secure)])
    known = {member: public_key(seed, member) for member in members}
    return Terms(experiment, f"stage {stage} of round {round + 1}", attempt, known, secure.colluding)


@lru_cache(maxsize=4096)
def public_key(seed: int, member: int) -> str:
    return bytes(simulated_key(seed, member).public_key().public_bytes_raw()).hex()


def options_of(client: Client) -> ReleaseOptions:
    assert isinstance(client.absence, ReleaseOptions)
    return client.absence


def stage_of(client: Client, stage: int) -> list[totals.Part]:
    options, k = options_of(client), client.about.feature_shape[0]
    first, second, _, _ = totals.scales_for(options.true_epsilon, options.delta, k)
    return totals.parts(stage, first, second, client.about.classes, k)


def vector(client: Client, asked: SumRequest, round: int, honest: int) -> Whole:
    """A stage of the client's own records with its share of the noise, paid for."""
    assert client.secure is not None
    options, classes = options_of(client), client.about.classes
    samples = samples_in(client, round)
    if not options.large_delta:
        check_delta(options.delta, len(samples.labels), "absence.delta", "large_delta = true")
    centres = read_centres(asked.centres, classes, client.about.feature_shape[0]) if asked.stage == 2 else None
    if asked.stage == 1 or not client.paid:
        claim = totals.total_claim(
            options.true_epsilon, options.delta, client.about.feature_shape[0], client.secure.colluding, system()
        )
        what = f"secure sum of {client.about.task}, client {client.id}, round {round + 1}"
        let_out(house_of_client(client), claim, what)
    client.paid[:] = [True] if asked.stage == 1 else []
    z = samples.inputs[-1].double().numpy()
    exact = totals.exact_stage(z, samples.labels.numpy(), classes, centres)
    return totals.with_share(exact, stage_of(client, asked.stage), honest, system())


def read_centres(sent: Tensors, classes: int, k: int) -> Centres:
    """Centres to measure from. Whatever they are, the promise holds; they must be numbers, and no radius nothing."""
    shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in sent.items()}
    if shapes != {"means": ((classes, k), torch.float64), "radii": ((classes,), torch.float64)}:
        raise Refusal("question", "the second stage of a secure sum needs a centre and a radius for each class.")
    found = Centres(sent["means"].numpy(), sent["radii"].numpy())
    if not (np.abs(found.means) <= 1.001).all() or not ((found.radii >= LEAST_RADIUS) & (found.radii <= 1)).all():
        raise Refusal("question", "the centres of a secure sum are beyond what records can have.")
    return found


def at_site(client: Client) -> bool:
    """Whether this is a real site, whose members' keys are not exchanged yet."""
    ledger = house_of_client(client).ledger
    return ledger is not None and (ledger.parent / SITE).is_file()


def opened_by(client: Client) -> dict[str, tuple[int, ...]]:
    """The sums that the client has opened, each with its members; they outlive the process."""
    path = client.memory.folder and client.memory.folder / OPENED
    if path is None or not path.exists():
        return client.opened_sums
    try:
        found = json.loads(path.read_text())
        return {str(purpose): tuple(map(int, members)) for purpose, members in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        raise Refusal("ledger", f"{path} is damaged; no secure sum is joined until a whole copy is put back.") from None


def keep_opened(client: Client, opened: dict[str, tuple[int, ...]]) -> None:
    """Written before anything is opened."""
    client.opened_sums.update(opened)
    if client.memory.folder is not None:
        make_folder(client.memory.folder)
        write_file(client.memory.folder / OPENED, json.dumps(opened).encode())
