"""What `algorithm="auto"` means: from values that all ranks have, and something that serves the case."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import mpicoll
from mpicoll.collectives import COLLECTIVES
from mpicoll.cost import Cost, cost, uniform
from mpicoll.curves import Curve, straight
from mpicoll.errors import Unsupported
from mpicoll.registry import get
from mpicoll.select import RANKED, cheapest, choose, default_channels

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


def test_two_ranks_in_the_background_exchange_in_one_round() -> None:
    """The thread that completes it is late for every round."""
    assert choose("allreduce", 2, 1 << 20) == "ring"
    assert choose("allreduce", 2, 1 << 20, background=True) == "recursive_doubling"
    assert choose("allreduce", 3, 1 << 20, background=True) == "ring"


def test_a_calibration_with_slow_messages_moves_the_crossover() -> None:
    def last(alpha: float) -> int:
        """The largest size at which an all-reduce sends whole vectors."""
        machine = uniform(alpha, 1e-10, 3e-11, gap=0.0)
        sizes = [1 << k for k in range(2, 34)]
        return max(n for n in sizes if choose("allreduce", 16, n, machine=machine) == "recursive_doubling")

    assert 8 <= last(1e-4) / last(1e-6) < 130  # the limit goes with the latency, but for what is not clear
    slow, fast = uniform(1e-3, 1e-10), uniform(1e-9, 1e-10)
    assert choose("bcast", 16, 1 << 20, machine=slow) == "binomial"
    assert choose("bcast", 16, 1 << 20, machine=fast) != "binomial"
    between = [choose("allreduce", 8, 1 << 16, nodes=4, machine=machine) for machine in (slow, fast)]
    assert between == ["leader", "two_level"]


def test_what_is_not_clearly_cheaper_leaves_the_nominal_choice() -> None:
    """A ring of two sends one vector in two messages, doubling in one: dear messages are for doubling."""
    plain, n = uniform(1e-6, 1e-10, 0.0, gap=0.0), 1 << 20
    assert choose("allreduce", 2, n) == "ring"
    for alpha, wanted in ((1e-5, "ring"), (1e-3, "recursive_doubling")):
        dear = replace(plain, exchange=straight(alpha, 1e-10))
        assert choose("allreduce", 2, n, machine=dear) == wanted


@pytest.mark.parametrize("lawless", [("ring",), ("recursive_doubling", "ring", "circulant")])
def test_a_nominal_choice_without_a_model_stands(lawless: tuple[str, ...]) -> None:
    """Its ranks may follow no law and be too many; that is no reason for another algorithm."""

    def told(which: str, *rest: Any, **more: Any) -> Cost:
        if which.removeprefix("allreduce/") in lawless:
            raise Unsupported("no law")
        return cost(which, *rest, **more)

    machine = uniform(1e-6, 1e-10, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mpicoll.select.cost", told)
        assert cheapest.__wrapped__("allreduce", 2, 1 << 20, machine, "ring") == "ring"


@pytest.mark.parametrize("kind", RANKED)
def test_what_is_ranked_serves_every_number_of_ranks(kind: str) -> None:
    for name in RANKED[kind]:
        entry = get(kind, name)
        assert not any(entry.refusal(size, entry.resolve(size, {}, 1 << 20)) for size in range(1, 20))


def test_over_nodes_a_curve_counts_as_the_line_through_its_ends() -> None:
    """A fitted piece may begin at 0 s, or far above what a short message takes: it is no latency."""
    plain = uniform(2e-5, 1e-8, 3e-11, gap=0.0)
    bent = replace(plain, exchange=Curve(((0, 2e-5, 1e-8), (64, 0.0, 1e-8 + 2e-5 / 64))))
    assert choose("allreduce", 8, 64, nodes=4, machine=plain) == "leader"
    assert choose("allreduce", 8, 64, nodes=4, machine=bent) == "leader"


def test_over_nodes_combining_and_copying_count() -> None:
    plain = uniform(2e-5, 1e-9, 0.0, gap=0.0)
    slow = replace(plain, combine=straight(0.0, 1e-8)), replace(plain, copy=straight(0.0, 1e-8))
    for kind, n, wanted in (("allreduce", 8 << 10, ("leader", "two_level", "leader")),
                            ("bcast", 8 << 10, ("leader", "leader", "leader")),
                            ("alltoall", 1 << 10, ("node_aware", "node_aware", "linear"))):  # fmt: skip
        assert tuple(choose(kind, 8, n, nodes=4, machine=one) for one in (plain, *slow)) == wanted


def test_the_documentation_says_what_is_ranked() -> None:
    page = (Path(__file__).parents[2] / "docs" / "model.md").read_text(encoding="utf-8")
    rows = [f"| {kind} | {', '.join(names)} |" for kind, names in RANKED.items()]
    assert "\n".join(rows) in page
