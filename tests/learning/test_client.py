"""The epoch loop against PyTorch's own optimiser."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from holdfast.data.task import Samples
from holdfast.learning.loop import batches, train
from holdfast.learning.objective import TaskLoss
from holdfast.learning.settings import Learning


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.01)])
def test_the_loop_is_sgd(momentum: float, decay: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    theirs = copy.deepcopy(model)
    samples = Samples((torch.randn(50, 6).double(),), torch.randint(0, 3, (50,)))
    learning = Learning(epochs=3, batch_size=16, lr=0.1, momentum=momentum, weight_decay=decay)
    steps, _ = train(model, samples, learning, torch.Generator().manual_seed(5), TaskLoss(nn.functional.cross_entropy))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=momentum, weight_decay=decay)
    order = torch.Generator().manual_seed(5)
    for _ in range(3):
        for index in batches(torch.randperm(50, generator=order), 16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(theirs(samples.inputs[0][index]), samples.labels[index]).backward()
            optimizer.step()
    assert steps == 12
    for ours, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-12, atol=1e-14)


def test_a_weight_that_gets_no_gradient_stays() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    model.forward = model["used"].forward  # type: ignore[method-assign]
    before = model["unused"].weight.clone()
    samples = Samples((torch.ones(4, 2),), torch.tensor([0, 1, 0, 1]))
    train(model, samples, Learning(batch_size=2), torch.Generator(), TaskLoss(nn.functional.cross_entropy))
    assert torch.equal(model["unused"].weight, before)


def test_training_does_not_import_torchs_compiler() -> None:
    """It would cost seconds in each worker."""
    code = "import sys, holdfast\nholdfast.run(holdfast.Experiment(rounds=1, model='linear', workers=0))\n"
    done = subprocess.run([sys.executable, "-c", code + "print('torch._dynamo' in sys.modules)"], capture_output=True)
    assert done.stdout.strip() == b"False", done.stderr
