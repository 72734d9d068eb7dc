"""Flower's simulation: virtual clients in Ray's processes, one core each."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from shared import BATCH, CLIENTS, LR, MOMENTUM, TURNS, OwnNet, Turns, images

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model = OwnNet()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = images(int(context.node_config["partition-id"]))
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=MOMENTUM)
    for index in torch.randperm(len(y)).split(BATCH):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()
    told = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(told), reply_to=message)


class Waiting(FedAvg):
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        turns.wait()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        if len(replies) < CLIENTS or any(reply.has_error() for reply in replies):
            raise RuntimeError("a client failed")
        return super().aggregate_train(server_round, replies)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Waiting(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    strategy.start(grid, ArrayRecord(OwnNet().state_dict()), num_rounds=TURNS)
    turns.tell()


if __name__ == "__main__":
    turns = Turns()
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(server_app, client_app, CLIENTS, backend_config={"client_resources": resources})
