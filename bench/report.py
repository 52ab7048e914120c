"""`mpicoll report`: from result directories to `summary.csv`, figures, `report.html` and a few words.

What the report says is in its sections (`sections`). Imported by the process that reports only; its heavy
imports happen when it runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mpicoll.bench import formats, loading
from mpicoll.bench.records import replace_file
from mpicoll.bench.sections import Loaded, Section, Table, make_all
from mpicoll.errors import ArgumentError, MpicollError

_TERMINAL = 160  # columns, above which a table is a list


def add_parser(verbs: Any) -> None:
    """Add the verb `report`."""
    parser = verbs.add_parser("report")
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
    parser.add_argument(
        "--figures",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also write each chart as SVG and PNG (yes)",
    )
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="machine of `mpicoll calibrate` for the columns model_seconds, bound_seconds and residual "
        "(MPICOLL_CALIBRATION, else a machine.json beside the results)",
    )
    loading.add_load(parser, " (those that the sweep loaded, if unchanged and written by nobody but you)")
    parser.add_argument(
        "--no-load", action="store_true", help="run no file that the sweep loaded: results of a stranger"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Write the report and print its essence; status 1 if a result was wrong."""
    if args.output is None and len(args.directories) > 1 and not args.format:
        raise ArgumentError("several results need -o DIR for their common report")
    if args.format:
        return formats.show(args.format, formats.Tables(args.directories, across=args.across))
    try:
        from mpicoll.bench import calibrated, frame, overlap_section, page, stats
    except ImportError as error:
        raise MpicollError(
            f"a report needs more packages ({error.name}): pip install 'mpicoll[report]'"
        ) from None

    results = frame.load(args.directories, across=args.across)
    output = args.output or args.directories[0]
    output.mkdir(parents=True, exist_ok=True)
    users = loading.for_report(results.runs, args.load, again=not args.no_load)
    summary = stats.summarise(results.samples)
    known = calibrated.calibrations(args.calibration, args.directories, results)
    calibrated.add_columns(summary, {name: one.machine for name, one in known.items()})
    words = {name: one.words(results.environments[name]["cpu_model"]) for name, one in known.items()}
    data = Loaded(results, summary, tuple(args.directories), words, users)
    replace_file(
        output / "summary.csv", summary.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    )
    sections = make_all(data)
    charts = page.drawn(sections)
    if args.figures:
        page.write_figures(charts, output / "figures")
    page.write(output / "report.html", data, sections, charts)
    print(as_text(sections))
    written = [output / name for name in ("report.html", "summary.csv", *(["figures"] * args.figures))]
    print(f"\nwrote {', '.join(map(str, written))}")
    return int((results.samples["status"] == "wrong").any() or overlap_section.any_wrong(data))


def as_text(sections: list[Section]) -> str:
    """The essence for a terminal: words, and tables that are not folded."""
    lines: list[str] = []
    for section in sections:
        for part in section.walk():
            if part.words or part.tables:
                tables = [table for table in part.tables if not table.folded]
                shown = [
                    line for one in tables for line in ([one.caption] * (len(tables) > 1) + table_lines(one))
                ]
                lines += [part.title, *part.words, *shown, ""]
    return "\n".join(lines).rstrip()


def table_lines(table: Table) -> list[str]:
    """A table, aligned; one that is too wide for a terminal as a list."""
    rows = [table.columns, *(["-" if cell is None else cell for cell in row] for row in table.rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.columns))]
    if sum(widths) > _TERMINAL:
        return [f"  ! {'; '.join(filter(None, row))}" for row in rows[1:]]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
