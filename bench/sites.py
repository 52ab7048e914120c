"""A site: how jobs are started on one cluster (or here). One TOML file each, no branch on a name in any code.

The sites that come with mpicoll lie in ``slurm/sites`` of the repository, and with the package when it is
installed; `docs/slurm.md` explains them line by line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpicoll.bench.settings import (
    Settings,
    convert,
    directives,
    flag,
    one_of,
    read_toml,
    text,
    texts,
    variables,
    whole,
)
from mpicoll.errors import ArgumentError

SHIPPED = Path(__file__).resolve().parent / "slurm" / "sites"
LAUNCHERS = ("mpirun", "srun")
FLAVOURS = ("mpich", "openmpi")
BINDINGS = ("core", "none")


@dataclass(frozen=True, slots=True)
class Site:
    """Everything that decides how a job is started, with the defaults of this very machine."""

    title: str = "this machine"
    launcher: str = "mpirun"
    mpirun: str = "mpirun"  # the program, where the launcher is that
    flavour: str | None = None  # whose mpirun it is; None: to be asked of it
    mpi: str = "pmix"  # after `srun --mpi=`; see `srun --mpi=list`
    binding: str = "core"  # each rank to a core of its own, or to none
    flags: tuple[str, ...] = ()  # further ones of the launcher
    hosts: tuple[str, ...] = ()  # for mpirun outside of a batch system
    cores: int | None = None  # of a node; None: as many as are here
    oversubscribe: bool = False  # whether more ranks than cores may be started on a node
    program: tuple[str, ...] = ()  # that is `mpicoll` on the nodes; empty: as it was started here
    modules: tuple[str, ...] = ()  # loaded first, in a batch job
    setup: tuple[str, ...] = ()  # shell lines before the first launch, in a batch job
    environment: Settings = ()  # of every launch
    sbatch: Settings = ()  # directives, by the names of sbatch's long flags
    gpu: Settings = ()  # further directives of jobs that use GPUs
    warn: int = 120  # seconds before its time limit at which a batch job is told


def read_site(name: str | None) -> Site:
    """The site of that name among those that come with mpicoll, or of a TOML file; None: this machine.

    Raises `ArgumentError` for an unknown name, an unknown key or a bad value.
    """
    if name is None:
        return Site()
    path = SHIPPED / f"{name}.toml"
    if "/" in name or name.endswith(".toml"):
        path = Path(name)
    elif not path.exists():
        raise ArgumentError(f"unknown site {name!r}; known: {', '.join(shipped())}, or a file NAME.toml")
    return make_site(read_toml(path), str(path))


def shipped() -> list[str]:
    """The names of the sites that come with mpicoll."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def make_site(table: Mapping[str, Any], source: str) -> Site:
    """A site from a table. Raises `ArgumentError` naming `source` for an unknown key or a bad value."""
    return Site(**convert(table, _CONVERTERS, source))


_CONVERTERS = {
    "title": text,
    "launcher": one_of(*LAUNCHERS),
    "mpirun": text,
    "flavour": one_of(*FLAVOURS),
    "mpi": text,
    "binding": one_of(*BINDINGS),
    "flags": texts,
    "hosts": texts,
    "cores": whole(1),
    "oversubscribe": flag,
    "program": texts,
    "modules": texts,
    "setup": texts,
    "environment": variables,
    "sbatch": directives,
    "gpu": directives,
    "warn": whole(1),
}
