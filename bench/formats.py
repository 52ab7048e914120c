"""Results as the texts of other benchmarks, column by column, so that their users' scripts go on working.

`osu`: the table of ``osu_allreduce -f``; `nccl`: that of nccl-tests, with its in-place columns N/A, because a
sweep measures out of place. One table per panel and contender, each under a line that says who ran.

The layouts are theirs, the numbers are mpicoll's: a time is the mean over calls of the slowest rank's, so
that OSU's Avg and Max columns hold the same, and Min the mean of the fastest rank's. Several launches count
alike: it is then the mean of their means.

Standard library only: a sweep prints them itself.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from mpicoll.bench import conditions
from mpicoll.bench.store import StoreError, whole_part
from mpicoll.collectives import collective
from mpicoll.errors import ArgumentError

FORMATS = ("osu", "nccl")
_OSU_NAMES = {"bcast": "Broadcast", "alltoall": "All-to-All Personalized Exchange"}
_OSU_DTYPES = {"int8": "MPI_CHAR", "int32": "MPI_INT", "float32": "MPI_FLOAT", "float64": "MPI_DOUBLE"}
_NCCL_NAMES = {"allreduce": "all_reduce", "allgather": "all_gather", "bcast": "broadcast"}
_NCCL_DTYPES = {"float16": "half", "float32": "float", "float64": "double"}
#: What one table has in common: everything but the size.
_TABLE = (
    "environment", "collective", "dtype", "op", "root", "ranks", "nodes", "ppn", "placement", "settings",
    "thread_level", "buffer", "cache", "sync", "batch", "requested", "engine",
)  # fmt: skip
_SIZE = ("msg_bytes", "total_bytes", "count")


@dataclass(slots=True)
class _Line:
    """One size of a table."""

    launches: dict[Any, list[tuple[float, float | None]]] = field(
        default_factory=dict
    )  # slowest, fastest [s]
    checked: bool = True
    statuses: list[str] = field(default_factory=list)  # other than ok

    def values(self) -> dict[str, Any]:
        """The columns of a line."""
        slow = [fmean(one for one, _ in calls) for calls in self.launches.values()]
        fast = [[one for _, one in calls if one is not None] for calls in self.launches.values()]
        return {
            "seconds": fmean(slow),
            "seconds_min": fmean(map(fmean, fast)) if all(fast) else math.nan,
            "calls": sum(map(len, self.launches.values())),
            "checked": self.checked,
        }


class Tables:
    """All results of some directories, a table per panel and contender. Rows are those of `samples.csv`."""

    def __init__(self, directories: Sequence[Path] = (), *, across: bool = False) -> None:
        """Read results. Raises `StoreError` as a report does."""
        self._tables: dict[tuple[Any, ...], dict[tuple[Any, ...], _Line]] = {}
        known: dict[str, dict[str, Any]] = {}
        for source, run in conditions.read_runs(directories, across=across).items() if directories else ():
            self._read(Path(source), run, conditions.label(run, known))

    def _read(self, directory: Path, run: Mapping[str, Any], environment: str) -> None:
        facts = {
            str(one["launch"]): {
                "environment": environment,
                "settings": conditions.settings(one),
                "placement": conditions.placement(one),
            }
            for one in run["launches"]
        }

        def add(rows: Sequence[Mapping[str, Any]]) -> None:
            for row in rows:
                self._add({**row, **facts.get(row["launch"], {})}, (directory, row["launch"]))

        path = directory / "samples.csv"
        try:
            whole_part(path.read_bytes(), str(path), add)
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from None
        except ValueError as error:
            raise StoreError(f"{path} holds what is no sample: {error}") from None

    def _add(self, row: Mapping[str, Any], launch: Any) -> None:
        """Count one row, all of whose values are texts."""
        if row["warmup"] == "1" or row.get("late") == "1":
            return
        table = self._tables.setdefault(tuple(row.get(name) or None for name in _TABLE), {})
        line = table.setdefault(tuple(int(row[name]) if row[name] else None for name in _SIZE), _Line())
        if row["status"] != "ok":
            line.statuses.append(row["status"])
        elif row["seconds"]:
            fastest = float(row["seconds_min"]) if row["seconds_min"] else None
            line.launches.setdefault(launch, []).append((float(row["seconds"]), fastest))
            line.checked &= row["checked"] == "1"

    @property
    def results(self) -> int:
        """How many lines of results there are."""
        return sum(bool(line.launches) for table in self._tables.values() for line in table.values())

    @property
    def wrong(self) -> bool:
        """Whether a result is wrong."""
        return any("wrong" in line.statuses for table in self._tables.values() for line in table.values())

    def as_text(self, name: str) -> str:
        """The text of all results. Raises `ArgumentError` for an unknown format.

        A wrong or failed result has no time to print: its line is left out, and a comment says so.
        """
        if name not in FORMATS:
            raise ArgumentError(f"unknown format {name!r}; known: {', '.join(FORMATS)}")
        write = {"osu": _osu, "nccl": _nccl}[name]
        return "\n".join(text for key, rows in self._written() for text in write(key, rows))

    def _written(self) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Per table: what it has in common, and a row for each size that has a time."""
        several = len({key[-1] for key in self._tables if key[-1]}) > 1
        for key, table in self._tables.items():
            facts = dict(zip(_TABLE, key, strict=True))
            engine = f" ({facts['engine']})" if several and facts["engine"] else ""
            facts["contender"] = facts["requested"] + engine
            facts["wrong"] = sum("wrong" in line.statuses for line in table.values())
            lines = sorted(table.items(), key=lambda one: one[0][0])
            facts["left_out"] = [f"{size[0]} B: {line.statuses[0]}" for size, line in lines if line.statuses]
            timed = [(size, line) for size, line in lines if line.launches]
            yield facts, [{**dict(zip(_SIZE, size, strict=True)), **line.values()} for size, line in timed]


