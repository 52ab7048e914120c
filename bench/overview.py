"""The report's beginning and its overviews: in words, who wins where, and what differs with the topology."""

from __future__ import annotations

from typing import Any

import pandas as pd

from mpicoll.bench import figures, stats
from mpicoll.bench.panels import WORDS, grave_hazards, panel_title, place_names
from mpicoll.bench.sections import Loaded, Section
from mpicoll.bench.texts import interval_of, missing, number_of, time_of
from mpicoll.bench.verdicts import ENOUGH_LAUNCHES, MARGIN
from mpicoll.collectives import collective


def section(data: Loaded) -> Section | None:
    """What was measured, how it ended, and the map of winners; None if no sweep is among the results."""
    if data.samples.empty:
        return None
    table = outcomes(data)
    launches = data.samples[["source", "launch"]].drop_duplicates()
    words = [
        f"{len(launches)} launch{'es' if len(launches) != 1 else ''}, {len(data.samples)} samples of "
        f"{data.samples['contender'].nunique()} contenders in {len(table)} cases.",
        *data.loading.words,
    ]
    compared = table[table["verdict"].notna()]
    if len(compared):
        words += _in_words(compared)
    else:
        words.append("Nothing to compare: either MPI's own call or an own algorithm is missing.")
    drawn = compared[compared["msg_bytes"] > 0]
    charts = {"overview": figures.overview(drawn)} if len(drawn) else {}
    return Section("Summary", words, charts)


def _in_words(compared: pd.DataFrame) -> list[str]:
    good = compared[~compared["grave"]]
    words = []
    if len(good) < len(compared):
        words.append(f"{len(compared) - len(good)} of the cases are no performance results (see below).")
    if good.empty:
        return words
    count = good["verdict"].value_counts()
    said = ", ".join(f"{word} in {count[word]}" for word in WORDS if word in count)
    words.append(f"The best own algorithm against MPI's own call, {len(good)} cases: {said}.")
    unsure = good[good["verdict"] == "undecided"]
    leans = unsure["leaning"].value_counts()
    toward = ", ".join(f"{word} in {leans[word]}" for word in WORDS if word in leans)
    if toward:
        words.append(f"Where undecided, the intervals alone say {toward}.")
    words.append(
        f"A verdict needs {ENOUGH_LAUNCHES} launches and p ≤ 0.05 after Holm's correction for all "
        f"comparisons of a panel; differences within ±{MARGIN:.0%} are ties."
    )
    for name, group in good.groupby("place", sort=False):
        gains = group[(group["verdict"] == "faster") | (group["leaning"] == "faster")]
        if len(gains):
            top = min(gains.to_dict("records"), key=lambda row: float(row["ratio"]))
            unsure_mark = "" if top["verdict"] == "faster" else ", not decided"
            words.append(
                f"{name}: largest gain {top['contender']} at {top['size']} ({top['row']}): "
                f"{number_of(top['ratio'])} of the builtin's time ({interval_of(top)}{unsure_mark})."
            )
    return words


def outcomes(data: Loaded) -> pd.DataFrame:
    """One row per case: the best own contender against the builtin, and how the map shows it."""
    names = place_names(data.summary)
    rows: list[dict[str, Any]] = []
    for key, panel in stats.panels(data.summary):
        grave = bool(grave_hazards(data, key))
        place = names[key["environment"]]
        title = panel_title(key) + (f", {place}" if len(names) > 1 else "")
        for one in stats.winners(panel).to_dict("records"):
            rows.append(
                {
                    **{str(name): value for name, value in one.items()},
                    "row": title,
                    "place": place,
                    "grave": grave,
                    **_shown(one),
                }
            )
    return pd.DataFrame(rows).reindex(columns=_COLUMNS)


_COLUMNS = [
    "row", "place", "grave", "msg_bytes", "size", "contender", "ratio", "ratio_low", "ratio_high", "verdict",
    "leaning", "why", "winner", "sure", "dark", "text", "time", "builtin", "ratio_text",
]  # fmt: skip


def _shown(one: dict[Any, Any]) -> dict[str, Any]:
    """Colour and texts of a case in the map."""
    verdict, lean = one.get("verdict"), one.get("leaning")
    sure = verdict in ("faster", "slower", "tie")
    word = verdict if sure else lean
    winner = {"faster": one.get("contender"), "slower": stats.BASELINE, "tie": "tie"}.get(word or "")
    number = "" if missing(one.get("ratio")) else number_of(one["ratio"])
    return {
        "winner": winner or "no verdict",
        "sure": sure,
        "dark": winner not in ("tie", None),
        "text": number if sure or not number else number + "?",
        "time": time_of(one.get("own_median")),
        "builtin": time_of(one.get("builtin_median")),
        "ratio_text": f"{number} ({interval_of(one)})" if number else "-",
    }


def topology(data: Loaded) -> Section | None:
    """How times change with ranks, nodes, ranks per node and placement; None if all runs are alike."""
    axes = ["ranks", "nodes", "ppn", "placement"]
    if data.samples.empty:
        return None
    summary = data.summary[data.summary["status"].eq("ok") & data.summary["msg_bytes"].gt(0)].copy()
    if len(summary[axes].drop_duplicates()) < 2:
        return None
    summary["where"] = [
        f"{ranks} = {nodes} × {ppn}{', ' + placement if nodes > 1 else ''}"
        for ranks, nodes, ppn, placement in summary[axes].itertuples(index=False)
    ]
    summary["time"] = summary["median"].map(time_of)
    columns = ["where", "size", "msg_bytes", "contender", "median", "median_low", "median_high", "time",
               "launches"]  # fmt: skip
    charts: dict[str, Any] = {}
    groups = ["environment", "settings", "collective", "dtype", "op"]
    for key, group in summary.sort_values(axes).groupby(groups, dropna=False, sort=False):
        kinds = [part for part in (key[3], key[4], key[1]) if isinstance(part, str) and part]
        title = ", ".join([collective(str(key[2])).title, *kinds, place_names(data.summary)[str(key[0])]])
        if group["where"].nunique() > 1:
            charts[f"topology-{len(charts)}"] = figures.topology(group[columns], title)
    if not charts:
        return None
    words = [
        "The same cases with ranks in different places. What grows from left to right may be the number of "
        "ranks or the distance between them: compare neighbours that differ in one only."
    ]
    return Section("Topology", words, charts)
