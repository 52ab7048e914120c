"""The outcome of `mpicoll overlap` in words, on the terminal."""

from __future__ import annotations

from mpicoll.bench.overlap_modes import COMMUNICATE, OVERLAPPED
from mpicoll.bench.overlap_outcome import Outcome
from mpicoll.bench.overlap_stats import Verdict
from mpicoll.bench.sizes import format_bytes, format_seconds

_HEAD = (
    "mode", "buckets", "step", "exposed", "alone", "hidden [%]", "utilisation [%]", "model", "+ CPU", "bound",
)  # fmt: skip


def as_text(run: Outcome, nodes: int) -> list[str]:
    """Lines: what was measured, a table, and what follows from it."""
    first, compute = run.first, run.compute()
    memory = "" if first["buffer"] == "host" else f" in device memory ({first['buffer']})"
    rows = [_HEAD, *(_line(run, verdict) for verdict in run.verdicts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = [
        f"{first['layers']} layers of {first['width']}, {first['batch']} rows a rank, "
        f"{first['gradient_bytes'] / 2**20:.1f} MiB of gradients{memory}, {run.ranks} ranks on {nodes} "
        "nodes; times in ms, with 95 % intervals",
        f"compute only {compute.text(1e3)}: {first['flops'] / compute.value / 1e9:.1f} useful GFLOP/s a rank",
        "",
        *("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows),
        "",
        *run.advice(),
    ]
    if took := run.took():
        lines.append(f"all-reduces: {took}")
    if run.line is not None:
        lines.append(
            f"model: a bucket takes {format_seconds(run.line.alpha)} + "
            f"{format_seconds(run.line.beta * 2**20)} per MiB alone (off by up to {run.line.error:.0%})"
        )
    if (moving := run.moving_cpu(run.best[0])) is not None:
        lines.append(
            f"+ CPU: moving the messages takes {format_seconds(moving)} of CPU a rank; {_charged(run)}"
        )
    return lines


def _charged(run: Outcome) -> str:
    charge = run.charge()
    if not charge:
        return "each rank has a core to spare for it"
    return f"each second costs computing {charge:.2g} s, with {run.cpus_per_rank:.2g} CPUs a rank"


def _line(run: Outcome, one: Verdict) -> tuple[str, ...]:
    count, alone, model = len(run.buckets[one.mode, one.bucket_bytes]), "-", ("-", "-", "-")
    if one.bucket_bytes is not None and (COMMUNICATE, one.bucket_bytes) in run.times:
        alone = run.alone(one.bucket_bytes).text(1e3)
    if one.mode == OVERLAPPED and one.bucket_bytes is not None:
        model = predicted(run, one.bucket_bytes)
    return (
        one.mode, f"{count}" + ("" if one.bucket_bytes is None else f" of {format_bytes(one.bucket_bytes)}"),
        one.step.text(1e3), one.exposed.text(1e3), alone,
        "-" if one.hidden is None else one.hidden.text(100, ".0f"), one.utilisation.text(100, ".0f"), *model,
    )  # fmt: skip


def predicted(run: Outcome, size: int) -> tuple[str, str, str]:
    """The two models and the bound in ms; a dash for what is not known."""
    found = run.prediction(size)
    if found is None:
        return "-", "-", "-"
    free, charged, bound = ("-" if value is None else f"{value * 1e3:.1f}" for value in found)
    return free, charged, bound
