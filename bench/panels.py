"""The report's main part: for each panel (cases that differ in size only) who wins, in words and charts."""

from __future__ import annotations

from typing import Any

import pandas as pd

from mpicoll.bench import figures, stats
from mpicoll.bench.sections import Loaded, Section, Table
from mpicoll.bench.texts import interval_of, missing, number_of, text_of, time_of
from mpicoll.collectives import collective


def section(data: Loaded) -> Section | None:
    """One part per panel."""
    if data.summary.empty:
        return None
    names = place_names(data.summary)
    parts = [_panel(data, key, panel, names) for key, panel in stats.panels(data.summary)]
    return Section("Measurements", parts=parts)


def place_names(summary: pd.DataFrame) -> dict[str, str]:
    """A short name for each environment: its MPI library, if that says enough."""
    vendors = {name: name.partition(",")[0] for name in summary["environment"].unique()}
    return vendors if len(set(vendors.values())) == len(vendors) else {name: name for name in vendors}


def _panel(data: Loaded, key: dict[str, Any], panel: pd.DataFrame, names: dict[str, str]) -> Section:
    heading = f"{panel_title(key)}, {names[key['environment']]}"
    table = stats.winners(panel)
    has_ratio = bool(panel.loc[panel["verdict"] != "baseline", "ratio"].notna().any())
    charts = {
        name: draw(panel, heading)
        for name, draw in figures.FIGURES.items()
        if len(figures.drawable(panel)) and (has_ratio or name not in ("winners", "speedup"))
        if name != "bandwidth" or panel["busbw"].notna().any()
    }
    words = [*grave_hazards(data, key), in_words(table)]
    return Section(heading, words, charts, [winner_table(table)])


def grave_hazards(data: Loaded, key: dict[str, Any]) -> list[str]:
    """What makes a panel no performance result, in a sentence; nothing if nothing does."""
    samples = data.samples
    mine = samples[(samples["environment"] == key["environment"]) & (samples["ranks"] == key["ranks"])]
    found = [
        hazard["what"]
        for source in mine["source"].unique()
        for launch in data.runs[source]["launches"]
        for hazard in launch["hazards"]
        if hazard["grave"]
    ]
    return [f"NOT A PERFORMANCE RESULT ({'; '.join(dict.fromkeys(found))})."] if found else []


def panel_title(key: dict[str, Any]) -> str:
    """What a panel is about, as people say it."""
    words = (collective(key["collective"]).title, key["dtype"], key["op"])
    what = " ".join(word for word in words if isinstance(word, str))
    where = f"{key['ranks']} rank{'s' if key['ranks'] != 1 else ''}"
    if key["nodes"] > 1:
        where += f" on {key['nodes']} nodes"
    root = f", root {key['root']}" if collective(key["collective"]).rooted and key["root"] else ""
    where += f", {key['placement']}" if key["nodes"] > 1 else ""
    where += f", {key['settings']}" if key["settings"] else ""
    known = not missing(key["thread_level"]) and key["thread_level"] != "funneled"
    level = f", thread level {key['thread_level']}" if known else ""
    crowded = not missing(key["oversubscribed"]) and key["oversubscribed"]
    return f"{what}, {where}{root}{level}" + (" (oversubscribed)" if crowded else "")


def in_words(table: pd.DataFrame) -> str:
    """The outcome of a panel in a sentence or two."""
    decided = table[table["verdict"].notna()] if "verdict" in table else table[:0]
    if decided.empty:
        return "Nothing to compare: either MPI's own call or an own algorithm is missing."
    count = decided["verdict"].value_counts()
    parts = [
        f"{word} at {count[name]}"
        for name, word in (
            ("faster", "faster"),
            ("tie", "tied"),
            ("slower", "slower"),
            ("undecided", "undecided"),
        )
        if count.get(name)
    ]
    sure = [row for row in decided.to_dict("records") if row["verdict"] == "faster"]
    text = f"The best own algorithm is {', '.join(parts)} of {len(decided)} sizes."
    if sure:
        top = min(sure, key=lambda row: float(row["ratio"]))
        share = f"{top['ratio']:.2f} of the builtin's time"
        text += f" Largest gain: {top['contender']} takes {share} at {top['size']}."
    return text


def winner_table(table: pd.DataFrame) -> Table:
    """Who wins at each size, as texts."""
    columns = ("size", "winner", "best own", "time", "builtin", "persistent", "ratio", "95 % interval")
    rows = [
        (row["size"], text_of(row["winner"]), text_of(row.get("contender")),
         *(time_of(row.get(name)) for name in ("own_median", "builtin_median", "persistent_median")),
         number_of(row.get("ratio")), interval_of(row))
        for row in table.to_dict("records")
    ]  # fmt: skip
    return Table("Ratio: the best own algorithm's time over that of MPI's own call, below 1 is faster.",
                 columns, rows)  # fmt: skip
