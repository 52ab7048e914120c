"""Results as the texts of other benchmarks, column by column, so that their users' scripts go on working.

`osu`: the table of ``osu_allreduce -f``; `nccl`: that of nccl-tests, with its in-place columns N/A, because a
sweep measures out of place. One table per panel and contender, each under a line that says who ran.

The layouts are theirs, the numbers are mpicoll's: a time is the mean over calls of the slowest rank's, so
that OSU's Avg and Max columns hold the same, and Min the mean of the fastest rank's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mpicoll.collectives import collective
from mpicoll.errors import ArgumentError

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("osu", "nccl")
_OSU_NAMES = {"bcast": "Broadcast", "alltoall": "All-to-All Personalized Exchange"}
_OSU_DTYPES = {"int8": "MPI_CHAR", "int32": "MPI_INT", "float32": "MPI_FLOAT", "float64": "MPI_DOUBLE"}
_NCCL_NAMES = {"allreduce": "all_reduce", "allgather": "all_gather", "bcast": "broadcast"}
_NCCL_DTYPES = {"float16": "half", "float32": "float", "float64": "double"}
#: What one table has in common: everything but the size.
_TABLE = (
    "environment", "collective", "dtype", "op", "root", "ranks", "nodes", "ppn", "placement", "settings",
    "thread_level", "cache", "contender",
)  # fmt: skip


def as_format(samples: pd.DataFrame, name: str) -> str:
    """The text of all results. Raises `ArgumentError` for an unknown format.

    A wrong or failed result has no time to print: its line is left out, and a comment says so.
    """
    if name not in FORMATS:
        raise ArgumentError(f"unknown format {name!r}; known: {', '.join(FORMATS)}")
    write = {"osu": _osu, "nccl": _nccl}[name]
    return "\n".join(line for key, table in _tables(samples) for line in write(key, table))


def _tables(samples: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Per table: its key, and one row per size with means over calls, then over launches."""
    import pandas as pd

    late = samples["late"].fillna(False).astype(bool) if "late" in samples else False
    timed = samples[~samples["warmup"].fillna(False).astype(bool) & ~late]
    columns = [column for column in _TABLE if column in timed]
    for key, group in timed.groupby(columns, dropna=False, sort=False):
        sizes = ["msg_bytes", "total_bytes", "count"]
        good = group[(group["status"] == "ok") & group["seconds"].notna()]
        launches = good.groupby([*sizes, "source", "launch"], dropna=False)
        means = launches[["seconds", "seconds_min"]].mean().groupby(sizes, dropna=False).mean()
        means["calls"] = launches["seconds"].size().groupby(sizes, dropna=False).sum()
        means["checked"] = good.groupby(sizes, dropna=False)["checked"].min()
        left = group[~group["status"].eq("ok")].drop_duplicates("msg_bytes")
        named: dict[str, Any] = dict(zip(columns, key, strict=True))
        facts: dict[str, Any] = {name: None if pd.isna(value) else value for name, value in named.items()}
        facts["wrong"] = int(group["status"].eq("wrong").groupby(group["msg_bytes"]).any().sum())
        facts["left_out"] = [f"{row['msg_bytes']} B: {row['status']}" for row in left.to_dict("records")]
        rows = means.reset_index().sort_values("msg_bytes").astype(object)
        yield facts, rows.where(rows.notna(), None)


def _head(key: dict[str, Any]) -> list[str]:
    where = f"{key['ranks']} ranks"
    if key["nodes"] is not None:
        where += f" on {key['nodes']} node{'s' if key['nodes'] != 1 else ''}"
    lines = [f"# measured by mpicoll: {key['contender']}, {where}, {key['environment']}"]
    return lines + [f"# left out: {reason}" for reason in key["left_out"]]


def _osu(key: dict[str, Any], table: pd.DataFrame) -> Iterator[str]:
    name = _OSU_NAMES.get(key["collective"], key["collective"].capitalize())
    yield from _head(key)
    yield f"# OSU MPI {name} Latency Test"
    yield "# Its layout. Avg and Max: of the slowest rank; Min: of the fastest; means over calls."
    if key["dtype"]:
        yield f"# Datatype: {_OSU_DTYPES.get(key['dtype'], key['dtype'])}."
    titles = ("Avg Latency(us)", "Min Latency(us)", "Max Latency(us)")
    yield f"{'# Size':<10}" + "".join(f"{title:>18}" for title in titles) + f"{'Iterations':>12}"
    for row in table.to_dict("records"):
        slow, fast = (
            row["seconds"] * 1e6,
            math.nan if row["seconds_min"] is None else row["seconds_min"] * 1e6,
        )
        times = "".join(f"{value:18.2f}" for value in (slow, fast, slow))
        yield f"{row['msg_bytes']:<10}{times}{row['calls']:12}"
    yield ""


def _fit(value: float, width: int) -> str:
    """A number with two decimals, or as many as fit."""
    return next((text for digits in (2, 1) if len(text := f"{value:.{digits}f}") <= width), f"{value:.0f}")


def _nccl(key: dict[str, Any], table: pd.DataFrame) -> Iterator[str]:
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
    for row in table.to_dict("records"):
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
