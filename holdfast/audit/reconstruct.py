"""Trying to see a record again: a decoder from features to pictures, trained by an adversary with pictures of its own.

It is given what a release leaves of one record: the mixture itself, or what is left of it when all other records are
known and taken away, z + noise. Whatever comes out is compared with the class-mean picture, which tells of no record
in particular: a reconstruction that is no nearer than that shows nothing; but it proves nothing either.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.data.task import Samples
from holdfast.digests.release_options import ReleaseOptions
from holdfast.encoders import Encoder, draw_shapes
from holdfast.encoders.contract import as_read
from holdfast.learning.loop import train
from holdfast.learning.objective import TaskLoss
from holdfast.learning.settings import Learning
from holdfast.privacy.claim import Claim
from holdfast.privacy.moment_noise import RADIUS, scales_for

WORST = 0.01  # share of the records that are seen best


@dataclass(frozen=True)
class Seen:
    """How near reconstructions come to the originals, beside the class-mean picture; PSNR in dB, larger is nearer."""

    attack: str
    psnr: float
    psnr_worst: float  # mean over the 1 % of records that are seen best
    ssim: float
    ssim_worst: float
    mean_psnr: float  # the class-mean picture's
    mean_psnr_worst: float
    mean_ssim: float
    nearer: float  # share of records that are seen better than by their class mean
    pictures: Tensor  # the reconstructions, in the order of the records

    @property
    def verdict(self) -> str:
        return "sees more than the class mean" if self.psnr > self.mean_psnr else "sees no more than the class mean"


def train_decoder(encoder: Encoder, images: Tensor, generator: torch.Generator, epochs: int = 30) -> nn.Module:
    """The adversary's inverse of the public encoder, learnt from pictures of its own."""
    features = encoder.encode(images).flatten(1)
    pixels = as_read(images).flatten(1)
    decoder = nn.Sequential(nn.Linear(features.shape[1], 256), nn.ReLU(), nn.Linear(256, pixels.shape[1]), nn.Sigmoid())
    for weight in decoder.parameters():
        bound = features.shape[1] ** -0.5 if weight.shape[-1] == features.shape[1] else 256**-0.5
        nn.init.uniform_(weight, -bound, bound, generator=generator)
    for learning in (
        Learning(epochs, 32, 20.0, 0.9),
        Learning(4, 32, 2.0, 0.9),
    ):  # a mean over pixels has small gradients
        train(decoder, Samples((features,), pixels), learning, generator, TaskLoss(functional.mse_loss))
    decoder.eval()
    return decoder


def leftovers(
    options: ReleaseOptions, claim: Claim, features: Tensor, generator: torch.Generator, partners_known: bool
) -> Tensor:
    """What a release leaves of each record: z + noise if all others are known, else the mixture that it is part of."""
    flat = features.flatten(1).double()
    count, spd = len(flat), max(1, options.spd)
    if claim.mode == "moments":
        scales = scales_for(options.true_epsilon, options.delta, flat.shape[1])[0]
        noise = float(scales.of_sum(RADIUS**2))  # of a class's sum, for a record that the radius does not shorten
        return (flat + noise * torch.randn(flat.shape, generator=generator, dtype=flat.dtype)).float()
    if claim.mode == "paper":
        largest = float(flat.abs().max())
        noise = 0.0 if options.epsilon is None else largest * spd / (options.size * options.epsilon)
    else:
        noise = claim.scale * claim.clip / (claim.sensitivity / 2)  # of the sum of a group
    spread = torch.randn(flat.shape, generator=generator, dtype=flat.dtype)
    if claim.noise.startswith(("laplace", "discrete laplace")):
        uniform = torch.rand(flat.shape, generator=generator, dtype=flat.dtype) - 0.5
        spread = -uniform.sign() * torch.log1p(-2 * uniform.abs() + 1e-300)
    if partners_known:
        return (flat + noise * spread).float()
    order = torch.randperm(count, generator=generator)
    mixed = torch.empty_like(flat)
    for group in order.split(spd):
        mixed[group] = (flat[group].sum(0) + noise * spread[group[0]]) / len(group)
    return mixed.float()


