"""What FedDig has to be measured against: FedAvg on the same features, all data in one place, LDA from the digests.

A closed-form classifier fitted on the digests alone needs no federated rounds at all. A digest is a mean of SpD
samples, d = sum_k w_k r_k, with the soft label y = sum_k w_k y_k. If class c has mean m_c, and all share covariance S,

    E[d | y] = M' y,    Cov[d | y] = S sum_k w_k^2

so M comes from least squares of the features on the soft labels, S from what is left, and the classifier is linear:

    score_c(x) = m_c' S^-1 x - m_c' S^-1 m_c / 2 + log p_c,    p_c = mean of y_c
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast.absence import ABSENCES, FedDig
from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.data.task import Samples, right_or_wrong
from holdfast.digests.digest import Digest
from holdfast.digests.received import samples_of
from holdfast.digests.stretching import class_means, spread_of
from holdfast.runs.build import make_plan
from holdfast.runs.choose_model import reader_of_features
from holdfast.runs.deal import task_of
from holdfast.runs.experiment import Experiment
from holdfast.runs.history import History

SHRINK = 0.01  # share of the mean variance that is added to each direction


@dataclass(frozen=True)
class Lda:
    """A linear classifier: scores = x W' + b; a class that was never seen has the score minus infinity."""

    weight: Tensor  # (classes, l)
    bias: Tensor  # (classes,)

    def __call__(self, features: Tensor) -> Tensor:
        return features.flatten(1).double() @ self.weight.T + self.bias


def fit_lda(features: Tensor, labels: Tensor, spread: float = 1.0, shrink: float = SHRINK) -> Lda:
    """LDA from features (m, ...) and soft labels (m, classes); `spread` is sum_k w_k^2, one for unmixed samples.

    Four numbers, two of each class: means 1 and 5, variance (1 + 1 + 1 + 1) / (4 - 2) = 2, boundary at 3.

    >>> y = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> fitted = fit_lda(torch.tensor([[0.0], [2.0], [4.0], [6.0]]), y, shrink=0.0)
    >>> fitted.weight.flatten(), fitted(torch.tensor([[2.9], [3.1]])).argmax(1).tolist()
    (tensor([0.5000, 2.5000], dtype=torch.float64), [0, 1])
    """
    x, y = features.flatten(1).double(), labels.double()
    means = class_means(x, y)
    rest = x - y @ means
    free = max(1, len(x) - int((y.sum(0) > 0).sum()))
    covariance = rest.T @ rest / (free * spread)
    level = float(covariance.diagonal().mean())
    covariance += torch.eye(x.shape[1], dtype=torch.float64) * max(shrink * level, 1e-12)
    weight = torch.linalg.solve(covariance, means.T).T
    prior = y.mean(0).log()  # minus infinity where a class was never seen
    return Lda(weight, prior - 0.5 * (means * weight).sum(1))


def lda_from_digests(digests: Sequence[Digest]) -> Lda:
    """The classifier that the digests alone give, whoever they are from."""
    if not digests:
        raise HoldfastError("LDA from digests: there are none; run with absence = 'feddig' and some clients present.")
    features, labels = torch.cat([d.features for d in digests]), torch.cat([d.labels for d in digests])
    spread = sum(spread_of(d) * len(d) for d in digests) / sum(len(d) for d in digests)
    return fit_lda(features, labels, spread)


def lda_accuracy(history: History) -> float:
    """Test accuracy of LDA from the digests that a run of FedDig ended with."""
    if history.state is None or not history.state.digests:
        raise HoldfastError("LDA from digests: this run holds none; run with absence = 'feddig'.")
    plan = make_plan(history.experiment)
    test = plan.prepare(plan.task.test)
    state, absence = history.state, plan.method.absence
    assert isinstance(absence, FedDig), "nothing else keeps digests"
    believed = absence.believed(state)
    digests = samples_of(absence, plan.method, believed, state.round, sorted(believed), state.claims)
    return accuracy(lda_from_digests(digests), test)


def accuracy(classifier: Lda, test: Samples) -> float:
    """The accuracy of a classifier that reads the encoded features, which are the last of a sample's inputs."""
    return float(right_or_wrong(classifier(test.inputs[-1]), test.labels).mean())


def model_in_use(experiment: Experiment) -> Choice:
    """The model that `auto` stands for where digests do."""
    if experiment.model.name != "auto" or not choose(ABSENCES, experiment.absence, "absence").needs_features:
        return experiment.model
    return reader_of_features(experiment, task_of(experiment))


def without_digests(experiment: Experiment) -> Experiment:
    """The same experiment, on the same features and model, with nobody standing in."""
    return replace(experiment, model=model_in_use(experiment), absence=Choice("none"))


def centralised(experiment: Experiment) -> Experiment:
    """The same model on the training samples of all clients in one place: an upper bound for a federation."""
    return replace(
        without_digests(experiment),
        clients=1,
        partition=Choice("iid"),
        scenario=Choice("none"),
        algorithm=Choice("fedavg"),
        trust=Choice("auto"),
        attack=Choice("none"),
        attackers=0,
    )
