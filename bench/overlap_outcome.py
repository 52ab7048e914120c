"""What a run of `mpicoll overlap` found, for the terminal and the report alike: numbers, advice, and why not.

A bucket size is recommended only where something was hidden. Where nothing was, the reasons are given that
the measured times give: cores that ranks share, buckets that are all latency, a backward pass shorter than
the communication, messages that take the core from computing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpicoll.bench import overlap_stats
from mpicoll.bench.overlap_modes import ASLEEP, COMMUNICATE, COMPUTE, OVERLAPPED
from mpicoll.bench.overlap_stats import Estimate, Key, Verdict
from mpicoll.bench.sizes import format_bytes, format_seconds


class Prediction(NamedTuple):
    """Seconds of an overlapped step."""

    free: float  # if moving messages cost computing nothing
    charged: float | None  # if it takes the CPU time that it was seen to take; None where that is not known
    bound: float  # the longer of computing and communicating alone, and the last bucket


class Outcome:
    """One run, evaluated. `told` is what `run.json` says under "overlap"."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], told: Mapping[str, Any]) -> None:
        self.rows, self.first = rows, rows[0]
        self.ranks = int(self.first["ranks"])
        self.times = overlap_stats.as_times(rows)
        self.cpu = overlap_stats.as_times(rows, "cpu_seconds")
        self.ready: Mapping[str, float] = told["ready"]
        self.cpus_per_rank: float | None = told.get("cpus_per_rank")
        self.buckets: dict[Key, Sequence[Any]] = {
            (one["mode"], one["bucket_bytes"]): one["filled"] for one in told["buckets"]
        }
        self.algorithms: dict[Key, Sequence[str]] = {  # older runs do not say
            (one["mode"], one["bucket_bytes"]): one.get("algorithms", ()) for one in told["buckets"]
        }
        self.resampled = overlap_stats.Resampled(self.times)
        self.verdicts = overlap_stats.verdicts(self.times)
        self.best = self.resampled.recommended()
        self.line = overlap_stats.fit_line(self.times, self.buckets)

    @property
    def sizes(self) -> list[int]:
        """The bucket sizes that were tried."""
        return sorted(size for mode, size in self.times if mode == OVERLAPPED and size is not None)

    def verdict(self, mode: str, size: int | None = None) -> Verdict:
        """Of a mode, at a bucket size if it has several."""
        return next(v for v in self.verdicts if v.mode == mode and size in (None, v.bucket_bytes))

    def compute(self) -> Estimate:
        """Seconds of a step that only computes."""
        return self.resampled.median((COMPUTE, None))

    def took(self) -> str:
        """Which algorithms the all-reduces of each mode took, in words; "" where that is not known."""
        modes: dict[str, list[str]] = {}
        for mode in dict.fromkeys(mode for mode, _ in self.algorithms):
            names = sorted({name for key, some in self.algorithms.items() if key[0] == mode for name in some})
            if names:
                modes.setdefault(" and ".join(names), []).append(mode)
        return "; ".join(f"{names} ({', '.join(some)})" for names, some in modes.items())

    def alone(self, size: int) -> Estimate:
        """Seconds of communicating alone in buckets of `size`."""
        return self.resampled.median((COMMUNICATE, size))

    def extra_cpu(self, size: int) -> float:
        """CPU seconds a rank that an overlapped step takes beyond one that only computes."""
        return self._cpu((OVERLAPPED, size)) - self._cpu((COMPUTE, None))

    def moving_cpu(self, size: int) -> float | None:
        """CPU seconds a rank of moving all messages, with nothing beside it but a program that sleeps."""
        return self._cpu((ASLEEP, size)) if (ASLEEP, size) in self.cpu else None

    def _cpu(self, key: Key) -> float:
        return float(np.median(self.cpu[key])) / self.ranks

    def charge(self) -> float | None:
        """Seconds of computing that a CPU second of moving messages costs; None where that is not known.

        A rank with a second CPU to itself has one to spare. Ranks that share CPUs take it from each other.
        """
        if self.cpus_per_rank is None:
            return None
        return 1 / self.cpus_per_rank if self.cpus_per_rank <= 1 else max(0.0, 2 - self.cpus_per_rank)

    def prediction(self, size: int) -> Prediction | None:
        """The model's step beside the measured one; None where no model could be fitted."""
        if self.line is None:
            return None
        filled, compute = self.buckets[OVERLAPPED, size], self.compute().value
        charge, moving = self.charge(), self.moving_cpu(size)
        charged = None
        if charge is not None and moving is not None:
            taken = min(1.0, charge * moving / sum(self.line(nbytes) for nbytes, _ in filled))
            charged = overlap_stats.predict(filled, self.ready, compute, self.line, taken)
        return Prediction(
            overlap_stats.predict(filled, self.ready, compute, self.line),
            charged,
            overlap_stats.bound(self.times, size, filled[-1][0], self.line),
        )

    # -- advice ------------------------------------------------------------------------------------------

    def hides(self) -> bool:
        """Whether anything was hidden at the best size: more than nothing, with the whole interval."""
        hidden = self.verdict(OVERLAPPED, self.best[0]).hidden
        if hidden is None:
            return False
        return bool((hidden.low if self.resampled.enough else hidden.value) > 0)

    def advice(self) -> list[str]:
        """The bucket size to use, or that there is none and why."""
        size, low, high = map(format_bytes, self.best)
        if self.hides():
            sure = "in 95 % of resamples, too" if low == high else f"95 % of resamples choose {low} to {high}"
            return [f"recommended bucket size: {size} ({sure})"]
        hidden = self.verdict(OVERLAPPED, self.best[0]).hidden
        amount = "?" if hidden is None else f"{hidden.text(100, '.0f')} %"
        unsure = hidden is not None and hidden.value > 0
        said = "it is not sure that anything was hidden" if unsure else "nothing was hidden"
        return [
            f"no bucket size is recommended: {said} ({amount} in the shortest step, of buckets of {size})",
            *(f"why: {reason}" for reason in self.reasons()),
        ]

    def reasons(self) -> list[str]:
        """Why nothing, or not more, was hidden, from what was measured."""
        size = self.best[0]
        found = [self._shared(), self._latency(size), self._short(size), self._busy(size)]
        said = [reason for reason in found if reason]
        if self.ranks == 1:
            said = ["a single rank has nobody to communicate with"]
        return said or ["the measured times do not tell; look for gaps in the timeline"]

    def _shared(self) -> str:
        if not self.first["oversubscribed"]:
            return ""
        share = f": {self.cpus_per_rank:.2g} CPUs for each" if self.cpus_per_rank else ""
        return f"ranks share CPUs{share}; who moves messages takes the core from who computes"

    def _latency(self, size: int) -> str:
        count, alone = len(self.buckets[OVERLAPPED, size]), self.alone(size).value
        if self.line is None or count * self.line.alpha < alone / 2:
            return ""
        return (
            f"buckets are too small: the latency of {count} of them, {format_seconds(self.line.alpha)} each, "
            f"is most of the {format_seconds(alone)} that communicating takes alone"
        )

    def _short(self, size: int) -> str:
        filled, alone = self.buckets[OVERLAPPED, size], self.alone(size).value
        room = self.ready[""] - min(self.ready[name] for _, name in filled)
        if room >= alone:
            return ""
        return (
            f"computing is too short: {format_seconds(max(room, 0.0))} of the backward pass are left when "
            f"the first bucket is full, and communicating takes {format_seconds(alone)} alone"
        )

    def _busy(self, size: int) -> str:
        charge, moving, alone = self.charge(), self.moving_cpu(size), self.alone(size).value
        if not charge or moving is None or self.first["oversubscribed"] or charge * moving < alone / 2:
            return ""
        return (
            f"moving the messages keeps a core busy for {format_seconds(moving)} of the "
            f"{format_seconds(alone)} that communicating takes alone, and computing leaves none free"
        )
