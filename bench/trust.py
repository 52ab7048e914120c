"""Can these numbers be believed? What speaks against it, what it does to them, and what to run next."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from mpicoll.bench.sections import Loaded, Section, Table
from mpicoll.bench.stats import BASELINE, CELL, PANEL
from mpicoll.bench.verdicts import ENOUGH_LAUNCHES, launches_needed

#: A launch's builtin this much slower than another's shows a machine that is not always the same.
_SCATTER = 1.5
#: More outliers than this share of the samples are no accidents.
_OUTLIERS = 0.10
#: Half the width of an interval, relative to its median, that a sweep aims at by default.
_WIDE = 0.05
_TICKS = 20  # clock steps in a time, below which it is coarse


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that speaks against believing the numbers; with a `grave` one they are no result."""

    what: str
    effect: str
    next: str  # a command where there is one
    grave: bool = False


def find(data: Loaded) -> list[Reason]:
    """Everything that is known to speak against the numbers, the gravest first."""
    found = [*_hazards(data), *_unfinished(data)]
    if not data.samples.empty:
        found += [*_results(data.summary), *_launches(data), *_scatter(data), *_precision(data), *_late(data)]
    return sorted(dict.fromkeys(found), key=lambda reason: not reason.grave)


def section(data: Loaded) -> Section:
    """The reasons as a table, and a sentence that sums them up."""
    found = find(data)
    grave = [reason for reason in found if reason.grave]
    if grave:
        words = f"NOT A PERFORMANCE RESULT, for {len(grave)} grave reason{'s' if len(grave) > 1 else ''}: "
        words += "; ".join(reason.what for reason in grave) + "."
    elif found:
        words = (
            f"Usable with {len(found)} reservation{'s' if len(found) > 1 else ''}, listed with what to do."
        )
    else:
        words = "Nothing known speaks against these numbers."
    rows = [("grave" if r.grave else "", r.what, r.effect, r.next) for r in found]
    tables = (
        [Table("What speaks against them", ("", "reason", "effect", "next command"), rows)] if rows else []
    )
    return Section("Trustworthiness", [words], tables=tables)


def _hazards(data: Loaded) -> Iterator[Reason]:
    """What each launch found wrong with the machine before it measured, with the number of launches."""
    total = sum(1 for _ in data.launches())
    kinds: dict[tuple[str, str, str, bool], list[str]] = {}
    for _, launch in data.launches():
        for one in launch["hazards"]:
            kind = kind_of(one["what"])
            kinds.setdefault((kind, one["effect"], one["fix"], one["grave"]), []).append(one["what"])
    for (kind, effect, fix, grave), several in kinds.items():
        what = several[0] if len(set(several)) == 1 else f"{kind} ({_range(several)})"
        share = f", in {len(several)} of {total} launches" if len(several) < total else ""
        yield Reason(what + share, effect, fix, grave)


def kind_of(what: str) -> str:
    """A hazard without the number that is another one in each launch."""
    return re.split(": (?:load average|they keep)", what)[0]


def _range(texts: list[str]) -> str:
    """The extremes of texts that differ in numbers."""
    tails = sorted(text.partition(": ")[2] for text in texts)
    return tails[0] if tails[0] == tails[-1] else f"{tails[0]} to {tails[-1]}"


def _results(summary: pd.DataFrame) -> Iterator[Reason]:
    """Contenders that gave wrong results, failed or could not run."""
    for status, what, effect in (
        ("wrong", "WRONG RESULTS", "its times mean nothing"),
        ("error", "errors", "it has no times there"),
        ("unsupported", "unsupported", "it has no times there"),
    ):
        for contender, rows in summary[summary["status"] == status].groupby("contender", sort=False):
            first = rows.iloc[0]
            where = f"{contender} in {len(rows)} cases, the first: {first['reason']}"
            command = "mpicoll list"
            if status != "unsupported" and first["implementation"] == "mpicoll":
                command = f"mpicoll verify {first['collective']} {first['algorithm']}"
            yield Reason(f"{what}: {where}", effect, command, status == "wrong")


