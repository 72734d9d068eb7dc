"""An app in the shape of Flower's quickstart, with three sites, for the tests of FedDig and FedTest as strategies."""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from holdfast.flower import InProcessGrid

FEATURES = {0: torch.tensor([[4.0, 0.0]] * 8), 1: torch.tensor([[0.0, 4.0]] * 8), 2: torch.tensor([[4.0, 4.0]] * 8)}


def net() -> nn.Module:
    model = nn.Linear(2, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def read(context: Any) -> tuple[torch.Tensor, torch.Tensor]:
    site = int(context.node_config["partition-id"])
    return FEATURES[site], torch.full((8,), site)


def make_app(mods: list[Any], wrong: int | None = None) -> ClientApp:
    """A site that moves the weights by its number plus one; the `wrong` one sends rubbish."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Any) -> Message:
        site = int(context.node_config["partition-id"])
        state = message.content["arrays"].to_torch_state_dict()
        state = {name: tensor + (100.0 if site == wrong else site + 1.0) for name, tensor in state.items()}
        metrics = MetricRecord({"num-examples": 8, "train_loss": 0.0})
        return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        weight = float(message.content["arrays"].to_torch_state_dict()["bias"][0])
        metrics = MetricRecord({"eval_acc": 0.0 if weight > 50 else 0.8, "num-examples": 8})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def grid_of(app: ClientApp, sites: int = 3) -> InProcessGrid:
    return InProcessGrid(app, {100 + i: {"partition-id": i} for i in range(sites)})


def fedavg() -> FedAvg:
    return FedAvg(min_available_nodes=1, min_train_nodes=1, min_evaluate_nodes=1, fraction_evaluate=0.0)


def start(
    strategy: Any, grid: InProcessGrid, rounds: int = 1, model: Any = net, evaluate_fn: Any = None
) -> dict[str, torch.Tensor]:
    first = ArrayRecord(model().state_dict())
    result = strategy.start(grid, first, num_rounds=rounds, evaluate_fn=evaluate_fn)
    state: dict[str, torch.Tensor] = result.arrays.to_torch_state_dict()
    return state
