"""Where the time of a collective goes: seconds of its stages, in calls after the race (`--stages`).

The plans that race have no marks in them. For each pass of a case, those contenders that are mpicoll's are
built once more with marks, run some more times, and `stages.csv` gets a row per iteration and stage. Columns
are those of `samples.csv`, and:

- ``stage``, ``position``: its name, and its place among the contender's stages;
- ``members``: how many ranks take part in it;
- ``seconds``: the longest that any of these ranks spent on it, waiting for others included;
- ``path_seconds``: what it took on the *path*, the slowest of those ranks that take part in the most stages.
  Over the stages these add up to that rank's whole call, which ``seconds`` do not: who waits for others
  waits in a stage.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpicoll.bench.contenders import Runnable, build
from mpicoll.bench.spec import Contender
from mpicoll.bench.store import StoreError, explained, format_value
from mpicoll.bench.timing import Call, no_garbage_collection
from mpicoll.bench.workload import Workload
from mpicoll.bench.world import World

NAME = "stages.csv"
COLUMNS = (
    "launch", "case", "pass", "collective", "requested", "algorithm", "params", "engine", "channels", "depth",
    "dtype", "op", "root", "ranks", "nodes", "ppn", "count", "msg_bytes", "cache", "iteration", "stage",
    "position", "members", "seconds", "path_seconds",
)  # fmt: skip
ITERATIONS = (5, 20)  # fewest and most
Row = dict[str, Any]
Seconds = dict[str, float]  # of one call on one rank, by stage


def measure_stages(
    world: World, contenders: Sequence[Contender], work: Workload, own: Any, meet: Call, iterations: int
) -> list[list[tuple[Seconds, ...]]]:
    """Run marked plans of own contenders, interleaved. Collective.

    On rank 0, for each contender and each iteration, what every rank's call took; elsewhere nothing.
    """
    marked = [replace(one, options=(*one.options, ("stages", True))) for one in contenders]
    plans: list[Runnable] = []
    mine: list[list[Seconds]] = [[] for _ in marked]
    try:
        for one in marked:
            plans.append(build(one, work, own, None))
        with no_garbage_collection():
            for iteration in range(iterations + 1):  # one to warm up
                for seconds, plan in zip(mine, plans, strict=True):
                    meet()
                    plan.call()
                    if iteration:
                        seconds.append(plan.call.stage_seconds())  # type: ignore[attr-defined]  # own: a Plan
    finally:
        for plan in plans:
            plan.free()
    everywhere = world.control.gather(mine, root=0) or []
    return [list(zip(*ranks, strict=True)) for ranks in zip(*everywhere, strict=True)]


def rows_of_stages(iterations: Sequence[Sequence[Seconds]], common: Row) -> list[Row]:
    """The rows of one contender; `common` may have other columns, too."""
    fixed = {name: common[name] for name in COLUMNS if name in common}
    rows = []
    for iteration, ranks in enumerate(iterations):
        path = path_of(ranks)
        names = dict.fromkeys([*path, *(name for seconds in ranks for name in seconds)])
        for position, name in enumerate(names):
            taken = [seconds[name] for seconds in ranks if name in seconds]
            facts = {"stage": name, "position": position, "members": len(taken), "iteration": iteration}
            rows.append({**fixed, **facts, "seconds": max(taken), "path_seconds": path.get(name)})
    return rows


def path_of(ranks: Sequence[Seconds]) -> Seconds:
    """The stages of the slowest of those ranks that take part in the most of them.

    >>> path_of([{"intra": 2.0, "inter": 3.0}, {"intra": 6.0}, {"intra": 3.0, "inter": 1.0}])
    {'intra': 2.0, 'inter': 3.0}
    """
    return max(ranks, key=lambda seconds: (len(seconds), sum(seconds.values())))


class StageFile:
    """`stages.csv` in a result directory, opened for appending by rank 0."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        content = self.path.read_bytes() if self.path.exists() else b""
        header = (",".join(COLUMNS) + "\n").encode()
        if content and not (content.startswith(header) or header.startswith(content)):
            raise StoreError(f"{self.path} has other columns than this version of mpicoll writes")
        whole = content[: content.rfind(b"\n") + 1]  # without a row that was cut off
        if whole != content or not whole:
            self.path.write_bytes(whole or header)

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows, and wait for the disk."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([format_value(row.get(name)) for name in COLUMNS] for row in rows)
        with explained(self.path.parent), self.path.open("ab") as file:
            file.write(text.getvalue().encode())
            file.flush()
            os.fsync(file.fileno())
