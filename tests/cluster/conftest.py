"""One virtual cluster with a Slurm for the whole session, and the MPI libraries that run on it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import virtual_nodes
import virtual_slurm
from libraries import ROOT, Library
from vcluster import Cluster, Settings


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Four nodes, with a Slurm where this machine has one. It ends with this process, however that ends."""
    if reason := virtual_nodes.missing():
        pytest.skip(reason)
    with_slurm = virtual_slurm.missing() is None
    cluster = Cluster.up(f"pytest-{os.getpid()}", Settings(4, slurm=with_slurm), owner=os.getpid())
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(params=["mpich", "openmpi"], scope="session")
def library(request: pytest.FixtureRequest) -> Library:
    """Each MPI library in turn: those that `make` has installed, else the one beside this Python."""
    bin_dir = ROOT / f".venv-{request.param}" / "bin"
    if not bin_dir.is_dir():
        pytest.skip(f"no {request.param} here: `make test` installs it")
    return Library(request.param, bin_dir)
