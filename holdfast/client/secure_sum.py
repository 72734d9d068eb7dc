"""The job `secure-sum`: a client's part of a total of which the moderator learns nothing else (secure_sum/).

Each step of a sum is one question. The vector is what the client learnt in this round (stage 0, secure_train.py), or a
digest of its records with its share of the noise: of classes two stages of moments (1 and 2, privacy/total_moments.py),
of other kinds joint sums (3, privacy/total_sums.py); or its metrics (4, secure_metrics.py). Whatever has noise is
entered in the client's ledger before it leaves, masked or not: the first stage of moments pays for both, and whatever
is asked for again is paid for again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from holdfast.client.client import Client, house_of_client
from holdfast.client.evaluate import is_tested
from holdfast.client.secure_metrics import metrics_length, metrics_vector, read_wanted, tested_samples, wanted_by
from holdfast.client.train import counted, samples_in
from holdfast.context import About, Context
from holdfast.core.failures import Refusal
from holdfast.core.files import make_folder, write_file
from holdfast.core.tensors import bytes_of, half_of
from holdfast.core.types import Tensors
from holdfast.data.kinds import kind_of
from holdfast.digests.compact import sha256_of
from holdfast.digests.release_options import ReleaseOptions
from holdfast.digests.sums import UNIT, bounds_of, targets_of
from holdfast.jobs import Job, register
from holdfast.privacy import total_counts, total_sums
from holdfast.privacy import total_moments as totals
from holdfast.privacy.claim import Claim
from holdfast.privacy.gate import SITE, check_delta, let_out
from holdfast.privacy.moment_noise import LEAST_RADIUS
from holdfast.privacy.noise import Whole, system
from holdfast.privacy.patients import for_patients, one_each, whose_of
from holdfast.privacy.sum_noise import Bounds
from holdfast.privacy.total_counts import Wanted
from holdfast.secure_sum import updates
from holdfast.secure_sum.keys import Keyring, simulated_keyring
from holdfast.secure_sum.member import Blame, Member, Terms
from holdfast.secure_sum.options import SecureSum
from holdfast.secure_sum.packing import Layout

OPENED = "opened-sums.json"  # in a client's folder
LETTER = "letter"
UPDATE = 0  # the stage that is the total of a round's updates
SUMS = 3  # that of joint sums of kinds without classes
METRICS = 4  # that of how well the model does
JOIN = "join"  # the step in which a member says which long-term key is its own


@dataclass(frozen=True)
class SumRequest:
    """One step of a sum: who is in it, by long-term key, and what the others sent; what all are told.

    Who is in it and what all are told (centres; a model to test) are in the step "keys", where all members sign for it.
    """

    step: str
    stage: int
    attempt: int
    members: dict[str, str]  # in the step "keys"; else empty
    present: list[int]
    records: int
    letters: Tensors
    told: Tensors


@dataclass(frozen=True)
class SumReply:
    """A letter, letters for other members, or the member whose letter is of no use; and the noise that metrics want."""

    sum: Tensors
    samples: int
    blamed: int | None = None
    noise: list[float] | None = None  # epsilon and delta


class SecureSumJob(Job[Client, SumRequest, SumReply]):
    name, request, reply = "secure-sum", SumRequest, SumReply
    exact = False  # what leaves is masked; a total of moments is noised and entered, one of updates refused where
    steps = True  # a policy wants noise (secure_train.py)

    def due(self, round: int, client: Client, context: Context) -> bool:
        return context.secure is not None

    def check(self, asked: SumRequest, round: int, client: Client, context: Context) -> None:
        if asked.stage == METRICS and not is_tested(round, context):
            raise Refusal("job", "metrics were asked for in a round whose model is not tested.")

    def records(self, client: Client, round: int) -> int:
        return len(client.train)

    def perform(self, client: Client, asked: SumRequest, round: int) -> SumReply:
        digests = (1, 2) if kind_of(client.about.kind).has_classes else (SUMS,)
        stages = (*(digests if client.algorithm.one_message else (UPDATE,)), METRICS)
        if client.secure is None or asked.stage not in stages:
            raise Refusal("job", "a step of a secure sum was asked for, and the run has none.")
        ring = keyring_of(client)
        count = len(tested_samples(client)) if asked.stage == METRICS else counted(client)
        if asked.step == JOIN:
            wanted = wanted_by(client) if asked.stage == METRICS else Wanted()
            found = answer(count, ring.own)
            return replace(found, noise=[wanted.epsilon, wanted.delta]) if wanted.noisy else found
        opened, key = opened_by(client), (round, asked.stage, asked.attempt)
        letters = {int(name): bytes_of(letter) for name, letter in asked.letters.items() if name.isdecimal()}
        if asked.step == "keys":
            known = read_members(asked.members, ring)
            hashed = base_in(client, round) if asked.stage == UPDATE else told_hash(asked.told)
            noisy = has_noise(asked.stage, asked.told)
            of = round, asked.stage, asked.attempt
            terms = terms_of(client.about, client.seed, client.secure, of, known, hashed, noisy)
            for old in [old for old in client.desk if old[0] != round]:
                del client.desk[old]
            client.desk[key] = Member(terms, client.id, ring.signer, opened), asked.told
            return answer(count, client.desk[key][0].keys())
        if key not in client.desk:
            raise Refusal("sum", "secure sum: a step was asked for of a sum that was not begun.")
        member, told = client.desk[key]
        if asked.step == "shares":
            sealed, commitment = member.shares(letters, asked.records)
            return answer(count, commitment, sealed)
        if asked.step == "masked":
            try:
                make = partial(vector, client, asked.stage, told, round)
                return answer(count, member.masked(letters, layout_of(client, asked.stage, told, member), make))
            except Blame as blame:
                return SumReply({}, count, blame.member)
        if asked.step == "sign":
            return answer(count, member.sign(asked.present))
        if asked.step != "open":
            raise Refusal("question", "a secure sum has no such step.")
        shares = member.open(letters)
        keep_opened(client)
        return answer(count, b"", shares)


SECURE_SUM = register(SecureSumJob())


def keyring_of(client: Client) -> Keyring:
    """The client's long-term keys: those of its site, or in a simulation such as follow from the seed."""
    if client.keyring is not None:
        return client.keyring
    ledger = house_of_client(client).ledger
    if ledger is not None and (ledger.parent / SITE).is_file():
        raise Refusal(
            "sum-key",
            "secure sum: this site needs a key of its own (--signing-key) and a policy with `members`, the folder of "
            "the public keys that it got from the other members.",
        )
    return simulated_keyring(client.seed, client.id)


