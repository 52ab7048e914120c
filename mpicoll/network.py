"""All ranks' schedules run against each other: who meets whom, and in what order. No data, no MPI.

`Network` is the machine under the readers: `verify` carries expressions along its messages, `traffic`
carries times, `draw` carries counts. It knows the rules of `schedule` that concern matching and overlap
(2 and 4), and that a round is done when all its messages have met; it must not know what they mean.

Sends are *synchronous*: a send is done only when its receive is posted, so a schedule that gets through
here never depends on an MPI library buffering a message. Channels are first-in first-out and every
wait is for a named peer, so the outcome does not depend on the order in which ranks are stepped
(a Kahn network, with rendezvous).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from .errors import ScheduleError
from .schedule import Recv, Round, Send, Windows, blocks_of


class Span(NamedTuple):
    """The blocks of some windows: in order, as a set, and as a slice where they are consecutive."""

    blocks: tuple[int, ...]
    members: frozenset[int]
    cut: slice | None


def spell(numbers: Sequence[int], noun: str = "block") -> str:
    """Block numbers (or ranks, or whatever `noun` says) in words.

    >>> spell((3,)), spell((0, 1, 2, 7)), spell(())
    ('block 3', 'blocks 0..2, 7', 'no block')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ", ".join(f"{a}" if a == b else f"{a}..{b}" for a, b in runs[:8])
    if len(runs) > 8:
        text += f", and {len(runs) - 8} more runs"
    return {0: f"no {noun}", 1: f"{noun} {text}"}.get(len(numbers), f"{noun}s {text}")


