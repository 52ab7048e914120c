"""Windows, and schedules run inside larger ones."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mpicoll.algorithms.compose import embed
from mpicoll.schedule import (
    Recv,
    Round,
    Send,
    Side,
    Window,
    Windows,
    blocks_of,
    exchange,
    merged,
    recv,
    send,
    window_count,
)
from mpicoll.verify import verify_schedules

windows = st.lists(st.builds(Window, st.integers(0, 20), st.integers(0, 5)), max_size=6).map(tuple)


def test_windows_are_circular():
    assert list(blocks_of((Window(3, 3),), 5)) == [3, 4, 0]
    assert list(blocks_of((Window(-1, 2),), 5)) == [4, 0]
    assert list(blocks_of((Window(5),), 5)) == [0]
    assert list(blocks_of((), 5)) == []


@given(windows)
def test_merging_keeps_the_blocks_and_their_order(given_windows: tuple[Window, ...]):
    joined = merged(given_windows)
    assert list(blocks_of(joined, 100)) == list(blocks_of(given_windows, 100))
    assert window_count(joined) == window_count(given_windows)
    assert all(window.length for window in joined)
    assert all(a.start + a.length != b.start for a, b in pairwise(joined))


def test_short_forms_build_rounds():
    w = Window(1)
    assert send(3, w) == Round((Send(3, (w,)),), ())
    assert recv(3, w, side=Side.LEFT) == Round((), (Recv(3, (w,), Side.LEFT),))
    assert exchange(3, (w,), ()) == Round((Send(3, (w,)),), (Recv(3, (), None),))
    assert exchange(3, (w,), (w,), Side.RIGHT, source=1).recvs == (Recv(1, (w,), Side.RIGHT),)


def test_embedding_places_ranks_and_blocks():
    inner = [exchange(1, (Window(0, 2),), (Window(1),), Side.RIGHT)]
    (step,) = embed(inner, [4, 7], 2, lambda block: (Window(10 * block, 3),))
    assert step.sends == (Send(7, (Window(0, 3), Window(10, 3))),)
    assert step.recvs == (Recv(7, (Window(10, 3),), Side.RIGHT),)


def test_embedding_unfolds_circular_windows_of_the_inner_space():
    (step,) = embed([send(1, Window(1, 2))], [0, 1], 2, lambda block: (Window(5 + block),))
    assert step.sends[0].windows == (Window(6), Window(5))


def test_composition_of_embedded_schedules_is_proved():
    """Pairs reduce, leaders exchange, pairs copy back: an all-reduce from three smaller schedules."""

    def both(rank: int) -> list[Round]:
        return [exchange(1 - rank, (Window(0),), (Window(0),), Side.LEFT if rank else Side.RIGHT)]

    def ranks(rank: int) -> list[Round]:
        leader, other = rank - rank % 2, rank - rank % 2 + 1
        up = [send(0, Window(0))] if rank % 2 else [recv(1, Window(0), side=Side.RIGHT)]
        down = [recv(0, Window(0))] if rank % 2 else [send(1, Window(0))]

        def whole(block: int) -> Windows:
            return (Window(0, 3),)

        steps = list(embed(up, [leader, other], 1, whole))
        if rank == leader:
            steps += embed(both(rank // 2), [0, 2], 1, whole)
        return [*steps, *embed(down, [leader, other], 1, whole)]

    proof = verify_schedules("allreduce", [ranks(rank) for rank in range(4)], 3, ordered=True)
    assert (proof.rounds, proof.messages, proof.expressions) == (3, 6, 3)
