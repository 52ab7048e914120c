"""Telling a person how far a sweep is: a bar on a terminal, one flushed line per case in a batch log."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from mpicoll.bench.cases import Case
from mpicoll.bench.sizes import format_bytes, format_seconds
from mpicoll.collectives import collective

Row = dict[str, Any]


def name_of(row: Row) -> str:
    """A contender as people call it."""
    if row["implementation"] == "mpi":
        return str(row["requested"])
    return f"{row['requested']} ({row['engine']})" if row["engine"] else str(row["requested"])


def summary_line(case: Case, rows: Sequence[Row]) -> str:
    """One case in one line: the fastest own contender against the builtin."""
    times: dict[str, list[float]] = {}
    for row in rows:
        if row["status"] == "ok" and not row["warmup"] and not row.get("late"):
            times.setdefault(name_of(row), []).append(row["seconds"])
    medians = {name: statistics.median(values) for name, values in times.items()}
    title = f"{collective(case.collective).title} {case.dtype} {case.op} {format_bytes(case.msg_bytes)}"
    parts = [" ".join(title.split())]
    builtin = medians.get("builtin")
    own = {name: value for name, value in medians.items() if not name.startswith("builtin")}
    if own:
        best = min(own, key=own.__getitem__)
        ratio = f", {own[best] / builtin:.2f} of builtin" if builtin else ""
        parts.append(f"{best} {format_seconds(own[best])}{ratio}")
    if builtin:
        parts.append(f"builtin {format_seconds(builtin)}")
    wrong = sorted({f"{name_of(row)}: {row['reason']}" for row in rows if row["status"] == "wrong"})
    parts += [f"WRONG {text}" for text in wrong]
    return "; ".join(parts)


class Progress:
    """Shown by rank 0; silent elsewhere."""

    def __init__(self, total: int, done: int, *, first: bool, unit: str = "case"):
        self.total, self.done, self.first = total, done, first
        self.started = time.monotonic()
        self._bar: Any = None
        if first and sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:  # a nicety of the report extra
                return
            self._bar = tqdm(total=total, initial=done, unit=unit, dynamic_ncols=True)

    def case(self, line: str, *, again: bool = False) -> None:
        """A pass of a case is finished; `again` if it was not the first."""
        self.done += not again
        line += " (refined)" if again else ""
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
            self._bar.update(int(not again))
        elif self.first:
            width = len(str(self.total))
            print(f"[{self.done:{width}}/{self.total}] {line}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """No more to come."""
        if self._bar is not None:
            self._bar.close()