class Network:
    """The ranks of one collective, each working through its own rounds.

    A reader overrides `outgoing` and `complete`. Anything wrong raises `ScheduleError`, which names the
    rank, the round (counted from 0), the peer and the blocks.
    """

    def __init__(self, name: str, schedules: Sequence[Iterable[Round]], blocks: int) -> None:
        self.name = name
        self.size = len(schedules)
        self.blocks = blocks
        self.rounds = [-1] * self.size  # number of the round that each rank is in
        self.messages = 0
        # A schedule that yields for ever must not hang its reader. No useful one comes near this.
        self.most_rounds = 64 + 16 * (blocks + 1) * (self.size + 1)
        self._steps: list[Iterator[Round]] = [iter(s) for s in schedules]
        self._current: list[Round | None] = [None] * self.size
        self._missing = [0] * self.size
        self._arrived: list[list[Any]] = [[] for _ in range(self.size)]
        self._places: list[list[Span]] = [[] for _ in range(self.size)]
        self._sent: dict[int, deque[tuple[Any, Span]]] = {}  # by source · P + destination
        self._awaited: dict[int, deque[tuple[int, Span]]] = {}
        self._spans: dict[Windows, Span] = {}

    # -- what a reader overrides -------------------------------------------------------------------

    def outgoing(self, rank: int, message: Send, span: Span) -> Any:
        """What `message` carries: read from the state before the round."""

    def complete(self, rank: int, step: Round, spans: list[Span], arrived: list[Any]) -> None:
        """All messages of the round have met. What came and where it goes, in the order of ``step.recvs``."""

    # -- running ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Step all ranks until every schedule has ended.

        Raises `ScheduleError` when some never can.
        """
        ready = list(range(self.size - 1, -1, -1))
        current, places, arrived = self._current, self._places, self._arrived
        while ready:
            rank = ready.pop()
            step = current[rank]
            if step is not None:
                self.complete(rank, step, places[rank], arrived[rank])
            step = current[rank] = next(self._steps[rank], None)
            if step is not None:
                self._post(rank, step, ready)
        if any(step is not None for step in current):
            self._explain_stuck()

    def _post(self, rank: int, step: Round, ready: list[int]) -> None:
        """Post the messages of a round; those whose other end is waiting meet it at once."""
        size, spans, missing, arrived = self.size, self._spans, self._missing, self._arrived
        sends, recvs = step.sends, step.recvs
        self.rounds[rank] += 1
        if self.rounds[rank] > self.most_rounds:
            self.fail(rank, f"a schedule of more than {self.most_rounds} rounds does not end")
        places = self._places[rank] = [spans.get(m.windows) or self.span(rank, m.windows) for m in recvs]
        for slot, into in enumerate(recvs):
            if into.side is None:
                self._refuse_overlap(rank, slot, step)
        missing[rank] = len(sends) + len(recvs)
        arrived[rank] = [None] * len(recvs)
        for out in sends:
            peer = out.peer
            if not 0 <= peer < size or peer == rank:
                self._wrong_peer(rank, "sends to", peer)
            span = spans.get(out.windows) or self.span(rank, out.windows)
            cargo = self.outgoing(rank, out, span)
            waiting = self._awaited.get(rank * size + peer)
            if waiting:
                slot, place = waiting.popleft()
                if span is not place:
                    self._compare(rank, span, peer, place)
                arrived[peer][slot] = cargo
                missing[rank] -= 1
                missing[peer] -= 1
                if not missing[peer]:
                    ready.append(peer)
            else:
                self._sent.setdefault(rank * size + peer, deque()).append((cargo, span))
        for slot, into in enumerate(recvs):
            peer = into.peer
            if not 0 <= peer < size or peer == rank:
                self._wrong_peer(rank, "receives from", peer)
            coming = self._sent.get(peer * size + rank)
            if coming:
                arrived[rank][slot], span = coming.popleft()
                if span is not places[slot]:
                    self._compare(peer, span, rank, places[slot])
                missing[rank] -= 1
                missing[peer] -= 1
                if not missing[peer]:
                    ready.append(peer)
            else:
                self._awaited.setdefault(peer * size + rank, deque()).append((slot, places[slot]))
        self.messages += len(recvs)
        if not missing[rank]:
            ready.append(rank)

    def _compare(self, source: int, sent: Span, dest: int, awaited: Span) -> None:
        """A block has one name wherever it lies, so both ends of a message must name the same ones.

        (With other names a message could also differ in length: blocks are not all equally long.)
        """
        if sent.blocks != awaited.blocks:
            self.fail(
                dest,
                f"it expects {spell(awaited.blocks)} from rank {source}, which in its round "
                f"{self.rounds[source]} sends {spell(sent.blocks)}",
            )

    def _refuse_overlap(self, rank: int, slot: int, step: Round) -> None:
        """A copy may overlap neither a send nor another receive of its round (`schedule`, rule 2)."""
        places = self._places[rank]
        members = places[slot].members
        for out in step.sends:
            span = self._spans.get(out.windows) or self.span(rank, out.windows)
            if not members.isdisjoint(span.members):
                self._overlap(rank, step.recvs[slot], span, f"sent to rank {out.peer}")
        for other, span in enumerate(places):
            if other != slot and not members.isdisjoint(span.members):
                peer = step.recvs[other].peer
                self._overlap(rank, step.recvs[slot], span, f"received from rank {peer}")

    def _overlap(self, rank: int, into: Recv, span: Span, also: str) -> NoReturn:
        both = spell([b for b in span.blocks if b in self.span(rank, into.windows).members])
        self.fail(rank, f"the copy of {both} from rank {into.peer} overlaps what is {also} in this round")

    def span(self, rank: int, windows: Windows) -> Span:
        """The blocks of `windows`, checked: no empty window, no block twice. Kept for the next time."""
        span = self._spans.get(windows)
        if span is None:
            blocks = tuple(blocks_of(windows, self.blocks))
            if any(w.length < 1 for w in windows):
                self.fail(rank, f"an empty window in {windows}: leave it out (a token has no windows)")
            members = frozenset(blocks)
            if len(members) != len(blocks):
                twice = sorted(b for b in members if blocks.count(b) > 1)
                self.fail(rank, f"one message carries {spell(twice)} more than once")
            row = blocks and blocks[-1] - blocks[0] + 1 == len(blocks) and len(windows) == 1
            cut = slice(blocks[0], blocks[-1] + 1) if row else None
            span = self._spans[windows] = Span(blocks, members, cut)
        return span

    # -- saying what is wrong -------------------------------------------------------------------------

    def fail(self, rank: int, reason: str) -> NoReturn:
        """Raise `ScheduleError` for what `rank` does in its present round."""
        raise ScheduleError(f"{self.name}: rank {rank}, round {self.rounds[rank]}: {reason}")

    def _wrong_peer(self, rank: int, verb: str, peer: int) -> NoReturn:
        what = "itself" if peer == rank else f"rank {peer}, which is not in 0..{self.size - 1}"
        self.fail(rank, f"it {verb} {what}")

    def _unmet(self) -> dict[int, list[tuple[int, str]]]:
        """For every stuck rank, the peers that it waits for and the messages in words."""
        unmet: dict[int, list[tuple[int, str]]] = {}
        for key, sends in self._sent.items():
            source, dest = divmod(key, self.size)
            for _, span in sends:
                text = f"sends {spell(span.blocks)} to rank {dest}"
                unmet.setdefault(source, []).append((dest, text))
        for key, recvs in self._awaited.items():
            source, dest = divmod(key, self.size)
            for _, place in recvs:
                text = f"awaits {spell(place.blocks)} from rank {source}"
                unmet.setdefault(dest, []).append((source, text))
        return unmet

    def _explain_stuck(self) -> NoReturn:
        """Name a message whose peer has finished or, failing that, a cycle of ranks that wait."""
        unmet = self._unmet()
        for rank in sorted(unmet):
            for peer, text in unmet[rank]:
                if self._current[peer] is None:
                    end = f"which has ended after {self.rounds[peer] + 1} rounds"
                    self.fail(rank, f"it {text}, {end}: the message is never met")
        path = [min(unmet)]
        while path.count(path[-1]) < 2:
            path.append(unmet[path[-1]][0][0])
        cycle = path[path.index(path[-1]) : -1]
        waits = [f"rank {r} in round {self.rounds[r]} {unmet[r][0][1]}" for r in cycle[:6]]
        if len(cycle) > 6:
            waits.append(f"and {len(cycle) - 6} more ranks")
        raise ScheduleError(f"{self.name}: deadlock, each waits for the next: {'; '.join(waits)}")
