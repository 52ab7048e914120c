"""Two results against each other, case by case: the work of `mpicoll compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mpicoll.bench import frame
from mpicoll.bench.conditions import must_agree
from mpicoll.bench.report import table_lines
from mpicoll.bench.sections import Table
from mpicoll.bench.stats import BASELINE, by_launch, times_of
from mpicoll.bench.texts import interval_of, number_of, time_of
from mpicoll.bench.verdicts import ENOUGH_LAUNCHES, decide, unpaired
from mpicoll.errors import ArgumentError

#: What makes two rows the same case; machine, library and commit may differ.
KEY = [
    "collective", "dtype", "op", "root", "ranks", "nodes", "ppn", "placement", "memory", "cache", "sync",
    "batch", "settings", "thread_level", "count", "msg_bytes", "size",
]  # fmt: skip
_NAMED = ("collective", "dtype", "op", "ranks", "size", "contender")
_WORDS = {"slower": "slower", "faster": "faster", "tie": "unchanged", "undecided": "undecided"}
Side = dict[tuple[Any, ...], list[np.ndarray]]  # case and contender -> the samples of each launch


@dataclass(slots=True)
class Comparison:
    """What changed: one row per case and contender that both sides have."""

    rows: pd.DataFrame
    threshold: float
    of: str
    conditions: list[str]  # what differs between the two sides besides the numbers
    only: tuple[int, int] = (0, 0)  # cases of the old and of the new side alone
    notes: list[str] = field(default_factory=list)

    @property
    def regressions(self) -> int:
        """Rows that are significantly slower, by more than the threshold."""
        return int(self.rows["regression"].sum())

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON: missing values are null."""
        records = self.rows.astype(object).where(self.rows.notna(), None).to_dict("records")
        return {
            "of": self.of, "threshold": self.threshold, "regressions": self.regressions,
            "conditions": self.conditions, "only_old": self.only[0], "only_new": self.only[1],
            "notes": self.notes, "rows": records,
        }  # fmt: skip

    def as_text(self) -> str:
        """The essence for a terminal: what differs, what changed, and what could not be decided."""
        count = self.rows["change"].value_counts()
        said = ", ".join(f"{count[word]} {word}" for word in _WORDS.values() if word in count)
        lines = [f"conditions differ in {text}" for text in self.conditions] + self.notes
        lines.append(f"{len(self.rows)} comparisons of {self.of}s, new / old: {said}.")
        told = self.rows[self.rows["change"].isin(["slower", "faster"]) | self._leaning()]
        if len(told):
            lines += table_lines(_table(told.sort_values("ratio", ascending=False, kind="stable"), self.of))
        if (few := int(self.rows["launches"].min())) < ENOUGH_LAUNCHES:
            lines.append(f"Some have {few} launches on a side: a verdict needs {ENOUGH_LAUNCHES} on each.")
        if any(self.only):
            lines.append(f"Not compared: {self.only[0]} only in the old, {self.only[1]} only in the new.")
        lines.append(f"{self.regressions} regressions of more than {self.threshold:.1%}.")
        return "\n".join(lines)

    def _leaning(self) -> pd.Series:
        return self.rows["change"].eq("undecided") & self.rows["leaning"].isin(["slower", "faster"])


def compare(
    old: Path, new: Path, threshold: float, *, of: str = "time", contenders: Sequence[str] | None = None
) -> Comparison:
    """Compare two results. `of`: "time", or "ratio" to the builtin in the same launch.

    Raises `ArgumentError` if they have no case in common, `StoreError` if one cannot be read.
    """
    results = [frame.load([directory]) for directory in (old, new)]
    known = {name for one in results for name in one.samples["contender"].unique()}
    if unknown := sorted(set(contenders or ()) - known):
        raise ArgumentError(f"no contender {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    before, after = (_side(one.samples, of, contenders) for one in results)
    common = [key for key in before if key in after]
    if not common:
        raise ArgumentError(f"{old} and {new} have no case in common, or nothing that was timed in both")
    evidence = [unpaired(after[key], before[key]) for key in common]
    said = decide(evidence, ["all"] * len(common), margin=threshold)
    rows = pd.DataFrame([dict(zip((*KEY, "contender"), key, strict=True)) for key in common])
    middle = [
        [float(np.median([np.median(v) for v in side[key]])) for key in common] for side in (before, after)
    ]
    rows["old"], rows["new"] = middle
    rows["launches"] = [one.launches for one in evidence]
    rows = rows.join(said[["ratio", "ratio_low", "ratio_high", "test", "p", "p_holm", "leaning"]])
    rows["change"] = said["verdict"].map(_WORDS)
    rows["why"] = said["why"]
    rows["regression"] = rows["change"].eq("slower") & rows["ratio"].gt(1 + threshold)
    return Comparison(
        rows, threshold, of, _differences(results), (len(before) - len(common), len(after) - len(common)),
        [note for one in results for note in one.notes] + _graves(results),
    )  # fmt: skip


def _graves(results: Sequence[frame.Results]) -> list[str]:
    """What makes a side no performance result."""
    notes = []
    for name, one in zip(("old", "new"), results, strict=True):
        launches = [launch for run in one.runs.values() for launch in run["launches"]]
        grave = dict.fromkeys(hazard["what"] for x in launches for hazard in x["hazards"] if hazard["grave"])
        if grave:
            notes.append(f"the {name} side is NOT A PERFORMANCE RESULT: {'; '.join(grave)}")
    return notes


def _side(samples: pd.DataFrame, of: str, contenders: Sequence[str] | None) -> Side:
    """The samples of each launch, by case and contender; of ratios, divided by the builtin's median there."""
    side: Side = {}
    for key, case in samples.groupby(KEY, dropna=False, sort=False):
        base = by_launch(times_of(case[case["contender"] == BASELINE]))
        for contender, group in case.groupby("contender", sort=False):
            if (contenders and contender not in contenders) or (of == "ratio" and contender == BASELINE):
                continue
            times = by_launch(times_of(group))
            if of == "ratio":
                times = {at: x / np.median(base[at]) for at, x in times.items() if at in base}
            if times:
                parts: tuple[Any, ...] = key
                named = tuple(None if pd.isna(part) else part for part in parts)
                side[(*named, contender)] = list(times.values())
    return side


def _differences(results: Sequence[frame.Results]) -> list[str]:
    """Conditions in which the two sides differ, in words."""
    old, new = (must_agree(next(iter(one.runs.values()))) for one in results)
    return [
        f"{name}: {_line(old.get(name))} → {_line(new.get(name))}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]


def _line(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:59] + "…"


def _table(rows: pd.DataFrame, of: str) -> Table:
    shown = time_of if of == "time" else number_of
    cells = []
    for row in rows.astype(object).where(rows.notna(), None).to_dict("records"):
        named = ["-" if row[name] is None else str(row[name]) for name in _NAMED]
        change = row["change"] + (" REGRESSION" if row["regression"] else "")
        times = [shown(row["old"]), shown(row["new"]), number_of(row["ratio"]), interval_of(row)]
        cells.append((*named, *times, change, row["why"] or ""))
    return Table("Changes", (*_NAMED, "old", "new", "new / old", "95 % interval", "change", "why"), cells)
