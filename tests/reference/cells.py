"""What a sweep knows of each cell, and how many calls it took, against the OSU benchmarks' fixed numbers.

    python tests/reference/cells.py DIR cells.csv

OSU's collectives take 1000 timed and 100 untimed calls up to 8 KiB, 100 and 10 above, in every cell.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mpicoll.bench.sizes import format_seconds
from mpicoll.bench.stopping import median_interval
from tests.reference.agreement import write

FIXED = ("collective", "ranks", "msg_bytes", "cache", "sync", "requested", "engine", "oversubscribed")
LARGE = 8192


def cells(path: Path) -> list[dict[str, Any]]:
    """One row per cell that ran: median, 95 % interval [s], numbers of calls, what ended it."""
    samples: dict[tuple[str, ...], list[float]] = defaultdict(list)
    calls: Counter[tuple[str, ...]] = Counter()
    ended: dict[tuple[str, ...], str] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["status"] != "ok":
                continue
            cell = tuple(row[name] for name in FIXED)
            calls[cell] += 1
            ended[cell] = row["stopped_by"]
            if row["warmup"] == row["late"] == "0":
                samples[cell].append(float(row["seconds"]))
    rows = []
    for cell, times in samples.items():
        low, median, high = median_interval(times) or (None, None, None)
        row = dict(zip(FIXED, cell, strict=True))
        fixed = 110 if int(row["msg_bytes"]) > LARGE else 1100
        numbers = {"samples": len(times), "calls": calls[cell], "osu_calls": fixed}
        rows.append({**row, **numbers, "low": low, "median": median, "high": high, "stopped_by": ended[cell]})
    return rows


def main() -> None:
    """Write the cells and print what they add up to."""
    rows = cells(Path(sys.argv[1]) / "samples.csv")
    write(Path(sys.argv[2]), rows)
    stated = [row for row in rows if row["low"] is not None]
    width = sorted(max(r["high"] / r["median"] - 1, 1 - r["low"] / r["median"]) for r in stated)
    ours, theirs = sum(r["calls"] for r in rows), sum(r["osu_calls"] for r in rows)
    time_of = [r["median"] * (r["osu_calls"] - r["calls"]) for r in stated]
    print(
        f"{len(rows)} cells, {len(stated)} with an interval, half of them within {width[len(width) // 2]:.1%}"
    )
    print(f"ended by {dict(Counter(row['stopped_by'] for row in rows))}")
    print(f"{ours} calls; OSU would take {theirs}: {1 - ours / theirs:.0%} saved, ", end="")
    print(f"{format_seconds(sum(time_of))} of calls alone")


if __name__ == "__main__":
    main()