def show(name: str, tables: Tables) -> int:
    """Print all results in the format of that name; status 1 if there are none, or one is wrong."""
    print(tables.as_text(name), flush=True)
    if not tables.results:
        print(f"mpicoll: nothing to print as {name}: no right result with a time", file=sys.stderr)
    return int(tables.wrong or not tables.results)


def _head(key: dict[str, Any]) -> list[str]:
    where = f"{key['ranks']} ranks"
    if key["nodes"] is not None:
        where += f" on {key['nodes']} node{'s' if key['nodes'] != '1' else ''}"
    lines = [f"# measured by mpicoll: {key['contender']}, {where}, {key['environment']}"]
    return lines + [f"# left out: {reason}" for reason in key["left_out"]]


def _osu(key: dict[str, Any], table: list[dict[str, Any]]) -> Iterator[str]:
    name = _OSU_NAMES.get(key["collective"], key["collective"].capitalize())
    yield from _head(key)
    yield f"# OSU MPI {name} Latency Test"
    yield "# Its layout. Avg and Max: of the slowest rank; Min: of the fastest; means over calls."
    if key["dtype"]:
        yield f"# Datatype: {_OSU_DTYPES.get(key['dtype'], key['dtype'])}."
    titles = ("Avg Latency(us)", "Min Latency(us)", "Max Latency(us)")
    yield f"{'# Size':<10}" + "".join(f"{title:>18}" for title in titles) + f"{'Iterations':>12}"
    for row in table:
        slow, fast = row["seconds"] * 1e6, row["seconds_min"] * 1e6
        times = "".join(f"{value:18.2f}" for value in (slow, fast, slow))
        yield f"{row['msg_bytes']:<10}{times}{row['calls']:12}"
    yield ""


def _fit(value: float, width: int) -> str:
    """A number with two decimals, or as many as fit."""
    return next((text for digits in (2, 1) if len(text := f"{value:.{digits}f}") <= width), f"{value:.0f}")


def _nccl(key: dict[str, Any], table: list[dict[str, Any]]) -> Iterator[str]:
    kind, ranks = collective(key["collective"]), int(key["ranks"])
    name = _NCCL_NAMES.get(key["collective"], key["collective"])
    yield from _head(key)
    yield f"# Collective test starting: {name}_perf"
    yield _heading("", "", "", "", "") + "           out-of-place                       in-place          "
    yield _heading("size", "count", "type", "redop", "root") + 2 * _result("time", "algbw", "busbw", "#wrong")
    yield _heading("(B)", "(elements)", "", "", "") + 2 * _result("(us)", "(GB/s)", "(GB/s)", "")
    root = str(int(key["root"])) if kind.rooted and key["root"] is not None else "-1"
    dtype = _NCCL_DTYPES.get(key["dtype"] or "", key["dtype"] or "unknown")
    busbws = []
    for row in table:
        algbw = row["total_bytes"] / row["seconds"] / 1e9
        busbws.append(algbw * kind.busbw_factor(ranks) if ranks > 1 else 0.0)
        wrong = "0" if row["checked"] else "N/A"
        count = "unknown" if row["count"] is None else row["count"]
        yield _what(row["total_bytes"], count, dtype, key["op"] or "none", root) + _result(
            _fit(row["seconds"] * 1e6, 7), _fit(algbw, 6), _fit(busbws[-1], 6), wrong
        ) + _result("N/A", "N/A", "N/A", "N/A")  # fmt: skip
    yield f"# {'Out of bounds values':<20} : {key['wrong']} {'FAILED' if key['wrong'] else 'OK'}"
    yield f"# {'Avg bus bandwidth':<20} : {sum(busbws) / len(busbws) if busbws else 0:g} "
    yield f"#\n# Collective test concluded: {name}_perf\n"


def _what(*values: Any) -> str:
    """The columns that say what was measured, as wide as nccl-tests print them."""
    return "  ".join(f"{value:>{width}}" for value, width in zip(values, (12, 12, 8, 6, 6), strict=True))


def _heading(*words: str) -> str:
    return "#" + _what(*words)[1:]


def _result(*texts: str) -> str:
    """The columns of one way of running, likewise."""
    return "".join(f"  {text:>{width}}" for text, width in zip(texts, (7, 6, 6, 6), strict=True))