def try_to_see(attack: str, decoder: nn.Module, left: Tensor, images: Tensor, means: Tensor, labels: Tensor) -> Seen:
    """Decode what is left of each record and compare it with the original; `means` are the class-mean pictures."""
    originals = as_read(images)
    with torch.no_grad():
        decoded = decoder(left).reshape(originals.shape)
    usual = means[labels]
    near, base = psnr(decoded, originals), psnr(usual, originals)
    likeness = ssim(decoded, originals)
    return Seen(
        attack,
        float(near.mean()),
        best(near),
        float(likeness.mean()),
        best(likeness),
        float(base.mean()),
        best(base),
        float(ssim(usual, originals).mean()),
        float((near > base).float().mean()),
        decoded,
    )


def attacks_on(
    options: ReleaseOptions, claim: Claim, encoder: Encoder, own: Samples, others: Samples, classes: int, seed: int = 0
) -> list[Seen]:
    """Decoders trained on others' pictures of the same kind and on drawn shapes, with partners known and not."""
    generator = torch.Generator().manual_seed(seed)
    images, labels = own.inputs[0], own.labels
    features = encoder.encode(images)
    means = class_means(others, classes)
    shapes = draw_shapes(len(others), tuple(images.shape[1:]))
    decoders = {
        "same kind of pictures": train_decoder(encoder, others.inputs[0], generator),
        "drawn shapes": train_decoder(encoder, shapes, generator),
    }
    found = []
    for known in (False, True) if claim.mode != "moments" else (True,):
        left = leftovers(options, claim, features, generator, known)
        if known:  # the best linear guess of z from z + noise: shorter by |z|^2 / (|z|^2 + |noise|^2)
            left = left * min(1.0, float(features.square().sum() / left.square().sum()))
        for name, decoder in decoders.items():
            knows = "all other records" if known else "the release alone"
            found.append(try_to_see(f"decoder of {name}; knows {knows}", decoder, left, images, means, labels))
    return found


def class_means(samples: Samples, classes: int) -> Tensor:
    """The mean picture of each class, of all where a class is empty."""
    pictures = as_read(samples.inputs[0])
    parts = [pictures[samples.labels == c] for c in range(classes)]
    return torch.stack([part.mean(0) if len(part) else pictures.mean(0) for part in parts])


def best(values: Tensor) -> float:
    """Mean over the 1 % that are seen best."""
    return float(values.topk(max(1, int(WORST * len(values)))).values.mean())


def psnr(pictures: Tensor, originals: Tensor) -> Tensor:
    """10 log10 (1 / mean squared error) of each picture in [0, 1], in dB.

    >>> psnr(torch.full((1, 1, 4, 4), 0.6), torch.full((1, 1, 4, 4), 0.5)).round().tolist()
    [20.0]
    """
    return -10 * torch.log10((pictures - originals).square().flatten(1).mean(1).clamp(min=1e-10))


def ssim(pictures: Tensor, originals: Tensor, window: int = 7) -> Tensor:
    """Structural similarity of each picture, means over uniform windows (Wang et al. 2004), c = (.01^2, .03^2).

    >>> same = torch.rand(1, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    >>> round(float(ssim(same, same)), 6), float(ssim(same, 1 - same)) < 0
    (1.0, True)
    """

    def mean(values: Tensor) -> Tensor:
        return functional.avg_pool2d(values, min(window, *values.shape[2:]), stride=1)

    x, y = pictures.double(), originals.double()
    mx, my = mean(x), mean(y)
    vx, vy, cxy = mean(x * x) - mx * mx, mean(y * y) - my * my, mean(x * y) - mx * my
    map_ = ((2 * mx * my + 1e-4) * (2 * cxy + 9e-4)) / ((mx * mx + my * my + 1e-4) * (vx + vy + 9e-4))
    return map_.flatten(1).mean(1)