def _unfinished(data: Loaded) -> Iterator[Reason]:
    for note in data.results.notes:
        yield Reason(note, "what is missing is not in the report", "mpicoll sweep … -o DIR --resume")
    for source, run in data.runs.items():
        last = run["launches"][-1]
        if last["status"] != "complete":
            again = str(last["command"])
            if again.startswith("mpicoll sweep") and "--resume" not in again:
                again += " --resume"
            yield Reason(f"{source} is not complete ({last['status']})", "cases are missing", again)


def _launches(data: Loaded) -> Iterator[Reason]:
    """Too few launches for a verdict, or for the test that assumes least."""
    summary = data.summary
    compared = summary[summary["verdict"].notna() & summary["verdict"].ne("baseline")]
    if compared.empty:
        return
    fewest = int(compared["launches"].min())
    count = f"{fewest} launch{'es' if fewest != 1 else ''}"
    needed = launches_needed(int(compared.groupby(PANEL, dropna=False).size().max()))
    more = "mpicoll launch CAMPAIGN.toml (repeats = {}); mpicoll report DIR"
    if fewest < ENOUGH_LAUNCHES:
        yield Reason(
            f"{count} of each case"
            if fewest == compared["launches"].max()
            else f"only {count} of some cases",
            "intervals say little or nothing about how launches differ, and no verdict is given",
            more.format(ENOUGH_LAUNCHES),
        )
    elif fewest < needed:
        yield Reason(
            f"{fewest} launches: too few for Wilcoxon's test among so many comparisons",
            "verdicts rest on Student's t, which takes the launches' logarithms for normal",
            more.format(needed),
        )


def _scatter(data: Loaded) -> Iterator[Reason]:
    """Launches that do not agree on the builtin's own time."""
    good = data.samples[(data.samples["contender"] == BASELINE) & data.samples["warmup"].eq(False)]
    medians = good.groupby([*CELL, "source", "launch"], dropna=False)["seconds"].median()
    spread = medians.groupby(CELL, dropna=False).agg(lambda x: x.max() / x.min())
    bad = spread[spread > _SCATTER]
    if len(bad):
        yield Reason(
            f"launches differ by up to {bad.max():.1f} times in the builtin's own median ({len(bad)} of "
            f"{len(spread)} cases by more than {_SCATTER})",
            "absolute times are of that launch; ratios, being paired, suffer less",
            "mpirun -n P mpicoll info (binding, load); then more launches",
        )


def _precision(data: Loaded) -> Iterator[Reason]:
    """Wide intervals, many outliers, and times near the clock's step."""
    timed = data.summary[data.summary["status"].eq("ok") & data.summary["samples"].gt(0)]
    if timed.empty:
        return
    half = (timed["median_high"] - timed["median_low"]) / (2 * timed["median"])
    wide = int((~(half <= _WIDE)).sum())
    if wide:
        yield Reason(
            f"{wide} of {len(timed)} medians have an interval wider than ±{_WIDE:.0%}, or none",
            "small differences cannot be told",
            "mpicoll sweep … with more --iterations and --case-time, and more launches",
        )
    share = float(timed["outliers"].sum() / timed["samples"].sum())
    if share > _OUTLIERS:
        yield Reason(
            f"{share:.0%} of the samples are outliers (Tukey's fences, within launches)",
            "something else runs now and then; nothing is dropped, and medians suffer little",
            "ps -eo pcpu,pid,args --sort=-pcpu | head",
        )
    ticks = [
        one["seconds"]
        for _, launch in data.launches()
        for one in launch.get("overheads") or ()
        if one["what"] == "timer_resolution"
    ]
    coarse = timed[timed["median"] < _TICKS * max(ticks, default=0.0)]
    if len(coarse):
        yield Reason(
            f"{len(coarse)} medians are below {_TICKS} steps of the clock",
            "their ratios are those of whole steps",
            "mpicoll sweep … --batch 10",
        )


def _late(data: Loaded) -> Iterator[Reason]:
    late = int(data.samples["late"].fillna(False).sum())
    if late:
        yield Reason(
            f"{late} of {len(data.samples)} samples began late and were taken again",
            "some rank was not there when the window opened",
            "mpirun -n P mpicoll info (load, binding)",
        )
