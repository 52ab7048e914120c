"""Links' loads where all ranks do the same, each to ranks as far from it: from the schedule of one rank.

In a *shift* every rank sends to the rank `offset` further on (modulo P). What that leaves on links follows
from the offset; nothing is walked through, so that an all-to-all of 32,768 ranks takes seconds. Whether an
algorithm consists of shifts is looked up: all ranks of some small numbers like P, and three ranks of P
itself, must have the same rounds but for where they begin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import prod

from .laws import alike, at_size
from .loads import Load, Params, load
from .registry import Algorithm
from .schedule import Round, window_count

Shifts = Mapping[int, int]  # blocks by offset
Most = dict[str, int]  # blocks on the most loaded link of each kind
Told = tuple[Load, tuple[tuple[int, int], ...]]  # of a round: its load, and (offset, blocks) of what is sent


def on_torus(shape: Sequence[int], shifts: Shifts) -> Most:
    """Of a torus. In a dimension the shift is `offset`'s digit, or one more behind a carry.

    Rings along a dimension differ in whether lower digits carry: from some value of these on. All ranks of a
    ring go equally far.
    """
    most, passed_any = 0, False
    for axis, length in enumerate(shape):
        stride = prod(shape[axis + 1 :])
        changes: dict[int, dict[int, int]] = {1: defaultdict(int), -1: defaultdict(int)}
        for offset, blocks in shifts.items():
            carried_from = stride - offset % stride  # the lower digits that carry
            for hops, start, stop in (
                (offset // stride % length, 0, carried_from),
                ((offset // stride + 1) % length, carried_from, stride),
            ):
                way, passed = (1, hops) if 2 * hops <= length else (-1, length - hops)
                if start < stop and passed:
                    passed_any = True
                    changes[way][start] += passed * blocks
                    changes[way][stop] -= passed * blocks
        for told in changes.values():
            now = 0
            for place in sorted(told):
                now += told[place]
                most = max(most, now)
    return {"link": most} if passed_any else {}


def between(unit: int, size: int, shifts: Shifts) -> dict[int, int]:
    """Blocks that each run of `unit` ranks sends to the run so many further on; P is a multiple of it."""
    found: dict[int, int] = {}
    count = size // unit
    for offset, blocks in shifts.items():
        far, more = divmod(offset, unit)
        for run, ranks in ((far % count, unit - more), ((far + 1) % count, more)):
            if run and ranks:
                found[run] = found.get(run, 0) + ranks * blocks
    return found


OfShifts = Callable[[int, Shifts], Most | None]  # from P; None for numbers of ranks that do not fit


def by_shifts(
    algorithm: Algorithm, size: int, params: Params, links: OfShifts
) -> list[tuple[Load, Most]] | None:
    """For each step what every rank does, and the most loaded links; None for what has other rounds."""
    if links(size, {}) is None or (rounds := shifts_of(algorithm, size, params)) is None:
        return None
    known: dict[tuple[tuple[int, int], ...], Most] = {}
    for _, sent in rounds:
        if sent not in known:
            together: dict[int, int] = {}
            for offset, blocks in sent:
                together[offset] = together.get(offset, 0) + blocks
            known[sent] = links(size, together) or {}
    return [(one, known[sent]) for one, sent in rounds]


def shifts_of(algorithm: Algorithm, size: int, params: Params) -> list[Told] | None:
    """Rank 0's rounds as shifts; None if other ranks have others."""
    if "root" in params or params.get("nodes") is not None:
        return None
    for small in alike(size):
        fitted = at_size(small, params)
        if algorithm.refusal(small, fitted):
            return None
        first = _seen_from(0, algorithm, small, fitted)
        if None in first or any(
            _seen_from(rank, algorithm, small, fitted) != first for rank in range(1, small)
        ):
            return None
    told = _seen_from(0, algorithm, size, params)
    same = all(_seen_from(rank, algorithm, size, params) == told for rank in (1, size - 1))
    return [one for one in told if one is not None] if same and None not in told else None


def _seen_from(rank: int, algorithm: Algorithm, size: int, params: Params) -> list[Told | None]:
    """A rank's rounds as shifts; None for one in which it does not receive what others like it send."""

    def told(step: Round) -> Told | None:
        sent = sorted(((m.peer - rank) % size, window_count(m.windows)) for m in step.sends)
        received = sorted(((rank - m.peer) % size, window_count(m.windows)) for m in step.recvs)
        return (load(step), tuple(sent)) if sent == received else None

    return [told(step) for step in algorithm.schedule(rank, size, params) if step.sends or step.recvs]
