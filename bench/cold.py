"""Buffers that are in no cache when a call begins: ``--cache cold``.

Each call takes the next of several sets of buffers, so that between two uses of a set all the others have
passed through the caches. Where they are too small for that (every plan is bound to its buffers, and plans
for thousands of sets would cost more than what is measured), each rank also writes through memory of its own
before the call. What a contender keeps for itself, and its code, are cold too then, unless it is primed
(`--prime-below`): priming runs it once on the set used last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpicoll.bench.machine import read_text
from mpicoll.bench.sizes import parse_bytes
from mpicoll.bench.world import World

_TIMES_CACHE = 2  # bytes that pass between two uses of a set, in last-level caches
_MOST_SETS = 8
_ASSUMED = 64 << 20  # bytes, where the system does not tell
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True, slots=True)
class Cold:
    """How the caches are emptied; bytes."""

    cache_bytes: int  # of the last-level cache
    known: bool  # whether the system told, or it was assumed

    def sets(self, set_bytes: int) -> int:
        """How many sets of buffers of `set_bytes` on a rank take turns: two if many would not do either.

        >>> [Cold(8 << 20, True).sets(size) for size in (64, 4 << 20, 64 << 20)]
        [2, 5, 2]
        """
        enough = 1 + -(-_TIMES_CACHE * self.cache_bytes // max(set_bytes, 1))
        return enough if enough <= _MOST_SETS else 2

    def lacking(self, sets: int, set_bytes: int) -> int:
        """How many bytes must be written besides, for enough to pass between two uses of a set."""
        return max(0, _TIMES_CACHE * self.cache_bytes - (sets - 1) * set_bytes)


def last_level_cache(world: World) -> Cold:
    """The largest last-level cache of any rank's machine. Collective."""
    return max(world.control.allgather(_here()), key=lambda cold: cold.cache_bytes)


def _here(caches: Path = _CACHES) -> Cold:
    levels = {}
    for index in caches.glob("index*"):
        level, size = read_text(index / "level"), read_text(index / "size")
        if level and size:
            levels[int(level)] = parse_bytes(size)
    return Cold(levels[max(levels)], True) if levels else Cold(_ASSUMED, False)


def sweeper(nbytes: int) -> Callable[[], Any] | None:
    """A call that reads and writes `nbytes` of memory of its own, or None for nothing to do."""
    if nbytes <= 0:
        return None
    memory = np.ones(-(-nbytes // 8), np.int64)

    def sweep() -> None:
        np.add(memory, 1, out=memory)

    return sweep
