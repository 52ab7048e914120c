"""The end of `make test`: what each part did, every skip with its reason, and one closing line.

    python tests/summary.py RECORD [PART_THAT_FAILED ...]

RECORD has one JSON object a line, see tests/conftest.py. Standard library only.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any


def summarise(sessions: list[dict[str, Any]], broken: list[str]) -> tuple[str, bool]:
    """The text, and whether all is well: nothing failed, and something passed."""
    lines = ["", "=" * 30 + " summary " + "=" * 30]
    for s in sessions:
        counts = f"{s['passed']:5} passed {s['failed']:3} failed {len(s['skipped']):4} skipped"
        lines.append(f"{s['what']:32} {counts}  {s.get('note', '')}".rstrip())
    lines += [f"{part:32} FAILED" for part in broken]
    skips = Counter(reason for s in sessions for _, reason in s["skipped"])
    if skips:
        lines += ["", "SKIPPED, so not tested here:"]
        lines += [f"{n:6} × {reason}" for reason, n in sorted(skips.items())]
    passed = sum(s["passed"] for s in sessions)
    # A part can break without a failed test: the linters have none, and an interpreter may die.
    failed = sum(s["failed"] for s in sessions) or len(broken)
    skipped = sum(len(s["skipped"]) for s in sessions)
    lines += ["", f"{passed} passed, {failed} failed, {skipped} skipped"]
    return "\n".join(lines), passed > 0 and not failed and not broken


def main(argv: list[str]) -> int:
    """Print the summary of a record; status 1 unless all is well."""
    record = Path(argv[0])
    text = record.read_text() if record.exists() else ""
    summary, good = summarise([json.loads(line) for line in text.splitlines()], argv[1:])
    print(summary)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
