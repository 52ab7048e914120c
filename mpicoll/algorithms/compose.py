"""Making schedules out of schedules: sub-groups, folds, mirrors, and messages on a common clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ..schedule import (
    Recv,
    Round,
    Schedule,
    Send,
    Side,
    Window,
    Windows,
    blocks_of,
    merged,
    recv,
    send,
    window_count,
)
from .patterns import circular_windows, fold_index, fold_ranks, side_of
from .trees import Place


def whole(blocks: int) -> Windows:
    """All blocks, as one window."""
    return (Window(0, blocks),)


#: Windows that an embedding remembers: all of as many ranks as a model runs one by one (some 20,000).
MOST_KNOWN = 1 << 15


def embed(
    rounds: Iterable[Round],
    ranks: Sequence[int],
    blocks: int = 0,
    place: Callable[[int], Windows] | None = None,
    known: dict[Windows, Windows] | None = None,
) -> Schedule:
    """Run a sub-group's schedule inside a larger one.

    `ranks[i]` is the outer rank of the sub-group's rank i. Block b of the sub-schedule, which has
    `blocks` blocks, stands for the outer windows `place(b)`; without `place` blocks keep their names.
    What windows stand for is kept in `known`, which several ranks may share, up to `MOST_KNOWN` of them.
    """
    stands_for = {} if known is None else known

    def outer(windows: Windows) -> Windows:
        if place is None:
            return windows
        if (found := stands_for.get(windows)) is None:
            found = merged(w for block in blocks_of(windows, blocks) for w in place(block))
            if len(stands_for) < MOST_KNOWN:
                stands_for[windows] = found
        return found

    for step in rounds:
        yield Round(
            tuple(Send(ranks[m.peer], outer(m.windows)) for m in step.sends),
            tuple(Recv(ranks[m.peer], outer(m.windows), m.side) for m in step.recvs),
            step.stage,
        )


def mirror(rounds: Iterable[Round], side: Side | None = Side.RIGHT) -> Schedule:
    """A schedule run backwards, with sends for receives: a broadcast becomes a reduction.

    Every rank of the original may receive a block once at most, or it would be counted twice.
    `side` is that of all receives; with None (and data that goes one way) a scatter becomes a gather.
    """
    for step in reversed(list(rounds)):
        yield Round(
            tuple(Send(m.peer, m.windows) for m in step.recvs),
            tuple(Recv(m.peer, m.windows, side) for m in step.sends),
            step.stage,
        )


def only_new(rounds: Iterable[Round], rank: int, blocks: int, held: Callable[[int, int], bool]) -> Schedule:
    """A schedule of copies without those blocks that their receivers have: ``held(receiver, block)``."""

    def new(receiver: int, windows: Windows) -> Windows:
        lacking = [b for b in blocks_of(windows, blocks) if not held(receiver, b)]
        return windows if len(lacking) == window_count(windows) else circular_windows(lacking, blocks)

    for step in rounds:
        sends = tuple(Send(m.peer, new(m.peer, m.windows)) for m in step.sends)
        recvs = tuple(Recv(m.peer, new(rank, m.windows)) for m in step.recvs)
        yield from without_empty([Round(sends, recvs, step.stage)])


def without_empty(rounds: Iterable[Round]) -> Schedule:
    """The same rounds without messages that carry no blocks."""
    for step in rounds:
        sends, recvs = tuple(m for m in step.sends if m.windows), tuple(m for m in step.recvs if m.windows)
        if sends or recvs:
            yield Round(sends, recvs, step.stage)


def staged(stage: str, rounds: Iterable[Round]) -> Schedule:
    """The same rounds, as a stage of a composition."""
    for step in rounds:
        yield replace(step, stage=stage)


def folded(
    rank: int,
    size: int,
    base: int,
    core: Callable[[int], Schedule],
    *,
    hand_in: Callable[[int], Windows],
    hand_out: Callable[[int], Windows],
    reduces: bool = True,
    keep: int = -1,
) -> Schedule:
    """Run `core(virtual rank)` on `base` of the ranks; the others, *extras*, go through a *proxy*.

    An extra hands the blocks `hand_in(extra)` to its proxy before, and gets `hand_out(extra)` after.
    Its proxy is its neighbour, so that operands stay in rank order. Cost: two rounds, and what is
    handed over. Rank `keep` is never an extra.
    """
    active = fold_ranks(size, base, keep)
    proxy = active[fold_index(rank, size - base)]
    if rank != proxy:
        yield send(proxy, *hand_in(rank))
        if hand_out(rank):
            yield recv(proxy, *hand_out(rank))
        return
    extra = rank ^ 1 if rank < 2 * (size - base) else None
    if extra is not None:
        yield recv(extra, *hand_in(extra), side=side_of(extra, rank) if reduces else None)
    yield from embed(core(fold_index(rank, size - base)), active)
    if extra is not None and hand_out(extra):
        yield send(extra, *hand_out(extra))


# -- messages on a clock that all ranks share --

Timed = tuple[int, Send | Recv]


def in_time(messages: Iterable[Timed]) -> Schedule:
    """One round for each time at which this rank has messages.

    Both ends of a message give it the same time. A rank that waits therefore waits for one that is
    not later, and the schedule cannot deadlock even if no message is ever buffered.
    """
    rounds: dict[int, tuple[list[Send], list[Recv]]] = {}
    for time, message in messages:
        sends, recvs = rounds.setdefault(time, ([], []))
        if isinstance(message, Send):
            sends.append(message)
        else:
            recvs.append(message)
    for time in sorted(rounds):
        sends, recvs = rounds[time]
        yield Round(tuple(sends), tuple(recvs))


def downward(tree: Place, segments: Sequence[int], start: int = 0) -> Iterable[Timed]:
    """Pass segments down a tree: a rank receives one while it sends the one before to all children.

    The i-th segment reaches depth d at time ``start + i + d``.
    """
    for time, segment in enumerate(segments, start + tree.depth):
        window = (Window(segment),)
        if tree.parent >= 0:
            yield time, Recv(tree.parent, window)
        for child in tree.children:
            yield time + 1, Send(child, window)


def upward(rank: int, tree: Place, segments: Sequence[int]) -> Iterable[Timed]:
    """Combine segments up a tree, children below my rank on the left, the others on the right.

    The i-th segment leaves depth d at time ``i - d``, and is complete after time ``i - 1``.
    """
    for time, segment in enumerate(segments, -tree.depth):
        window = (Window(segment),)
        for child in tree.children:
            yield time - 1, Recv(child, window, side_of(child, rank))
        if tree.parent >= 0:
            yield time, Send(tree.parent, window)
