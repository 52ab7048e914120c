"""The report's part on overlap: what a step pays for communication, and which bucket size is best."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mpicoll.bench import conditions, overlap_figures, overlap_file, overlap_stats
from mpicoll.bench.overlap_file import FILE
from mpicoll.bench.overlap_modes import COMMUNICATE, COMPUTE, OVERLAPPED, PER_TENSOR
from mpicoll.bench.overlap_outcome import Outcome
from mpicoll.bench.overlap_stats import Verdict
from mpicoll.bench.overlap_text import predicted
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
    runs = [Run(path.parent) for path in data.beside(FILE)]
    return any(row["status"] == "wrong" for run in runs for row in run.rows)


class Run(Outcome):
    """One run, read and evaluated."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.facts = directory, read_run(directory)
        told = self.facts.get("overlap")
        if told is None:
            raise StoreError(f"{directory} holds no finished step of `mpicoll overlap`; leave it out")
        rows, self.torn = overlap_file.read(directory, len(told["buckets"]))
        wrong = next((row["reason"] for row in rows if row["status"] == "wrong"), None)
        if wrong is not None and all(row["warmup"] for row in rows):
            raise StoreError(f"{directory}: WRONG RESULTS in a warm-up step: {wrong}; leave it out")
        if all(row["warmup"] for row in rows):
            raise StoreError(f"{directory} holds no finished step of `mpicoll overlap`; leave it out")
        super().__init__(rows, told)

    def traces(self) -> list[dict[str, Any]]:
        """The events of rank 0."""
        path = self.directory / "trace-rank0.json"
        try:
            return json.loads(path.read_text(encoding="utf-8"))["traceEvents"] if path.exists() else []
        except (ValueError, KeyError, TypeError):
            raise StoreError(f"{path} is no trace; remove it, and the report has no timeline") from None

    def unfinished(self) -> list[str]:
        """Of how many steps there are less than asked for."""
        asked = int(self.facts["identity"]["spec"]["iterations"])
        done = len(next(iter(self.times.values())))
        return [
            f"NOT WHOLE: {done} of {asked} steps; continue with --resume." for _ in range(done < asked)
        ] + ["An unfinished step at the end is left out."] * self.torn


def _part(directory: Path) -> Section:
    run = Run(directory)
    vendor = run.facts["launches"][-1]["mpi"]["vendor"]
    first = run.first
    title = f"{vendor}, {first['ranks']} ranks on {first['nodes']} nodes ({directory.name})"
    charts = {
        "steps": overlap_figures.steps(bars(run), title),
        "buckets": overlap_figures.buckets(
            curve(run), run.compute().value * 1e3, run.best if run.hides() else None, title
        ),
    }
    if traces := run.traces():
        charts["timeline"] = overlap_figures.timeline(traces, title)
    return Section(title, [*hazards(run), *words(run)], charts, [table(run)])


def hazards(run: Run) -> list[str]:
    """What makes this no performance result."""
    found = [h["what"] for launch in run.facts["launches"] for h in launch["hazards"] if h["grave"]]
    setting = conditions.settings(run.facts["launches"][-1])
    said = [f"NOT A PERFORMANCE RESULT ({'; '.join(found)})."] if found else []
    wrong = next((row["reason"] for row in run.rows if row["status"] == "wrong"), None)
    if wrong is not None:
        said.insert(0, f"WRONG RESULTS: {wrong}.")
    return said + run.unfinished() + ([f"Settings: {setting}."] if setting else [])


def words(run: Run) -> list[str]:
    """The outcome in sentences."""
    first, best = run.first, run.best
    good, plain = run.verdict(OVERLAPPED, best[0]), run.verdict(PER_TENSOR)
    compute = run.compute()
    where = "" if first["buffer"] == "host" else f" in device memory ({_devices(run)}; {first['buffer']})"
    advice, *why = [f"{line[0].upper()}{line[1:]}." for line in run.advice()]
    return [
        f"{first['layers']} layers of {first['width']}, {first['batch']} rows a rank{where}: computing alone "
        f"takes {compute.text(1e3)} ms ({first['flops'] / compute.value / 1e9:.1f} useful GFLOP/s a rank), "
        f"averaging {first['gradient_bytes'] / 2**20:.1f} MiB of gradients alone "
        f"{run.alone(best[0]).text(1e3)} ms.",
        f"Overlapped in buckets of {format_bytes(best[0])} a step takes {good.step.text(1e3)} ms, "
        f"{good.exposed.text(1e3)} ms of it exposed communication: {_hidden(good)} % are hidden; utilisation "
        f"{good.utilisation.text(100, '.0f')} %, against {plain.utilisation.text(100, '.0f')} % with a "
        f"blocking all-reduce per tensor ({plain.step.text(1e3)} ms).",
        advice,
        *why,
        *([f"All-reduces: {took}."] if (took := run.took()) else []),
        *_against_bound(run),
        *_too_small(run),
    ]


