"""Which case comes next, and how long it may take: all coarsely first, then those that are known least.

Everything here follows from the rows on disk, so that a sweep that was stopped goes on where it was.
Without a time limit a case is measured in one go. With one, every case gets a short first pass, and the time
that is left goes to the cases with the widest intervals, a further pass each time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpicoll.bench.spec import Spec
from mpicoll.bench.stopping import FEWEST_TO_STOP, relative_width

#: Why no more is measured in a case; `time_limit` is the only reason that leaves it open.
FINAL = ("precision", "iterations", "case_time", "nothing ran")
_FIRST_SHARE = 0.4  # of the time limit, for the first passes
_KEPT = 0.1  # of the time that is left, against running over

Row = Mapping[str, Any]
Name = tuple[str, str]  # contender as it was asked for, engine


@dataclass(slots=True)
class History:
    """What is known of a case from all its passes."""

    passes: int = 0
    iterations: int = 0  # timed ones, late ones included
    warmup: int = 0  # iterations before those, in the last pass
    stopped_by: str = ""
    timed: float = 0.0  # seconds in timed calls
    setup: float = 0.0  # seconds that a pass takes beside its timing, roughly
    width: float = 0.0  # the widest relative interval of any contender
    times: dict[Name, list[float]] = field(default_factory=dict)  # good samples of each contender

    @property
    def good(self) -> int:
        """How many good samples every contender has."""
        return min(map(len, self.times.values()), default=0)

    def facts(self) -> dict[str, Any]:
        """For `run.json`: how much was measured, how well it is known, and why no more."""
        return {
            "passes": self.passes, "iterations": self.iterations, "warmup": self.warmup,
            "interval_percent": round(100 * self.width, 2) if math.isfinite(self.width) else None,
            "stopped_by": self.stopped_by,
        }  # fmt: skip


class Record:
    """The histories of all cases, by number; `add` takes the rows of a pass, from the file or fresh."""

    def __init__(self) -> None:
        self.cases: dict[int, History] = {}
        self.failures: dict[tuple[Name, str], dict[int, str]] = {}  # (contender, status): cases and reasons

    @property
    def measured(self) -> bool:
        """Whether any case has a good sample."""
        return any(history.times for history in self.cases.values())

    def add(self, rows: Sequence[Row]) -> None:
        """Count the rows of one pass."""
        case = self.cases.setdefault(int(rows[0]["case"]), History())
        case.passes = max(case.passes, int(rows[0]["pass"]) + 1)
        case.stopped_by = rows[0]["stopped_by"] or ""
        setup = {}
        warm = [int(row["iteration"]) for row in rows if _yes(row.get("warmup"))]
        case.warmup = max(warm, default=-1) + 1
        for row in rows:
            if row["status"] in ("error", "unsupported"):
                failed = self.failures.setdefault((_name(row), row["status"]), {})
                failed[int(row["case"])] = row.get("reason") or ""
            if row.get("seconds") in (None, "") or _yes(row["warmup"]):
                continue
            seconds = float(row["seconds"])
            # Building, first call, checks before and after.
            setup[_name(row)] = float(row["build_seconds"] or 0) + 4 * float(row["first_seconds"] or 0)
            case.timed += seconds * int(row["batch"])
            case.iterations = max(case.iterations, int(row["iteration"]) + 1)
            if row["status"] == "ok" and not _yes(row["late"]):
                case.times.setdefault(_name(row), []).append(seconds)
        case.setup = sum(setup.values())
        case.width = max(map(relative_width, case.times.values()), default=0.0)


def _name(row: Row) -> Name:
    return row["requested"], row["engine"] or ""


def _yes(flag: Any) -> bool:
    return flag in (True, "1")


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of one case."""

    case: int
    number: int  # of the pass
    budget: float  # seconds for timing
    iterations: int  # timed ones, at most
    first_iteration: int  # the number that the first of them gets
    when_spent: str  # what has stopped the pass if its budget did
    when_full: str  # … if its iterations did


class Plan:
    """Decides on rank 0 what all ranks do next."""

    def __init__(self, spec: Spec, cases: int, record: Record):
        self.spec, self.record = spec, record
        self.order = list(range(cases))
        if spec.order == "shuffled":
            random.Random(spec.seed).shuffle(self.order)
        self._begun = False

    @property
    def missing(self) -> list[int]:
        """Cases without any sample yet, in the order in which they will be measured."""
        return [case for case in self.order if case not in self.record.cases]

    @property
    def open(self) -> list[int]:
        """Cases that a time limit has left wider than asked for, the widest first."""
        found = [
            (history.width, case)
            for case, history in self.record.cases.items()
            if history.stopped_by not in FINAL
        ]
        return [case for _, case in sorted(found, key=lambda one: (-one[0], one[1]))]

    def took(self, step: Step, whole: float, timing: float) -> None:
        """Learn what a pass cost: all of it, and its timing alone [s]."""
        self.record.cases[step.case].setup = max(whole - timing, 0.0)

    def next(self, elapsed: float) -> Step | None:
        """The next pass, `elapsed` seconds after the launch began; None if there is nothing left to do."""
        left = float("inf") if self.spec.time_limit is None else self.spec.time_limit - elapsed
        if left <= 0 and self._begun:
            return None
        self._begun = True
        if missing := self.missing:
            return self._first(missing, elapsed)
        found = self.open
        return next(filter(None, (self._again(case, left, len(found)) for case in found)), None)

    def _first(self, missing: list[int], elapsed: float) -> Step:
        spec = self.spec
        if spec.time_limit is None:
            return Step(missing[0], 0, spec.case_time, spec.iterations, 0, "case_time", "iterations")
        # What was left of the share of another launch is not known, nor needed: here are fewer cases left.
        share = max(0.0, _FIRST_SHARE * spec.time_limit - elapsed) / len(missing)
        whole = spec.iterations <= FEWEST_TO_STOP
        return Step(
            missing[0], 0, min(spec.case_time, share), min(spec.iterations, FEWEST_TO_STOP), 0,
            "case_time" if share >= spec.case_time else "time_limit", "iterations" if whole else "time_limit",
        )  # fmt: skip

    def _again(self, case: int, left: float, rivals: int) -> Step | None:
        """A further pass of one of `rivals` open cases, or None if too little time is `left` for it."""
        spec, history = self.spec, self.record.cases[case]
        setup = history.setup
        own = max(spec.case_time - history.timed, 0.0)
        if left == float("inf"):
            budget = own
        else:
            # An equal share of what is left for each open case, but no less than its preparations cost.
            share = max((1 - _KEPT) * left / rivals - setup, setup)
            budget = min(own, share)
            if setup + budget > left:
                return None
        return Step(
            case, history.passes, budget, max(1, spec.iterations - history.good), history.iterations,
            "case_time" if budget >= own else "time_limit", "iterations",
        )  # fmt: skip
