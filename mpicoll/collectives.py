"""What each collective promises: which parts a rank holds before, and which it holds after.

The data of a collective is made of *parts*: one for a vector that is the same length everywhere
(all-reduce, broadcast, reduce), one per rank (all-gather, reduce-scatter, gather, scatter), or one
per ordered pair of ranks (all-to-all; part s·P+d goes from s to d). An algorithm cuts every part in
equally many blocks.

The bus-bandwidth factors and `total_bytes` are nccl-tests' definitions; `message_bytes` is what the
OSU benchmarks print. They differ by a factor P for some collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .errors import ArgumentError

Parts = Callable[[int, int, int], range]  # (rank, size, root) -> part numbers


def _none(rank: int, size: int, root: int) -> range:
    return range(0)


def _vector(rank: int, size: int, root: int) -> range:
    return range(1)


def _vector_of_root(rank: int, size: int, root: int) -> range:
    return range(1 if rank == root else 0)


def _own(rank: int, size: int, root: int) -> range:
    return range(rank, rank + 1)


def _all(rank: int, size: int, root: int) -> range:
    return range(size)


def _all_of_root(rank: int, size: int, root: int) -> range:
    return range(size if rank == root else 0)


def _row(rank: int, size: int, root: int) -> range:
    return range(rank * size, (rank + 1) * size)


def _column(rank: int, size: int, root: int) -> range:
    return range(rank, size * size, size)


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective operation as a statement about parts."""

    name: str
    title: str
    before: Parts
    after: Parts
    parts: Callable[[int], int]  # size -> number of parts
    origin: Callable[[int, int, int], int]  # (part, size, root) -> the rank whose data it is
    reduces: bool = False
    rooted: bool = False
    busbw_factor: Callable[[int], float] = lambda size: 1.0
    parts_in_total: Callable[[int], int] = lambda size: 1  # total_bytes = this · bytes of one part
    parts_in_message: Callable[[int], int] = lambda size: 1  # message_bytes, likewise

    def __str__(self) -> str:
        return self.name


def _ring_share(size: int) -> float:
    return (size - 1) / size


def _per_rank(size: int) -> int:
    return size


def _origin_root(part: int, size: int, root: int) -> int:
    return root


def _origin_part(part: int, size: int, root: int) -> int:
    return part


COLLECTIVES: dict[str, Collective] = {
    c.name: c
    for c in (
        Collective("allreduce", "all-reduce", _vector, _vector, lambda size: 1, _origin_root,
                   reduces=True, busbw_factor=lambda size: 2 * (size - 1) / size),
        Collective("reduce_scatter", "reduce-scatter", _all, _own, _per_rank, _origin_part,
                   reduces=True, busbw_factor=_ring_share, parts_in_total=_per_rank,
                   parts_in_message=_per_rank),
        Collective("allgather", "all-gather", _own, _all, _per_rank, _origin_part,
                   busbw_factor=_ring_share, parts_in_total=_per_rank),
        Collective("bcast", "broadcast", _vector_of_root, _vector, lambda size: 1, _origin_root,
                   rooted=True),
        Collective("reduce", "reduce", _vector, _vector_of_root, lambda size: 1, _origin_root,
                   reduces=True, rooted=True),
        Collective("alltoall", "all-to-all", _row, _column, lambda size: size * size,
                   lambda part, size, root: part // size, busbw_factor=_ring_share,
                   parts_in_total=_per_rank),
        Collective("gather", "gather", _own, _all_of_root, _per_rank, _origin_part, rooted=True,
                   busbw_factor=_ring_share, parts_in_total=_per_rank),
        Collective("scatter", "scatter", _all_of_root, _own, _per_rank, _origin_root, rooted=True,
                   busbw_factor=_ring_share, parts_in_total=_per_rank),
        Collective("barrier", "barrier", _none, _none, lambda size: 1, _origin_root),
    )
}  # fmt: skip


def collective(name: str) -> Collective:
    """Look a collective up by name.

    Raises `ArgumentError` naming the known ones.
    """
    try:
        return COLLECTIVES[name]
    except KeyError:
        known = ", ".join(COLLECTIVES)
        raise ArgumentError(f"unknown collective {name!r}; known: {known}") from None
