"""The report's section on stages: where the time of own algorithms goes, from `stages.csv`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd

from mpicoll.bench.frame import read_table
from mpicoll.bench.sections import Loaded, Section, Table
from mpicoll.bench.sizes import format_bytes, format_seconds
from mpicoll.bench.stages import COLUMNS, NAME
from mpicoll.collectives import collective

_CASE = ["collective", "dtype", "op", "root", "ranks", "nodes", "cache"]
_COLOURS = ("#9498a0", "#97bbf5", "#4269d0", "#ff725c", "#efb118", "#6cc5b0", "#3ca951", "#a463f2", "#9c6b4e")


def section(data: Loaded) -> Section | None:
    """One part per result and kind of case that has stage times."""
    said: list[str] = []
    parts = [part for path in data.beside(NAME) for part in _parts(path, data, said)]
    if not parts:
        return None
    words = (
        "Shares of the slowest of those ranks that take part in the most stages, medians over iterations of "
        "calls made after the race. What a rank waits for another counts for the stage in which it waits."
    )
    return Section("Stages", [words, *said], parts=parts)


def _parts(path: Path, data: Loaded, said: list[str]) -> Iterator[Section]:
    options = {"dtype": {"op": "string"}, "keep_default_na": False, "na_values": [""]}
    frame = read_table(path, COLUMNS, said, **options)
    if frame["engine"].nunique() > 1:
        frame["requested"] += " (" + frame["engine"] + ")"
    samples = data.samples
    places = samples[samples["source"] == str(path.parent)]["placement"].dropna().unique()
    where = f", {places[0]}" if len(places) == 1 and places[0] else ""
    for key, rows in frame.groupby(_CASE, sort=False, dropna=False):
        case = dict(zip(_CASE, key, strict=True))
        words = (collective(str(case["collective"])).title, case["dtype"], case["op"])
        title = " ".join(word for word in words if isinstance(word, str))
        title += f" from root {case['root']}" if frame["root"].nunique() > 1 else ""
        title += f", {case['cache']}" if frame["cache"].nunique() > 1 else ""
        title += f", {case['ranks']} ranks on {case['nodes']} nodes{where}, {path.parent.name}"
        medians = middle(rows)
        if medians.empty:
            continue
        yield Section(title, [in_words(medians)], {"stages": bars(medians, title)}, [table(medians)])


def middle(rows: pd.DataFrame) -> pd.DataFrame:
    """Median seconds on the path of each contender, size and stage, and the share of the whole.

    Contenders of a single stage are left out.
    """
    several = rows.groupby("requested")["stage"].transform("nunique") > 1
    found = (
        rows[several & rows["path_seconds"].notna()]
        .groupby(["requested", "msg_bytes", "stage"], sort=False)
        .agg(seconds=("path_seconds", "median"), position=("position", "min"))
        .reset_index()
        .sort_values(["requested", "msg_bytes", "position"], kind="stable")
    )
    found["share"] = found["seconds"] / found.groupby(["requested", "msg_bytes"])["seconds"].transform("sum")
    found["size"] = found["msg_bytes"].map(format_bytes)
    return found


def in_words(medians: pd.DataFrame) -> str:
    """Where the time goes at the largest size."""
    largest = medians[medians["msg_bytes"] == medians["msg_bytes"].max()]
    told = []
    for name, rows in largest.groupby("requested", sort=False):
        top = rows.loc[rows["share"].idxmax()]
        told.append(f"{name} spends {100 * top['share']:.0f} % on {top['stage']}")
    return f"At {largest['size'].iloc[0]}, {'; '.join(told)}."


def bars(medians: pd.DataFrame, title: str) -> Any:
    """Stacked shares by size, one panel for each contender."""
    sizes = list(dict.fromkeys(medians.sort_values("msg_bytes")["size"]))
    stages = list(dict.fromkeys(medians.sort_values("position", kind="stable")["stage"]))
    data = medians.assign(time=medians["seconds"].map(format_seconds))
    colours = [_COLOURS[i % len(_COLOURS)] for i in range(len(stages))]
    chart = (
        alt.Chart(data)
        .mark_bar()
        .encode(
            x=alt.X("size:N", sort=sizes, title="message size", axis=alt.Axis(labelAngle=-45)),
            y=alt.Y("share:Q", title="share of the time", axis=alt.Axis(format="%"), stack="zero"),
            color=alt.Color(
                "stage:N", title=None, sort=stages, scale=alt.Scale(domain=stages, range=colours)
            ),
            order=alt.Order("position:Q"),
            tooltip=["requested:N", "size:N", "stage:N", "time:N", alt.Tooltip("share:Q", format=".0%")],
        )
        .properties(width=300, height=190)
    )
    heading = alt.TitleParams(f"Stages: {title}", anchor="start", fontSize=15, offset=12)
    panels = alt.Facet("requested:N", title=None, sort=list(dict.fromkeys(data["requested"])))
    return chart.facet(panels, columns=2).properties(title=heading)


def table(medians: pd.DataFrame) -> Table:
    """Median times as texts."""
    rows = [
        (
            row["requested"],
            row["size"],
            row["stage"],
            format_seconds(row["seconds"]),
            f"{100 * row['share']:.0f} %",
        )
        for row in medians.to_dict("records")
    ]
    return Table(
        "Median time of each stage.", ("contender", "size", "stage", "time", "share"), rows, folded=True
    )
