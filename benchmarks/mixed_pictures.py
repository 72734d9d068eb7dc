"""Mixed and encoded pictures beside the attack that breaks each: XORMixUp, InstaHide, DataMix, and a plain mean.

    python benchmarks/mixed_pictures.py [--seed 0,1,2] [--save NAME]

Fashion-MNIST, 8-bit pixels. The attacker of the first column knows one encoding and a list of 1,000 pictures of which
one is in it, and names that one: chance is 0.1 %. That of the second rebuilds pictures; how well is told in decibels
(PSNR; above 30 they are hard to tell from the true ones). For XORMixUp it knows the partner, for InstaHide which
pictures are in which encoding and their shares, which Carlini et al. find from the encodings alone.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable

import torch
from saved import save, text
from torch import Tensor

from holdfast.data.named import load_task

CANDIDATES, TRIALS, K = 1000, 200, 4
EPOCHS = 12  # InstaHide encodes every picture anew in each
XOR, INSTAHIDE = "XORMixUp: two pictures, XOR of their bits", "InstaHide: four, random shares, random signs of pixels"
DATAMIX, MEAN = "DataMix: four, times a secret matrix", "plain mean of four"
ATTACKS = {
    XOR: "the candidate that makes the rest smooth",
    INSTAHIDE: "absolute values, then correlation",
    DATAMIX: "the candidate that lies in the space of what was sent",
    MEAN: "correlation",
}


def rough(pictures: Tensor) -> Tensor:
    """Total variation: how unlike a picture of something it is, (n, 28, 28) -> (n,)."""
    down, right = pictures.diff(dim=1).abs(), pictures.diff(dim=2).abs()
    return down.sum((1, 2)) + right.sum((1, 2))


def like(target: Tensor, candidates: Tensor) -> Tensor:
    """The correlation of each candidate with what is seen."""
    rows = candidates.flatten(1) - candidates.flatten(1).mean(1, keepdim=True)
    seen = target.flatten() - target.mean()
    return torch.cosine_similarity(rows, seen[None], dim=1)


def shares(count: int, chance: torch.Generator) -> Tensor:
    """InstaHide's: |N(0, 1)| as shares, drawn again until the largest is at most 0.65."""
    while True:
        drawn = torch.randn(count, generator=chance).abs()
        drawn = drawn / drawn.sum()
        if drawn.max() <= 0.65:
            return drawn


def named(encode: Callable[[Tensor], object], guess: Callable[[object, Tensor], int], pool: Tensor, k: int,
          chance: torch.Generator) -> float:  # fmt: skip
    """How often the attacker names the picture; partners are not on its list."""
    right = 0
    for _ in range(TRIALS):
        order = torch.randperm(len(pool), generator=chance)
        batch, decoys = pool[order[:k]], pool[order[k : k + CANDIDATES - 1]]
        place = int(torch.randint(CANDIDATES, (1,), generator=chance))
        candidates = torch.cat([decoys[:place], batch[:1], decoys[place:]])
        right += guess(encode(batch), candidates) == place
    return 100 * right / TRIALS


def psnr(found: Tensor, true: Tensor) -> float:
    error = float((found - true).square().mean())
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)


def instahide_rebuilt(pool: Tensor, chance: torch.Generator, pictures: int = 40) -> float:
    """The median over pictures: with pixels from 0 up the mask falls to |x~|, which is linear in the pictures."""
    own = pool[:pictures].float()
    mixing = torch.zeros(EPOCHS * pictures, pictures)
    for row in mixing:
        row[torch.randperm(pictures, generator=chance)[:K]] = shares(K, chance)
    mixed = mixing @ own.flatten(1)
    signs = torch.randint(2, mixed.shape, generator=chance) * 2 - 1
    found = torch.linalg.lstsq(mixing, (signs * mixed).abs()).solution
    return statistics.median(psnr(a, b) for a, b in zip(found.round(), own.flatten(1), strict=True))


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("--seed", default="0,1,2")
    options.add_argument("--save", metavar="NAME", help="keep the table as docs/results/NAME.json")
    given = options.parse_args()
    seeds = [int(seed) for seed in given.seed.split(",")]
    pool = (load_task("fashion-mini").train.inputs[0][:, 0] * 255).round().to(torch.uint8)
    found: dict[str, list[tuple[float, float]]] = {}
    for seed in seeds:
        chance = torch.Generator().manual_seed(seed)
        print(f"seed {seed}: {len(pool)} pictures", flush=True)

        def instahide(batch: Tensor, chance: torch.Generator = chance) -> Tensor:
            mixed = torch.einsum("k,kij->ij", shares(K, chance), batch.float())
            return mixed * (torch.randint(2, mixed.shape, generator=chance) * 2 - 1)

        def datamix(batch: Tensor, chance: torch.Generator = chance) -> Tensor:
            return torch.rand(K, K, generator=chance) @ batch.float().flatten(1)

        def in_space(sent: object, candidates: Tensor) -> int:
            assert isinstance(sent, Tensor)
            basis = torch.linalg.qr(sent.double().T).Q
            rows = candidates.flatten(1).double()
            return int(((rows - rows @ basis @ basis.T).norm(dim=1) / rows.norm(dim=1)).argmin())

        def smoothest(sent: object, candidates: Tensor) -> int:
            assert isinstance(sent, Tensor)
            return int(rough((candidates ^ sent).float()).argmin())

        def nearest(sent: object, candidates: Tensor) -> int:
            assert isinstance(sent, Tensor)
            return int(like(sent.abs(), candidates.float()).argmax())

        rows = {
            XOR: (named(lambda b: b[0] ^ b[1], smoothest, pool, 2, chance), math.inf),
            INSTAHIDE: (named(instahide, nearest, pool, K, chance), instahide_rebuilt(pool, chance)),
            DATAMIX: (named(datamix, in_space, pool, K, chance), math.nan),
            MEAN: (named(lambda b: b.float().mean(0), nearest, pool, K, chance), math.nan),
        }
        for name, pair in rows.items():
            found.setdefault(name, []).append(pair)
    cells: dict[tuple[str, str], list[float] | str] = {}
    for name, pairs in found.items():
        named_, rebuilt = zip(*pairs, strict=True)
        cells[name, "the attack"] = ATTACKS[name]
        cells[name, "named, %"] = list(named_)
        print(f"{name:64} named {text(named_, 1)} %, rebuilt {statistics.fmean(rebuilt):.1f} dB")
    if given.save:
        save(given.save, cells, seeds, corner="encoding")


if __name__ == "__main__":
    main()
