"""Does `mpicoll sweep` read what a C program with OSU's loop reads? Both measure MPI's all-reduce, in turn.

    python tests/reference/agreement.py -o results/agreement/mpich --launches 12

Runs the C program and mpicoll alternately, `--launches` times each, on two bound ranks at
`MPI_THREAD_FUNNELED`, with the MPI beside the running Python (its `mpicc` compiles the C program). Writes
`samples.csv` (medians of each launch), `calls.csv` (what a call costs on one rank, in C and through mpi4py)
and `agreement.csv` (both instruments compared). Exit status 1 if they disagree from 64 KiB on.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from launch import find_mpirun, flavour, run  # noqa: E402
from mpicoll.bench.sizes import parse_sizes  # noqa: E402
from mpicoll.bench.stopping import median_interval  # noqa: E402

SIZES = parse_sizes("4,64,1K,4K,16K,64K,256K,1M,4M,16M")
FROM = 64 << 10  # bytes, where the instruments must agree
NEAR = 0.05
TIMEOUT = 120.0


def compile_loop(directory: Path) -> Path:
    """Build the C program with the `mpicc` beside `mpirun`. Raises `CalledProcessError`."""
    program = directory / "allreduce_loop"
    mpicc = find_mpirun().parent / "mpicc"
    source = HERE / "allreduce_loop.c"
    subprocess.run([mpicc, "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True)
    return program


def bound(argv: list[Any]) -> list[Any]:
    """A command for two ranks, each bound to a core."""
    launcher = find_mpirun()
    option = "--bind-to" if flavour(launcher) == "openmpi" else "-bind-to"
    return [launcher, option, "core", "-n", "2", *argv]


def run_loop(program: Path) -> tuple[dict[int, list[float]], dict[str, float]]:
    """Samples of the slowest rank by size, and what a call costs on one rank [s]."""
    done = run(bound([program, *map(str, SIZES)]), TIMEOUT, environment())
    if done.returncode:
        raise SystemExit(f"{program} failed: {done.stderr}")
    together: dict[int, list[float]] = {}
    alone: dict[str, list[float]] = {}
    for row in csv.DictReader(done.stdout.splitlines()):
        if row["what"] == "together":
            together.setdefault(int(row["msg_bytes"]), []).append(float(row["seconds"]))
        else:
            alone.setdefault(row["msg_bytes"], []).append(float(row["seconds"]))
    return together, {nbytes: statistics.median(times) for nbytes, times in alone.items()}


def run_mpicoll(directory: Path) -> tuple[dict[int, list[float]], dict[str, float]]:
    """The same from `mpicoll sweep`."""
    options = ["--algorithms", "builtin", "--sizes", ",".join(map(str, SIZES)), "--case-time", "0.7s"]
    argv = [sys.executable, "-m", "mpicoll", "sweep", "-o", directory, *options, "--precision", "0"]
    done = run(bound(argv), TIMEOUT, environment())
    if done.returncode:
        raise SystemExit(f"mpicoll failed: {done.stderr}")
    together: dict[int, list[float]] = {}
    with (directory / "samples.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["warmup"] == "0":
                together.setdefault(int(row["msg_bytes"]), []).append(float(row["seconds"]))
    launch = json.loads((directory / "run.json").read_text())["launches"][0]
    cost = {row["what"]: row["seconds"] for row in launch["overheads"]}
    return together, {"0": cost["builtin_empty_call"], "4": cost["builtin_call"]}


def environment() -> dict[str, str]:
    """As a person would have it, with this checkout's mpicoll."""
    paths = [str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, **root, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def compare(medians: dict[tuple[str, int], list[float]]) -> list[dict[str, Any]]:
    """One row per size: both medians over launches with their 95 % intervals, and whether they agree."""
    rows = []
    for size in SIZES:
        ends = {who: median_interval(medians[who, size]) for who in ("c", "mpicoll")}
        row: dict[str, Any] = {"msg_bytes": size}
        for who, found in ends.items():
            low, middle, high = found or (float("nan"), statistics.median(medians[who, size]), float("nan"))
            row |= {f"{who}_low": low, f"{who}_median": middle, f"{who}_high": high}
        row["ratio"] = row["mpicoll_median"] / row["c_median"]
        row["difference"] = row["mpicoll_median"] - row["c_median"]
        near = abs(row["ratio"] - 1) <= NEAR
        inside = (
            row["c_low"] <= row["mpicoll_median"] <= row["c_high"]
            and row["mpicoll_low"] <= row["c_median"] <= row["mpicoll_high"]
        )
        row["agreement"] = "within 5 %" if near else "within intervals" if inside else "no"
        rows.append(row)
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows as CSV, seconds to a tenth of a nanosecond."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {key: f"{value:.10g}" if isinstance(value, float) else value for key, value in row.items()}
            for row in rows
        )


def main() -> int:
    """Measure, write, print; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--launches", type=int, default=12, help="of each instrument (12)")
    args = parser.parse_args()
    samples: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    medians: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        program = compile_loop(scratch)
        for launch in range(args.launches):
            instruments = (("c", run_loop(program)), ("mpicoll", run_mpicoll(scratch / f"{launch}")))
            for who, (together, alone) in instruments:
                for size, times in together.items():
                    median = statistics.median(times)
                    medians.setdefault((who, size), []).append(median)
                    fixed = {"launch": launch, "instrument": who, "msg_bytes": size}
                    samples.append({**fixed, "calls": len(times), "median_seconds": median})
                calls += [
                    {"launch": launch, "instrument": who, "bytes": nbytes, "median_seconds": seconds}
                    for nbytes, seconds in alone.items()
                ]
    args.output.mkdir(parents=True, exist_ok=True)
    rows = compare(medians)
    for file, content in (("samples", samples), ("calls", calls), ("agreement", rows)):
        write(args.output / f"{file}.csv", content)
    for row in rows:
        print(
            f"{row['msg_bytes']:>9} B  C {1e6 * row['c_median']:10.2f} us  mpicoll "
            f"{1e6 * row['mpicoll_median']:10.2f} us  ratio {row['ratio']:.3f}  {row['agreement']}"
        )
    return int(any(row["agreement"] == "no" for row in rows if row["msg_bytes"] >= FROM))


if __name__ == "__main__":
    sys.exit(main())
