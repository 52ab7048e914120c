"""From one number per launch to a verdict: faster, slower, tie or undecided.

The launch is the unit of inference (Hunold & Carpen-Amarie, IEEE TPDS 27(12), 2016): ten thousand calls in
one `mpirun` are one sample of how launches differ. Everything here works on logarithms of ratios; below 1 is
faster. docs/report.md explains the rules to users; keep the two in step.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from mpicoll.bench.campaign import ENOUGH_LAUNCHES as ENOUGH_LAUNCHES
from mpicoll.bench.intervals import ALPHA, bootstrap, intervals_of_medians, log_error, median_interval

#: Differences below this count as none: a whole interval within 1/(1+MARGIN) to 1+MARGIN is a tie.
MARGIN = 0.05


@dataclass(frozen=True, slots=True)
class Evidence:
    """What launches say about one ratio.

    `sides` are logarithms, one value a launch: of ratios whose both sides ran in the same launch, or, as two
    arrays, of the new and the old times from launches of their own. `errors` are standard errors of these
    values within their launches. `hull` is the interval to use if launches are too few for one over launches.
    """

    sides: tuple[np.ndarray, ...]
    errors: tuple[np.ndarray, ...]
    hull: tuple[float, float] = (math.nan, math.nan)

    @property
    def ratio(self) -> float:
        """The ratio of medians over launches, or the median of the launches' ratios."""
        return math.exp(_difference(self.sides, np.median))

    @property
    def launches(self) -> int:
        """The number of launches, of the side that has fewer."""
        return min(map(len, self.sides))

    @property
    def floor(self) -> float:
        """The least p of a test on ranks with so many launches."""
        sizes = [len(side) for side in self.sides]
        return 2.0 / math.comb(sum(sizes), sizes[0]) if len(sizes) == 2 else 2.0 ** (1 - sizes[0])

    @property
    def spreads(self) -> tuple[float, ...]:
        """Standard deviations over launches, at least those of the timing within them."""
        return tuple(
            max(float(np.std(side, ddof=1)), float(np.median(error)))
            for side, error in zip(self.sides, self.errors, strict=True)
        )

    @property
    def scatter(self) -> float:
        """Largest over smallest value of a launch; NaN for one launch."""
        widths = [float(np.ptp(side)) for side in self.sides if len(side) > 1]
        return math.exp(max(widths)) if widths else math.nan


def _difference(sides: Sequence[np.ndarray], middle) -> float:
    first, *second = (float(middle(side)) for side in sides)
    return first - sum(second)


def paired(ratios: Sequence[float], errors: Sequence[float], hull: tuple[float, float]) -> Evidence:
    """Evidence from the ratio found in each launch, both sides having run in it."""
    return Evidence((np.log(ratios),), (np.asarray(errors, float),), hull)


def unpaired(new: Sequence[np.ndarray], old: Sequence[np.ndarray]) -> Evidence:
    """Evidence about new / old from the samples of launches of the one and launches of the other.

    The hull is the widest that the intervals of the medians within launches leave room for.
    """
    sides = [np.log([np.median(values) for values in launches]) for launches in (new, old)]
    errors = [np.array([log_error(values) for values in launches]) for launches in (new, old)]
    (low, high), (old_low, old_high) = (
        (np.min(lows), np.max(highs))
        for lows, highs in (
            zip(*(median_interval(values) for values in launches), strict=True) for launches in (new, old)
        )
    )
    return Evidence(tuple(sides), tuple(errors), (float(low / old_high), float(high / old_low)))


def rank_test(one: Evidence) -> float:
    """Two-sided p, assuming no distribution: Wilcoxon's signed ranks of pairs, else Mann and Whitney's."""
    if len(one.sides) == 2:
        return float(stats.mannwhitneyu(*one.sides).pvalue)
    (logs,) = one.sides
    return float(stats.wilcoxon(logs, zero_method="zsplit").pvalue) if logs.any() else 1.0


def t_test(one: Evidence, least: np.ndarray) -> float:
    """Two-sided p of Student's t (of Welch's for two sides), with spreads of at least `least`."""
    spreads = map(max, one.spreads, least)
    parts = [spread**2 / len(side) for spread, side in zip(spreads, one.sides, strict=True)]
    mean, error = _difference(one.sides, np.mean), math.sqrt(sum(parts))
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(side) - 1) for part, side in zip(parts, one.sides, strict=True)
    )
    return float(2 * stats.t.sf(abs(mean) / error, freedom))


def launches_needed(comparisons: int) -> int:
    """Launches with which Wilcoxon's test can be significant among so many comparisons.

    >>> launches_needed(1), launches_needed(13), launches_needed(200)
    (6, 10, 13)
    """
    return 1 + math.ceil(math.log2(max(comparisons, 1) / ALPHA))