def _devices(run: Run) -> str:
    return ", ".join(one["name"] for one in run.facts["launches"][-1].get("devices", ())) or "unknown"


def _hidden(verdict: Verdict) -> str:
    return "?" if verdict.hidden is None else verdict.hidden.text(100, ".0f")


def _against_bound(run: Run) -> list[str]:
    size = run.best[0]
    prediction = run.prediction(size)
    if prediction is None:
        return []
    step, extra, moving = run.verdict(OVERLAPPED, size).step, run.extra_cpu(size), run.moving_cpu(size)
    kept = "within" if step.value <= TOLERANCE * prediction.bound else "beyond"
    said = [
        f"That is {kept} {TOLERANCE:.2f} times the longer of both alone and the last bucket "
        f"({prediction.bound * 1e3:.1f} ms). The model says {prediction.free * 1e3:.1f} ms if moving "
        "messages costs computing nothing"
    ]
    if moving is not None and prediction.charged is not None:
        said.append(
            f", and {prediction.charged * 1e3:.1f} ms with the CPU time that moving them took beside a "
            f"program that slept, {moving * 1e3:.1f} ms a rank and step"
        )
    said.append(f". Beside computing it was {extra * 1e3:.1f} ms (interrupts are not counted).")
    return ["".join(said)]


def _too_small(run: Run) -> list[str]:
    sizes = run.sizes
    smallest, best = run.verdict(OVERLAPPED, sizes[0]), run.verdict(OVERLAPPED, run.best[0])
    if sizes[0] == run.best[0] or run.line is None or smallest.step.low <= best.step.high:
        return []
    count = len(run.buckets[OVERLAPPED, sizes[0]])
    latency, extra = count * run.line.alpha, run.extra_cpu(sizes[0]) - run.extra_cpu(run.best[0])
    said = (
        f"Buckets of {format_bytes(sizes[0])} are too small: {count} of them take "
        f"{smallest.step.text(1e3)} ms. Each has to be started, watched and finished, which takes "
        f"{extra * 1e3:.1f} ms more of CPU a rank than those of {format_bytes(run.best[0])}"
    )
    if latency > 0.05 * run.compute().value:
        said += f", and pays a latency of {run.line.alpha * 1e6:.0f} µs, {latency * 1e3:.1f} ms in all"
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
    """Milliseconds by bucket size: overlapped steps, communication alone, both models, the bound."""
    rows = []
    for mode, size in sorted((key for key in run.times if key[1] is not None), key=str):
        if mode not in (OVERLAPPED, COMMUNICATE):
            continue
        step = run.resampled.median((mode, size))
        rows.append({**_bar(mode, size, step), "mode": mode, "bucket_bytes": size})
        prediction = run.prediction(size) if mode == OVERLAPPED and size is not None else None
        for name, value in zip(("model", "model + CPU", "bound"), prediction or (), strict=False):
            if value is not None:
                rows.append({"mode": name, "bucket_bytes": size, "ms": value * 1e3})
    return pd.DataFrame(rows)


def table(run: Run) -> Table:
    """Every way to train."""
    rows: list[Sequence[str | None]] = []
    for v in run.verdicts:
        size = v.bucket_bytes
        overlapped = v.mode == OVERLAPPED and size is not None
        models = predicted(run, size) if overlapped and size is not None else ("-",) * 3
        alone = run.alone(size).text(1e3) if size is not None and (COMMUNICATE, size) in run.times else None
        rows.append((
            v.mode, None if size is None else format_bytes(size),
            str(len(run.buckets[v.mode, size])), v.step.text(1e3), v.exposed.text(1e3), alone,
            None if v.hidden is None else v.hidden.text(100, ".0f"), v.utilisation.text(100, ".0f"),
            *(None if text == "-" else text for text in models),
        ))  # fmt: skip
    columns = (
        "mode", "bucket", "all-reduces", "step [ms]", "exposed [ms]", "communication alone [ms]",
        "hidden [%]", "utilisation [%]", "model [ms]", "model + CPU [ms]", "bound [ms]",
    )  # fmt: skip
    return Table("A training step", columns, rows)
