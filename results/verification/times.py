"""How long proofs take, in seconds of CPU time of one process; the numbers of docs/verification.md.

python results/verification/times.py times.csv
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path

import mpicoll
from mpicoll.cases import cases
from mpicoll.verify import verify

TOGETHER = (16, 32, 64, 128)
ALONE = {
    "barrier/dissemination": {},
    "bcast/circulant_pipelined": {"segments": 16},
    "allreduce/recursive_doubling": {},
    "allgather/bruck": {},
    "allreduce/binary_tree": {"segments": 16},
    "reduce_scatter/circulant": {},
    "allreduce/circulant": {},
    "allreduce/recursive_halving_doubling": {},
    "allreduce/two_level": {"nodes": 64},  # ranks per node
}
SIZES = (512, 1024, 2048)
RING = (128, 256, 512)  # two million messages at P = 1024


def all_once(size: int) -> float:
    """One case of every algorithm that serves so many ranks."""
    begun = time.process_time()
    for algorithm in mpicoll.catalogue():
        case = next(iter(cases(algorithm, size)), None)
        if case is not None:
            verify(algorithm, size, case)
    return time.process_time() - begun


def one(name: str, size: int, params: dict[str, int]) -> float:
    """One proof."""
    given: dict[str, object] = dict(params)
    if "nodes" in given:
        given["nodes"] = tuple(rank // params["nodes"] for rank in range(size))
    begun = time.process_time()
    verify(name, size, given)
    return time.process_time() - begun


def main(path: Path) -> None:
    """Measure everything once, and write it."""
    count = len(mpicoll.catalogue())
    rows = [(f"all {count} algorithms, one case each", size, all_once(size)) for size in TOGETHER]
    rows += [(name, size, one(name, size, params)) for name, params in ALONE.items() for size in SIZES]
    rows += [("allreduce/ring", size, one("allreduce/ring", size, {})) for size in RING]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("what", "ranks", "cpu_seconds"))
        writer.writerows((what, size, f"{seconds:.3g}") for what, size, seconds in rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
