"""From samples to a summary: medians, intervals, ratios to the builtin, and who wins.

The unit of inference is the launch (`verdicts`). Within one launch, contenders are paired by iteration, as
they ran interleaved; an interval from a single launch says nothing about how launches differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from mpicoll.bench.intervals import bootstrap, intervals_of_medians, log_error, median_interval
from mpicoll.bench.verdicts import ENOUGH_LAUNCHES, MARGIN, Evidence, decide, paired
from mpicoll.collectives import collective

PANEL = [
    "environment", "settings", "thread_level", "ranks", "nodes", "ppn", "placement", "oversubscribed",
    "collective", "dtype", "op", "root", "memory", "cache", "sync", "batch",
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
#: What names a launch in the index of a series of times.
LAUNCH = ["source", "launch"]
_SAMPLE = [*LAUNCH, "case", "pass", "iteration"]


def summarise(samples: pd.DataFrame, margin: float = MARGIN) -> pd.DataFrame:
    """One row per case and contender: times [s], bandwidths [GB/s, 1e9], ratio to the builtin, verdict.

    Missing stays missing: without a builtin in the same case there is no ratio. Verdicts are corrected for
    all comparisons of a panel.
    """
    rows: list[dict[str, Any]] = []
    found: list[Evidence] = []
    where: list[int] = []  # the row of each piece of evidence
    for key, cell in samples.groupby(CELL, dropna=False, sort=False):
        fixed = dict(zip(CELL, key, strict=True))
        baseline = times_of(cell[cell["contender"] == BASELINE])
        for contender, group in cell.groupby("contender", sort=False):
            who = {name: group[name].iloc[-1] for name in WHO}
            times = times_of(group)
            row = {**fixed, **who, **_describe(times, group), **_bandwidths(fixed, times), **_status(group)}
            if contender != BASELINE:
                against = compare(times, baseline)
                if against is not None:
                    found.append(against)
                    where.append(len(rows))
            elif len(times):
                row |= {"ratio": 1.0, "verdict": "baseline"}
            rows.append(row)
    frame = pd.DataFrame(rows, columns=None if rows else [*CELL, *WHO, "launches", "status", "median"])
    return _mark_winners(_with_verdicts(_over_launches(frame), found, where, margin))


def _over_launches(frame: pd.DataFrame) -> pd.DataFrame:
    """Intervals of medians over launches, where there are enough; drops the column `medians`."""
    many = frame.index[frame["launches"] >= ENOUGH_LAUNCHES]
    if len(many):
        low, high = intervals_of_medians(list(frame.loc[many, "medians"]))
        frame.loc[many, "median_low"], frame.loc[many, "median_high"] = low, high
    return frame.drop(columns="medians", errors="ignore")


def _with_verdicts(
    frame: pd.DataFrame, found: list[Evidence], where: list[int], margin: float
) -> pd.DataFrame:
    said = decide(found, [tuple(map(str, frame.loc[row, PANEL])) for row in where], margin)
    said.index = pd.Index(where)
    for name in said:
        if name not in frame:
            frame[name] = pd.Series(None, index=frame.index, dtype=said[name].dtype if where else object)
        frame.loc[where, name] = said[name]
    return frame


def times_of(group: pd.DataFrame) -> pd.Series:
    """Seconds of good timed samples of one contender, indexed by launch, case and iteration.

    Those that a rank began late (column `late`) are no good: the sweep has taken others for them.
    """
    left_out = group["warmup"].fillna(True).astype(bool) | group["late"].fillna(False).astype(bool)
    ok = (group["status"] == "ok") & ~left_out & group["seconds"].notna()
    good = group.loc[ok, ["seconds", *_SAMPLE]]
    return pd.Series(good["seconds"].to_numpy(float), index=pd.MultiIndex.from_frame(good[_SAMPLE]))


def by_launch(times: pd.Series) -> dict[tuple[str, int], np.ndarray]:
    """The samples of each launch."""
    groups: dict[Any, pd.Series] = dict(iter(times.groupby(level=[0, 1])))
    return {key: values.to_numpy() for key, values in groups.items()}


def _describe(times: pd.Series, group: pd.DataFrame) -> dict[str, Any]:
    launches = list(by_launch(times).values())
    facts: dict[str, Any] = {"launches": len(launches), "samples": len(times)}
    if not launches:
        return facts
    medians = np.array([np.median(values) for values in launches])
    # Over launches where there are enough (`_over_launches`); else the hull of those within launches. An
    # interval of all calls together may not even hold the median over launches.
    lows, highs = zip(*map(median_interval, launches), strict=True)
    low, high = float(np.min(lows)), float(np.max(highs))  # NaN if one is
    p10, p90, p99 = np.percentile(times, [10, 90, 99])
    timed = group["warmup"].eq(False) & ~group["late"].fillna(False).astype(bool)
    return facts | {
        "medians": medians, "median": float(np.median(medians)), "median_low": low, "median_high": high,
        "min": float(times.min()), "p10": p10, "p90": p90, "p99": p99, "max": float(times.max()),
        "outliers": sum(int(outliers(values).sum()) for values in launches),
        "skew": float(group.loc[timed, "skew"].median()),
        "first_seconds": float(group["first_seconds"].median()),
        "build_seconds": float(group["build_seconds"].median()),
    }  # fmt: skip


def outliers(values: np.ndarray) -> np.ndarray:
    """Which are beyond Tukey's fences (of one launch). They are flagged and counted, never dropped."""
    q1, q3 = np.percentile(values, [25, 75])
    return (values < q1 - 1.5 * (q3 - q1)) | (values > q3 + 1.5 * (q3 - q1))