def read_members(told: dict[str, str], ring: Keyring) -> dict[int, str]:
    """Who is in a sum, with the long-term key of each; one that this member did not get beforehand is refused."""
    if not all(name.isdecimal() and isinstance(key, str) for name, key in told.items()):
        raise Refusal("question", "the members of a secure sum are not numbers with a key each.")
    known = {int(name): key for name, key in told.items()}
    if strange := sorted(member for member, key in known.items() if not ring.knows(member, key)):
        raise Refusal("sum-key", f"secure sum: the key that is said to be member {strange[0]}'s is none it knows.")
    return known


def told_hash(told: Tensors) -> str:
    """What all members of a sum are told, so that each can sign that it was told the same: weights as they are after
    a way on which they may travel as float16."""
    return sha256_of({name: half_of(tensor) for name, tensor in told.items()}, {}) if told else ""


def base_in(client: Client, round: int) -> str:
    """The hash of the model from which the client learnt in a round."""
    if round not in client.learnt:
        raise Refusal("sum", "secure sum: an update was asked for of a round in which there was no training.")
    return client.learnt[round][0]


def answer(count: int, letter: bytes, letters: dict[int, bytes] | None = None) -> SumReply:
    named = {LETTER: letter} if letter else {}
    sent = {**named, **{str(other): content for other, content in (letters or {}).items()}}
    return SumReply({name: as_tensor(content) for name, content in sent.items()}, count)


def as_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def terms_of(
    about: About,
    seed: int,
    secure: SecureSum,
    of: tuple[int, int, int],
    known: dict[int, str],
    told: str,
    noisy: bool,
) -> Terms:
    """What the members of a sum (its round, stage and attempt) agree on, by the experiment and what they were told."""
    round, stage, attempt = of
    experiment = json.dumps([about.task, about.kind, about.classes, about.encoder, seed, asdict(secure)])
    what = {UPDATE: "updates", SUMS: "sums", METRICS: "metrics"}.get(stage, f"stage {stage}")
    dropouts = secure.allowed(len(known)) if noisy else len(known)  # where there is no noise, nobody's is counted on
    return Terms(experiment, f"{what} of round {round + 1}", attempt, known, secure.colluding, dropouts, told)


def has_noise(stage: int, told: Tensors) -> bool:
    """Whether a total has noise: of digests always, of metrics where members were told so."""
    return read_wanted(told).noisy if stage == METRICS else stage != UPDATE


def options_of(client: Client) -> ReleaseOptions:
    assert isinstance(client.absence, ReleaseOptions)
    return client.absence


def stage_of(client: Client, stage: int) -> list[totals.Part]:
    options, k = options_of(client), client.about.feature_shape[0]
    if stage == SUMS:
        return total_sums.parts(options.true_epsilon, options.delta, k, bounds_in(client.about))
    first, second, _, _ = totals.scales_for(options.true_epsilon, options.delta, k)
    return totals.parts(stage, first, second, client.about.classes, k if stage == 1 else totals.directions(k))


