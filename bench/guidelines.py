"""Performance guidelines: what a collective must not cost more than, since others could stand in for it.

A library whose all-reduce takes longer than its reduce and its broadcast after one another is not tuned:
anyone could do better with its own calls. Such rules need no second library and no model.
Träff, Gropp & Thakur, "Self-consistent MPI performance guidelines", IEEE TPDS 21(5), 2010; Hunold &
Carpen-Amarie, "Autotuning MPI collectives using performance guidelines", HPC Asia 2018.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
import pandas as pd

from mpicoll.bench.intervals import log_error, median_interval
from mpicoll.bench.sections import Loaded, Section, Table
from mpicoll.bench.sizes import format_bytes
from mpicoll.bench.stats import BASELINE, PANEL, by_launch, times_of
from mpicoll.bench.texts import interval_of, number_of, text_of
from mpicoll.bench.verdicts import ENOUGH_LAUNCHES, MARGIN, Evidence, decide, paired
from mpicoll.collectives import collective


@dataclass(frozen=True, slots=True)
class Guideline:
    """`left` takes no longer than the calls on the `right` one after the other, all of one vector's size."""

    left: str
    right: tuple[str, ...]

    @property
    def text(self) -> str:
        """As it is written."""
        return f"{collective(self.left).title} ≤ {' + '.join(collective(one).title for one in self.right)}"


#: All hold for vectors of equal `total_bytes`: the parts of a scatter make the vector that a broadcast sends.
#: (A broadcast is an all-reduce to which all but the root contribute the operation's neutral element.)
GUIDELINES = (
    Guideline("allreduce", ("reduce", "bcast")),
    Guideline("allreduce", ("reduce_scatter", "allgather")),
    Guideline("bcast", ("allreduce",)),
    Guideline("bcast", ("scatter", "allgather")),
    Guideline("reduce", ("allreduce",)),
    Guideline("reduce", ("reduce_scatter", "gather")),
    Guideline("reduce_scatter", ("reduce", "scatter")),
    Guideline("allgather", ("gather", "bcast")),
    Guideline("allgather", ("alltoall",)),
    Guideline("gather", ("allgather",)),
    Guideline("scatter", ("bcast",)),
)
_PLACE = [name for name in PANEL if name not in ("collective", "op", "dtype", "root")]
_WHAT = ["collective", "op", "root"]
Times = dict[tuple[str, int], np.ndarray]  # launch -> samples [s]
Key = tuple[str, str, int, int]  # collective, operation or "", root, total bytes
Pair = tuple[str, str, Times, list[Times]]  # guideline, size, left, right


@dataclass(frozen=True, slots=True)
class Check:
    """One guideline at one size, and what launches say about left / right."""

    who: str
    text: str
    size: str
    place: str
    evidence: Evidence


def checks(samples: pd.DataFrame, summary: pd.DataFrame, who: str) -> list[Check]:
    """All guidelines that were measured for MPI (`builtin`) or for the best own algorithms (`own`)."""
    found = []
    for place, group in samples.groupby(_PLACE, dropna=False, sort=False):
        for dtype in group["dtype"].unique():
            cells = _cells(group[group["dtype"] == dtype], summary, who)
            named = f"{dtype}, {place[_PLACE.index('ranks')]} ranks"
            found += [
                Check(who, text, size, ", ".join([named, *more]), evidence)
                for (text, size, left, right), more in _all_pairs(cells)
                if (evidence := _compare(left, right)) is not None
            ]
    return found


def _all_pairs(cells: dict[Key, Times]) -> Iterator[tuple[Pair, list[str]]]:
    """The pairs of each operation and root, with the words that tell them apart; each pair once."""
    ops = sorted({op for _, op, _, _ in cells if op}) or [""]
    roots = sorted({root for name, _, root, _ in cells if collective(name).rooted}) or [0]
    seen: set[tuple[Any, ...]] = set()
    for op, root in product(ops, roots):
        mine = {
            (name, total): times
            for (name, its_op, its_root, total), times in cells.items()
            if its_op in ("", op) and (its_root == root or not collective(name).rooted)
        }
        more = [op] * (len(ops) > 1) + [f"root {root}"] * (len(roots) > 1)
        for pair in (*_pairs(mine), *_steps(mine)):
            key = (pair[0], id(pair[2]), *map(id, pair[3]))
            if key not in seen:  # one that has neither an operation nor a root occurs again and again
                seen.add(key)
                yield pair, more


def _cells(group: pd.DataFrame, summary: pd.DataFrame, who: str) -> dict[Key, Times]:
    """Samples by launch, of the contender that speaks for `who`."""
    cells: dict[Key, Times] = {}
    for _, cell in group.groupby([*_WHAT, "total_bytes"], dropna=False, sort=False):
        if who == BASELINE:
            name = BASELINE
        else:
            mine = summary["best_own"].copy()  # pandas 2 would change the summary in the next lines
            for column in (*_PLACE, "dtype", "collective", "op", "root", "total_bytes"):
                value = cell[column].iloc[0]
                mine &= summary[column].isna() if pd.isna(value) else summary[column].eq(value)
            if not mine.any():
                continue
            name = summary.loc[mine, "contender"].iloc[0]
        times = by_launch(times_of(cell[cell["contender"] == name]))
        total = int(cell["total_bytes"].iloc[0])
        if times and total:
            kind, op, root = (None if pd.isna(part) else part for part in cell[_WHAT].iloc[0])
            cells[str(kind), str(op or ""), int(root or 0), total] = times
    return cells


