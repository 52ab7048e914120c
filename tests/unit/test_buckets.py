"""Buckets tile the flat arrays, keep to their size, and come in the order in which they will be full."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpicoll
from mpicoll.buckets import Parameter, Piece, first_difference, lay_out, listed


def parameter(name: str, size: int, wire: str = "<f4", itemsize: int = 4) -> Parameter:
    return Parameter(name, (size,), wire, wire, itemsize)


def sizes(layout) -> list[int]:
    return [bucket.nbytes for bucket in layout.buckets]


@st.composite
def cases(draw):
    kinds = st.sampled_from([("<f4", 4), ("<f8", 8), ("<f2", 2)])
    lengths = draw(st.lists(st.integers(0, 60), max_size=12))
    parameters = [parameter(f"p{i}", n, *draw(kinds)) for i, n in enumerate(lengths)]
    order = draw(st.permutations(range(len(parameters))))
    return parameters, order, draw(st.integers(1, 200)), draw(st.integers(1, 200))


@given(cases())
def test_buckets_tile_the_flat_arrays(case):
    parameters, order, most, first = case
    layout = lay_out(parameters, order, most, first)
    for wire, length in layout.lengths.items():
        slices = sorted((b.start, b.stop) for b in layout.buckets if b.wire == wire)
        edges = [0, *(stop for _, stop in slices)]
        assert [start for start, _ in slices] == edges[:-1]
        assert edges[-1] == length == sum(p.size for p in parameters if p.wire == wire)
    held = {i: 0 for i in range(len(parameters))}
    for bucket in layout.buckets:
        at = bucket.start
        for piece in bucket.pieces:
            assert layout.offsets[piece.parameter] + piece.start == at
            at += piece.stop - piece.start
            held[piece.parameter] += piece.stop - piece.start
        assert at == bucket.stop
    assert held == {i: p.size for i, p in enumerate(parameters)}


@given(cases())
def test_no_bucket_is_larger_than_asked_for_but_for_one_element(case):
    parameters, order, most, first = case
    for bucket in lay_out(parameters, order, most, first).buckets:
        assert bucket.nbytes <= max(most, bucket.itemsize)


@given(cases())
def test_buckets_come_in_the_order_in_which_they_are_full(case):
    parameters, order, most, first = case
    turn = {index: t for t, index in enumerate(order)}
    last = [turn[b.pieces[-1].parameter] for b in lay_out(parameters, order, most, first).buckets]
    assert last == sorted(last)


def test_a_small_gradient_travels_with_the_first_piece_of_a_large_one():
    """Such as a bias, which would be a bucket of its own: half as many messages."""
    bias, weight = parameter("bias", 3), parameter("weight", 60)
    assert sizes(lay_out([bias, weight], range(2), 100, 400)) == [92, 80, 80]
    assert sizes(lay_out([bias, weight], range(2), 84, 400)) == [12, 80, 80, 80]  # no room


def test_first_bucket_is_smaller():
    parameters = [parameter(f"p{i}", 10) for i in range(7)]
    assert sizes(lay_out(parameters, range(7), 120, 40)) == [40, 120, 120]
    assert sizes(lay_out(parameters, range(7), 120, 400)) == [120, 120, 40]
    assert sizes(lay_out([parameter("large", 60), *parameters], range(8), 120, 40)) == [120] * 4 + [40]


def test_large_gradient_is_cut_and_small_ones_are_not():
    parameters = [parameter("small", 3), parameter("large", 25), parameter("last", 3)]
    layout = lay_out(parameters, range(3), 40, 40)
    assert sizes(layout) == [12, 32, 32, 36, 12]
    assert layout.buckets[2].pieces == (Piece(1, 8, 16),)


def test_types_are_kept_apart():
    parameters = [parameter("a", 5), parameter("b", 5, "<f8", 8), parameter("c", 5)]
    layout = lay_out(parameters, range(3), 1000, 1000)
    assert [(b.wire, len(b.pieces)) for b in layout.buckets] == [("<f8", 1), ("<f4", 2)]


def test_a_bucket_of_no_bytes_is_refused():
    with pytest.raises(mpicoll.ArgumentError, match=r"first_bucket_bytes must be .* at least 1, not 0"):
        lay_out([], [], 5, 0)


def test_differences_are_named():
    mine, theirs = [parameter("a", 5), parameter("b", 5)], [parameter("a", 5), parameter("b", 6)]
    assert first_difference(mine, theirs, 3) == ("number 1 is 'b' (5,) <f4 on rank 0, 'b' (6,) <f4 on rank 3")
    assert first_difference(mine, mine[:1], 2) == "there are 2 on rank 0, 1 on rank 2"
    assert listed(list("abc"), 2) == "'a', 'b' and 1 more"
