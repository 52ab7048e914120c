"""What `algorithm="auto"` means: from values that all ranks have, and something that serves the case."""

from __future__ import annotations

from itertools import product

import pytest

import mpicoll
from mpicoll.collectives import COLLECTIVES
from mpicoll.registry import get
from mpicoll.select import choose, default_channels

BYTES = (0, 4, 4096, 64 << 10, 1 << 20, 1 << 30)


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_every_choice_serves_its_case(kind: str) -> None:
    for nodes in ((0,), (0, 0, 0), (0, 1, 2), (0, 0, 0, 1), (0, 1, 2, 0, 1, 2, 0)):
        for nbytes in BYTES:
            name = choose(kind, len(nodes), nbytes, nodes=len(set(nodes)))
            entry = get(kind, name)
            params = {"nodes": nodes} if entry.hierarchical else {}
            assert entry.refusal(len(nodes), entry.resolve(len(nodes), params, nbytes)) is None


def test_several_ranks_on_several_nodes_take_a_composition() -> None:
    for kind, nbytes in product(COLLECTIVES, BYTES[:3]):
        assert get(kind, choose(kind, 8, nbytes, nodes=4)).hierarchical
        assert not get(kind, choose(kind, 8, nbytes, nodes=1)).hierarchical
        assert not get(kind, choose(kind, 8, nbytes, nodes=8)).hierarchical


def test_one_leader_for_short_vectors_and_shards_for_long_ones() -> None:
    for kind in ("allreduce", "reduce", "bcast"):
        assert [choose(kind, 8, nbytes, nodes=4) for nbytes in (4096, 1 << 20)] == ["leader", "two_level"]
    assert choose("alltoall", 8, 1 << 20, nodes=4) == "linear"


def test_who_may_not_forward_or_must_keep_the_order_takes_no_composition() -> None:
    assert choose("alltoall", 8, 4, nodes=4, direct=True) == "linear"
    assert mpicoll.get("allreduce", choose("allreduce", 8, 4, nodes=4, ordered=True)).ordered


def test_stripes_between_nodes_are_shorter() -> None:
    assert default_channels("allreduce", 16 << 20, 8) == (8, 2)
    assert default_channels("allreduce", 16 << 20, 8, between_nodes=True) == (64, 2)
    assert default_channels("allreduce", 64 << 10, 8, between_nodes=True) == (1, 1)
    assert default_channels("allgather", 16 << 20, 8, between_nodes=True) == (1, 1)
