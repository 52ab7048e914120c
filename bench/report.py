"""`mpicoll report`: from result directories to `summary.csv`, figures, `report.html` and a few words.

What the report says is in its sections (`sections`). Imported by the process that reports only; its heavy
imports happen when it runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mpicoll.bench import formats
from mpicoll.bench.sections import Loaded, Section, Table, make_all
from mpicoll.errors import ArgumentError, MpicollError


def add_parser(verbs: Any) -> None:
    """Add the verb `report`."""
    parser = verbs.add_parser("report", help="summary.csv, report.html and figures from sweeps and campaigns")
    parser.add_argument(
        "directories", nargs="+", type=Path, metavar="DIR", help="results of `mpicoll sweep` or `launch`"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="where to write (the DIR, if only one)"
    )
    parser.add_argument(
        "--across",
        action="store_true",
        help="allow different machines, libraries or thread levels, as separate groups",
    )
    parser.add_argument(
        "--format", choices=formats.FORMATS, help="print only the tables of another benchmark, for scripts"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Write the report and print its essence; status 1 if a result was wrong."""
    if args.output is None and len(args.directories) > 1 and not args.format:
        raise ArgumentError("several results need -o DIR for their common report")
    try:
        from mpicoll.bench import frame, page, stats
    except ImportError as error:
        raise MpicollError(
            f"a report needs more packages ({error.name}): pip install 'mpicoll[report]'"
        ) from None

    results = frame.load(args.directories, across=args.across)
    if args.format:
        print(formats.as_format(results.samples, args.format))
        return int((results.samples["status"] == "wrong").any())
    output = args.output or args.directories[0]
    output.mkdir(parents=True, exist_ok=True)
    summary = stats.summarise(results.samples)
    data = Loaded(results, summary, tuple(args.directories))
    summary.to_csv(output / "summary.csv", index=False, float_format="%.6g")
    sections = make_all(data)
    for section in sections:
        write_figures(section, output / "figures")
    warnings = find_warnings(data)
    page.write(output / "report.html", data, sections, warnings)
    print(as_text(sections, warnings))
    print(f"\nwrote {output / 'report.html'}, {output / 'summary.csv'} and {output / 'figures'}")
    return int((results.samples["status"] == "wrong").any())


def find_warnings(data: Loaded) -> list[str]:
    """What a reader must know before believing a number."""
    found = list(data.results.notes)
    for directory, run in data.runs.items():
        for launch in run["launches"]:
            found += [
                f"{hazard['what']}: {hazard['effect']}. To fix: {hazard['fix']}"
                for hazard in launch["hazards"]
            ]
        if run["launches"][-1]["status"] != "complete":
            ended = run["launches"][-1]["status"]
            found.append(f"{directory} is not complete ({ended}): mpicoll sweep … --resume")
    summary = data.summary
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


def write_figures(section: Section, folder: Path) -> None:
    """Each chart of a section and its parts as SVG and PNG."""
    for part in section.walk():
        for name, chart in part.charts.items():
            folder.mkdir(parents=True, exist_ok=True)
            chart.save(folder / f"{name}-{part.slug}.svg")
            chart.save(folder / f"{name}-{part.slug}.png", scale_factor=2)


def as_text(sections: list[Section], warnings: list[str]) -> str:
    """The essence for a terminal: words, and tables that are not folded."""
    lines: list[str] = []
    for section in sections:
        for part in section.walk():
            if part.words or part.tables:
                shown = [line for table in part.tables if not table.folded for line in table_lines(table)]
                lines += [part.title, *part.words, *shown, ""]
    lines += [f"! {warning}" for warning in warnings]
    return "\n".join(lines)


def table_lines(table: Table) -> list[str]:
    """A table, aligned."""
    rows = [table.columns, *(["-" if cell is None else cell for cell in row] for row in table.rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.columns))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
