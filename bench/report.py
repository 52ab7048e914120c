"""`mpicoll report`: from result directories to `summary.csv`, figures, `report.html` and a few words.

Imported by the process that reports only; its heavy imports happen when it runs.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpicoll.bench.texts import interval_of, number_of, text_of, time_of
from mpicoll.collectives import collective
from mpicoll.errors import ArgumentError, MpicollError

if TYPE_CHECKING:
    import pandas as pd

    from mpicoll.bench.frame import Results


def add_parser(verbs: Any) -> None:
    """Add the verb `report`."""
    parser = verbs.add_parser("report", help="summary.csv, report.html and figures from sweeps")
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="results of `mpicoll sweep`")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="where to write (the DIR, if only one)"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Write the report and print its essence; status 1 if a result was wrong."""
    if args.output is None and len(args.directories) > 1:
        raise ArgumentError("several results need -o DIR for their common report")
    try:
        from mpicoll.bench import frame, page, stats
    except ImportError as error:
        raise MpicollError(
            f"a report needs more packages ({error.name}): pip install 'mpicoll[report]'"
        ) from None

    results = frame.load(args.directories)
    output = args.output or args.directories[0]
    output.mkdir(parents=True, exist_ok=True)
    summary = stats.summarise(results.samples)
    summary.to_csv(output / "summary.csv", index=False, float_format="%.6g")
    sections = make_sections(results, summary)
    for section in sections:
        write_figures(section, output / "figures")
    warnings = find_warnings(results, summary)
    page.write(output / "report.html", results, summary, sections, warnings)
    print(as_text(sections, warnings))
    print(f"\nwrote {output / 'report.html'}, {output / 'summary.csv'} and {output / 'figures'}")
    return int((results.samples["status"] == "wrong").any())


def make_sections(results: Results, summary: pd.DataFrame) -> list[dict[str, Any]]:
    """One section per panel: title, sentence, table of winners, charts."""
    from mpicoll.bench import figures, stats

    vendors = {name: name.partition(",")[0] for name in summary["environment"].unique()}
    unclear = len(set(vendors.values())) < len(vendors)
    sections = []
    for key, panel in stats.panels(summary):
        grave = grave_hazards(results, key)
        place = key["environment"] if unclear else vendors[key["environment"]]
        heading = f"{panel_title(key)}, {place}"
        table = stats.winners(panel)
        has_ratio = bool(panel["ratio"].notna().any())
        charts = {
            name: draw(panel, heading)
            for name, draw in figures.FIGURES.items()
            if len(figures.drawable(panel)) and (has_ratio or name not in ("winners", "speedup"))
            if name != "bandwidth" or panel["busbw"].notna().any()
        }
        slug = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
        sections.append(
            {
                "key": key,
                "title": heading,
                "slug": slug,
                "words": " ".join([*grave, in_words(table)]),
                "table": table,
                "charts": charts,
            }
        )
    return sections


def grave_hazards(results: Results, key: dict[str, Any]) -> list[str]:
    """What makes a panel no performance result, in a sentence; nothing if nothing does."""
    samples = results.samples
    mine = (samples["environment"] == key["environment"]) & (samples["ranks"] == key["ranks"])
    found = [
        hazard["what"]
        for source in samples.loc[mine, "source"].unique()
        for launch in results.runs[source]["launches"]
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
    level = f", thread level {key['thread_level']}" if key["thread_level"] != "funneled" else ""
    return f"{what}, {where}{root}{level}" + (" (oversubscribed)" if key["oversubscribed"] else "")


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


def find_warnings(results: Results, summary: pd.DataFrame) -> list[str]:
    """What a reader must know before believing a number."""
    found = list(results.notes)
    for directory, run in results.runs.items():
        for launch in run["launches"]:
            found += [
                f"{hazard['what']}: {hazard['effect']}. To fix: {hazard['fix']}"
                for hazard in launch["hazards"]
            ]
        if run["launches"][-1]["status"] != "complete":
            ended = run["launches"][-1]["status"]
            found.append(f"{directory} is not complete ({ended}): mpicoll sweep … --resume")
    if summary["oversubscribed"].any():
        found.append("Rows marked oversubscribed are not performance results.")
    if summary["launches"].max() == 1:
        found.append(
            "Each case was measured in one launch only: the intervals say nothing about how launches differ. "
            "Sweep again into other directories and report them together."
        )
    for status, what in (("wrong", "WRONG RESULTS"), ("error", "Errors"), ("unsupported", "Unsupported")):
        bad = summary[summary["status"] == status]
        for contender, rows in bad.groupby("contender", sort=False):
            found.append(f"{what}: {contender} in {len(rows)} cases, the first: {rows['reason'].iloc[0]}")
    return list(dict.fromkeys(found))


def write_figures(section: dict[str, Any], folder: Path) -> None:
    """Each chart as SVG and PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, chart in section["charts"].items():
        chart.save(folder / f"{name}-{section['slug']}.svg")
        chart.save(folder / f"{name}-{section['slug']}.png", scale_factor=2)


def as_text(sections: list[dict[str, Any]], warnings: list[str]) -> str:
    """The essence for a terminal."""
    lines: list[str] = []
    for section in sections:
        lines += [section["title"], section["words"], *winner_lines(section["table"]), ""]
    lines += [f"! {warning}" for warning in warnings]
    return "\n".join(lines)


def winner_lines(table: pd.DataFrame) -> list[str]:
    """The table of winners, aligned."""
    rows = [("size", "winner", "best own", "time", "builtin", "persistent", "ratio", "95 % interval")]
    for row in table.to_dict("records"):
        rows.append(
            (row["size"], text_of(row["winner"]), text_of(row.get("contender")),
             *(time_of(row.get(name)) for name in ("own_median", "builtin_median", "persistent_median")),
             number_of(row.get("ratio")), interval_of(row))
        )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
