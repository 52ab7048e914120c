"""What needs a real device: everywhere else this is skipped, and says so.

The collectives' tests are those of tests/mpi/test_device.py, run on CuPy itself; the rest is `mpicoll probe`
and `mpicoll gpu-check`. Two ranks may share one device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devices import has_device
from launch import mpirun

pytestmark = [
    pytest.mark.skipif(not has_device(), reason="needs a GPU and CuPy"),
    pytest.mark.timeout(560),
]
ROOT = Path(__file__).parent.parent.parent


def test_probe_ends_with_a_verdict(tmp_path: Path) -> None:
    env = {**os.environ, "MPICOLL_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "mpicoll", "probe", "--json"],
        env=env, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["devices"]
    assert found["aware"] in (True, False), found["how"]
    assert done.returncode == (0 if found["aware"] else 1)


@pytest.mark.parametrize("ranks", [2, 3])
def test_collectives_on_the_device(ranks: int) -> None:
    argv = [sys.executable, "-m", "pytest", "--with-mpi", "-q", ROOT / "tests/mpi/test_device.py"]
    done = mpirun(ranks, argv, 300, {"MPICOLL_TEST_DEVICE": "real"}, ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_gpu_check_finds_nothing_wrong(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "mpicoll", "gpu-check", "--sizes", "4,1M", "--budget", "0.1", "-o", "out"]
    done = mpirun(2, argv, 300, {}, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong" in (tmp_path / "out" / "report.md").read_text()
