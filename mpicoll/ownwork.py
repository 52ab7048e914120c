"""What a rank does with its own memory: bytes that it copies, that its buffers have, that it passes on.

From the promises of a collective (which parts a rank holds before and after) in closed form; tests compare
with the programs that are compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from .collectives import Collective, collective
from .laws import at_size
from .loads import Frozen, Params, frozen, kept
from .registry import Algorithm
from .schedule import Round, blocks_of

#: Whether an algorithm passes on what came in the same call shows at so few ranks (the first that it serves).
_FEW = (8, 6, 4, 9, 3, 2)


@lru_cache(1024)
def copied(name: str, size: int) -> float:
    """The part of nccl-tests' size that the busiest rank copies from its send to its receive buffer.

    That is its own part, where it keeps one: no message brings it. What is combined needs no copy, as the
    first operation reads from the one buffer and writes into the other. (Scattered blocks that are packed to
    small messages are copied, too; they are not counted.)

    >>> [copied(name, 8) for name in ("allgather", "alltoall", "allreduce", "bcast")]
    [0.125, 0.125, 0.0, 0.0]
    """
    kind = collective(name)
    if _one_buffer(kind) or (kind.reduces and size > 1):
        return 0.0
    return len({*kind.before(0, size, 0)} & {*kind.after(0, size, 0)}) / kind.parts_in_total(size)


@lru_cache(1024)
def touched(name: str, size: int) -> float:
    """The buffers of the busiest rank, in nccl-tests' sizes.

    >>> [touched(name, 8) for name in ("allgather", "alltoall", "allreduce", "bcast")]
    [1.125, 2.0, 2.0, 1.0]
    """
    kind = collective(name)
    before, after = (len(parts(0, size, 0)) for parts in (kind.before, kind.after))
    return (max(before, after) if _one_buffer(kind) else before + after) / kind.parts_in_total(size)


def _one_buffer(kind: Collective) -> bool:
    return kind.name == "bcast"


def relays(algorithm: Algorithm, size: int, params: Params) -> bool:
    """Whether some rank sends what it has received, or combined, in the same call.

    Found at a few ranks, which are like all larger numbers in this.
    """
    few = dict(params)
    if isinstance(few.get("segments"), int):
        few["segments"] = min(few["segments"], 3)
    for small in (size,) if size <= _FEW[0] else _FEW:
        fitted = at_size(small, few)
        if few.get("nodes") is not None and small < size:
            fitted["nodes"] = tuple(rank // 2 for rank in range(small))
        if algorithm.refusal(small, fitted) is None:
            return _relays(algorithm, small, frozen(fitted))
    return True  # nearly all do


@kept
def _relays(algorithm: Algorithm, size: int, key: Frozen) -> bool:
    params = dict(key)
    blocks = algorithm.blocks(size, params)
    return any(_passes_on(algorithm.schedule(rank, size, params), blocks) for rank in range(size))


def _passes_on(rounds: Iterable[Round], blocks: int) -> bool:
    written: set[int] = set()
    for step in rounds:
        if any(not written.isdisjoint(blocks_of(m.windows, blocks)) for m in step.sends):
            return True
        written |= {block for m in step.recvs for block in blocks_of(m.windows, blocks)}
    return False