def _bandwidths(fixed: dict[str, Any], times: pd.Series) -> dict[str, float]:
    """The algbw and busbw of nccl-tests' definitions; none for empty messages, no busbw for one rank."""
    if not len(times) or not fixed["total_bytes"]:
        return {}
    median = float(np.median([np.median(values) for values in by_launch(times).values()]))
    algbw = float(fixed["total_bytes"]) / median / 1e9
    ranks = int(fixed["ranks"])
    factor = collective(fixed["collective"]).busbw_factor(ranks)
    return {"algbw": algbw} if ranks == 1 else {"algbw": algbw, "busbw": algbw * factor}


def _status(group: pd.DataFrame) -> dict[str, Any]:
    """The worst status of a contender in a case, with its reason."""
    for status in ("wrong", "error", "unsupported"):
        bad = group["status"] == status
        if bad.any():
            return {"status": status, "reason": group.loc[bad, "reason"].iloc[0]}
    return {"status": "ok", "reason": None}


def compare(times: pd.Series, baseline: pd.Series) -> Evidence | None:
    """Evidence about the ratio of medians to the baseline, from calls that both made in the same iteration.

    None if there are no such calls. With fewer launches than a verdict needs, the interval is the hull of the
    launches' own paired bootstrap intervals.
    """
    both = pd.concat({"own": times, "base": baseline}, axis=1, join="inner")
    pairs = [pair.to_numpy() for _, pair in both.groupby(level=[0, 1])]
    if not pairs:
        return None
    ratios = [np.median(pair[:, 0]) / np.median(pair[:, 1]) for pair in pairs]
    errors = [log_error(pair[:, 0] / pair[:, 1]) for pair in pairs]  # what strikes both is no error
    hull = (math.nan, math.nan)
    if len(pairs) < ENOUGH_LAUNCHES:
        lows, highs = zip(*(bootstrap((p[:, 0], p[:, 1]), _ratio, pairs=True) for p in pairs), strict=True)
        hull = float(np.min(lows)), float(np.max(highs))  # NaN if one is
    return paired(ratios, errors, hull)


def _ratio(own: np.ndarray, base: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.median(own, axis=axis) / np.median(base, axis=axis)


def _mark_winners(summary: pd.DataFrame) -> pd.DataFrame:
    """Add `best_own`: the own contender with the lowest median of each case."""
    summary["best_own"] = False
    own = summary[(summary["implementation"] == "mpicoll") & (summary["status"] == "ok")]
    timed = own[own["median"].notna()] if "median" in own else own[:0]
    summary.loc[timed.groupby(CELL, dropna=False)["median"].idxmin() if len(timed) else [], "best_own"] = True
    return summary


def panels(summary: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Groups of cases that differ in size only: one set of figures each."""
    for key, panel in summary.groupby(PANEL, dropna=False, sort=False):
        yield dict(zip(PANEL, key, strict=True)), panel.sort_values("msg_bytes", kind="stable")


def winners(panel: pd.DataFrame) -> pd.DataFrame:
    """Who wins at each size of a panel: the best own contender, the builtin, or nobody (a tie)."""
    rows = []
    copied = ("contender", "ratio", "ratio_low", "ratio_high", "verdict", "leaning", "why")
    for size, cell in panel.groupby("msg_bytes", sort=True):
        best, base = cell[cell["best_own"]], cell[cell["contender"] == BASELINE]
        persistent = cell[cell["contender"] == "builtin_persistent"]
        row: dict[str, Any] = {"msg_bytes": size, "size": cell["size"].iloc[0]}
        if len(best):
            own = best.iloc[0]
            row |= {name: own[name] for name in copied}
            row |= {"own_median": own["median"], "samples": own["samples"], "launches": own["launches"]}
        row["builtin_median"] = base["median"].iloc[0] if len(base) else None
        row["persistent_median"] = persistent["median"].iloc[0] if len(persistent) else None
        row["winner"] = {"faster": row.get("contender"), "slower": BASELINE, "tie": "tie"}.get(
            row.get("verdict") or ""
        )
        rows.append(row)
    return pd.DataFrame(rows)
