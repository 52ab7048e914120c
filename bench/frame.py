"""Results of sweeps as one data frame: what was measured where, never mixed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from mpicoll.bench.sizes import format_bytes
from mpicoll.bench.store import StoreError, read_run, whole_part

_WHOLE = (
    "launch", "case", "case_rows", "order", "channels", "depth", "rounds", "root", "ranks",
    "nodes", "ppn", "count", "msg_bytes", "total_bytes", "iteration", "slowest_rank",
)  # fmt: skip
_FLAGS = ("oversubscribed", "primed", "warmup", "checked")
_SECONDS = ("seconds", "seconds_min", "skew", "build_seconds", "first_seconds")
# Conditions that are columns anyway, or that a launch may differ in: the rest makes an environment.
_NOT_ENVIRONMENT = ("spec", "ranks", "nodes", "ppn", "thread_level")


@dataclass(slots=True)
class Results:
    """Samples of one or more sweeps, with a column `environment` that separates what is not comparable."""

    samples: pd.DataFrame
    runs: dict[str, dict[str, Any]]  # directory -> run.json
    environments: dict[str, dict[str, Any]]  # label -> identity
    notes: list[str] = field(default_factory=list)  # what was left out on reading, and why


def dtypes() -> dict[str, str]:
    """How pandas should read the columns of a samples file; those not named are text."""
    return {**dict.fromkeys((*_WHOLE, *_FLAGS), "Int64"), **dict.fromkeys(_SECONDS, "float64")}


def load(directories: Sequence[Path]) -> Results:
    """Read result directories. Raises `StoreError` for one that holds none."""
    results = Results(pd.DataFrame(), {}, {})
    frames = []
    for directory in dict.fromkeys(directories):
        run = read_run(directory)
        results.runs[str(directory)] = run
        samples = _read_samples(directory, results.notes)
        samples["source"] = str(directory)
        samples["environment"] = _environment(run, results.environments)
        frames.append(samples)
    samples = pd.concat(frames, ignore_index=True)
    if samples.empty:
        raise StoreError(f"no finished case in {', '.join(map(str, directories))}")
    engines = samples["engine"].dropna().unique()
    samples["contender"] = [
        f"{name} ({engine})" if isinstance(engine, str) and len(engines) > 1 else name
        for name, engine in zip(samples["requested"], samples["engine"], strict=True)
    ]
    samples["size"] = samples["msg_bytes"].map(format_bytes)
    results.samples = samples
    return results


def _read_samples(directory: Path, notes: list[str]) -> pd.DataFrame:
    path = directory / "samples.csv"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    whole = whole_part(content, str(path))
    if whole.length < len(content):
        notes.append(
            f"{path} ends with an unfinished case, which is left out; continue the sweep with --resume"
        )
    kinds = dtypes()
    frame = pd.read_csv(
        io.BytesIO(content[: whole.length]),
        dtype={**{name: "string" for name in _text_columns(content)}, **kinds},
        keep_default_na=False,
        na_values={name: [""] for name in _text_columns(content) + list(kinds)},
    )
    for name in _FLAGS:
        frame[name] = frame[name].astype("boolean")
    for name in _text_columns(content):
        frame[name] = frame[name].astype(object).where(frame[name].notna(), None)
    return frame


def _text_columns(content: bytes) -> list[str]:
    header = content.partition(b"\n")[0].decode().split(",")
    return [name for name in header if name not in dtypes()]


def _environment(run: dict[str, Any], known: dict[str, dict[str, Any]]) -> str:
    """The label of a run's environment: the same for equal conditions, and only for those."""
    identity = {key: value for key, value in run["identity"].items() if key not in _NOT_ENVIRONMENT}
    for label, other in known.items():
        if other == identity:
            return label
    last = run["launches"][-1]
    base = (
        f"{last['mpi']['vendor']}, {identity['cpu_model'] or 'unknown CPU'}, {identity['logical_cpus']} CPUs"
    )
    label, number = base, 2
    while label in known:
        label, number = f"{base} #{number}", number + 1
    known[label] = identity
    return label