def decide(
    evidence: Sequence[Evidence], families: Sequence[Hashable], margin: float = MARGIN
) -> pd.DataFrame:
    """One row of statements for each piece of evidence.

    Columns: ratio, ratio_low, ratio_high (95 %), launch_scatter (largest over smallest ratio of a launch),
    test (ranks or t), p, p_holm (corrected within its family: Holm, Scand. J. Statist. 6, 1979), leaning
    (what the interval alone says), verdict, why (of an undecided one).
    """
    lows, highs = _intervals(evidence)
    frame = pd.DataFrame(
        {
            "ratio": np.array([one.ratio for one in evidence], float),
            "ratio_low": lows,
            "ratio_high": highs,
            "launch_scatter": np.array([one.scatter for one in evidence], float),
        }
    )
    tests, p = np.full(len(evidence), None, object), np.full((2, len(evidence)), math.nan)
    comparisons = np.zeros(len(evidence), int)
    for key in dict.fromkeys(families):
        mine = [index for index, other in enumerate(families) if other == key]
        tests[mine], p[0, mine] = _test([evidence[index] for index in mine])
        p[1, mine], comparisons[mine] = holm(p[0, mine]), len(mine)
    frame["test"], frame["p"], frame["p_holm"] = tests, p[0], p[1]
    leans = [leaning(low, high, margin) for low, high in zip(lows, highs, strict=True)]
    frame["leaning"] = leans  # in which pandas makes NaN of None
    said = [
        _verdict(one.launches, lean, p_holm, number, margin)
        for one, lean, p_holm, number in zip(evidence, leans, p[1], comparisons, strict=True)
    ]
    frame["verdict"], frame["why"] = map(list, zip(*said, strict=True)) if said else ([], [])
    return frame


def _intervals(evidence: Sequence[Evidence]) -> tuple[np.ndarray, np.ndarray]:
    """95 % intervals of the ratios: a bootstrap over launches, the hull where these are too few."""
    lows, highs = (np.array([one.hull[end] for one in evidence], float) for end in (0, 1))
    enough = [index for index, one in enumerate(evidence) if one.launches >= ENOUGH_LAUNCHES]
    pairs = [index for index in enough if len(evidence[index].sides) == 1]
    if pairs:
        low, high = intervals_of_medians([evidence[index].sides[0] for index in pairs])
        lows[pairs], highs[pairs] = np.exp(low), np.exp(high)
    for index in set(enough) - set(pairs):
        found = bootstrap(evidence[index].sides, _difference_of_medians)
        lows[index], highs[index] = np.exp(found)
    return lows, highs


def _difference_of_medians(new: np.ndarray, old: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.median(new, axis=axis) - np.median(old, axis=axis)


def _test(family: Sequence[Evidence]) -> tuple[list[str | None], np.ndarray]:
    """Name and p of the test of each comparison in a family; None and NaN where launches are too few.

    The test on ranks, unless with so few launches it could not be significant whatever they said. Then t, for
    which a spread that is smaller than the family's typical one is taken for luck.
    """
    able = [one for one in family if one.launches >= ENOUGH_LAUNCHES]
    typical = {
        sides: np.median([one.spreads for one in able if len(one.sides) == sides], axis=0)
        for sides in {len(one.sides) for one in able}
    }
    tests: list[str | None] = []
    values = []
    for one in family:
        if one.launches < ENOUGH_LAUNCHES:
            tests.append(None)
            values.append(math.nan)
        elif one.floor * len(family) <= ALPHA:
            tests.append("ranks")
            values.append(rank_test(one))
        else:
            tests.append("t")
            values.append(t_test(one, typical[len(one.sides)]))
    return tests, np.array(values)


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's correction; NaN (not tested) stays NaN but counts as a comparison that was made.

    >>> [round(float(x), 3) for x in holm(np.array([0.01, 0.04, 0.03, np.nan]))]
    [0.04, 0.09, 0.09, nan]
    """
    order = np.argsort(p)  # NaN last
    factors = np.arange(len(p), 0, -1)
    adjusted = np.full(len(p), np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return adjusted


def leaning(low: float, high: float, margin: float = MARGIN) -> str | None:
    """What an interval of the ratio says by itself; None if it says nothing."""
    if math.isnan(low) or math.isnan(high):
        return None
    if low >= 1 / (1 + margin) and high <= 1 + margin:
        return "tie"
    return "faster" if high < 1 else "slower" if low > 1 else None


def _verdict(
    launches: int, lean: str | None, p_holm: float, comparisons: int, margin: float
) -> tuple[str, str | None]:
    if launches < ENOUGH_LAUNCHES:
        count = f"{launches} launch{'es' if launches != 1 else ''}"
        return "undecided", f"{count}: a verdict needs {ENOUGH_LAUNCHES}"
    if lean == "tie":
        return "tie", None
    if lean is None:
        return "undecided", f"the interval holds 1 and reaches beyond ±{margin:.0%}"
    if not p_holm <= ALPHA:
        return "undecided", f"p = {p_holm:.2g} after correction for {comparisons} comparisons"
    return lean, None
