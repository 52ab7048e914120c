"""Runs of blocks, and ranks that meet each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mpicoll.network import Network, Span, spell, spell_runs
from mpicoll.schedule import Side, Window, blocks_of, exchange, recv, send

BLOCKS = 12
windows = st.lists(st.builds(Window, st.integers(-5, 30), st.integers(1, BLOCKS)), max_size=5).map(tuple)


def written_out(runs: list[tuple[int, int]]) -> list[int]:
    """The numbers in runs."""
    return [b for run in runs for b in range(*run)]


@given(windows)
def test_span_is_the_blocks_of_its_windows(given_windows: tuple[Window, ...]):
    span = Span(given_windows, BLOCKS)
    blocks = list(blocks_of(given_windows, BLOCKS))
    assert list(span.blocks) == written_out(list(span.runs)) == blocks
    assert span.count == len(blocks)
    if span.cut is not None:
        assert list(range(BLOCKS))[span.cut] == blocks
    assert bool(span.repeated()) == (len(set(blocks)) < len(blocks))
    assert set(written_out(span.repeated())) <= {b for b in blocks if blocks.count(b) > 1}


@given(windows, windows)
def test_common_runs_are_the_common_blocks(one: tuple[Window, ...], other: tuple[Window, ...]):
    mine, theirs = Span(one, BLOCKS), Span(other, BLOCKS)
    if mine.repeated() or theirs.repeated():
        return
    both = set(mine.blocks) & set(theirs.blocks)
    assert written_out(mine.common(theirs)) == sorted(both)
    assert mine.meets(theirs) == theirs.meets(mine) == bool(both)


@given(windows, windows)
def test_runs_are_equal_where_blocks_are(one: tuple[Window, ...], other: tuple[Window, ...]):
    """However the windows are cut: this is what the two ends of a message are compared by."""
    mine, theirs = Span(one, BLOCKS), Span(other, BLOCKS)
    assert (mine.runs == theirs.runs) == (list(mine.blocks) == list(theirs.blocks))


def test_words_for_runs():
    assert spell((4, 5, 6, 9), "rank") == "ranks 4..6, 9"
    assert spell_runs([(2, 3)]) == "block 2"
    assert spell_runs([(2 * i, 2 * i + 1) for i in range(10)]).endswith("14, and 2 more runs")


def test_result_does_not_depend_on_the_order_of_stepping():
    """Ranks renumbered, so that they are stepped in another order, meet in the same way."""

    class Log(Network):
        def __init__(self, schedules: list) -> None:
            super().__init__("log", schedules, 4)
            self.log = [[] for _ in schedules]

        def outgoing(self, rank: int, message: object, span: Span) -> tuple[int, int]:
            return self.rounds[rank], len(self.log[rank])

        def complete(self, rank: int, step: object, spans: list, arrived: list) -> None:
            self.log[rank].append(arrived)

    def ring(size: int, order: list[int]) -> list:
        rounds: list = [None] * size
        for rank in range(size):
            right, left = order[(rank + 1) % size], order[(rank - 1) % size]
            steps = [exchange(right, (Window(t),), (Window(t),), Side.LEFT, left) for t in range(3)]
            steps.append(send(right, Window(3)) if rank % 2 else recv(left, Window(3)))
            rounds[order[rank]] = steps
        return rounds

    logs = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]):
        network = Log(ring(4, order))
        network.run()
        logs.append([network.log[order[rank]] for rank in range(4)])
    assert logs[0] == logs[1] == logs[2]
