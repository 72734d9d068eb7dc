"""fluke's server: one process, one client after the other."""

from __future__ import annotations

from shared import BATCH, CLIENTS, LR, MOMENTUM, TURNS, OwnNet, Turns, images, without

without("torchvision", "datasets", "wandb", "clearml", "seaborn", "opacus", "hydra", "torch.utils.tensorboard")

import torch  # noqa: E402
from fluke import DDict, FlukeENV  # noqa: E402
from fluke.client import Client  # noqa: E402
from fluke.config import OptimizerConfigurator  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.server import Server  # noqa: E402

env = FlukeENV()
env.set_seed(0)
env.set_device("cpu")
env.set_eval_cfg(pre_fit=False, post_fit=False, server=False, locals=False)
clients = []
for index in range(CLIENTS):
    loader = FastDataLoader(*images(index), num_labels=10, batch_size=BATCH, shuffle=True)
    optimizer = OptimizerConfigurator(
        DDict(name="SGD", lr=LR, momentum=MOMENTUM), DDict(name="StepLR", step_size=1, gamma=1.0)
    )
    clients.append(Client(index, loader, None, optimizer, torch.nn.CrossEntropyLoss(), local_epochs=1))
server = Server(OwnNet(), None, clients, weighted=True)
for client in clients:
    client.set_channel(server.channel)
turns = Turns()
for _ in range(TURNS):
    turns.wait()
    server.fit(1, 1.0, finalize=False)
turns.tell()
