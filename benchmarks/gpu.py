"""What an accelerator gains: for users who have one. Send in what it prints.

    python benchmarks/gpu.py [--device cuda] [--workers 2] [--rounds 5] [--pictures 1200]

A round of 8 clients with so many pictures each, on the CPU and on the device, in float32 and in bfloat16, and the
memory of the device (without workers). Turns are interleaved, ratios are medians over rounds; the first warms up.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from contextlib import ExitStack

import torch
from speed import drawn, rounds_of

from holdfast.data.task import Task
from holdfast.play import one_thread
from holdfast.runs.experiment import from_table

PICTURES = "HOLDFAST_PICTURES"  # of each client, also for workers


def pictures() -> Task:
    each = int(os.environ[PICTURES]) * 5 // 4  # a fifth is held out
    return Task("pictures", drawn(8 * each, 1, 28, 28), drawn(10, 1, 28, 28), tuple("0123456789"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pictures", type=int, default=1200, help="of each client; fewer for a quick look")
    chosen = parser.parse_args()
    os.environ[PICTURES] = str(chosen.pictures)
    keys = {"task": "gpu:pictures", "model": "cnn", "clients": 8, "partition": "iid", "batch_size": 64, "rounds": 999}
    keys["workers"] = chosen.workers
    named = torch.cuda.get_device_name(chosen.device) if chosen.device.startswith("cuda") else chosen.device
    print(f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads, device {named}")
    taken: dict[str, list[float]] = {}
    with one_thread(), ExitStack() as stack:
        plays = {
            f"{device} {precision}": rounds_of(from_table({**keys, "device": device, "precision": precision}), stack)
            for device in dict.fromkeys(("cpu", chosen.device))
            for precision in ("float32", "bfloat16")
        }
        for turn in range(chosen.rounds + 1):
            for name, play in plays.items():
                start = time.perf_counter()
                play()
                if turn:
                    taken.setdefault(name, []).append(time.perf_counter() - start)
    usual = statistics.median(taken["cpu float32"])
    for name, seconds in taken.items():
        middle = statistics.median(seconds)
        spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
        print(f"{name:16} {middle:6.2f} s a round ({spread}), {middle / usual:.2f} of the CPU in float32")
    if chosen.device.startswith("cuda") and chosen.workers == 0:
        print(f"memory of the device at most: {torch.cuda.max_memory_allocated(chosen.device) / 2**20:.0f} MB")


if __name__ == "__main__":
    main()
