"""Figures of docs/privacy.md: membership, reconstruction, the pictures of FedDig's Section VII, and speed.

python benchmarks/privacy.py membership | reconstruction | speed DATA | pictures OUT.png
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch

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
from holdfast.encoders.contract import as_floats
from holdfast.privacy.moment_noise import scales_for
from holdfast.privacy.noise import system


def membership() -> None:
    """The best test against one who knows all other records: the worst pair, and 200 random pairs."""
    task = load_task("fashion-mini", None)
    features = make_encoder("scattering:128", task.shape).encode(task.train.inputs[0][:1000]).double().numpy()
    labels = task.train.labels[:1000].tolist()
    pairs = np.random.default_rng(0).integers(0, 1000, (200, 2))
    for epsilon in (10.0, 3.0, 1.0):
        options = FedDig(mode="moments", epsilon=epsilon)
        claim, scales = claim_of(options, (128,), 10), scales_for(epsilon, 1e-5, 128)[0]
        worst = tell_apart(options, claim, worst_pair("moments", 128), 10, 4000, system(), "worst")
        _, centres, _, _ = stages(features, np.array(labels), 10, scales, system())
        records = [((features[a], labels[a]), (features[b], labels[b])) for a, b in pairs]
        ratios = [moment_ratio(*pair, 10, scales, centres) for pair in records]
        predicted = [gaussian_auc(ratio) for ratio in ratios]
        measured = [tell_apart(options, claim, pair, 10, 100, system(), "", centres).auc for pair in records[:5]]
        print(
            f"epsilon {epsilon:g}: worst pair AUC {worst.auc:.3f} ({worst.auc_limits[0]:.3f} to "
            f"{worst.auc_limits[1]:.3f}), predicted {worst.predicted:.3f}, TPR at 1 % FPR {worst.tpr_1:.3f}; "
            f"random pairs: predicted {np.mean(predicted):.3f}; the first 5: predicted {np.mean(predicted[:5]):.3f}, "
            f"measured {np.mean(measured):.3f}",
            flush=True,
        )
    for options in (FedDig(), FedDig(epsilon=0.005)):
        found = tell_apart(options, claim_of(options, (128,), 10), worst_pair("paper", 128), 10, 2000, system(), "")
        print(f"paper, nominal epsilon {options.epsilon}: AUC {found.auc:.3f}")


def reconstruction() -> None:
    """Decoders on what a release leaves of 500 records, beside the class-mean picture."""
    task = load_task("fashion-mini", None)
    encoder = make_encoder("scattering:128", task.shape)
    own, others = task.train.take(torch.arange(500)), task.train.take(torch.arange(1000, 3000))
    for options in (FedDig(spd=1), FedDig(spd=4), FedDig(mode="moments", epsilon=10.0), FedDig(mode="moments")):
        for seen in attacks_on(options, claim_of(options, (128,), 10), encoder, own, others, 10):
            print(
                f"{options.mode} spd {options.spd} epsilon {options.epsilon}: {seen.attack}: PSNR {seen.psnr:.1f} "
                f"(worst 1 % {seen.psnr_worst:.1f}), SSIM {seen.ssim:.2f} (worst {seen.ssim_worst:.2f}); class mean "
                f"{seen.mean_psnr:.1f} ({seen.mean_psnr_worst:.1f}), {seen.mean_ssim:.2f}"
            )


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
    features, originals = encoder.encode(own.inputs[0]), as_floats(own.inputs[0])
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
    if len(sys.argv) == 2 and sys.argv[1] in kinds:
        kinds[sys.argv[1]]()
    elif len(sys.argv) == 3 and sys.argv[1] == "speed":
        speed(sys.argv[2])
    elif len(sys.argv) == 3 and sys.argv[1] == "pictures":
        pictures(sys.argv[2])
    else:
        print(__doc__)
