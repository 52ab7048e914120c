"""When there are samples enough: the nonparametric interval of a median, and how wide it may be.

Standard library only: a rank of a running job imports no scipy.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence

LEVEL = 0.95
#: Below it, no pair of order statistics encloses the median with 95 % probability (1 - 2·0.5^5 = 0.94).
FEWEST_FOR_INTERVAL = 6
#: An interval of fewer may be narrow by luck; looking again and again makes such luck likelier.
FEWEST_TO_STOP = 10


@functools.lru_cache(maxsize=4096)
def interval_ranks(number: int) -> tuple[int, int] | None:
    """Which of `number` sorted samples (from 0) bound the 95 % interval of the median; None if none do.

    The narrowest pair symmetric about the middle: sample k from below and from above, with the largest k for
    which the binomial probability P(fewer than k+1 of `number` samples are below the median) <= 2.5 %.
    Exact up to 1000 samples, the normal approximation beyond. Source: Hahn and Meeker, Statistical Intervals,
    1991, chapter 5; Le Boudec, Performance Evaluation of Computer and Communication Systems, 2010, §2.2.2.

    >>> interval_ranks(5), interval_ranks(6), interval_ranks(10), interval_ranks(100)
    (None, (0, 5), (1, 8), (39, 60))
    """
    if number < FEWEST_FOR_INTERVAL:
        return None
    tail = (1 - LEVEL) / 2
    if number > 1000:
        low = math.floor(number / 2 - 1.96 * math.sqrt(number) / 2) - 1
        return low, number - 1 - low
    outside, low = 0.0, -1
    while True:
        outside += math.comb(number, low + 1) / 2**number
        if outside > tail:
            return low, number - 1 - low
        low += 1


def median_interval(times: Sequence[float]) -> tuple[float, float, float] | None:
    """Lower end, median and upper end of the 95 % interval, or None with too few samples.

    >>> median_interval([3.0, 1.0, 2.0, 4.0, 6.0, 5.0])
    (1.0, 3.5, 6.0)
    """
    ends = interval_ranks(len(times))
    if ends is None:
        return None
    ordered = sorted(times)
    return ordered[ends[0]], statistics.median(ordered), ordered[ends[1]]


def relative_width(times: Sequence[float]) -> float:
    """How far the farther end of the median's 95 % interval is from it, relative to it; inf if unknown.

    >>> relative_width([9.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.5, 20.0])
    0.05
    >>> relative_width([1.0] * 5)
    inf
    """
    found = median_interval(times)
    if found is None:
        return math.inf
    low, median, high = found
    return max(high - median, median - low) / median if median > 0 else 0.0


def precise(times: Sequence[float], percent: float) -> bool:
    """Whether the median is known to within ±`percent` % (of 0: never), from samples enough to say so."""
    return percent > 0 and len(times) >= FEWEST_TO_STOP and relative_width(times) <= percent / 100
