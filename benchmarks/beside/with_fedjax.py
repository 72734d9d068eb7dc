"""FedJAX: one process, one client after the other, each batch compiled once; XLA takes all cores."""

from __future__ import annotations

import jax

for name in ("tree_map", "tree_leaves", "tree_multimap"):  # FedJAX 0.0.17 calls them by names that JAX has dropped
    setattr(jax, name, getattr(jax.tree_util, name, jax.tree_util.tree_map))

import fedjax  # noqa: E402
import haiku as hk  # noqa: E402
from fedjax.algorithms import fed_avg  # noqa: E402
from shared import BATCH, CLIENTS, LR, MOMENTUM, TURNS, WORK, Turns, images  # noqa: E402


def network(batch: dict[str, jax.Array]) -> jax.Array:
    """The same network, channels last as XLA has them."""
    x = batch["x"]
    if WORK == "vectors":
        return hk.Linear(10)(jax.nn.relu(hk.Linear(64)(x)))
    for channels in (32, 64):
        x = jax.nn.relu(hk.Conv2D(channels, 3, padding="VALID")(x))
        x = hk.max_pool(x, (2, 2, 1), (2, 2, 1), "VALID")
    x = jax.nn.relu(hk.Linear(128)(hk.Flatten()(x)))
    return hk.Linear(10)(x)


def dataset(client: int) -> fedjax.ClientDataset:
    x, labels = images(client)
    x = x.permute(0, 2, 3, 1) if x.ndim == 4 else x
    return fedjax.ClientDataset({"x": x.numpy(), "y": labels.numpy().astype("int32")})


def main() -> None:
    datasets = [dataset(client) for client in range(CLIENTS)]
    model = fedjax.create_model_from_haiku(
        hk.transform(network),
        datasets[0].all_examples(),
        lambda batch, output: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], output),
    )
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(LR, momentum=MOMENTUM),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1),
    )
    state, turns = algorithm.init(model.init(jax.random.PRNGKey(0))), Turns()
    for turn in range(TURNS):
        turns.wait()
        chance = jax.random.split(jax.random.PRNGKey(turn + 1), CLIENTS)
        members = [(str(number).encode(), data, chance[number]) for number, data in enumerate(datasets)]
        state, _ = algorithm.apply(state, members)
        jax.block_until_ready(state.params)
    turns.tell()


if __name__ == "__main__":
    main()
