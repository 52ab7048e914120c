"""What is measured: one record per collective, and the cases that a spec asks for.

A new collective is one more record in `RECIPES`. Vectors are described by *pieces* (whose data,
first element of that rank's vector, length); `ALL` stands for the combination over all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from mpicoll.bench import data
from mpicoll.bench.spec import Spec
from mpicoll.collectives import collective
from mpicoll.errors import ArgumentError

ALL = -1

Piece = tuple[int, int, int]  # (rank or ALL, first element, length)
Pieces = Callable[[int, int, int, int], list[Piece]]  # (rank, size, root, count) -> pieces


@dataclass(frozen=True, slots=True)
class Recipe:
    """A collective as the harness sees it; `method` has the same arguments in mpicoll and mpi4py."""

    method: str
    send: Pieces  # what is put in before the call; in the receive buffer if there is no send buffer
    recv: Pieces  # what must be there after it
    arguments: Callable[[Any, Any, Any, int], tuple[Any, ...]]  # (send, recv, op, root)
    same_everywhere: bool = False  # all ranks must end with the same bytes
    in_place: bool = False  # one buffer is both input and output


RECIPES: dict[str, Recipe] = {
    "allreduce": Recipe(
        "Allreduce",
        send=lambda rank, size, root, n: [(rank, 0, n)],
        recv=lambda rank, size, root, n: [(ALL, 0, n)],
        arguments=lambda send, recv, op, root: (send, recv, op),
        same_everywhere=True,
    ),
    "reduce_scatter": Recipe(
        "Reduce_scatter_block",
        send=lambda rank, size, root, n: [(rank, 0, size * n)],
        recv=lambda rank, size, root, n: [(ALL, rank * n, n)],
        arguments=lambda send, recv, op, root: (send, recv, op),
    ),
    "allgather": Recipe(
        "Allgather",
        send=lambda rank, size, root, n: [(rank, rank * n, n)],
        recv=lambda rank, size, root, n: [(peer, peer * n, n) for peer in range(size)],
        arguments=lambda send, recv, op, root: (send, recv),
        same_everywhere=True,
    ),
    "bcast": Recipe(
        "Bcast",
        send=lambda rank, size, root, n: [(root, 0, n)] if rank == root else [],
        recv=lambda rank, size, root, n: [(root, 0, n)],
        arguments=lambda send, recv, op, root: (recv, root),
        same_everywhere=True,
        in_place=True,
    ),
    "reduce": Recipe(
        "Reduce",
        send=lambda rank, size, root, n: [(rank, 0, n)],
        recv=lambda rank, size, root, n: [(ALL, 0, n)] if rank == root else [],
        arguments=lambda send, recv, op, root: (send, recv, op, root),
    ),
    "alltoall": Recipe(
        "Alltoall",
        send=lambda rank, size, root, n: [(rank, 0, size * n)],
        recv=lambda rank, size, root, n: [(peer, rank * n, n) for peer in range(size)],
        arguments=lambda send, recv, op, root: (send, recv),
    ),
    "gather": Recipe(
        "Gather",
        send=lambda rank, size, root, n: [(rank, rank * n, n)],
        recv=lambda rank, size, root, n: (
            [(peer, peer * n, n) for peer in range(size)] if rank == root else []
        ),
        arguments=lambda send, recv, op, root: (send, recv, root),
    ),
    "scatter": Recipe(
        "Scatter",
        send=lambda rank, size, root, n: [(root, 0, size * n)] if rank == root else [],
        recv=lambda rank, size, root, n: [(root, rank * n, n)],
        arguments=lambda send, recv, op, root: (send, recv, root),
    ),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure. `count` is elements of one part (see `collectives`)."""

    collective: str
    dtype: str
    op: str
    root: int
    count: int
    ranks: int
    cache: str = "warm"  # or "cold": the buffers are in no cache when a call begins

    @property
    def key(self) -> str:
        """Identifies the case within a result."""
        cold = "" if self.cache == "warm" else f"/{self.cache}"
        return f"{self.collective}/{self.dtype}/{self.op or '-'}/{self.root}/{self.count}{cold}"

    @property
    def part_bytes(self) -> int:
        """Bytes of one part."""
        return self.count * np.dtype(self.dtype).itemsize

    @property
    def msg_bytes(self) -> int:
        """The size that the OSU benchmarks print."""
        return self.part_bytes * collective(self.collective).parts_in_message(self.ranks)

    @property
    def total_bytes(self) -> int:
        """The size that nccl-tests print."""
        return self.part_bytes * collective(self.collective).parts_in_total(self.ranks)


def buffer_bytes(case: Case, rank: int) -> int:
    """Bytes of the buffers of a rank, where one set of them is enough."""
    recipe, place = RECIPES[case.collective], (rank, case.ranks, case.root, case.count)
    pieces = [*recipe.recv(*place), *([] if recipe.in_place else recipe.send(*place))]
    return sum(length for _, _, length in pieces) * np.dtype(case.dtype).itemsize


def expand(spec: Spec, ranks: int) -> list[Case]:
    """All cases of a spec, in order of collective, dtype, operation, size and cache.

    Sizes mean `msg_bytes` and are rounded down to whole elements of every rank, but not to none.
    """
    cases: dict[Case, None] = {}
    for name in spec.collective:
        promise = collective(name)
        if name not in RECIPES:
            raise ArgumentError(f"the harness cannot measure {name} yet; it knows: {', '.join(RECIPES)}")
        if promise.rooted and spec.root >= ranks:
            raise ArgumentError(f"root {spec.root} does not exist among {ranks} ranks")
        for dtype in spec.dtype:
            unit = dtype_of(dtype).itemsize * promise.parts_in_message(ranks)
            for op in spec.op if promise.reduces else ("",):
                if op and op not in data.FOLDS:
                    raise ArgumentError(f"unknown operation {op!r}; known: {', '.join(data.FOLDS)}")
                for nbytes, cache in product(spec.sizes, spec.cache):
                    count = max(nbytes // unit, 1 if nbytes else 0)
                    root = spec.root if promise.rooted else 0
                    cases[Case(name, str(dtype_of(dtype)), op, root, count, ranks, cache)] = None
    return list(cases)


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy type of that name. Raises `ArgumentError` for what MPI does not send."""
    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "biufc":
        raise ArgumentError(f"unknown dtype {name!r}; write a NumPy name such as float32, int64 or complex64")
    return dtype
