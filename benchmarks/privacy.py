"""Figures of docs/results-privacy.md: membership, reconstruction, the pictures of FedDig's Section VII, and speed.

python benchmarks/privacy.py membership [NAME] | reconstruction [NAME] | speed DATA | pictures OUT.png

NAME: the table is kept as docs/results/NAME.json.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch
from saved import Cells, save

from holdfast.absence import FedDig
from holdfast.audit.canary import tell_apart, worst_pair
from holdfast.audit.reconstruct import attacks_on, class_means, psnr
from holdfast.audit.statistics import gaussian_auc, moment_ratio
from holdfast.context import About
from holdfast.core.types import size
from holdfast.data.named import load_task
from holdfast.digests.digest import make_digest
from holdfast.digests.moments import stages
from holdfast.digests.release import claim_of, make_release
from holdfast.encoders import make_encoder
from holdfast.encoders.autoencoder import Autoencoder
from holdfast.encoders.contract import as_read
from holdfast.privacy.moment_noise import scales_for
from holdfast.privacy.noise import system


def membership() -> Cells:
    """The best test against one who knows all other records: the worst pair, and 200 random pairs; AUC."""
    task = load_task("fashion-mini", None)
    features = make_encoder("scattering:128", task.shape).encode(task.train.inputs[0][:1000]).double().numpy()
    labels = task.train.labels[:1000].tolist()
    pairs = np.random.default_rng(0).integers(0, 1000, (200, 2))
    cells: dict[tuple[str, str], list[float]] = {}
    for epsilon in (10.0, 3.0, 1.0):
        options = FedDig(mode="moments", epsilon=epsilon)
        claim, scales = claim_of(options, (128,), 10), scales_for(epsilon, 1e-5, 128)[0]
        worst = tell_apart(options, claim, worst_pair("moments", 128), 10, 4000, system(), "worst")
        _, centres, _, _ = stages(features, np.array(labels), 10, scales, system())
        records = [((features[a], labels[a]), (features[b], labels[b])) for a, b in pairs]
        predicted = [gaussian_auc(moment_ratio(*pair, 10, scales, centres)) for pair in records]
        measured = [tell_apart(options, claim, pair, 10, 100, system(), "", centres).auc for pair in records[:5]]
        row = f"moments, epsilon {epsilon:g}"
        cells |= {(row, "worst pair"): [worst.auc], (row, "99 %: from"): [worst.auc_limits[0]]}
        cells |= {(row, "to"): [worst.auc_limits[1]], (row, "predicted by the claim"): [float(worst.predicted)]}
        cells[row, "random pairs: predicted"] = [float(np.mean(predicted))]
        cells[row, "the first 5: predicted"] = [float(np.mean(predicted[:5]))]
        cells[row, "measured"] = [float(np.mean(measured))]
    for noise, options in (("without noise", FedDig()), ("nominal epsilon .005", FedDig(epsilon=0.005))):
        found = tell_apart(options, claim_of(options, (128,), 10), worst_pair("paper", 128), 10, 2000, system(), "")
        cells[f"paper, {noise}", "worst pair"] = [found.auc]
    return cells


def reconstruction() -> Cells:
    """Decoders on what a release leaves of 500 records: PSNR in dB and SSIM, of all and of the 1 % seen best."""
    task = load_task("fashion-mini", None)
    encoder = make_encoder("scattering:128", task.shape)
    own, others = task.train.take(torch.arange(500)), task.train.take(torch.arange(1000, 3000))
    cells: dict[tuple[str, str], str] = {}
    for options in (FedDig(spd=1), FedDig(spd=4), FedDig(mode="moments", epsilon=10.0), FedDig(mode="moments")):
        release = f"paper, SpD {options.spd}"
        if options.mode == "moments":
            release = f"moments, epsilon {options.true_epsilon:g}"
        for seen in attacks_on(options, claim_of(options, (128,), 10), encoder, own, others, 10):
            decoder, knows = seen.attack.split("; ")
            told = f"{seen.psnr:.1f} ({seen.psnr_worst:.1f}), {seen.ssim:.2f} ({seen.ssim_worst:.2f})"
            cells[f"{release}: {knows}", decoder] = told
            cells["the class-mean picture", decoder] = (
                f"{seen.mean_psnr:.1f} ({seen.mean_psnr_worst:.1f}), {seen.mean_ssim:.2f}"
            )
    return cells


def speed(folder: str) -> None:
    """Moment digests of all 60,000 training images of Fashion-MNIST: encoding, quantising, noise, sealing."""
    task = load_task("fashion-mnist", Path(folder))
    encoder = make_encoder("scattering:128", task.shape)
    start, used = time.perf_counter(), time.process_time()
    features = encoder.encode(task.train.inputs[0])
    encoded = time.perf_counter()
    about = About(task.name, task.classes, encoder.fingerprint, encoder.feature_shape)
    sealed, _ = make_release(FedDig(mode="moments"), about, features, task.train.labels, torch.Generator(), system())
    end = time.perf_counter()
    print(
        f"{len(features):,} images: {end - start:.1f} s ({encoded - start:.1f} s of it encoding; "
        f"{time.process_time() - used:.1f} s of processor time), {size(sealed):,} bytes"
    )


def pictures(out: str) -> None:
    """FedDig, Section VII: the autoencoder's decoder on digests of 1, 2, 4 and 8 samples."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    task = load_task("fashion-mini", None)
    encoder, decoder = make_encoder("autoencoder", task.shape), Autoencoder().decoder(task.shape)
    own = task.train.take(torch.arange(800))
    features, originals = encoder.encode(own.inputs[0]), as_read(own.inputs[0])
    means = class_means(own, task.classes)
    print(f"class mean: PSNR {float(psnr(means[own.labels], originals).mean()):.1f}")
    figure, axes = pyplot.subplots(4, 8, figsize=(8, 4.3))
    for row, spd in zip(axes, (1, 2, 4, 8), strict=True):
        groups = torch.arange(800).view(-1, spd)
        digest = make_digest(features, own.labels, task.classes, spd=spd, generator=torch.Generator().manual_seed(0))
        drawn = decoder(digest.features[:8])
        mixed = decoder(torch.stack([features[group].mean(0) for group in groups]))
        near = torch.stack([psnr(mixed, originals[group]) for group in groups.T]).amax(0)
        print(f"SpD {spd}: PSNR of the decoded digest to its nearest member {float(near.mean()):.1f}")
        for axis, picture in zip(row, drawn, strict=True):
            axis.imshow(picture[0], cmap="gray", vmin=0, vmax=1)
            axis.set_xticks([])
            axis.set_yticks([])
        row[0].set_ylabel(f"SpD {spd}")
    figure.tight_layout()
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    torch.set_num_threads(1)  # as everywhere in a run: two threads in each other's way are slower
    kinds = {"membership": membership, "reconstruction": reconstruction}
    if len(sys.argv) in (2, 3) and sys.argv[1] in kinds:
        cells = kinds[sys.argv[1]]()
        for (row, column), values in cells.items():
            print(f"{row} | {column} | {values if isinstance(values, str) else f'{values[0]:.3f}'}")
        if len(sys.argv) == 3:
            print(save(sys.argv[2], cells, [], corner="release", digits=3))
    elif len(sys.argv) == 3 and sys.argv[1] == "speed":
        speed(sys.argv[2])
    elif len(sys.argv) == 3 and sys.argv[1] == "pictures":
        pictures(sys.argv[2])
    else:
        print(__doc__)
