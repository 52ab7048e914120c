"""What `mpicoll gpu-check` found, as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from mpicoll.bench.sizes import format_bytes, format_seconds

Row = dict[str, Any]
PARTS = ("correctness", "races", "memory", "sizes", "overlap")  # in the order in which they run
REDUCTION_AIM, STAGED_AIM = 0.9, 0.8


def medians(rows: Iterable[Row], part: str) -> dict[tuple[str, int], float]:
    """(what, bytes) -> median seconds of a part's timed calls."""
    found: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row["part"] == part and row["seconds"] is not None:
            found.setdefault((row["what"], row["nbytes"]), []).append(row["seconds"])
    return {key: float(np.median(values)) for key, values in found.items()}


def aims(rows: list[Row], large: int) -> list[tuple[str, float, float]]:
    """(what, ratio, aim): how near kernels and staging come to what the hardware was seen to do.

    Nothing about a part that was not measured.
    """
    memory, sizes = medians(rows, "memory"), medians(rows, "sizes")
    found = []
    if memory:  # a reduction moves three bytes where a copy moves two
        reduction = 1.5 * memory["device copy", large] / memory["reduction", large]
        found.append(("reduction's bandwidth / device copy's", reduction, REDUCTION_AIM))
    if memory and sizes:
        slower = max(memory["copy to pinned host", large], memory["copy from pinned host", large],
                     sizes["ring host", large])  # fmt: skip
        staged = min(sizes[f"ring staging={where}", large] for where in ("host", "device"))
        found.append(
            ("slower of (pinned copy, host collective) / staged collective", slower / staged, STAGED_AIM)
        )
    return found


def hidden(rows: Iterable[Row], large: int) -> dict[str, tuple[float, float]]:
    """For each staging: time of both over the longer of the two, and the part of the shorter that is hidden.

    1 and 1 are perfect; nothing hidden is the sum of the two, and 0.
    """
    times = medians(rows, "overlap")
    found = {}
    for what, _ in times:
        if what.startswith("both ("):
            staging = what[len("both (") : -1]
            alone = times[f"kernels ({staging})", large], times[f"all-reduce ({staging})", large]
            both = times[what, large]
            found[staging] = both / max(alone), (sum(alone) - both) / min(alone)
    return found


def text_of(facts: dict[str, Any], rows: list[Row]) -> str:
    """The report, in Markdown."""
    large = facts["large"]
    proved = [row for row in rows if row["seconds"] is None]
    wrong = [row for row in proved if row["status"] != "ok"]
    lacking = next((part for part in PARTS if part not in facts["parts"]), None)
    devices = ", ".join(one["name"] for one in facts["devices"])
    lines = [
        f"# Device buffers on {devices}, {facts['ranks']} ranks, {facts['vendor']}",
        "",
        f"Device memory in messages: {facts['aware']} ({facts['how']}).",
        "",
        *([] if lacking is None else [f"NOT WHOLE: it ended before the part {lacking!r} was over.", ""]),
        f"Results: {len(proved)} proved, {len(wrong)} wrong.",
        *(f"- WRONG {row['what']}: {row['reason']}" for row in wrong),
        "",
        *(f"- {what}: {ratio:.2f} (aim {aim}: {'met' if ratio >= aim else 'missed'})"
          for what, ratio, aim in aims(rows, large)),
        "",
        f"Memory, {format_bytes(large)}, one rank at a time:",
        "",
        *(f"- {what}: {format_seconds(t)}, {n / t / 1e9:.1f} GB/s"
          for (what, n), t in medians(rows, "memory").items()),
        "",
        *_table(medians(rows, "sizes")),
        "",
        f"Beside kernels on another stream, {format_bytes(large)}:",
        "",
        *(f"- {what}: {format_seconds(t)}" for (what, _), t in medians(rows, "overlap").items()),
        *(f"- {staging}: {ratio:.2f} of the longer of the two, {part:.0%} of the shorter one hidden"
          for staging, (ratio, part) in hidden(rows, large).items()),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _table(cells: dict[tuple[str, int], float]) -> list[str]:
    names = list(dict.fromkeys(what for what, _ in cells))
    sizes = sorted({nbytes for _, nbytes in cells})
    lines = [f"| all-reduce | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for nbytes in sizes:
        row = [format_seconds(cells[name, nbytes]) if (name, nbytes) in cells else "–" for name in names]
        lines.append(f"| {format_bytes(nbytes)} | {' | '.join(row)} |")
    return lines
