"""The report's part on overlap: what a step pays for communication, and which bucket size is best."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mpicoll.bench import conditions, overlap_figures, overlap_stats
from mpicoll.bench.frame import read_table
from mpicoll.bench.overlap_modes import BLOCKING, COMMUNICATE, COMPUTE, OVERLAPPED, PER_TENSOR
from mpicoll.bench.overlap_record import COLUMNS, FILE, recommendation
from mpicoll.bench.overlap_stats import Verdict
from mpicoll.bench.sections import Loaded, Section, Table
from mpicoll.bench.sizes import format_bytes
from mpicoll.bench.store import StoreError, read_run

TOLERANCE = 1.10  # of the bound: what counts as overlapped well


def section(data: Loaded) -> Section | None:
    """One part for each run of `mpicoll overlap`."""
    parts = [_part(path.parent) for path in data.beside(FILE)]
    if not parts:
        return None
    words = [
        "Exposed: what a step takes beyond computing alone. Hidden: the part of communication (alone, at the "
        "same bucket size) that is not exposed. Utilisation: computing alone over the step. Intervals are "
        "95 %, over the steps of one launch."
    ]
    return Section("Gradients overlapped with the backward pass", words, parts=parts)


def any_wrong(data: Loaded) -> bool:
    """Whether ranks ended with different parameters in some run."""
    return any(bool((read_table(path, COLUMNS)["status"] == "wrong").any()) for path in data.beside(FILE))


class Run:
    """One run, read and evaluated."""

    def __init__(self, directory: Path) -> None:
        self.facts = read_run(directory)
        frame = read_table(directory / FILE, COLUMNS)
        if frame.empty or "overlap" not in self.facts:
            raise StoreError(f"{directory} holds no finished run of `mpicoll overlap`; leave it out")
        frame["warmup"] = frame["warmup"].astype(bool)
        sizes = [None if pd.isna(size) else int(size) for size in frame["bucket_bytes"]]
        frame["bucket_bytes"] = pd.Series(sizes, dtype=object)
        self.frame, self.directory = frame, directory
        self.first = frame.iloc[0]
        rows = [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
        self.times = overlap_stats.as_times(rows)
        told = self.facts["overlap"]
        self.ready = told["ready"]
        self.buckets = {(one["mode"], one["bucket_bytes"]): one["filled"] for one in told["buckets"]}
        if len({len(self.times.get(key, ())) for key in self.buckets}) != 1:
            raise StoreError(f"{directory / FILE} lacks steps of some modes; leave it out, or measure again")
        self.resampled = overlap_stats.Resampled(self.times)
        self.verdicts = overlap_stats.verdicts(self.times)
        self.best = self.resampled.recommended()
        self.line = overlap_stats.fit_line(self.times, self.buckets)

    def verdict(self, mode: str, size: int | None = None) -> Verdict:
        """Of a mode, at a bucket size if it has several."""
        return next(v for v in self.verdicts if v.mode == mode and size in (None, v.bucket_bytes))

    def compute(self) -> float:
        """Seconds of a step that only computes."""
        return float(np.median(self.times[COMPUTE, None]))

    def alone(self, size: int) -> float:
        """Seconds of communicating alone in buckets of `size`."""
        return float(np.median(self.times[COMMUNICATE, size]))

    def extra_cpu(self, size: int) -> float:
        """CPU seconds a rank that an overlapped step takes beyond one that only computes."""
        steps = self.frame[~self.frame["warmup"]]
        chosen = steps[(steps["mode"] == OVERLAPPED) & (steps["bucket_bytes"] == size)]
        compute = steps[steps["mode"] == COMPUTE]
        more = chosen["cpu_seconds"].median() - compute["cpu_seconds"].median()
        return float(more) / int(self.first["ranks"])

    def prediction(self, size: int) -> tuple[float, float] | None:
        """The model's step, and the bound for perfect overlap [s]."""
        if self.line is None:
            return None
        filled = self.buckets[OVERLAPPED, size]
        return (
            overlap_stats.predict(filled, self.ready, self.compute(), self.line),
            overlap_stats.bound(self.times, size, filled[-1][0], self.line),
        )

    def traces(self) -> list[dict[str, Any]]:
        """The events of rank 0."""
        path = self.directory / "trace-rank0.json"
        try:
            return json.loads(path.read_text(encoding="utf-8"))["traceEvents"] if path.exists() else []
        except (ValueError, KeyError, TypeError):
            raise StoreError(f"{path} is no trace; remove it, and the report has no timeline") from None


def _part(directory: Path) -> Section:
    run = Run(directory)
    vendor = run.facts["launches"][-1]["mpi"]["vendor"]
    first = run.first
    title = f"{vendor}, {first['ranks']} ranks on {first['nodes']} nodes ({directory.name})"
    charts = {
        "steps": overlap_figures.steps(bars(run), title),
        "buckets": overlap_figures.buckets(curve(run), run.compute() * 1e3, run.best, title),
    }
    if traces := run.traces():
        charts["timeline"] = overlap_figures.timeline(traces, title)
    return Section(title, [*hazards(run), *words(run)], charts, [table(run)])


def hazards(run: Run) -> list[str]:
    """What makes this no performance result."""
    found = [h["what"] for launch in run.facts["launches"] for h in launch["hazards"] if h["grave"]]
    setting = conditions.settings(run.facts["launches"][-1])
    said = [f"NOT A PERFORMANCE RESULT ({'; '.join(found)})."] if found else []
    if (run.frame["status"] == "wrong").any():
        said.insert(0, f"WRONG RESULTS: {run.frame['reason'].dropna().iloc[0]}.")
    return said + ([f"Settings: {setting}."] if setting else [])


