"""Promises for a patient with all records, where the data say whose a record is (Task.person).

Each patient enters what is released as one record would:
    digests   one record, made of the patient's own (one_each)
    DP-SGD    one gradient, the mean of those of its records, shortened to the clip bound; batches draw patients
    metrics   with noise: one of its held-out records (first_each)

Proof. What is made of each patient's records does not look at anybody else's. So two sites that differ in one patient,
with all records and however many these are, differ after it in one record, or in one gradient of at most the clip
bound: every bound for replacing one record holds for replacing one patient. What is public is the number of patients,
and that is what leaves as the number of samples. A patient known at two sites is protected at each by itself; what both
release together is covered by the sum of both promises, no less.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from holdfast.data.contract import Kind
from holdfast.data.kinds import Counts, Regression
from holdfast.data.task import Samples
from holdfast.privacy.claim import PATIENT, RECORD, Claim

NOTE = "Each patient enters as one record: the promise is for a patient with all records, at this site."


def whose_of(samples: Samples, person: str | None) -> Tensor | None:
    """The number of the patient of each sample, 0 to the number of patients less 1; none where that is not known.

    >>> whose_of(Samples(torch.zeros(3, 1), torch.zeros(3).long(), {"patient": torch.tensor([7, 4, 7])}), "patient")
    tensor([1, 0, 1])
    """
    if person is None or person not in samples.facts or not len(samples):
        return None
    _, whose = torch.unique(samples.facts[person], return_inverse=True)
    return torch.as_tensor(whose)


def patients_in(samples: Samples, person: str | None) -> int:
    """How many patients, or samples where it is not known whose they are."""
    whose = whose_of(samples, person)
    return len(samples) if whose is None else int(whose.max()) + 1


def one_each(features: Tensor, labels: Tensor, whose: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """One record of each patient: of classes the mean of its records of the class that it has most of, the first one of
    equally many; of numbers the mean; of anything else the first record.

    >>> from holdfast.data.kinds import Classes
    >>> z, y = torch.tensor([[1.0], [3.0], [9.0], [5.0]]), torch.tensor([1, 1, 0, 0])
    >>> one_each(z, y, torch.tensor([0, 0, 0, 1]), Classes())
    (tensor([[2.],
            [5.]]), tensor([1, 0]))
    """
    patients = int(whose.max()) + 1
    if patients == len(whose):
        return features, labels
    if kind.has_classes and labels.ndim == 1:
        held = torch.zeros(patients, int(labels.max()) + 1, dtype=torch.long)
        held.index_put_((whose, labels), torch.ones_like(whose), accumulate=True)
        most = held.argmax(1)
        of_it = labels == most[whose]
        return means(features[of_it], whose[of_it], patients), most
    if isinstance(kind, Regression | Counts):
        return means(features, whose, patients), means(labels, whose, patients)
    first = first_of(whose)
    return features[first], labels[first]


def means(values: Tensor, whose: Tensor, patients: int) -> Tensor:
    """The mean over each patient's rows, summed in 64 bits."""
    sums = torch.zeros(patients, *values.shape[1:], dtype=torch.float64, device=values.device)
    sums.index_add_(0, whose, values.double())
    counts = torch.bincount(whose, minlength=patients).view(-1, *[1] * (values.ndim - 1))
    return (sums / counts).to(values.dtype)


def first_of(whose: Tensor) -> Tensor:
    """The position of each patient's first sample."""
    order = whose.argsort(stable=True)
    starts = torch.ones(len(whose), dtype=torch.bool)
    starts[1:] = whose[order][1:] != whose[order][:-1]
    return order[starts].sort().values


def first_each(samples: Samples, person: str | None) -> Samples:
    """One sample of each patient, where it is known whose they are."""
    whose = whose_of(samples, person)
    return samples if whose is None else samples.take(first_of(whose))


def for_patients(claim: Claim) -> Claim:
    """The claim of a release into which each patient entered as one record; of one that promises nothing, itself."""
    if not math.isfinite(claim.epsilon_total):
        return claim
    notes = tuple(note.replace("number of records", "number of patients") for note in claim.notes)
    return replace(claim, adjacency=claim.adjacency.replace(RECORD, PATIENT), notes=(*notes, NOTE))
