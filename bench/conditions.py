"""Under what conditions a launch ran: what must be equal to pool results, and what tells groups apart.

Reads the facts in `run.json` only; knows nothing of samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpicoll.bench.store import StoreError, read_run
from mpicoll.locality import parse_cpus
from mpicoll.topology import Topology

#: What a campaign varies on purpose. All else in a run's identity must be equal for its results to be pooled.
FACTORS = ("spec", "ranks", "nodes", "ppn", "placement", "calibration", "loaded")
_NAMES = {
    "cpu_model": "CPU", "architecture": "architecture", "logical_cpus": "logical CPUs",
    "physical_cores": "cores", "mpi": "MPI library", "thread_level": "thread level", "commit": "commit",
    "native_engine": "native engine",
}  # fmt: skip
# Set by Open MPI's launcher itself in every rank.
_LAUNCHER_NOISE = (
    "OMPI_MCA_PREFIXES", "OMPI_MCA_cpu_type", "OMPI_MCA_initial_wdir", "OMPI_MCA_num_procs", "PMIX_MCA_",
)  # fmt: skip


def find_runs(directories: Sequence[Path]) -> list[Path]:
    """The run directories (those with a `run.json`) among and beneath some directories, each once.

    A campaign's directory is one that has many beneath it. Raises `StoreError` for a directory without any.
    """
    found: dict[Path, Path] = {}
    for directory in directories:
        here = [directory] if (directory / "run.json").exists() else []
        runs = here or sorted(path.parent for path in directory.rglob("run.json"))
        if not runs:
            raise StoreError(f"{directory} holds no result (no run.json in it or beneath it)")
        for path in runs:  # under two names it would count as two launches
            found.setdefault(path.resolve(), path)
    return list(found.values())


def read_runs(directories: Sequence[Path], *, across: bool = False) -> dict[str, dict[str, Any]]:
    """The `run.json` of all run directories among and beneath some directories, by directory.

    Raises `StoreError` for one that cannot be read, and for different conditions unless `across`.
    """
    runs = {str(directory): read_run(directory) for directory in find_runs(directories)}
    for source, run in runs.items():
        if not _says_how(run):
            raise StoreError(f"{source}/run.json does not say how anything was measured; leave it out")
    if not across:
        require_poolable(runs)
    return runs


def _says_how(run: Mapping[str, Any]) -> bool:
    """Whether a `run.json` has what all readers rely on."""
    launches = run.get("launches")
    return (
        isinstance(run.get("identity"), dict)
        and isinstance(launches, list)
        and bool(launches)
        and all(
            isinstance(one, dict)
            and {"launch", "status", "started"} <= one.keys()
            and _is_of_mpi(one)
            and _says_what_it_loaded(one)
            for one in launches
        )
    )


def _says_what_it_loaded(launch: Mapping[str, Any]) -> bool:
    loaded = launch.get("loaded") or []
    return isinstance(loaded, list) and all(
        isinstance(one, dict)
        and isinstance(one.get("file"), str)
        and isinstance(one.get("digest"), str)
        and isinstance(one.get("algorithms"), list)
        and all(isinstance(name, str) for name in one["algorithms"])
        for one in loaded
    )


def _is_of_mpi(launch: Mapping[str, Any]) -> bool:
    places = launch.get("placement") or []
    return (
        isinstance(launch.get("mpi"), dict)
        and isinstance(launch["mpi"].get("vendor"), str)
        and isinstance(launch.get("environment") or {}, dict)
        and isinstance(places, list)
        and all(
            isinstance(one, dict) and isinstance(one.get("cpus"), str) and "node" in one for one in places
        )
    )


def must_agree(run: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a run's identity that must be equal in everything it is pooled with."""
    return {key: value for key, value in run["identity"].items() if key not in FACTORS}


def require_poolable(runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `StoreError`, naming each difference, unless all runs (by directory) are of one environment."""
    facts = {directory: must_agree(run) for directory, run in runs.items()}
    lines = []
    for key in dict.fromkeys(key for one in facts.values() for key in one):
        where: dict[str, str] = {}  # value -> the first directory that has it
        for directory, one in facts.items():
            where.setdefault(str(one.get(key)), directory)
        if len(where) > 1:
            texts = _telling(list(where))
            listed = "; ".join(f"{text} in {at}" for text, at in zip(texts, where.values(), strict=True))
            lines.append(f"{_NAMES.get(key, key)}: {listed}")
    if lines:
        raise StoreError(
            "these results were measured under different conditions and cannot be pooled:\n  "
            + "\n  ".join(lines)
            + "\nreport them one by one, or with --across as separate groups"
        )


def _telling(values: list[str]) -> list[str]:
    """Of long texts (a library describes itself in many lines) the first line in which they differ."""
    lines = [value.splitlines() or [""] for value in values]
    depth = max(map(len, lines))
    padded = [[*one, *[""] * (depth - len(one))] for one in lines]
    at = next(k for k in range(depth) if len({one[k] for one in padded}) > 1)
    return [" ".join(one[at].split()) or "nothing" for one in padded]


def label(run: Mapping[str, Any], known: dict[str, dict[str, Any]]) -> str:
    """The name of a run's environment, the same for equal conditions and only for those; kept in `known`."""
    identity = must_agree(run)
    for name, other in known.items():
        if other == identity:
            return name
    vendor = run["launches"][-1]["mpi"]["vendor"]
    base = f"{vendor}, {identity.get('cpu_model') or 'unknown CPU'}, {identity.get('logical_cpus')} CPUs"
    name, number = base, 2
    while name in known:
        name, number = f"{base} #{number}", number + 1
    known[name] = identity
    return name


def settings(launch: Mapping[str, Any]) -> str:
    """The variables that a person set to change what MPI or mpicoll does; "" for none.

    >>> settings({"environment": {"OMPI_MCA_num_procs": "4", "MPIR_CVAR_X": "1"}})
    'MPIR_CVAR_X=1'
    """
    found = launch.get("environment") or {}
    return " ".join(f"{k}={v}" for k, v in sorted(found.items()) if not k.startswith(_LAUNCHER_NOISE))


def placement(launch: Mapping[str, Any]) -> str:
    """How ranks lie on nodes and CPUs, in words that are the same for launches of one kind.

    >>> cpus = ("0", "1", "0", "1")
    >>> at = lambda nodes: [{"node": n, "cpus": c} for n, c in zip(nodes, cpus)]
    >>> placement({"placement": at([0, 0, 1, 1])}), placement({"placement": at([0, 1, 0, 1])})
    ('block, bound', 'cyclic, not bound')
    >>> placement({"placement": [{"node": 0, "cpus": "0-1"}] * 2})
    'not bound'
    """
    places = launch.get("placement") or []
    nodes = [place["node"] for place in places]
    order = [] if len(set(nodes)) < 2 else [Topology(tuple(nodes)).placement]
    return ", ".join([*order, "bound" if _bound(places) else "not bound"])


def _bound(places: list[Mapping[str, Any]]) -> bool:
    """Whether no CPU is shared by two ranks of a node."""
    taken: set[tuple[int, int]] = set()
    for place in places:
        mine = {(place["node"], cpu) for cpu in parse_cpus(place["cpus"])}
        if taken & mine:
            return False
        taken |= mine
    return True
