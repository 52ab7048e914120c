"""A step as a timeline that Perfetto and chrome://tracing read, one file per rank.

Written in the Trace Event Format (JSON, complete events; times in µs from the beginning of the step). Row 1
is the program: forward, backward, launches, waiting, update; row 2 the device, if there is one: the same
names for its kernels, and how long its stream waits. Each bucket in flight has a row of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpicoll.bench.records import replace_file
from mpicoll.bench.sizes import format_bytes

PROGRAM, DEVICE = 1, 2
_CATEGORIES = {PROGRAM: "program", DEVICE: "device"}


def events(rank: int, title: str, step: Any) -> list[dict[str, Any]]:
    """The events of a step (`overlap_bench.Step`) of one rank."""
    begin = step.begin
    found = [
        _meta("process_name", rank, 0, f"rank {rank}: {title}"),
        _meta("thread_name", rank, PROGRAM, "program"),
        *(_event(span.name, rank, PROGRAM, begin, span.begin, span.end, {}) for span in step.spans),
    ]
    if step.kernels:
        found.append(_meta("thread_name", rank, DEVICE, "device"))
        for span in step.kernels:
            if span.name.partition(" ")[0] not in ("ready", "synchronise"):  # there is nothing for it to do
                found.append(_event(span.name, rank, DEVICE, begin, span.begin, span.end, {}))
    for row, flight in enumerate(sorted(step.flights, key=lambda f: f.launched), start=DEVICE + 1):
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
        "cat": _CATEGORIES.get(row, "flight"),
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
