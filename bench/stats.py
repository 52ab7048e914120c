"""From samples to statements: medians, intervals, ratios to the builtin, and who wins.

The unit of inference is the launch. Within one launch, contenders are paired by iteration, as they ran
interleaved; an interval from a single launch says nothing about how launches differ, and is marked so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from mpicoll.collectives import collective

PANEL = [
    "environment", "settings", "thread_level", "ranks", "nodes", "ppn", "placement", "oversubscribed",
    "collective",
    "dtype", "op", "root", "memory", "cache", "sync", "batch",
]  # fmt: skip
CELL = [*PANEL, "count", "msg_bytes", "total_bytes", "size", "primed"]
WHO = [
    "contender",
    "buffer",
    "implementation",
    "requested",
    "algorithm",
    "engine",
    "params",
    "channels",
    "depth",
    "rounds",
]
BASELINE = "builtin"
_ENOUGH_LAUNCHES = 5
_RESAMPLES = 999
_LEVEL = 0.95


def summarise(samples: pd.DataFrame) -> pd.DataFrame:
    """One row per case and contender: times [s], bandwidths [GB/s, 1e9], ratio to the builtin, verdict.

    Missing stays missing: without a builtin in the same case there is no ratio.
    """
    rows: list[dict[str, Any]] = []
    for key, cell in samples.groupby(CELL, dropna=False, sort=False):
        fixed = dict(zip(CELL, key, strict=True))
        baseline = _times(cell[cell["contender"] == BASELINE])
        for contender, group in cell.groupby("contender", sort=False):
            who = {name: group[name].iloc[-1] for name in WHO}
            times = _times(group)
            row = {**fixed, **who, **_describe(times, group), **_bandwidths(fixed, times)}
            row |= _status(group)
            if contender != BASELINE:
                row |= compare(times, baseline)
            elif len(times):
                row |= {"ratio": 1.0, "verdict": "baseline"}
            rows.append(row)
    frame = pd.DataFrame(rows, columns=None if rows else [*CELL, *WHO, "launches", "status", "median"])
    for name in ("ratio", "ratio_low", "ratio_high", "verdict", "launch_scatter"):
        if name not in frame:
            frame[name] = None
    return _mark_winners(frame)


def _times(group: pd.DataFrame) -> pd.Series:
    """Seconds of good timed samples, indexed by launch (of its source) and iteration.

    Samples that a rank began late are no good; the sweep has taken others for them.
    """
    left_out = group["warmup"].fillna(True).astype(bool) | group["late"].fillna(False).astype(bool)
    good = group[(group["status"] == "ok") & ~left_out & group["seconds"].notna()]
    index = pd.MultiIndex.from_frame(good[["source", "launch", "iteration"]])
    return pd.Series(good["seconds"].to_numpy(float), index=index)


def _describe(times: pd.Series, group: pd.DataFrame) -> dict[str, Any]:
    launches = [values.to_numpy() for _, values in times.groupby(level=[0, 1])]
    facts: dict[str, Any] = {"launches": len(launches), "samples": len(times)}
    if not launches:
        return facts
    low, high = median_interval(times.to_numpy())
    p10, p90, p99 = np.percentile(times, [10, 90, 99])
    timed = group[group["warmup"].eq(False)]
    return facts | {
        "median": float(np.median([np.median(values) for values in launches])),
        "median_low": low, "median_high": high,
        "min": float(times.min()), "p10": p10, "p90": p90, "p99": p99, "max": float(times.max()),
        "outliers": int(_outliers(times.to_numpy()).sum()),
        "skew": float(timed["skew"].median()),
        "first_seconds": float(group["first_seconds"].median()),
        "build_seconds": float(group["build_seconds"].median()),
    }  # fmt: skip


def median_interval(values: np.ndarray) -> tuple[float, float]:
    """95 % interval of the median from order statistics; assumes no distribution. NaN below six values."""
    n = len(values)
    low = int(stats.binom.ppf((1 - _LEVEL) / 2, n, 0.5))
    if n < 6 or low < 1:
        return float("nan"), float("nan")
    ordered = np.sort(values)
    return float(ordered[low - 1]), float(ordered[n - low])


def _outliers(values: np.ndarray) -> np.ndarray:
    """Beyond Tukey's fences. They are counted, never dropped."""
    q1, q3 = np.percentile(values, [25, 75])
    return (values < q1 - 1.5 * (q3 - q1)) | (values > q3 + 1.5 * (q3 - q1))


