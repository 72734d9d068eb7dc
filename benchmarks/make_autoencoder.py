"""Make the weights that ship with the package, from drawn shapes alone: the autoencoder's, and scattering's directions.

    python benchmarks/make_autoencoder.py FOLDER        write both files there and print their SHA-256
    python benchmarks/make_autoencoder.py               compare with the files in the package

One thread and fixed seeds: the same kind of machine with the same version of PyTorch gives the same bytes.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from holdfast.core.randomness import rng
from holdfast.encoders import autoencoder, scattering
from holdfast.encoders.contract import as_read
from holdfast.encoders.guidance import guidance_producer, initialise
from holdfast.encoders.shapes import draw_shapes

PICTURES = 20_000
EPOCHS = 6
BATCH = 100
RATE = 3e-3


def train(shape: tuple[int, int, int]) -> tuple[nn.Module, nn.Module]:
    """Encoder and decoder that redraw drawn shapes of this shape, by mean squared error."""
    generator = rng(0, -1, -1, f"autoencoder {shape}")
    encoder: nn.Module = autoencoder.ConvEncoder(shape[0])
    initialise(encoder, generator)
    decoder = guidance_producer(autoencoder.FEATURES, shape, generator)
    pictures = draw_shapes(PICTURES, shape, seed=1)
    optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=RATE)
    steps = EPOCHS * (PICTURES // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for epoch in range(EPOCHS):
        total = 0.0
        for index in torch.randperm(PICTURES, generator=generator).split(BATCH):
            images: Tensor = as_read(pictures[index])
            loss = nn.functional.mse_loss(decoder(encoder(images)), images)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            total += loss.item() * len(index)
        print(f"{shape} epoch {epoch + 1}: mean squared error {total / PICTURES:.5f}", flush=True)
    return encoder, decoder


def make(folder: Path) -> list[Path]:
    """Write both files to a folder."""
    weights = {}
    for channels, shape in autoencoder.TRAINED_ON.items():
        for half, network in zip(("encoder", "decoder"), train(shape), strict=True):
            for name, tensor in network.state_dict().items():
                weights[f"{half}/{channels}/{name}"] = tensor.contiguous()
    axes = {}
    for shape in autoencoder.TRAINED_ON.values():
        group = "x".join(map(str, shape))
        found = scattering.principal_axes(shape, scattering.SHIPPED_DIRECTIONS)
        axes[f"{group}/mean"] = found["mean"].float().contiguous()
        axes[f"{group}/directions"] = found["directions"].half().contiguous()
        axes[f"{group}/variances"] = found["variances"].float().contiguous()
    paths = [folder / autoencoder.SHIPPED.name, folder / scattering.SHIPPED.name]
    for path, tensors in zip(paths, (weights, axes), strict=True):
        save_file(tensors, path)
    return paths


def main() -> None:
    torch.set_num_threads(1)
    start = time.time()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary)
        for path in make(folder):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            shipped = autoencoder.SHIPPED.with_name(path.name)
            same = shipped.is_file() and shipped.read_bytes() == path.read_bytes()
            print(f"{path.name}: {path.stat().st_size} bytes, sha256 {digest}, {'as' if same else 'NOT as'} shipped")
    print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
