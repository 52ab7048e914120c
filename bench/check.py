"""Is the result of one call right, on every rank? Exactly, with new data each time, outside of timing."""

from __future__ import annotations

import hashlib
from typing import Any

from mpicoll.bench.contenders import Runnable
from mpicoll.bench.workload import Workload
from mpicoll.bench.world import World


def check(world: World, work: Workload, runnable: Runnable, epoch: int) -> str | None:
    """Run once on new data; what is wrong, in words and the same on all ranks, or None. Collective."""
    work.refresh(epoch)
    runnable.call()
    return verdict(world, work)


def verdict(world: World, work: Workload) -> str | None:
    """What is wrong with the result that lies in the buffers, agreed by all ranks, or None."""
    problem = world.agree(work.problem())
    if problem is None and work.recipe.same_everywhere:
        problem = different_bytes(world.control.allgather(digest(work.recv.array)))
    return problem


def digest(array: Any) -> bytes:
    """A short fingerprint of an array's bytes."""
    return hashlib.blake2b(array.view("u1"), digest_size=16).digest()


def different_bytes(digests: list[bytes]) -> str | None:
    """Which rank holds other bytes than rank 0, in words, or None."""
    for rank, one in enumerate(digests):
        if one != digests[0]:
            return f"rank {rank} holds other bytes than rank 0, though equal values"
    return None
