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

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NoReturn

from .errors import ScheduleError
from .schedule import Recv, Round, Send, Windows


class Span:
    """The blocks of some windows, as runs ``(start, stop)`` in the order listed, joined where they adjoin.

    Two messages name the same blocks in the same order if their runs are equal. Long runs are never
    written out: `cut` is the slice of the only run, if there is only one.
    """

    __slots__ = ("_blocks", "count", "cut", "runs")

    def __init__(self, windows: Windows, blocks: int) -> None:
        runs: list[tuple[int, int]] = []
        for window in windows:
            start, left = window.start % blocks, window.length
            while left > 0:
                stop = min(start + left, blocks)
                if runs and runs[-1][1] == start:
                    runs[-1] = runs[-1][0], stop
                else:
                    runs.append((start, stop))
                left -= stop - start
                start = 0
        self.runs = tuple(runs)
        self.count = sum(stop - start for start, stop in runs)
        self.cut = slice(*runs[0]) if len(runs) == 1 else None
        self._blocks: Sequence[int] | None = range(*runs[0]) if len(runs) == 1 else None

    @property
    def blocks(self) -> Sequence[int]:
        """All block numbers."""
        if self._blocks is None:
            self._blocks = tuple(b for run in self.runs for b in range(*run))
        return self._blocks

    def meets(self, other: Span) -> bool:
        """Whether the two have a block in common."""
        if self.cut and other.cut:
            return self.cut.start < other.cut.stop and other.cut.start < self.cut.stop
        return bool(self.common(other))

    def common(self, other: Span) -> list[tuple[int, int]]:
        """The runs that both have, in increasing order."""
        mine, theirs = sorted(self.runs), sorted(other.runs)
        found, i, j = [], 0, 0
        while i < len(mine) and j < len(theirs):
            start, stop = max(mine[i][0], theirs[j][0]), min(mine[i][1], theirs[j][1])
            if start < stop:
                found.append((start, stop))
            if mine[i][1] < theirs[j][1]:
                i += 1
            else:
                j += 1
        return found

    def repeated(self) -> list[tuple[int, int]]:
        """Runs that are listed more than once."""
        runs = sorted(self.runs)
        return [(b[0], min(a[1], b[1])) for a, b in pairwise(runs) if b[0] < a[1]]


def spell(numbers: Sequence[int], noun: str = "block") -> str:
    """Block numbers (or ranks, or whatever `noun` says) in words.

    >>> spell((3,)), spell((0, 1, 2, 7)), spell(())
    ('block 3', 'blocks 0..2, 7', 'no block')
    """
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1]:
            runs[-1] = runs[-1][0], number + 1
        else:
            runs.append((number, number + 1))
    return spell_runs(runs, noun)


def spell_runs(runs: Sequence[tuple[int, int]], noun: str = "block") -> str:
    """Runs ``(start, stop)`` in words, see `spell`."""
    text = ", ".join(f"{a}" if b == a + 1 else f"{a}..{b - 1}" for a, b in runs[:8])
    if len(runs) > 8:
        text += f", and {len(runs) - 8} more runs"
    count = sum(b - a for a, b in runs)
    return {0: f"no {noun}", 1: f"{noun} {text}"}.get(count, f"{noun}s {text}")


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
        self._sent: dict[int, list[tuple[Any, Span]]] = {}  # by source · P + destination
        self._awaited: dict[int, list[tuple[int, Span]]] = {}
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
        if len(sends) + len(recvs) <= 4 or self._may_overlap(rank, step):
            for slot, into in enumerate(recvs):
                if into.side is None and into.windows:
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
                slot, place = waiting.pop(0)
                if span is not place:
                    self._compare(rank, span, peer, place)
                arrived[peer][slot] = cargo
                missing[rank] -= 1
                missing[peer] -= 1
                if not missing[peer]:
                    ready.append(peer)
            else:
                self._sent.setdefault(rank * size + peer, []).append((cargo, span))
        for slot, into in enumerate(recvs):
            peer = into.peer
            if not 0 <= peer < size or peer == rank:
                self._wrong_peer(rank, "receives from", peer)
            coming = self._sent.get(peer * size + rank)
            if coming:
                arrived[rank][slot], span = coming.pop(0)
                if span is not places[slot]:
                    self._compare(peer, span, rank, places[slot])
                missing[rank] -= 1
                missing[peer] -= 1
                if not missing[peer]:
                    ready.append(peer)
            else:
                self._awaited.setdefault(peer * size + rank, []).append((slot, places[slot]))
        self.messages += len(recvs)
        if not missing[rank]:
            ready.append(rank)

    def _compare(self, source: int, sent: Span, dest: int, awaited: Span) -> None:
        """A block has one name wherever it lies, so both ends of a message must name the same ones.

        (With other names a message could also differ in length: blocks are not all equally long.)
        """
        if sent.runs != awaited.runs:
            self.fail(
                dest,
                f"it expects {spell_runs(awaited.runs)} from rank {source}, which in its round "
                f"{self.rounds[source]} sends {spell_runs(sent.runs)}",
            )

    def _refuse_overlap(self, rank: int, slot: int, step: Round) -> None:
        """A copy may overlap neither a send nor another receive of its round (`schedule`, rule 2)."""
        places = self._places[rank]
        mine = places[slot]
        for out in step.sends:
            span = self._spans.get(out.windows) or self.span(rank, out.windows)
            if mine.meets(span):
                self._overlap(rank, step.recvs[slot], mine.common(span), f"sent to rank {out.peer}")
        for other, span in enumerate(places):
            if other != slot and mine.meets(span):
                also = f"received from rank {step.recvs[other].peer}"
                self._overlap(rank, step.recvs[slot], mine.common(span), also)

    def _may_overlap(self, rank: int, step: Round) -> bool:
        """Whether a copy of a round overlaps any other message of it, found in one sweep over all runs."""
        runs = [(*run, True) for out in step.sends for run in self.span(rank, out.windows).runs]
        for into, place in zip(step.recvs, self._places[rank], strict=True):
            runs += [(*run, into.side is not None) for run in place.runs]
        runs.sort()
        copied = covered = 0  # where the runs so far end: those of copies, and all
        for start, stop, keeps in runs:
            if start < copied or (start < covered and not keeps):
                return True
            covered = max(covered, stop)
            if not keeps:
                copied = max(copied, stop)
        return False

    def _overlap(self, rank: int, into: Recv, both: list[tuple[int, int]], also: str) -> NoReturn:
        where = f"the copy of {spell_runs(both)} from rank {into.peer}"
        self.fail(rank, f"{where} overlaps what is {also} in this round")

    def span(self, rank: int, windows: Windows) -> Span:
        """The blocks of `windows`, checked: no empty window, no block twice. Kept for the next time."""
        span = self._spans.get(windows)
        if span is None:
            if any(w.length < 1 for w in windows):
                self.fail(rank, f"an empty window in {windows}: leave it out (a token has no windows)")
            span = Span(windows, self.blocks)
            if twice := span.repeated():
                self.fail(rank, f"one message carries {spell_runs(twice)} more than once")
            self._spans[windows] = span
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
                text = f"sends {spell_runs(span.runs)} to rank {dest}"
                unmet.setdefault(source, []).append((dest, text))
        for key, recvs in self._awaited.items():
            source, dest = divmod(key, self.size)
            for _, place in recvs:
                text = f"awaits {spell_runs(place.runs)} from rank {source}"
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
