"""pfl's simulated backend: one process, one client after the other."""

from __future__ import annotations

from functools import partial

import torch
from shared import BATCH, CLIENTS, LR, MOMENTUM, TURNS, OwnNet, Turns, images, without

without("dp_accounting", "prv_accountant")

from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.dataset import Dataset  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.sampling import get_user_sampler  # noqa: E402
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams  # noqa: E402
from pfl.metrics import Metrics  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402


class Net(OwnNet):
    def loss(self, inputs: torch.Tensor, targets: torch.Tensor, eval: bool = False) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self(inputs), targets)

    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor, eval: bool = True) -> dict[str, object]:
        return {}


class Wait(TrainingProcessCallback):
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        if central_iteration + 1 < TURNS:
            turns.wait()
        else:
            turns.tell()
        return False, Metrics()


turns = Turns()
sets = [images(client) for client in range(CLIENTS)]
users = list(range(CLIENTS))
data = FederatedDataset(lambda user: Dataset(list(sets[user]), user_id=user), get_user_sampler("minimize_reuse", users))
net = Net()
model = PyTorchModel(net, partial(torch.optim.SGD, momentum=MOMENTUM), torch.optim.SGD(net.parameters(), lr=1.0))
turns.wait()
FederatedAveraging().run(
    NNAlgorithmParams(TURNS, 10**6, CLIENTS, None),
    SimulatedBackend(data, None),
    model,
    NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LR),
    NNEvalHyperParams(local_batch_size=BATCH),
    [Wait()],
    send_metrics_to_platform=False,
)
