"""`mpicoll calibrate` measures a machine that `mpicoll model` can read; other ranks sleep meanwhile."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

from launch import mpirun
from mpicoll.bench.patterns import MESSAGES
from mpicoll.cost import Machine


def test_calibration_is_a_machine_for_the_model(tmp_path: Path) -> None:
    target = tmp_path / "calibration"
    command = [sys.executable, "-m", "mpicoll", "calibrate", "--sizes", "8:32K:16", "-o", target,
               "--dtypes", "float32,float64", "--ops", "sum,max"]  # fmt: skip
    done = mpirun(3, command, 100)
    assert done.returncode == 0, done.stderr
    machine = Machine.from_json((target / "machine.json").read_text())
    assert 0 < machine.one_way(8) < 1
    assert 0 < machine.exchange(8) < 1
    pairs = ["float32 sum", "float32 max", "float64 sum", "float64 max"]
    assert [pair for pair, _ in machine.combines] == pairs
    assert machine.host
    with (target / "calibration.csv").open() as file:
        patterns = {row["pattern"] for row in csv.DictReader(file)}
    assert patterns == {*MESSAGES, "combine", "burst", "copy"}
    assert machine.copy(1 << 20) > 0
    model = [sys.executable, "-m", "mpicoll", "model", "bcast", "binomial", "--bytes", "1K"]
    told = subprocess.run(
        [*model, "--machine", target / "machine.json"], capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stderr


def test_level_that_is_not_there_is_refused_on_all_ranks() -> None:
    done = mpirun(2, [sys.executable, "-m", "mpicoll", "calibrate", "--level", "net"], 60)
    assert done.returncode == 2
    assert "no rank for --level net" in done.stderr
