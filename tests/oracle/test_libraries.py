"""What bench/libraries.toml says of Open MPI and MPICH is what the installed library says of itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from launch import find_mpirun, flavour, run
from mpicoll.bench.libraries import Library, libraries
from mpicoll.collectives import COLLECTIVES

# What the libraries list besides algorithms.
NONE = {"ignore", "default", "tuned", "auto", "nb", "mpir"}


@cache
def installed() -> tuple[str, Path] | None:
    """Which MPI lies beside this Python, and where its tools are."""
    try:
        mpirun = find_mpirun()
    except FileNotFoundError:
        return None
    return flavour(mpirun), mpirun.parent


def listed(wanted: str) -> Library:
    """The entry of the file for `wanted`; skips where another library or version is installed."""
    mpi = installed()
    if mpi is None or mpi[0] != wanted:
        pytest.skip(f"the MPI beside this Python is not {wanted}")
    library = next(one for one in libraries() if one.key == wanted)
    version, tool = {"openmpi": ("ompi_info", "--version"), "mpich": ("mpichversion", "--version")}[wanted]
    said = run([mpi[1] / version, tool], 60).stdout
    found = re.search(r"\d+\.\d+(\.\d+)?", said)
    if found is None or found[0] != library.version:
        pytest.skip(f"the file is of {wanted} {library.version}, installed is {found and found[0]}")
    return library


def ask(*words: str) -> str:
    """What a tool of the installed MPI prints."""
    mpi = installed()
    assert mpi is not None
    done = run([mpi[1] / words[0], *words[1:]], 60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def same(said: Mapping[str, set[str]], names: Mapping[str, list[str]]) -> None:
    """Compare, for the collectives that the file has and those of ours that it lacks."""
    assert not {c for c in COLLECTIVES if said.get(c, set()) - NONE} - set(names)
    assert {c: sorted(said.get(c, set()) - NONE) for c in names} == {c: sorted(n) for c, n in names.items()}


@pytest.mark.parametrize("component", ["tuned", "han"])
def test_algorithms_of_open_mpi(component: str) -> None:
    library = listed("openmpi")
    said: dict[str, set[str]] = {}
    pattern = rf"coll_{component}_(?:use_)?(\w+)_algorithm:enumerator:value:\d+:(.+)"
    for collective, name in re.findall(pattern, ask("ompi_info", *component_options(component))):
        said.setdefault(collective, set()).add(name)
    same(said, library.groups[component])


def test_algorithms_of_open_mpis_adapt() -> None:
    library = listed("openmpi")
    said: dict[str, set[str]] = {}
    pattern = r"coll_adapt_(\w+)_algorithm:help:Algorithm of \w+, (.+)"
    for collective, names in re.findall(pattern, ask("ompi_info", *component_options("adapt"))):
        said[collective] = set(re.findall(r"\d: (\w+)", names))
    same(said, library.groups["adapt"])


def component_options(component: str) -> list[str]:
    return ["--param", "coll", component, "--level", "9", "--parsable"]


@pytest.mark.parametrize(("group", "variable"), [("intra", "INTRA"), ("shm", "POSIX_INTRA")])
def test_algorithms_of_mpich(group: str, variable: str) -> None:
    library = listed("mpich")
    said: dict[str, set[str]] = {}
    collective = ""
    for line in ask("mpivars").splitlines():
        if re.match(r"\s*MPIR_CVAR_", line):
            found = re.search(rf"MPIR_CVAR_([A-Z]+(?:_SCATTER(?:_BLOCK)?)?)_{variable}_ALGORITHM\b", line)
            collective = found[1].lower() if found else ""
        elif collective and (name := re.match(r"\s*(\w+)\s+- ", line)):
            said.setdefault(collective, set()).add(name[1])
    same(said, library.groups[group])
