"""Results of sweeps as one data frame: what was measured where, never mixed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from mpicoll.bench import conditions
from mpicoll.bench.overlap_file import FILE as OVERLAP
from mpicoll.bench.sizes import format_bytes
from mpicoll.bench.store import ADDED, COLUMNS, StoreError, whole_part

_WHOLE = (
    "launch", "case", "pass", "case_rows", "order", "batch", "channels", "depth", "rounds", "root", "ranks",
    "nodes", "ppn", "count", "msg_bytes", "total_bytes", "iteration", "slowest_rank",
)  # fmt: skip
_FLAGS = ("oversubscribed", "primed", "warmup", "late", "checked")
_SECONDS = ("seconds", "seconds_min", "skew", "start_skew", "build_seconds", "first_seconds")


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


def load(directories: Sequence[Path], *, across: bool = False) -> Results:
    """Read run directories and campaigns: all samples in one frame, a launch being (`source`, `launch`).

    Results of different machines, libraries, versions or thread levels are refused, as `StoreError` with what
    differs; `across` allows them, as groups that are never pooled (column `environment`).
    """
    results = Results(pd.DataFrame(), {}, {})
    results.runs = conditions.read_runs(directories, across=across)
    frames = []
    for source, run in results.runs.items():
        samples = _read_samples(Path(source), results.notes)
        if samples.empty and (Path(source) / OVERLAP).is_file():
            continue  # a run of `mpicoll overlap`, which has a section of its own
        if samples.empty:
            results.notes.append(f"{source} holds no finished case")
            continue
        samples["source"] = source
        samples["environment"] = conditions.label(run, results.environments)
        for name, describe in (("settings", conditions.settings), ("placement", conditions.placement)):
            samples[name] = samples["launch"].map({one["launch"]: describe(one) for one in run["launches"]})
        frames.append(samples)
    if not frames and any((Path(source) / OVERLAP).is_file() for source in results.runs):
        more = ("source", "environment", "settings", "placement", "memory", "contender", "size")
        results.samples = pd.DataFrame(columns=[*dict.fromkeys([*COLUMNS, *more])])
        return results
    if not frames:
        lost = [one for run in results.runs.values() for one in run["launches"] if one["status"] == "running"]
        why = f" (a run that began at {lost[-1]['started']} was killed, or has not ended yet)" if lost else ""
        raise StoreError(f"no finished case in {', '.join(map(str, directories))}{why}")
    samples = pd.concat(frames, ignore_index=True)
    engines = samples["engine"].dropna().unique()
    samples["contender"] = [
        f"{name} ({engine})" if isinstance(engine, str) and len(engines) > 1 else name
        for name, engine in zip(samples["requested"], samples["engine"], strict=True)
    ]
    # Whether device memory is staged is how a contender does it, not what is asked of it.
    samples["memory"] = samples["buffer"].replace("cupy_staged", "cupy")
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
    if not whole.length:  # cut off within its first line
        return pd.DataFrame()
    kinds = dtypes()
    try:
        frame = pd.read_csv(
            io.BytesIO(content[: whole.length]),
            dtype={**{name: "string" for name in _text_columns(content)}, **kinds},
            keep_default_na=False,
            na_values={name: [""] for name in _text_columns(content) + list(kinds)},
        )
    except (ValueError, TypeError) as error:  # a text where a number is; a fraction where none can be
        raise StoreError(f"{path} holds what is no sample: {error}") from None
    for name in [name for name in ADDED if name not in frame]:  # written before there were these columns
        frame[name] = pd.Series([ADDED[name]] * len(frame), dtype=kinds.get(name, "object"))
    for name in _FLAGS:
        frame[name] = frame[name].astype("boolean")
    for name in _text_columns(content):
        frame[name] = frame[name].astype(object).where(frame[name].notna(), None)
    return frame


def read_table(
    path: Path, columns: Sequence[str], said: list[str] | None = None, **options: Any
) -> pd.DataFrame:
    """A CSV file that lies beside the samples. Raises `StoreError` for one that holds something else.

    A row that was cut off at its end is left out, which is then `said`; without that, it is refused.
    """
    try:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content and said is None:
            raise StoreError(f"{path} was cut off in the middle of a row; leave it out, or measure again")
        if whole != content and said is not None:
            said.append(f"{path} ends in the middle of a row, which is left out.")
        frame = pd.read_csv(io.BytesIO(whole), **options)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise StoreError(f"cannot read {path}: {error}") from None
    if missing := [name for name in columns if name not in frame]:
        raise StoreError(f"{path} has other columns than this version of mpicoll writes: no {missing[0]}")
    return frame


def _text_columns(content: bytes) -> list[str]:
    header = content.partition(b"\n")[0].decode().split(",")
    return [name for name in header if name not in dtypes()]
