"""From a pass of a case to rows of `samples.csv`."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpicoll.bench.measure import Entry, Measured
from mpicoll.bench.race import Samples
from mpicoll.bench.stages import rows_of_stages

Row = dict[str, Any]


def rows_of(result: Measured, common: Row, first_iteration: int) -> list[Row]:
    """The rows of a pass; one without a time for each contender that could not run.

    Timed iterations are numbered on from `first_iteration`, so that no number occurs twice in a case.
    """
    rows: list[Row] = []
    table = _table(result.samples) if result.racing else []
    for entry in result.entries:
        fixed = {**common, **_facts(entry), "stopped_by": result.stopped_by}
        if entry not in result.racing:
            rows.append(fixed)
            continue
        index = result.racing.index(entry)
        for iteration, order in enumerate(result.samples.orders):
            warm = iteration < result.samples.warmup
            number = iteration if warm else first_iteration + iteration - result.samples.warmup
            place = {"order": order.index(index), "iteration": number, "warmup": warm}
            rows.append({**fixed, **place, **{name: values[iteration][index] for name, values in table}})
    return rows


def stage_rows_of(result: Measured, common: Row) -> list[Row]:
    """The rows of a pass for `stages.csv`."""
    return [
        row
        for entry, iterations in result.stages
        for row in rows_of_stages(iterations, {**common, **_facts(entry)})
    ]


def _table(samples: Samples) -> list[tuple[str, list[list[Any]]]]:
    """The measured columns, each as Python values: iterations × contenders."""
    high, low = np.concatenate(samples.high), np.concatenate(samples.low)
    columns = {
        "seconds": high, "seconds_min": low, "skew": high - low,
        "slowest_rank": np.concatenate(samples.slowest), "late": np.concatenate(samples.late),
    }  # fmt: skip
    if samples.start_skew:
        columns["start_skew"] = np.concatenate(samples.start_skew)
    return [(name, values.tolist()) for name, values in columns.items()]


def _facts(entry: Entry) -> Row:
    """The columns that say who ran."""
    contender, runnable = entry.contender, entry.runnable
    options = dict(contender.options)
    facts = runnable.facts if runnable else {}
    params = facts.get("params", {key: v for key, v in options.items() if key not in ("channels", "depth")})
    return {
        "implementation": "nccl" if contender.name == "nccl" else "mpi" if contender.builtin else "mpicoll",
        "requested": contender.label,
        "algorithm": runnable.algorithm if runnable else contender.name,
        "engine": None if contender.builtin else (runnable.engine if runnable else contender.engine),
        "params": ";".join(f"{key}={value}" for key, value in sorted(params.items())) or None,
        "channels": facts.get("channels", options.get("channels")),
        "depth": facts.get("depth", options.get("depth")),
        "rounds": facts.get("rounds"),
        **({"buffer": facts["buffer"]} if "buffer" in facts else {}),
        "build_seconds": entry.build_seconds,
        "first_seconds": entry.first_seconds,
        "status": entry.status,
        "reason": entry.reason,
    }
