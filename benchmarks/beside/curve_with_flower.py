"""FedAvg with a CNN in Flower's simulation, on the clients' data in a file; a line `ROUND accuracy` after each round.

python curve_with_flower.py FILE.npz ROUNDS LR
"""

from __future__ import annotations

import math
import os
import sys

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from shared import MOMENTUM, OwnNet

BATCH = 32
client_app, server_app = ClientApp(), ServerApp()


def part(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The pictures and labels of one client, or of the test set."""
    with np.load(os.environ["BESIDE_DATA"], allow_pickle=False) as file:
        return torch.from_numpy(file[f"x_{name}"]), torch.from_numpy(file[f"y_{name}"])


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model, config = OwnNet(), message.content["config"]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    done = (int(config["server-round"]) - 1) / int(config["rounds"])
    lr = float(config["lr"]) * (1 + math.cos(math.pi * done)) / 2  # as schedule = "cosine"
    x, y = part(str(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=MOMENTUM)
    for index in torch.randperm(len(y)).split(BATCH):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()
    told = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(told), reply_to=message)


@torch.inference_mode()
def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
    model, (x, y) = OwnNet(), part("test")
    model.load_state_dict(arrays.to_torch_state_dict())
    accuracy = float((model(x).argmax(1) == y).float().mean())
    if round:
        print("\nROUND", accuracy, flush=True)
    return MetricRecord({"accuracy": accuracy})


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    clients, rounds, lr = int(os.environ["BESIDE_CLIENTS"]), int(sys.argv[2]), float(sys.argv[3])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    start, config = ArrayRecord(OwnNet().state_dict()), ConfigRecord({"lr": lr, "rounds": rounds})
    strategy.start(grid, start, num_rounds=rounds, train_config=config, evaluate_fn=evaluate)


if __name__ == "__main__":
    os.environ["BESIDE_DATA"] = sys.argv[1]  # clients live in other processes
    with np.load(sys.argv[1], allow_pickle=False) as file:
        members = sum(name.startswith("x_") for name in file.files) - 1
    os.environ["BESIDE_CLIENTS"] = str(members)
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(server_app, client_app, members, backend_config={"client_resources": resources})