def _pairs(cells: dict[tuple[str, int], Times]) -> Iterator[Pair]:
    for name, size in cells:
        for rule in GUIDELINES:
            if rule.left == name and all((other, size) in cells for other in rule.right):
                right = [cells[other, size] for other in rule.right]
                yield rule.text, format_bytes(size), cells[name, size], right


def _steps(cells: dict[tuple[str, int], Times]) -> Iterator[Pair]:
    """A smaller vector takes no longer than the next larger one."""
    for name in dict.fromkeys(name for name, _ in cells):
        sizes = sorted(size for other, size in cells if other == name)
        for small, large in pairwise(sizes):
            text = f"{collective(name).title} is monotone"
            step = f"{format_bytes(small)} ≤ {format_bytes(large)}"
            yield text, step, cells[name, small], [cells[name, large]]


def _compare(left: Times, right: list[Times]) -> Evidence | None:
    """Left over the sum of the right, in the launches that have all of them."""
    launches = [key for key in left if all(key in one for one in right)]
    if not launches:
        return None
    ratios, errors, lows, highs = [], [], [], []
    for key in launches:
        parts = [one[key] for one in right]
        total = sum(float(np.median(part)) for part in parts)
        ratios.append(float(np.median(left[key])) / total)
        errors.append(float(np.sqrt(sum(log_error(part) ** 2 for part in (left[key], *parts)))))
        bounds = [median_interval(part) for part in parts]
        low, high = median_interval(left[key])
        lows.append(low / sum(bound[1] for bound in bounds))
        highs.append(high / sum(bound[0] for bound in bounds))
    return paired(ratios, errors, (float(np.min(lows)), float(np.max(highs))))


def judge(found: list[Check], margin: float = MARGIN) -> pd.DataFrame:
    """The checks with their verdicts: kept, VIOLATED, or undecided with its leaning."""
    said = decide([one.evidence for one in found], [one.who for one in found], margin)
    words = {"slower": "VIOLATED", "faster": "kept", "tie": "kept", "undecided": "undecided"}
    frame = pd.DataFrame(
        [{"who": c.who, "guideline": c.text, "size": c.size, "case": c.place} for c in found]
    )
    return frame.assign(
        **{name: said[name] for name in ("ratio", "ratio_low", "ratio_high", "p_holm")},
        verdict=said["verdict"].map(words),
        leaning=said["leaning"].map(words),
    )


def section(data: Loaded) -> Section | None:
    """Which guidelines MPI and the best own algorithms keep; None if nothing can be checked."""
    if data.samples.empty:
        return None
    found = [one for who in (BASELINE, "own") for one in checks(data.samples, data.summary, who)]
    if not found:
        return None
    frame = judge(found)
    words = [
        "Guidelines say what a collective must not cost more than, because other calls of the same library "
        "could stand in for it, or because a smaller vector is part of a larger one. A violated one is "
        "a finding about that library's tuning, whoever wins."
    ]
    for who, name in ((BASELINE, "MPI"), ("own", "The best own algorithms")):
        words += _in_words(frame[frame["who"] == who], name)
    notable = frame[(frame["verdict"] == "VIOLATED") | (frame["leaning"] == "VIOLATED")]
    tables = [_table("Violated, or leaning to it", notable)] if len(notable) else []
    tables.append(_table(f"All {len(frame)} checks", frame, folded=True))
    return Section("Performance guidelines", words, tables=tables)


def _in_words(mine: pd.DataFrame, name: str) -> list[str]:
    if mine.empty:
        return []
    count = mine["verdict"].value_counts()
    said = ", ".join(f"{count[word]} {word}" for word in ("VIOLATED", "kept", "undecided") if word in count)
    unsure = mine[mine["verdict"] == "undecided"]
    leans = unsure["leaning"].value_counts()
    toward = ", ".join(f"{leans[word]} lean to {word}" for word in ("VIOLATED", "kept") if word in leans)
    few = f" (a verdict needs {ENOUGH_LAUNCHES} launches)" if mine["p_holm"].isna().all() else ""
    return [f"{name}, {len(mine)} checks: {said}{few}" + (f"; of those {toward}." if toward else ".")]


def _table(caption: str, frame: pd.DataFrame, *, folded: bool = False) -> Table:
    columns = ("who", "guideline", "size", "case", "left / right", "95 % interval", "verdict", "leaning")
    rows = [
        (row["who"], row["guideline"], row["size"], row["case"], number_of(row["ratio"]), interval_of(row),
         row["verdict"], text_of(row["leaning"]))
        for row in _records(frame)
    ]  # fmt: skip
    return Table(caption, columns, rows, folded)


def _records(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    return frame.sort_values("ratio", ascending=False, kind="stable").to_dict("records")
