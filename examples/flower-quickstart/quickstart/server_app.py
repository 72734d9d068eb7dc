"""The moderator. One line is Holdfast's: the strategy around FedAvg."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from holdfast.flower import FedDig, FedTest
from quickstart.task import CLASSES, Net, encoder, load_test, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Six rounds; a site that does not answer within the timeout is stood in for by its digest."""
    inner = FedAvg(min_available_nodes=1, min_train_nodes=1, min_evaluate_nodes=1)
    strategy = FedDig(
        FedTest(inner, testers=2),  # leave FedTest out to weigh by samples
        model=Net,
        encoder=encoder().fingerprint,
        classes=CLASSES,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
        timeout=float(context.run_config["timeout"]),
        evaluate_fn=central,
    )


def central(round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the global model at the moderator."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(net, load_test())
    return MetricRecord({"loss": loss, "accuracy": accuracy})
