"""A step as a timeline that Perfetto and chrome://tracing read, one file per rank.

Written in the Trace Event Format (JSON, complete events; times in µs from the beginning of the step). Row 1
is the program: forward, backward, launches, waiting, update; each bucket in flight has a row of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpicoll.bench.records import replace_file
from mpicoll.bench.sizes import format_bytes
from mpicoll.bench.training import Span

PROGRAM = 1


def events(
    rank: int, title: str, begin: float, spans: Sequence[Span], flights: Sequence[Any]
) -> list[dict[str, Any]]:
    """The events of a step that began at `begin` [s], of one rank."""
    found = [
        _meta("process_name", rank, 0, f"rank {rank}: {title}"),
        _meta("thread_name", rank, PROGRAM, "program"),
        *(_event(span.name, rank, PROGRAM, begin, span.begin, span.end, {}) for span in spans),
    ]
    for row, flight in enumerate(sorted(flights, key=lambda f: f.launched), start=PROGRAM + 1):
        name = f"bucket {flight.bucket} ({format_bytes(flight.nbytes)})"
        facts = {
            "bytes": flight.nbytes,
            **{f"{what}_us": _us(getattr(flight, what), begin) for what in ("launched", "waited", "arrived")},
        }
        found.append(_meta("thread_name", rank, row, name))
        found.append(_event(name, rank, row, begin, flight.began, flight.ended, facts))
    return found


def _us(time: float, begin: float) -> float:
    return round((time - begin) * 1e6, 1)


def _meta(what: str, rank: int, row: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": rank, "tid": row, "args": {"name": name}}


def _event(
    name: str, rank: int, row: int, begin: float, start: float, end: float, facts: dict[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "cat": "program" if row == PROGRAM else "flight",
        "ph": "X",
        "pid": rank,
        "tid": row,
        "ts": _us(start, begin),
        "dur": _us(end, start),
        "args": facts,
    }


def write(path: Path, found: Sequence[dict[str, Any]]) -> None:
    """One event a line, so that a difference can be read."""
    lines = ",\n".join(json.dumps(event, ensure_ascii=False) for event in found)
    replace_file(path, f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n')
