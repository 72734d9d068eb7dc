"""Model, data, training and testing: an app's own code, which knows nothing of Holdfast but its encoder."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from holdfast.core.config import Choice
from holdfast.data.named import load_task
from holdfast.encoders import Encoder, make_encoder

CLASSES, SITES = 10, 3


class Net(nn.Module):
    """Reads features. FedDig needs that: a digest is made of features, not of images."""

    def __init__(self) -> None:
        super().__init__()
        inputs = int(torch.Size(encoder().feature_shape).numel())
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.layers(features)
        return output


@cache
def encoder() -> Encoder:
    """A public encoder: the same everywhere, made without anybody's data."""
    return make_encoder(Choice("scattering"), (1, 28, 28))


@cache
def load_data(partition: int) -> tuple[Tensor, Tensor]:
    """Features and labels of one site: site p has few of the classes beside its own three or four."""
    task = load_task("fashion-mini", None)
    labels = task.train.labels
    generator = torch.Generator().manual_seed(partition)
    own = (labels % SITES == partition) | (torch.rand(len(labels), generator=generator) < 0.02)
    return encoder().encode(task.train.inputs[0][own]), labels[own]


@cache
def load_test() -> tuple[Tensor, Tensor]:
    """The moderator's test set."""
    test = load_task("fashion-mini", None).test
    return encoder().encode(test.inputs[0]), test.labels


def train(net: nn.Module, data: tuple[Tensor, Tensor], epochs: int, lr: float) -> float:
    """Train and give the mean loss of the last epoch."""
    features, labels = data
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        total = 0.0
        for index in torch.randperm(len(labels)).split(32):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(features[index]), labels[index])
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(index)
    return total / len(labels)


@torch.no_grad()
def test(net: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Loss and accuracy."""
    features, labels = data
    net.eval()
    output = net(features)
    return float(nn.functional.cross_entropy(output, labels)), float((output.argmax(1) == labels).float().mean())
