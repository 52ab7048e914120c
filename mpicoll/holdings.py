"""Who holds which contributions to what, and from when on: the state behind the pictures.

Without `verify`'s judgement: it follows wrong schedules too, as long as their messages meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .collectives import Collective
from .network import Network, Span
from .schedule import Round, Send

Row = tuple[int, ...]


class Holdings(Network):
    """Contributions as bits per rank and column; times are rounds, as `traffic.critical_rounds` counts them.

    Columns are blocks; of a barrier they are the ranks known to have begun.
    """

    def __init__(
        self, kind: Collective, schedules: Sequence[Iterable[Round]], blocks: int, root: int = 0
    ) -> None:
        super().__init__(kind.name, schedules, blocks)
        self.barrier = kind.name == "barrier"
        columns = self.size if self.barrier else blocks
        self.state = [[0] * columns for _ in range(self.size)]
        self.time = [0] * self.size
        self.promised = [[self.barrier] * columns for _ in range(self.size)]
        self.idle: set[tuple[int, int, int, int]] = (
            set()
        )  # copies of what was there: rank, round, place, block
        cut = blocks // kind.parts(self.size)
        for rank, row in enumerate(self.state):
            if self.barrier:
                row[rank] = 1 << rank
            for part in kind.before(rank, self.size, root):
                row[part * cut : (part + 1) * cut] = [1 << rank] * cut
            for part in kind.after(rank, self.size, root):
                self.promised[rank][part * cut : (part + 1) * cut] = [True] * cut
        self.history: list[list[tuple[int, Row]]] = [[(0, tuple(row))] for row in self.state]

    def outgoing(self, rank: int, message: Send, span: Span) -> tuple[int, list[int]]:
        """My time, and what I hold of the blocks; of a barrier everything that I know."""
        row = self.state[rank]
        return self.time[rank], list(row) if self.barrier else [row[b] for b in span.blocks]

    def complete(
        self, rank: int, step: Round, spans: list[Span], arrived: list[tuple[int, list[int]]]
    ) -> None:
        """Copy or add what came, and note when."""
        if not (step.sends or step.recvs):
            return
        row = self.state[rank]
        for place, (into, span, (_, cargo)) in enumerate(zip(step.recvs, spans, arrived, strict=True)):
            columns = range(self.size) if self.barrier else span.blocks
            adds = self.barrier or into.side is not None
            for column, theirs in zip(columns, cargo, strict=True):
                if not adds and row[column] == theirs:
                    self.idle.add((rank, self.rounds[rank], place, column))
                row[column] = row[column] | theirs if adds else theirs
        self.time[rank] = max([self.time[rank], *(time for time, _ in arrived)]) + 1
        self.history[rank].append((self.time[rank], tuple(row)))

    def at(self, time: int) -> tuple[Row, ...]:
        """What every rank holds at a time: after all rounds that it can have finished by then."""
        return tuple(max(entry for entry in history if entry[0] <= time)[1] for history in self.history)
