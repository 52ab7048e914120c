"""What the times of training steps say: what communication cost, how much was hidden, which bucket size.

Standard library and NumPy, so that the ranks that measured can say it, too. Modes ran interleaved, so that
iterations pair them; an interval is the middle 95 % of what resampled iterations give (bootstrap).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpicoll.bench.overlap_modes import BLOCKING, COMMUNICATE, COMPUTE, OVERLAPPED, PER_TENSOR

RESAMPLES = 1000
FEWEST = 6  # iterations for an interval
Key = tuple[str, int | None]  # mode, bucket size
Times = Mapping[Key, np.ndarray]  # seconds of every iteration


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval; NaN where there are too few iterations for one."""

    value: float
    low: float
    high: float

    def text(self, scale: float = 1.0, form: str = ".1f") -> str:
        """``value (low to high)``, multiplied by `scale`."""
        values = [format(scale * v, form) for v in (self.value, self.low, self.high)]
        return f"{values[0]} ({values[1]} to {values[2]})" if self.low == self.low else values[0]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A way to train, against computing alone: times in seconds."""

    mode: str
    bucket_bytes: int | None
    step: Estimate
    exposed: Estimate  # what the step takes beyond computing alone
    hidden: Estimate | None  # 1 - exposed / communication alone, at the same bucket size
    utilisation: Estimate  # computing alone / step


@dataclass(frozen=True, slots=True)
class Line:
    """The cost of a bucket of n bytes alone, alpha + beta·n [s], and how far the fit is off (relative)."""

    alpha: float
    beta: float
    error: float

    def __call__(self, nbytes: float) -> float:
        """Seconds of one bucket."""
        return self.alpha + self.beta * nbytes


class Resampled:
    """The medians of every mode in resampled iterations, the same iterations for all modes."""

    def __init__(self, times: Times, seed: int = 1) -> None:
        self.times = times
        count = len(next(iter(times.values())))
        draws = np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))
        self.enough = count >= FEWEST
        self.medians = {key: np.median(values[draws], axis=1) for key, values in times.items()}
        self.draws = draws

    def estimate(self, value: float, resampled: np.ndarray) -> Estimate:
        """A value with the interval of its resampled values."""
        if not self.enough:
            return Estimate(value, float("nan"), float("nan"))
        low, high = np.percentile(resampled, [2.5, 97.5])
        return Estimate(value, float(low), float(high))

    def median(self, key: Key) -> Estimate:
        """The median of a mode."""
        return self.estimate(float(np.median(self.times[key])), self.medians[key])

    def verdict(self, key: Key) -> Verdict:
        """What a way to train cost."""
        mode, size = key
        compute, step = self.times[COMPUTE, None], self.times[key]
        difference = step - compute
        exposed = np.median(difference), np.median(difference[self.draws], axis=1)
        hidden = None
        alone = (COMMUNICATE, size)
        if alone in self.times:
            value = 1 - exposed[0] / np.median(self.times[alone])
            hidden = self.estimate(float(value), 1 - exposed[1] / self.medians[alone])
        use = float(np.median(compute) / np.median(step)), self.medians[COMPUTE, None] / self.medians[key]
        return Verdict(
            mode, size, self.median(key), self.estimate(float(exposed[0]), exposed[1]), hidden,
            self.estimate(*use),
        )  # fmt: skip

    def recommended(self) -> tuple[int, int, int]:
        """The bucket size of the shortest overlapped step, and the interval of sizes that may be it.

        The interval holds 95 % of the resamples' own winners.
        """
        sizes = sorted(size for mode, size in self.times if mode == OVERLAPPED and size is not None)
        steps = np.array([self.medians[OVERLAPPED, size] for size in sizes])
        values = [float(np.median(self.times[OVERLAPPED, size])) for size in sizes]
        winners = np.array(sizes)[np.argmin(steps, axis=0)]
        low, high = np.percentile(winners, [2.5, 97.5], method="nearest")
        best = sizes[int(np.argmin(values))]
        return best, int(min(low, best)), int(max(high, best))


def verdicts(times: Times) -> list[Verdict]:
    """Of every way to train, in the order of the modes."""
    resampled = Resampled(times)
    order = (PER_TENSOR, BLOCKING, OVERLAPPED)
    keys = [key for mode in order for key in sorted(times, key=lambda k: k[1] or 0) if key[0] == mode]
    return [resampled.verdict(key) for key in keys]


def fit_line(times: Times, buckets: Mapping[Key, Sequence[tuple[int, str]]]) -> Line | None:
    """Alpha and beta from communication alone at all bucket sizes: count·alpha + bytes·beta.

    Least squares of relative errors, neither below 0. None with fewer than two numbers of buckets.
    """
    keys = [key for key in times if key[0] == COMMUNICATE]
    rows = np.array([(len(buckets[key]), sum(nbytes for nbytes, _ in buckets[key])) for key in keys], float)
    if len({row[0] for row in rows}) < 2:
        return None
    measured = np.array([np.median(times[key]) for key in keys])
    weighted = rows / measured[:, None]
    alpha, beta = np.linalg.lstsq(weighted, np.ones(len(keys)), rcond=None)[0]
    if min(alpha, beta) < 0:  # then the other one alone
        only = weighted.sum(axis=0) / (weighted**2).sum(axis=0)
        alpha, beta = (0.0, only[1]) if alpha < 0 else (only[0], 0.0)
    error = float(np.max(np.abs(rows @ (alpha, beta) / measured - 1)))
    return Line(float(alpha), float(beta), error)


def predict(
    buckets: Sequence[tuple[int, str]],
    ready: Mapping[str, float],
    compute: float,
    line: Line,
    taken: float = 0.0,
) -> float:
    """Seconds of an overlapped step.

    Buckets travel one after the other, each as soon as its last gradient is there (`ready`, from the
    beginning of a step that only computes; "" is the end of the backward pass) and the one before it is
    over; the update, the rest of `compute`, begins when both the last bucket and the backward pass are over.
    While a bucket travels, computing is slower by `taken`, the part of its core that moving messages takes.
    """
    now = done = 0.0  # seconds of the step, and how far computing has come in them
    for when, nbytes in sorted((ready[name], nbytes) for nbytes, name in buckets):
        if done < when:  # alone, at full speed
            now, done = now + when - done, when
        flight = line(nbytes)
        now, done = now + flight, done + flight * (1 - taken)
    return max(now, now + ready[""] - done) + compute - ready[""]


def bound(times: Times, size: int, last_bytes: int, line: Line) -> float:
    """What a step with perfect overlap may take: the longer of both alone, and the last bucket [s]."""
    compute, alone = (float(np.median(times[key])) for key in ((COMPUTE, None), (COMMUNICATE, size)))
    return max(compute, alone) + line(last_bytes)


def as_times(rows: Sequence[Mapping[str, Any]], column: str = "seconds") -> dict[Key, np.ndarray]:
    """A column of tidy rows, without the warm-ups, as arrays by mode and bucket size."""
    found: dict[Key, list[tuple[int, float]]] = {}
    for row in rows:
        if not row["warmup"]:
            size = row["bucket_bytes"]
            found.setdefault((row["mode"], size), []).append((row["iteration"], row[column]))
    return {key: np.array([value for _, value in sorted(values)]) for key, values in found.items()}