def layout_of(client: Client, stage: int, told: Tensors, member: Member) -> Layout:
    """The form of a stage's vector."""
    assert client.secure is not None
    if stage == METRICS:
        return [(metrics_length(client, told), total_counts.BITS)]
    if stage == UPDATE:
        numbers = sum(weight.numel() for weight in client.model.parameters())
        return updates.layout_of(numbers, client.secure.clip, member.extent)
    honest = member.terms.honest(member.members)
    return totals.layout_of(stage_of(client, stage), member.extent, member.members, honest)


def vector(client: Client, stage: int, told: Tensors, round: int, honest: int) -> Whole:
    """What the client learnt; or a stage of its own records with its share of the noise, paid for."""
    assert client.secure is not None
    if stage == UPDATE:
        return client.learnt[round][1]
    if stage == METRICS:
        return metrics_vector(client, told, round, honest, client.secure.colluding)
    options, classes = options_of(client), client.about.classes
    samples, kind = samples_in(client, round, "digests"), kind_of(client.about.kind)
    features, labels, whose = samples.inputs[-1], samples.labels, whose_of(samples, client.about.person)
    if whose is not None:
        features, labels = one_each(features, labels, whose, kind)
    if not options.large_delta:
        check_delta(options.delta, len(labels), "absence.delta", "large_delta = true")
    centres = read_centres(told, classes, client.about.feature_shape[0]) if stage == 2 else None
    if stage != 2 or not client.paid:
        claim = claim_of_total(options, client.about, client.secure)
        what = f"secure sum of {client.about.task}, client {client.id}, round {round + 1}"
        let_out(house_of_client(client), claim, what)
    client.paid[:] = [True] if stage == 1 else []
    z = features.double().numpy()
    if stage == SUMS:
        targets = targets_of(kind, labels, classes, options.target_range or UNIT)
        exact = total_sums.exact(z, targets, bounds_in(client.about))
    else:
        exact = totals.exact_stage(z, labels.numpy(), classes, centres)
    return totals.with_share(exact, stage_of(client, stage), honest, system())


def claim_of_total(options: ReleaseOptions, about: About, secure: SecureSum) -> Claim:
    """What the total of the members' digests promises."""
    k, asked = about.feature_shape[0], (options.true_epsilon, options.delta)
    if kind_of(about.kind).has_classes:
        claim = totals.total_claim(*asked, k, secure.colluding, system())
    else:
        claim = total_sums.total_claim(*asked, k, bounds_in(about), secure.colluding, system())
    return claim if about.person is None else for_patients(claim)


def bounds_in(about: About) -> Bounds:
    return bounds_of(kind_of(about.kind), about.classes)


def read_centres(sent: Tensors, classes: int, k: int) -> totals.Around:
    """Centres to measure from, and directions. Whatever they are, the promise holds; they must be numbers, and no
    radius nothing."""
    beyond, last = totals.tail_shape(classes, k)
    expected = {"means": (classes, k), "radii": (classes,), **({"tail": (beyond, last)} if beyond else {})}
    if {name: tuple(tensor.shape) for name, tensor in sent.items()} != expected or any(
        tensor.dtype != torch.float64 for tensor in sent.values()
    ):
        raise Refusal("question", "the second stage of a secure sum needs a centre and a radius for each class.")
    tail = sent["tail"].numpy() if beyond else np.zeros((0, 0))
    found = totals.Around(sent["means"].numpy(), sent["radii"].numpy(), totals.basis_of(tail, k))
    if not (np.abs(tail) <= 1.001).all():
        raise Refusal("question", "the directions of a secure sum are longer than 1.")
    if not (np.abs(found.means) <= 1.001).all() or not ((found.radii >= LEAST_RADIUS) & (found.radii <= 1)).all():
        raise Refusal("question", "the centres of a secure sum are beyond what records can have.")
    return found


def opened_by(client: Client) -> dict[str, tuple[int, ...]]:
    """The sums that the client has opened, each with its members, as its file says now; they outlive the process."""
    path = client.memory.folder and client.memory.folder / OPENED
    if path is None or not path.exists():
        return client.opened_sums
    try:
        found = json.loads(path.read_text())
        client.opened_sums.update({str(purpose): tuple(map(int, members)) for purpose, members in found.items()})
    except (OSError, ValueError, TypeError, AttributeError):
        raise Refusal("ledger", f"{path} is damaged; no secure sum is joined until a whole copy is put back.") from None
    return client.opened_sums


def keep_opened(client: Client) -> None:
    """Written before anything is opened."""
    if client.memory.folder is not None:
        make_folder(client.memory.folder)
        write_file(client.memory.folder / OPENED, json.dumps(client.opened_sums).encode())