def words(run: Run) -> list[str]:
    """The outcome in sentences."""
    first, best = run.first, run.best
    good, plain = run.verdict(OVERLAPPED, best[0]), run.verdict(PER_TENSOR)
    compute, alone = run.compute(), run.alone(best[0])
    said = [
        f"{first['layers']} layers of {first['width']}, {first['batch']} rows a rank: computing alone takes "
        f"{compute * 1e3:.1f} ms ({first['flops'] / compute / 1e9:.1f} useful GFLOP/s a rank), averaging "
        f"{first['gradient_bytes'] / 2**20:.1f} MiB of gradients alone {alone * 1e3:.1f} ms.",
        f"Overlapped in buckets of {format_bytes(best[0])} a step takes {good.step.text(1e3)} ms and hides "
        f"{_hidden(good)} % of its communication; utilisation {good.utilisation.text(100, '.0f')} %, against "
        f"{plain.utilisation.text(100, '.0f')} % with a blocking all-reduce per tensor "
        f"({plain.step.text(1e3)} ms).",
        recommendation(best)[0].upper() + recommendation(best)[1:] + ".",
        *_against_bound(run),
        *_too_small(run),
    ]
    return said


def _hidden(verdict: Verdict) -> str:
    return "?" if verdict.hidden is None else verdict.hidden.text(100, ".0f")


def _against_bound(run: Run) -> list[str]:
    size = run.best[0]
    prediction = run.prediction(size)
    if prediction is None:
        return []
    model, bound = prediction
    step, extra = run.verdict(OVERLAPPED, size).step.value, run.extra_cpu(size)
    kept = "within" if step <= TOLERANCE * bound else "beyond"
    said = (
        f"That is {kept} {TOLERANCE:.2f} times the longer of both alone and the last bucket "
        f"({bound * 1e3:.1f} ms); the model without any cost to computing says {model * 1e3:.1f} ms."
    )
    if step > model:
        said += (
            f" Moving the messages took {extra * 1e3:.0f} ms of CPU a rank and step (interrupts not "
            "counted), which computing lacks where every core computes."
        )
    return [said]


def _too_small(run: Run) -> list[str]:
    sizes = sorted(size for mode, size in run.times if mode == OVERLAPPED and size is not None)
    smallest, best = run.verdict(OVERLAPPED, sizes[0]), run.verdict(OVERLAPPED, run.best[0])
    if sizes[0] == run.best[0] or run.line is None or smallest.step.low <= best.step.high:
        return []
    count = len(run.buckets[OVERLAPPED, sizes[0]])
    latency, extra = count * run.line.alpha, run.extra_cpu(sizes[0]) - run.extra_cpu(run.best[0])
    said = (
        f"Buckets of {format_bytes(sizes[0])} are too small: {count} of them take "
        f"{smallest.step.text(1e3)} ms. Each has to be started, watched and finished, which takes "
        f"{extra * 1e3:.0f} ms more of CPU a rank than the recommended ones"
    )
    if latency > 0.05 * run.compute():
        said += f", and pays a latency of {run.line.alpha * 1e6:.0f} µs, {latency * 1e3:.0f} ms in all"
    return [said + "."]


def bars(run: Run) -> pd.DataFrame:
    """Milliseconds of every mode, the bucketed ones at the recommended size."""
    best = run.best[0]
    shown = [v for v in run.verdicts if v.mode != OVERLAPPED or v.bucket_bytes == best]
    rows = [_bar(v.mode, v.bucket_bytes, v.step) for v in shown]
    rows.append(_bar(COMPUTE, None, run.resampled.median((COMPUTE, None))))
    rows.append(_bar(COMMUNICATE, best, run.resampled.median((COMMUNICATE, best))))
    return pd.DataFrame(rows)


def _bar(mode: str, size: int | None, step: overlap_stats.Estimate) -> dict[str, Any]:
    name = mode if size is None else f"{mode}, {format_bytes(size)}"
    return {"mode": name, "ms": step.value * 1e3, "low": step.low * 1e3, "high": step.high * 1e3}


def curve(run: Run) -> pd.DataFrame:
    """Milliseconds by bucket size: overlapped steps, communication alone, the model, the bound."""
    rows = []
    for mode, size in sorted((key for key in run.times if key[1] is not None), key=str):
        if mode == BLOCKING:
            continue
        step = run.resampled.median((mode, size))
        rows.append({**_bar(mode, size, step), "mode": mode, "bucket_bytes": size})
        prediction = run.prediction(size) if mode == OVERLAPPED and size is not None else None
        for name, value in zip(("model", "bound"), prediction or (), strict=False):
            rows.append({"mode": name, "bucket_bytes": size, "ms": value * 1e3})
    return pd.DataFrame(rows)


def table(run: Run) -> Table:
    """Every way to train."""
    rows: list[Sequence[str | None]] = []
    for v in run.verdicts:
        size = v.bucket_bytes
        prediction = run.prediction(size) if v.mode == OVERLAPPED and size is not None else None
        rows.append((
            v.mode, None if size is None else format_bytes(size),
            str(len(run.buckets[v.mode, size])), v.step.text(1e3), v.exposed.text(1e3),
            f"{run.alone(size) * 1e3:.1f}" if v.mode == OVERLAPPED and size is not None else None,
            None if v.hidden is None else v.hidden.text(100, ".0f"), v.utilisation.text(100, ".0f"),
            *([None, None] if prediction is None else [f"{value * 1e3:.1f}" for value in prediction]),
        ))  # fmt: skip
    columns = (
        "mode", "bucket", "all-reduces", "step [ms]", "exposed [ms]", "communication alone [ms]",
        "hidden [%]", "utilisation [%]", "model [ms]", "bound [ms]",
    )  # fmt: skip
    return Table("A training step", columns, rows)
