"""A site. Two lines are Holdfast's: the mods."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from holdfast.flower import digest_mod, peer_test_mod
from quickstart.task import CLASSES, Net, encoder, load_data
from quickstart.task import test as test_net
from quickstart.task import train as train_net


def my_features(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    return load_data(int(context.node_config["partition-id"]))


app = ClientApp(mods=[digest_mod(my_features, CLASSES, encoder=encoder().fingerprint), peer_test_mod()])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that was sent."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = my_features(context)
    loss = train_net(net, data, int(context.run_config["local-epochs"]), float(context.run_config["learning-rate"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data[1])})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test the model that was sent."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = my_features(context)
    loss, accuracy = test_net(net, data)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(data[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
