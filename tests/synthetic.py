"""Results of sweeps that never ran, with times chosen by the test."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from mpicoll.bench.store import Store

MACHINE = {
    "cpu_model": "Test CPU",
    "architecture": "x86_64",
    "logical_cpus": 8,
    "physical_cores": 4,
    "cpu_quota": None,
    "memory_bytes": 1 << 34,
    "governor": "performance",
    "turbo": "off",
    "virtual": False,
    "kernel": "6.1",
    "system": "Test Linux",
}
SOFTWARE = {
    "python": "3.11.0",
    "implementation": "cpython",
    "mpicoll": "0.1.0",
    "mpi4py": "4.1",
    "numpy": "2.0",
    "git": {"commit": "0123456789abcdef", "changed": False},
}
HAZARD = {"what": "a hazard", "effect": "spoils <numbers>", "fix": "fix it", "grave": False}


def identity(mpi: str = "Test MPI 1.0", **changes: Any) -> dict[str, Any]:
    """What `run.json` says about comparability."""
    keys = ("cpu_model", "architecture", "logical_cpus", "physical_cores")
    job = {"ranks": 2, "nodes": 1, "ppn": 2, "spec": {}}
    return {**{key: MACHINE[key] for key in keys}, "mpi": mpi, **job, **changes}


def launch(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A launch as `run.json` records it."""
    overhead = {"what": "round", "engine": "native", "seconds": 1e-6, "samples": 9, "meaning": "a round"}
    return {
        "launch": number,
        "started": "2026-01-01T00:00:00+0000",
        "ended": "2026-01-01T00:01:00+0000",
        "status": "complete",
        "command": "mpicoll sweep",
        "machine": MACHINE,
        "software": SOFTWARE,
        "mpi": {"vendor": "Test MPI 1.0", "library": "Test MPI 1.0", "thread_level": "funneled"},
        "native_engine": {"available": True, "reason": "available"},
        "ranks": 2,
        "nodes": 1,
        "ppn": 2,
        "oversubscribed": False,
        "placement": [{"rank": rank, "host": "h", "node": 0, "cpus": str(rank)} for rank in range(2)],
        "load": [0.0, 0.0, 0.0],
        "environment": {"MPIR_X": "1"},
        "slurm": {},
        "hazards": [HAZARD],
        "overheads": [overhead],
        **changes,
    }


def row(**values: Any) -> dict[str, Any]:
    """A sample with everything filled in."""
    name = values.get("requested", "ring")
    who = {"implementation": "mpi", "requested": name, "algorithm": name}
    if not name.startswith("builtin"):
        who |= {"implementation": "mpicoll", "engine": "native", "channels": 1, "depth": 1, "rounds": 2}
    case = {"collective": "allreduce", "dtype": "float32", "op": "sum", "root": 0, "count": 256}
    size = {"msg_bytes": 1024, "total_bytes": 1024}
    job = {"ranks": 2, "nodes": 1, "ppn": 2, "oversubscribed": False, "thread_level": "funneled"}
    method = {"buffer": "host", "cache": "warm", "primed": True, "sync": "dissemination", "checked": True}
    sample = {"launch": 0, "order": 0, "iteration": 0, "warmup": False, "slowest_rank": 0, "status": "ok"}
    times = {"seconds": 1e-6, "seconds_min": 1e-6, "skew": 0.0, "build_seconds": 1e-3, "first_seconds": 1e-4}
    return {**who, **case, **size, **job, **method, **sample, **times, **values}


def write_result(
    directory: Path,
    times: dict[str, dict[int, float]],
    *,
    iterations: int = 40,
    spread: float = 0.05,
    launches: int = 1,
    extra: list[dict[str, Any]] | None = None,
    seed: int = 1,
    run: dict[str, Any] | None = None,
    **columns: Any,
) -> Path:
    """A result directory in which contender c takes about ``times[c][size]`` seconds.

    Both a common disturbance of each iteration and one of each sample have the given relative spread.
    """
    rng = random.Random(seed)
    store = Store(directory)
    store.run |= {"identity": identity(), "launches": [launch(n) for n in range(launches)], **(run or {})}
    store.write_run()
    sizes = sorted({size for by_size in times.values() for size in by_size})
    for number in range(launches):
        for case, size in enumerate(sizes):
            rows = []
            for iteration in range(-2, iterations):
                common = rng.lognormvariate(0, spread)
                for order, (name, by_size) in enumerate(times.items()):
                    if size not in by_size:
                        continue
                    seconds = (
                        by_size[size] * common * rng.lognormvariate(0, spread) * (1 if iteration >= 0 else 10)
                    )
                    where = {"count": size // 4, "msg_bytes": size, "total_bytes": size}
                    place = {"launch": number, "case": case + number * len(sizes), "order": order}
                    when = {"iteration": iteration % 1000, "warmup": iteration < 0, "seconds": seconds}
                    rows.append(row(requested=name, **{**where, **place, **when, **columns}))
            store.write_case(rows)
    if extra:
        store.write_case([{**one, "case": 999} for one in extra])
    store.close()
    return directory
