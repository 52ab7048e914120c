"""`mpicoll compare OLD NEW`: what changed between two results, significantly, for a person or for CI.

Yesterday against today, or one cluster against another: launches of the one and of the other, which are not
paired. Exit status 0: no regression; 1: one beyond the threshold; 2: the two cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from mpicoll.errors import ArgumentError, MpicollError


def add_parser(verbs: Any) -> None:
    """Add the verb `compare`."""
    parser = verbs.add_parser(
        "compare",
        description="Compare the results in NEW with those in OLD, each a sweep or a campaign. Exit status 1 "
        "if there is a regression: a case whose ratio new / old is estimated above 1 + the threshold, whose "
        "whole 95 %% interval lies above 1, and which the test calls slower after Holm's correction for all "
        "cases compared (p <= 0.05, at least 5 launches on each side).",
    )
    add = parser.add_argument
    add("old", type=Path, metavar="OLD", help="results to compare with: yesterday's, the other cluster's")
    add("new", type=Path, metavar="NEW", help="results that may be worse")
    add("--threshold", default="5%", metavar="X%", help="how much slower is a regression (5%%)")
    add("--of", choices=("time", "ratio"), default="time",
        help="compare times, or ratios to the builtin of the same launch, which a slower machine does not "
        "change (time)")  # fmt: skip
    add("--contender", action="append", metavar="NAME", help="only this one; may be repeated (all)")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print everything as JSON")
    output.add_argument("--csv", action="store_true", help="print everything as CSV")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Compare, say so, and return the status."""
    threshold = parse_percentage(args.threshold)
    try:
        from mpicoll.bench import comparison
    except ImportError as error:
        raise MpicollError(
            f"a comparison needs more packages ({error.name}): pip install 'mpicoll[report]'"
        ) from None

    found = comparison.compare(args.old, args.new, threshold, of=args.of, contenders=args.contender)
    if args.json:
        print(json.dumps(found.as_dict(), indent=1, ensure_ascii=False))
    elif args.csv:
        found.rows.to_csv(sys.stdout, index=False, float_format="%.6g")
    else:
        print(found.as_text())
    return int(found.regressions > 0)


def parse_percentage(text: str) -> float:
    """A share, from a percentage.

    >>> parse_percentage("5%"), parse_percentage("12.5")
    (0.05, 0.125)
    """
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not 0 <= value < 10:
        raise ArgumentError(f"not a percentage: {text!r}; write 5%")
    return value
