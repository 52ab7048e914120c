"""The report's main part: for each panel (cases that differ in size only) who wins, in words and charts."""

from __future__ import annotations

from typing import Any

import pandas as pd

from mpicoll.bench import figures, stats
from mpicoll.bench.sections import Loaded, Section, Table
from mpicoll.bench.texts import interval_of, missing, number_of, text_of, time_of
from mpicoll.bench.trust import kind_of
from mpicoll.collectives import collective

WORDS = ("faster", "tie", "slower", "undecided")


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
    if len(figures.drawable(panel)):
        charts["distribution"] = figures.distribution(_samples(data, key), panel, heading)
    named = named_algorithms(data, panel)
    words = [*grave_hazards(data, key), *in_words(table), *_own_in_words(data, panel)]
    tables = [winner_table(table), *([ratio_table(panel, named)] if len(named) > 1 else [])]
    return Section(heading, words, charts, tables, folded=True)


def _samples(data: Loaded, key: dict[str, Any]) -> pd.DataFrame:
    """The raw rows of a panel."""
    mine = pd.Series(True, index=data.samples.index)
    for name, value in key.items():
        column = data.samples[name]
        mine &= column.isna() if pd.isna(value) else column.eq(value).fillna(False).astype(bool)
    return data.samples[mine]


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
    kinds = {kind_of(what): what for what in found}
    return [f"NOT A PERFORMANCE RESULT ({'; '.join(kinds.values())})."] if found else []


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


def in_words(table: pd.DataFrame) -> list[str]:
    """The outcome of a panel in a few sentences: what is decided, what is not and what that leans to."""
    rows = table[table["verdict"].notna()].to_dict("records") if "verdict" in table else []
    if not rows:
        return ["Nothing to compare: either MPI's own call or an own algorithm is missing."]
    sizes = f"{len(rows)} size{'s' if len(rows) != 1 else ''}"
    said = [f"{word} at {n}" for word in WORDS if (n := sum(row["verdict"] == word for row in rows))]
    words = [f"The best own algorithm against MPI's own call: {', '.join(said)} of {sizes}."]
    unsure = [row for row in rows if row["verdict"] == "undecided"]
    if unsure:
        leans = [f"{word} at {n}" for word in WORDS if (n := sum(row["leaning"] == word for row in unsure))]
        reasons = " / ".join(dict.fromkeys(_reason(row["why"]) for row in unsure))
        toward = f"by their intervals alone {', '.join(leans)}" if leans else "their intervals say nothing"
        words.append(f"Undecided because of {reasons}; {toward}.")
    good = [row for row in rows if "faster" in (row["verdict"], row["leaning"])]
    if good:
        top = min(good, key=lambda row: float(row["ratio"]))
        sure = "" if top["verdict"] == "faster" else " (not decided)"
        words.append(
            f"Largest gain{sure}: {top['contender']} takes {top['ratio']:.2f} "
            f"({interval_of(top)}) of the builtin's time at {top['size']}."
        )
    return words


def _reason(why: str) -> str:
    """Why something is undecided, without the numbers that differ from size to size."""
    return "p > 0.05 after correction" if why.startswith("p = ") else why


def winner_table(table: pd.DataFrame) -> Table:
    """Who wins at each size, as texts."""
    columns = (
        "size",
        "verdict",
        "leaning",
        "best own",
        "time",
        "builtin",
        "persistent",
        "ratio",
        "95 % interval",
    )
    rows = [
        (row["size"], text_of(row.get("verdict")), text_of(row.get("leaning")), text_of(row.get("contender")),
         *(time_of(row.get(name)) for name in ("own_median", "builtin_median", "persistent_median")),
         number_of(row.get("ratio")), interval_of(row))
        for row in table.to_dict("records")
    ]  # fmt: skip
    return Table("Ratio: the best own algorithm's time over that of MPI's own call, below 1 is faster.",
                 columns, rows)  # fmt: skip


# -- what a user asked for, the best or not ----------------------------------------------------------------


def _is_own(data: Loaded, collective_name: Any, algorithm: Any) -> bool:
    return f"{collective_name}/{algorithm}" in data.loading.own


def named_algorithms(data: Loaded, panel: pd.DataFrame) -> list[str]:
    """The contenders that ``--algorithms`` named one by one, those of users' files first; not the builtin."""
    asked = {
        name: None
        for source in data.runs
        for name in data.runs[source]["identity"].get("spec", {}).get("algorithms", ())
    }
    who = panel[panel["requested"].isin(asked) & panel["contender"].ne(stats.BASELINE)]
    found = who.drop_duplicates("contender")[["contender", "requested", "collective", "algorithm"]]
    order = list(asked)
    rows = sorted(
        found.itertuples(index=False),
        key=lambda one: (not _is_own(data, one.collective, one.algorithm), order.index(one.requested)),
    )
    return [str(one.contender) for one in rows]


def _own_in_words(data: Loaded, panel: pd.DataFrame) -> list[str]:
    """How an algorithm of a user's file did, whether it is the best or not."""
    words = []
    for contender, rows in panel.groupby("contender", sort=False):
        known = rows[rows["ratio"].notna()]
        if known.empty or not _is_own(data, known["collective"].iloc[0], known["algorithm"].iloc[0]):
            continue
        words.append(
            f"{contender}: {known['ratio'].min():.2f} to {known['ratio'].max():.2f} of the builtin's time; "
            f"the quickest own algorithm at {int(known['best_own'].sum())} of {len(known)} sizes."
        )
    return words


def ratio_table(panel: pd.DataFrame, named: list[str]) -> Table:
    """The ratio of each of some contenders at each size; "?" marks what is not decided."""
    rows = []
    for _, cell in panel.groupby("msg_bytes", sort=True):
        by = {row["contender"]: row for row in cell.to_dict("records")}
        rows.append((cell["size"].iloc[0], *(_ratio_cell(by.get(name)) for name in named)))
    caption = "Ratio to MPI's own call of each algorithm that was named, and its 95 % interval; ?: undecided."
    return Table(caption, ("size", *named), rows)


def _ratio_cell(row: dict[Any, Any] | None) -> str | None:
    if row is None or missing(row.get("ratio")):
        return None
    return f"{number_of(row['ratio'])}{'?' * (row['verdict'] == 'undecided')} ({interval_of(row)})"
