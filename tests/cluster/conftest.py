"""One virtual cluster with a Slurm for the whole session, and the MPI libraries that run on it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import virtual_nodes
import virtual_slurm
from libraries import Library, installed
from vcluster import Cluster, Settings


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Eight nodes, with a Slurm where this machine has one. It ends with this process, however that ends."""
    if reason := virtual_nodes.missing():
        pytest.skip(reason)
    with_slurm = virtual_slurm.missing() is None
    cluster = Cluster.up(f"pytest-{os.getpid()}", Settings(8, slurm=with_slurm), owner=os.getpid())
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(params=["mpich", "openmpi"])
def library(request: pytest.FixtureRequest) -> Library:
    """Each MPI library in turn, if `make` has installed it."""
    library = installed(request.param)
    if library is None:
        pytest.skip(f"no {request.param} here: `make test` installs it")
    return library
