"""What ranks do in each step of a clock that all share, from schedules run against each other.

A round of a rank belongs to the step in which it can happen at the earliest, if every round takes one tick
(see `traffic`, where the last tick is `critical_rounds`). A step is over when its busiest rank is done. Which
rank that is depends on the machine, so a step keeps what any rank does that no other outdoes in all respects.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from .errors import ScheduleError
from .registry import Algorithm
from .schedule import Round, window_count

MOST_KEPT = 4096
#: Up to so many rounds of all ranks together, all schedules are run; above, a law must hold.
FEW_ROUNDS = 10_000
#: Where no law holds, all are run up to so many (some seconds).
MOST_ROUNDS = 400_000


class Load(NamedTuple):
    """What one rank does in a round. Data in blocks; of two directions the busier one."""

    messages: int
    blocks: int  # of all messages together
    reduced: int  # blocks combined
    largest: int  # blocks of the largest message
    both_ways: bool  # whether it sends and receives


Step = tuple[Load, ...]  # in increasing order; none is outdone by another
Run = tuple[int, Step]  # so many equal steps, one after the other
Params = Mapping[str, Any]
Frozen = tuple[tuple[str, Any], ...]
T = TypeVar("T")


def kept(make: Callable[[Algorithm, int, Frozen], T]) -> Callable[[Algorithm, int, Frozen], T]:
    """Remember results (an `Algorithm` cannot be hashed, as it holds mappings)."""
    known: dict[Any, T] = {}

    @wraps(make)
    def look_up(algorithm: Algorithm, size: int, params: Frozen) -> T:
        key = algorithm.collective.name, algorithm.name, algorithm.generate, size, params
        if key not in known:
            if len(known) >= MOST_KEPT:
                known.clear()
            known[key] = make(algorithm, size, params)
        return known[key]

    return look_up


def load(step: Round) -> Load:
    """What a round asks of its rank."""
    out = into = combined = largest = 0
    for message in step.sends:
        blocks = window_count(message.windows)
        out += blocks
        largest = max(largest, blocks)
    for arriving in step.recvs:
        blocks = window_count(arriving.windows)
        into += blocks
        largest = max(largest, blocks)
        if arriving.side is not None:
            combined += blocks
    messages = max(len(step.sends), len(step.recvs))
    return Load(messages, max(out, into), combined, largest, bool(step.sends and step.recvs))


def step_of(loads: Iterable[Load]) -> Step:
    """The loads that are not outdone in all respects.

    >>> small, large = Load(1, 2, 2, 2, True), Load(1, 3, 2, 3, True)
    >>> step_of([large, small, large]) == (large,)
    True
    """
    kept = sorted(set(loads))
    return tuple(
        a
        for a in kept
        if not any(a is not b and all(x <= y for x, y in zip(a, b, strict=True)) for b in kept)
    )


def runs(steps: Iterable[Step]) -> tuple[Run, ...]:
    """Equal neighbours as one run."""
    return tuple((sum(1 for _ in same), step) for step, same in groupby(steps))


def frozen(params: Params | None) -> Frozen:
    """Parameters as a key."""
    return tuple(sorted((params or {}).items()))


def play(name: str, schedules: Mapping[int, Iterable[Round]]) -> Iterator[tuple[int, int, Round]]:
    """Step ranks until their schedules end: ``(tick, rank, round)`` of every round, in a possible order.

    Messages from and to ranks that are not there hold nobody up. What else can be wrong with schedules is not
    looked for (`verify` does). Raises `ScheduleError` for a message that nobody sends or nobody receives.
    """
    sent: dict[tuple[int, int], deque[int]] = defaultdict(deque)  # by source and destination: at which tick
    awaited: set[tuple[int, int]] = set()
    ready = sorted(schedules, reverse=True)

    def walk(rank: int, rounds: Iterable[Round]) -> Iterator[tuple[int, Round] | None]:
        """Go on as far as possible; None for waiting."""
        now = 0
        for step in rounds:
            if not (step.sends or step.recvs):
                continue
            for out in step.sends:
                if out.peer in schedules:
                    pair = rank, out.peer
                    sent[pair].append(now)
                    if pair in awaited:
                        awaited.remove(pair)
                        ready.append(out.peer)
            for into in step.recvs:
                if into.peer in schedules:
                    coming = sent[into.peer, rank]
                    if not coming:
                        awaited.add((into.peer, rank))
                        yield None
                    now = max(now, coming.popleft())
            yield now, step
            now += 1

    walks = {rank: walk(rank, rounds) for rank, rounds in schedules.items()}
    while ready:
        rank = ready.pop()
        for done in walks[rank]:
            if done is None:
                break
            yield done[0], rank, done[1]
    for source, rank in (*awaited, *(pair for pair, left in sent.items() if left)):
        raise ScheduleError(f"{name}: a message of rank {source} and rank {rank} is never met")


def of_ranks(algorithm: Algorithm, size: int, params: Params, ranks: Iterable[int]) -> tuple[Run, ...]:
    """The steps that some ranks take, as if the others held nobody up."""
    schedules = {rank: algorithm.schedule(rank, size, params) for rank in ranks}
    if len(schedules) == 1:
        return runs((load(step),) for own in schedules.values() for step in own if step.sends or step.recvs)
    steps: list[set[Load]] = []
    for tick, _, step in play(str(algorithm), schedules):
        while tick >= len(steps):
            steps.append(set())
        steps[tick].add(load(step))
    return runs(map(step_of, steps))


def has_rounds(algorithm: Algorithm, size: int, params: Params, most: int) -> bool:
    """Whether all ranks together have up to about `most` rounds, judging by two of them.

    A round of several messages counts as that many.
    """
    each, root = most // size, params.get("root", 0)
    for rank in range(min(2, size) if each else 0):
        left = each
        for one in algorithm.schedule((root + rank) % size, size, params):
            left -= max(1, len(one.sends), len(one.recvs))
            if left < 0:
                return False
    return each > 0


def exact_steps(algorithm: Algorithm, size: int, params: Params | None = None) -> tuple[Run, ...]:
    """The steps of `algorithm`, from the schedules of all `size` ranks."""
    return exact(algorithm, size, frozen(params))


@kept
def exact(algorithm: Algorithm, size: int, params: Frozen) -> tuple[Run, ...]:
    """`exact_steps`, kept for the next time."""
    return of_ranks(algorithm, size, dict(params), range(size))


def blocks_per_total(algorithm: Algorithm, size: int, params: Params | None = None) -> int:
    """How many blocks make nccl-tests' size of a collective (`total_bytes`)."""
    kind = algorithm.collective
    return algorithm.blocks(size, params) // kind.parts(size) * kind.parts_in_total(size)
