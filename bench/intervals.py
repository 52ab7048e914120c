"""Intervals that assume no distribution: of medians by order statistics, of others by the bootstrap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from mpicoll.bench.stopping import interval_ranks

#: Complement of the level of all intervals, and the chance of any false verdict in a family of comparisons.
ALPHA = 0.05
_RESAMPLES = 1999


def median_interval(values: np.ndarray) -> tuple[float, float]:
    """95 % interval of the median from order statistics; assumes no distribution. NaN below six values."""
    ends = interval_ranks(len(values))
    if ends is None:
        return math.nan, math.nan
    low, high = np.partition(values, ends)[list(ends)]
    return float(low), float(high)


def log_error(values: np.ndarray) -> float:
    """Standard error of the median's logarithm, from the interval of the median; 0 where there is none."""
    low, high = median_interval(values)
    return 0.0 if math.isnan(low) else math.log(high / low) / (2 * 1.96)


def bootstrap(data: Sequence[np.ndarray], statistic: Any, *, pairs: bool = False) -> tuple[float, float]:
    """95 % percentile interval (Efron, Ann. Statist. 7, 1979) of a statistic; NaN below two values.

    The statistic takes an `axis`. Reproducible: the random numbers are always the same.
    """
    if min(map(len, data)) < 2:
        return math.nan, math.nan
    low, high = _bootstrap(tuple(data), statistic, pairs)
    return float(low), float(high)


def _bootstrap(data: tuple[np.ndarray, ...], statistic: Any, pairs: bool = False) -> Any:
    return stats.bootstrap(
        data, statistic, paired=pairs, vectorized=True, axis=-1, confidence_level=1 - ALPHA,
        n_resamples=_RESAMPLES, method="percentile", rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip


def intervals_of_medians(groups: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """95 % bootstrap intervals of the medians of many groups of values, as arrays of lows and of highs.

    Groups of one size are resampled together, which is several times faster than one by one.
    """
    lows, highs = np.full(len(groups), np.nan), np.full(len(groups), np.nan)
    for size in {len(group) for group in groups if len(group) > 1}:
        mine = [index for index, group in enumerate(groups) if len(group) == size]
        for chunk in (mine[start : start + 256] for start in range(0, len(mine), 256)):
            found = _bootstrap((np.stack([groups[index] for index in chunk]),), np.median)
            lows[chunk], highs[chunk] = found.low, found.high
    return lows, highs
