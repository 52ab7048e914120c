"""A sweep of device buffers, with a fake device: each contender is proved right, or says why it cannot."""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

import pytest

from gpu import FAKE
from launch import mpirun
from mpicoll.bench.spec import make_spec
from mpicoll.errors import ArgumentError

COMMAND = (
    "-m mpicoll sweep --buffer cupy --collective allreduce,bcast --sizes 64K --iterations 5 --case-time 0.1s "
    "--algorithms ring,ring:staging=host,binomial,builtin,builtin_persistent,builtin_host,nccl -o out"
)


@pytest.mark.parametrize("aware", ["0", "1"])
def test_sweep_of_device_buffers(aware: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(FAKE), os.environ.get("PYTHONPATH", "")])
    env = {"PYTHONPATH": path, "MPICOLL_GPU_AWARE": aware}
    done = mpirun(2, [sys.executable, *COMMAND.split()], 100, env, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "out" / "samples.csv").open() as file:
        found = {
            (row["collective"], row["requested"]): (row["status"], row["buffer"], row["implementation"])
            for row in csv.DictReader(file)
        }
    direct, staged = ("cupy", "cupy_staged") if aware == "1" else ("cupy_staged", "cupy_staged")
    builtin = ("ok", "cupy", "mpi") if aware == "1" else ("unsupported", "cupy", "mpi")
    assert found == {
        ("allreduce", "ring"): ("ok", direct, "mpicoll"),
        ("allreduce", "ring:staging=host"): ("ok", staged, "mpicoll"),
        ("bcast", "binomial"): ("ok", direct, "mpicoll"),
        **{(c, "builtin_host"): ("ok", "cupy_staged", "mpi") for c in ("allreduce", "bcast")},
        **{(c, name): builtin for c in ("allreduce", "bcast") for name in ("builtin", "builtin_persistent")},
        **{(c, "nccl"): ("unsupported", "cupy", "nccl") for c in ("allreduce", "bcast")},
    }


def test_device_buffers_are_warm_and_on_the_python_engine() -> None:
    for settings in ({"cache": "cold"}, {"engine": "native"}):
        with pytest.raises(ArgumentError, match="warm, and on the python engine"):
            make_spec({"buffer": "cupy", **settings})
