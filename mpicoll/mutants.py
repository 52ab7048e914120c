"""Wrong schedules, made from right ones by one small change each. The verifier must refuse them all.

A mutant is dropped where it equals the original (a window shifted all the way round) or where the original
carries data twice, or data of no use, and would do with one message less. All of that is decided by comparing
and counting in the original, never by asking the verifier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from .collectives import Collective
from .errors import ScheduleError
from .holdings import Holdings
from .registry import Algorithm
from .schedule import Recv, Round, Send, Side, Window, Windows, blocks_of
from .verify import verify_schedules

Rounds = list[list[Round]]  # of all ranks


class Mutant(NamedTuple):
    """A changed schedule of all ranks, and what was changed."""

    change: str
    rounds: Rounds


class Spot(NamedTuple):
    """Where both ends of one message stand: rank, number of the round, place in it."""

    source: int
    sent_in: int
    send: int
    dest: int
    received_in: int
    recv: int


def messages(rounds: Sequence[Sequence[Round]]) -> list[Spot]:
    """All messages of a schedule: the k-th send from s to d meets the k-th receive at d from s."""
    sends: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank, steps in enumerate(rounds):
        for i, step in enumerate(steps):
            for j, out in enumerate(step.sends):
                sends.setdefault((rank, out.peer), []).append((i, j))
    waiting = {pair: iter(places) for pair, places in sends.items()}
    return [
        Spot(into.peer, *next(waiting[into.peer, rank]), rank, i, j)
        for rank, steps in enumerate(rounds)
        for i, step in enumerate(steps)
        for j, into in enumerate(step.recvs)
    ]


def mutants(
    rounds: Sequence[Sequence[Round]], blocks: int, kind: Collective, *, root: int = 0, ordered: bool = False
) -> Iterator[Mutant]:
    """Mutants of a right schedule of the collective `kind`, each of which is wrong.

    `ordered` says that the original is to combine in rank order: it makes any swapped side an error.
    Changes are made at the first, the middle and the last message.
    """
    original = [list(steps) for steps in rounds]
    spots = messages(original)
    yield from _different(original, "an empty schedule", [[] for _ in original])
    for spot in _three(spots):
        for change, mutate in _ANYWHERE.items():
            yield from _different(original, _name(change, spot), mutate(original, spot, blocks))
    needed = _Needed(original, spots, blocks, kind, root)
    for change, mutate in _WHERE_NEEDED.items():
        for spot in _three([s for s in spots if needed(s, shifted="shifted" in change)]):
            yield from _different(original, _name(change, spot), mutate(original, spot, blocks))
    for spot in _sided(original, spots, ordered) if kind.reduces else ():
        swapped = _change_recv(original, spot, lambda m: replace(m, side=_OTHER[m.side]))
        yield Mutant(_name("a swapped side", spot), swapped)


def _three(spots: list[Spot]) -> list[Spot]:
    return list(dict.fromkeys(spots[i] for i in (0, len(spots) // 2, -1))) if spots else []


def _name(change: str, spot: Spot) -> str:
    return (
        f"{change}: message from rank {spot.source} (round {spot.sent_in}) "
        f"to rank {spot.dest} (round {spot.received_in})"
    )


class _Needed:
    """Whether a message is indispensable: a schedule may carry data twice or in vain, and be right without.

    It is, if it brings a block that is of use: promised in the end, or sent on to where it is of use. Of
    copies the receiver must moreover not have the block yet, and get it in no other way. Of tokens nothing is
    known.
    """

    def __init__(self, rounds: Rounds, spots: list[Spot], blocks: int, kind: Collective, root: int) -> None:
        self.rounds, self.blocks = rounds, blocks
        held = Holdings(kind, rounds, blocks, root)
        held.run()
        self.idle = held.idle
        self.useful = _useful(rounds, spots, held.promised, blocks)
        self.copies = Counter(
            (rank, block)
            for rank, steps in enumerate(rounds)
            for step in steps
            for into in step.recvs
            if into.side is None
            for block in blocks_of(into.windows, blocks)
        )

    def __call__(self, spot: Spot, shifted: bool) -> bool:
        place = spot.dest, spot.received_in, spot.recv
        into = self.rounds[spot.dest][spot.received_in].recvs[spot.recv]
        if not into.windows:
            return not shifted
        lost = set(blocks_of(into.windows, self.blocks))
        if shifted:
            lost -= set(blocks_of(_shifted(into.windows, self.blocks), self.blocks))
        lost = {b for b in lost if (*place, b) in self.useful}
        if into.side is not None:
            return bool(lost)
        return any(self.copies[spot.dest, b] == 1 and (*place, b) not in self.idle for b in lost)


def _useful(
    rounds: Rounds, spots: list[Spot], promised: list[list[bool]], blocks: int
) -> set[tuple[int, int, int, int]]:
    """Received blocks (rank, round, place, block) that are promised in the end, or sent on to be useful."""
    arrives = {(s.source, s.sent_in, s.send): (s.dest, s.received_in, s.recv) for s in spots}
    useful: set[tuple[int, int, int, int]] = set()
    known = -1
    while known < len(useful):
        known = len(useful)
        for rank, steps in enumerate(rounds):
            wanted = {block for block, is_promised in enumerate(promised[rank]) if is_promised}
            for i, step in reversed(list(enumerate(steps))):
                taken = [(j, m, set(blocks_of(m.windows, blocks))) for j, m in enumerate(step.recvs)]
                useful |= {(rank, i, j, block) for j, _, got in taken for block in got & wanted}
                wanted.difference_update(*(got for _, m, got in taken if m.side is None))
                for j, m in enumerate(step.sends):
                    there = arrives[rank, i, j]
                    wanted |= {block for block in blocks_of(m.windows, blocks) if (*there, block) in useful}
    return useful


def refuse_mutants(algorithm: Algorithm, size: int, params: Mapping[str, Any] | None = None) -> int:
    """Show all mutants of an algorithm to the verifier; returns how many there were.

    Raises `ScheduleError` naming a mutant that was accepted.

    >>> from mpicoll.algorithms import allreduce
    >>> from mpicoll.registry import get
    >>> refuse_mutants(get("allreduce", "ring"), 1)  # no message: nothing that could be changed
    0
    >>> refuse_mutants(get("allreduce", "ring"), 4)
    25
    """
    root = algorithm.resolve(size, params).get("root", 0)
    blocks = algorithm.blocks(size, params)
    rounds = [list(algorithm.schedule(rank, size, params)) for rank in range(size)]
    kind, ordered = algorithm.collective, algorithm.ordered
    refused = 0
    for change, wrong in mutants(rounds, blocks, kind, root=root, ordered=ordered):
        try:
            verify_schedules(kind, wrong, blocks, root=root, ordered=ordered, name=str(algorithm))
        except ScheduleError:
            refused += 1
        else:
            raise ScheduleError(f"{algorithm} P={size}: a wrong schedule was accepted: {change}")
    return refused


_OTHER = {Side.LEFT: Side.RIGHT, Side.RIGHT: Side.LEFT, None: None}


def _different(original: Rounds, change: str, rounds: Rounds) -> Iterator[Mutant]:
    if rounds != original:
        yield Mutant(change, rounds)


def _sided(original: Rounds, spots: list[Spot], ordered: bool) -> list[Spot]:
    """Receives whose side matters, if there are some.

    Where rank order is promised, any side does. Elsewhere one rank may choose its side freely, as long as
    the result is handed on from there; not so in the exchange of recursive doubling, where both partners
    combine the same two blocks and would then hold different expressions. Only such an exchange in the
    last round of both is taken: what they hold after it is the result.
    """
    reducing = [s for s in spots if original[s.dest][s.received_in].recvs[s.recv].side is not None]
    if ordered:
        return list(dict.fromkeys(reducing[:1] + reducing[-1:]))
    for spot in reversed(reducing):
        step, partner = original[spot.dest][spot.received_in], original[spot.source][spot.sent_in]
        mutual = any(m.peer == spot.dest and m.side is not None for m in partner.recvs) and any(
            m.peer == spot.source and m.windows == step.recvs[spot.recv].windows for m in step.sends
        )
        last = spot.received_in + 1 == len(original[spot.dest])
        if mutual and last and spot.sent_in + 1 == len(original[spot.source]):
            return [spot]
    return []


# -- changes: (all rounds, a message, number of blocks) -> all rounds ------------------------------------


def _copy(rounds: Rounds) -> Rounds:
    return [list(steps) for steps in rounds]


def _change_send(rounds: Rounds, spot: Spot, change: Callable[[Send], Send | None]) -> Rounds:
    rounds = _copy(rounds)
    step = rounds[spot.source][spot.sent_in]
    new = (change(m) if j == spot.send else m for j, m in enumerate(step.sends))
    rounds[spot.source][spot.sent_in] = replace(step, sends=tuple(m for m in new if m))
    return rounds


def _change_recv(rounds: Rounds, spot: Spot, change: Callable[[Recv], Recv | None]) -> Rounds:
    rounds = _copy(rounds)
    step = rounds[spot.dest][spot.received_in]
    new = (change(m) if j == spot.recv else m for j, m in enumerate(step.recvs))
    rounds[spot.dest][spot.received_in] = replace(step, recvs=tuple(m for m in new if m))
    return rounds


def _drop_round(rounds: Rounds, spot: Spot, blocks: int) -> Rounds:
    rounds = _copy(rounds)
    del rounds[spot.dest][spot.received_in]
    return rounds


def _lose_message(rounds: Rounds, spot: Spot, blocks: int) -> Rounds:
    """Lose both ends of a message; or, since one token may repeat another, of all that a rank receives."""
    if rounds[spot.dest][spot.received_in].recvs[spot.recv].windows:
        return _change_recv(_change_send(rounds, spot, lambda m: None), spot, lambda m: None)
    deaf = [replace(step, recvs=()) for step in rounds[spot.dest]]
    return [
        deaf
        if rank == spot.dest
        else [replace(step, sends=tuple(m for m in step.sends if m.peer != spot.dest)) for step in steps]
        for rank, steps in enumerate(rounds)
    ]


def _double_receive(rounds: Rounds, spot: Spot, blocks: int) -> Rounds:
    rounds = _copy(rounds)
    step = rounds[spot.dest][spot.received_in]
    rounds[spot.dest][spot.received_in] = replace(step, recvs=(*step.recvs, step.recvs[spot.recv]))
    return rounds


def _double_message(rounds: Rounds, spot: Spot, blocks: int) -> Rounds:
    """Send and receive twice in one round: counted twice, or two copies on top of each other.

    (Not a token: knowing something twice does no harm.)
    """
    if not rounds[spot.source][spot.sent_in].sends[spot.send].windows:
        return rounds
    rounds = _double_receive(rounds, spot, blocks)
    step = rounds[spot.source][spot.sent_in]
    rounds[spot.source][spot.sent_in] = replace(step, sends=(*step.sends, step.sends[spot.send]))
    return rounds


def _wrong_peer(rounds: Rounds, spot: Spot, blocks: int) -> Rounds:
    return _change_send(rounds, spot, lambda m: replace(m, peer=(m.peer + 1) % len(rounds)))


def _shifted(windows: Windows, blocks: int) -> Windows:
    shifted = tuple(Window((start + 1) % blocks, length) for start, length in windows)
    same = set(blocks_of(shifted, blocks)) == set(blocks_of(windows, blocks))
    return windows if same else shifted


def _shift_send(rounds: Rounds, spot: Spot, blocks: int) -> Rounds:
    return _change_send(rounds, spot, lambda m: replace(m, windows=_shifted(m.windows, blocks)))


def _shift_message(rounds: Rounds, spot: Spot, blocks: int) -> Rounds:
    rounds = _shift_send(rounds, spot, blocks)
    return _change_recv(rounds, spot, lambda m: replace(m, windows=_shifted(m.windows, blocks)))


def _swap_copy(rounds: Rounds, spot: Spot, blocks: int) -> Rounds:
    """Copy what should be combined, combine what should be copied; a token is neither."""

    def change(m: Recv) -> Recv:
        return replace(m, side=None if m.side else Side.LEFT) if m.windows else m

    return _change_recv(rounds, spot, change)


_ANYWHERE: dict[str, Callable[[Rounds, Spot, int], Rounds]] = {
    "a round dropped": _drop_round,
    "a receive doubled": _double_receive,
    "a message doubled": _double_message,
    "a wrong peer": _wrong_peer,
    "a shifted window at the sender": _shift_send,
    "copy and combination swapped": _swap_copy,
}
_WHERE_NEEDED: dict[str, Callable[[Rounds, Spot, int], Rounds]] = {
    "a lost message": _lose_message,
    "a shifted window at both ends": _shift_message,
}
