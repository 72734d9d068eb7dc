"""Every command and snippet of docs/reports.md, run in order in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parent.parent / "docs" / "reports.md"


def test_the_tour_works(tmp_path: Path) -> None:
    found = re.findall(r"```(bash|python)\n(.*?)```", PAGE.read_text(), flags=re.S)
    assert [kind for kind, _ in found].count("bash") == 5
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path}
    for kind, code in found:
        command = ["bash", "-euc", code] if kind == "bash" else [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    for name in ("tour.html", "tour.png", "tour.pdf", "tour.svg", "clothes.safetensors"):
        assert (tmp_path / name).stat().st_size > 1000
    assert np.load(tmp_path / "predictions.npz")["probabilities"].shape == (50, 10)
