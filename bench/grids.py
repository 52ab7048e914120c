"""The tables of the page that can be sorted and filtered: columns of numbers, and of texts by their index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mpicoll.bench.stats import outliers

#: The page holds at most so many samples; all are in samples.csv.
MOST_SAMPLES = 20_000
_SUMMARY = (
    "environment", "settings", "collective", "dtype", "op", "ranks", "nodes", "ppn", "placement", "size",
    "msg_bytes", "contender", "median", "median_low", "median_high", "p10", "p90", "p99", "min", "max",
    "outliers", "samples", "launches", "ratio", "ratio_low", "ratio_high", "p_holm", "test", "verdict",
    "leaning", "why", "launch_scatter", "algbw", "busbw", "model_seconds",
    "bound_seconds", "residual", "skew", "first_seconds", "build_seconds", "rounds",
    "channels", "depth", "params", "oversubscribed", "status", "reason",
)  # fmt: skip
_SAMPLES = (
    "source", "launch", "collective", "dtype", "op", "ranks", "size", "msg_bytes", "contender", "iteration",
    "warmup", "late", "order", "seconds", "seconds_min", "skew", "slowest_rank", "outlier", "status",
    "reason",
)  # fmt: skip
_SECONDS = {
    "median", "median_low", "median_high", "p10", "p90", "p99", "min", "max", "skew", "first_seconds",
    "build_seconds", "seconds", "seconds_min", "model_seconds", "bound_seconds",
}  # fmt: skip

Grid = dict[str, list[dict[str, Any]]]


def summary_grid(summary: pd.DataFrame) -> Grid:
    """The rows of the summary."""
    return _grid(summary, _SUMMARY)


def samples_grid(samples: pd.DataFrame) -> tuple[Grid, str]:
    """The raw rows, outliers flagged, and a sentence on how many of them these are.

    Too many are capped by iteration, so that every case and contender keeps some.
    """
    flagged = samples.assign(outlier=flag_outliers(samples))
    if len(flagged) <= MOST_SAMPLES:
        return _grid(flagged, _SAMPLES), f"All {len(samples)} rows."
    turn = flagged.groupby(["source", "launch", "case", "contender"], dropna=False, sort=False).cumcount()
    counts = turn.value_counts().sort_index().cumsum()
    most = int((counts <= MOST_SAMPLES).sum())
    kept = flagged[turn < most] if most else flagged.iloc[:MOST_SAMPLES]
    note = (
        f"{len(kept)} of {len(samples)} rows: the first {max(most, 1)} calls of each contender in each case."
    )
    return _grid(kept, _SAMPLES), note


def flag_outliers(samples: pd.DataFrame) -> pd.Series:
    """Which timed samples are beyond Tukey's fences of their launch; missing where untimed or late."""
    flags = pd.Series(pd.NA, index=samples.index, dtype="boolean")
    late = samples["late"].fillna(False).astype(bool)
    timed = samples[samples["warmup"].eq(False) & ~late & samples["seconds"].notna()]
    for _, group in timed.groupby(["source", "launch", "case", "contender"], dropna=False, sort=False):
        flags[group.index] = outliers(group["seconds"].to_numpy(float))
    return flags


def _grid(frame: pd.DataFrame, names: tuple[str, ...]) -> Grid:
    """Columns that say something: those without any value, and texts that are all empty, are left out."""
    columns = []
    for name in names:
        if name not in frame or frame[name].isna().all() or frame[name].eq("").all():
            continue
        label = f"{name} [µs]" if name in _SECONDS else name
        columns.append({"name": label, **_column(name, frame[name])})
    return {"columns": columns}


def _column(name: str, values: pd.Series) -> dict[str, Any]:
    if pd.api.types.is_bool_dtype(values):
        values = values.astype(object).map({True: "yes", False: "no"})
    if not pd.api.types.is_numeric_dtype(values):
        codes, levels = pd.factorize(values)
        return {"levels": [str(x) for x in levels], "values": [None if c < 0 else int(c) for c in codes]}
    scale = 1e6 if name in _SECONDS else 1
    numbers = values.to_numpy(float, na_value=np.nan) * scale
    return {
        "values": [None if np.isnan(x) else int(x) if x == int(x) else float(f"{x:.5g}") for x in numbers]
    }