def _bandwidths(fixed: dict[str, Any], times: pd.Series) -> dict[str, float]:
    """The algbw and busbw of nccl-tests' definitions; none for empty messages, no busbw for one rank."""
    if not len(times) or not fixed["total_bytes"]:
        return {}
    algbw = float(fixed["total_bytes"]) / float(np.median(times)) / 1e9
    ranks = int(fixed["ranks"])
    factor = collective(fixed["collective"]).busbw_factor(ranks)
    return {"algbw": algbw} if ranks == 1 else {"algbw": algbw, "busbw": algbw * factor}


def _status(group: pd.DataFrame) -> dict[str, Any]:
    """The worst status of a contender in a case, with its reason."""
    for status in ("wrong", "error", "unsupported"):
        bad = group[group["status"] == status]
        if len(bad):
            return {"status": status, "reason": bad["reason"].iloc[0]}
    return {"status": "ok", "reason": None}


def compare(times: pd.Series, baseline: pd.Series) -> dict[str, Any]:
    """Ratio of medians to the baseline (below 1: faster), with its 95 % interval and the verdict.

    With five launches or more the interval is a bootstrap over launches. With fewer, it is the hull of the
    launches' own paired bootstrap intervals.
    """
    paired = pd.concat({"own": times, "base": baseline}, axis=1, join="inner")
    launches = [pair.to_numpy() for _, pair in paired.groupby(level=[0, 1])]
    if not launches:
        return {}
    ratios = np.array([np.median(pair[:, 0]) / np.median(pair[:, 1]) for pair in launches])
    ratio = float(np.median(ratios))
    if len(launches) >= _ENOUGH_LAUNCHES:
        low, high = _bootstrap((ratios,), lambda x, axis: np.median(x, axis=axis), paired=False)
    else:
        intervals = [_bootstrap((pair[:, 0], pair[:, 1]), _ratio, paired=True) for pair in launches]
        low, high = min(i[0] for i in intervals), max(i[1] for i in intervals)
    return {
        "ratio": ratio, "ratio_low": low, "ratio_high": high, "verdict": verdict(low, high),
        "launch_scatter": float(ratios.max() / ratios.min()) if len(launches) > 1 else None,
    }  # fmt: skip


def verdict(low: float, high: float) -> str:
    """What an interval of the ratio says: faster, slower, tie, or undecided if there is no interval."""
    if np.isnan(low) or np.isnan(high):
        return "undecided"
    return "faster" if high < 1 else "slower" if low > 1 else "tie"


def _ratio(own: np.ndarray, base: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.median(own, axis=axis) / np.median(base, axis=axis)


def _bootstrap(data: tuple[np.ndarray, ...], statistic: Any, *, paired: bool) -> tuple[float, float]:
    if len(data[0]) < 2:
        return float("nan"), float("nan")
    found = stats.bootstrap(
        data, statistic, paired=paired, vectorized=True, confidence_level=_LEVEL, n_resamples=_RESAMPLES,
        method="percentile", rng=np.random.default_rng(0), batch=256,
    )  # fmt: skip
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def _mark_winners(summary: pd.DataFrame) -> pd.DataFrame:
    """Add `best_own`: the own contender with the lowest median of each case."""
    summary["best_own"] = False
    own = summary[
        (summary["implementation"] == "mpicoll") & (summary["status"] == "ok") & summary["median"].notna()
    ]
    summary.loc[own.groupby(CELL, dropna=False)["median"].idxmin(), "best_own"] = True
    return summary


def panels(summary: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Groups of cases that differ in size only: one set of figures each."""
    for key, panel in summary.groupby(PANEL, dropna=False, sort=False):
        yield dict(zip(PANEL, key, strict=True)), panel.sort_values("msg_bytes", kind="stable")


def winners(panel: pd.DataFrame) -> pd.DataFrame:
    """Who wins at each size of a panel: the best own contender, the builtin, or nobody (a tie)."""
    rows = []
    for size, cell in panel.groupby("msg_bytes", sort=True):
        best, base = cell[cell["best_own"]], cell[cell["contender"] == BASELINE]
        persistent = cell[cell["contender"] == "builtin_persistent"]
        row: dict[str, Any] = {"msg_bytes": size, "size": cell["size"].iloc[0]}
        if len(best):
            own = best.iloc[0]
            row |= {name: own[name] for name in ("contender", "ratio", "ratio_low", "ratio_high", "verdict")}
            row |= {"own_median": own["median"], "samples": own["samples"], "launches": own["launches"]}
        row["builtin_median"] = base["median"].iloc[0] if len(base) else None
        row["persistent_median"] = persistent["median"].iloc[0] if len(persistent) else None
        row["winner"] = {"faster": row.get("contender"), "slower": BASELINE, "tie": "tie"}.get(
            row.get("verdict") or ""
        )
        rows.append(row)
    return pd.DataFrame(rows)
