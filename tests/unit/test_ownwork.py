"""What ranks copy, and what they pass on: closed forms against compiled programs, and in the cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import mpicoll.algorithms  # noqa: F401  (registers them)
from mpicoll.bounds import bound, reduce_terms
from mpicoll.collectives import COLLECTIVES
from mpicoll.cost import Machine, cost, uniform
from mpicoll.curves import Curve, straight
from mpicoll.loads import frozen
from mpicoll.ownwork import _relays, copied, relays, touched
from mpicoll.plan import RECV, SEND, WORK, Copy, Layout, compile_program
from mpicoll.registry import Algorithm, algorithms, get

ALPHA, BETA, PASSED, COPY = 2e-6, 1e-10, 7e-10, 3e-10
FLAT = [entry for entry in algorithms() if not entry.hierarchical]
KINDS = [kind for kind in COLLECTIVES if kind != "barrier"]
#: One algorithm of each collective for every P, and all algorithms at some.
_FOR_EVERY = {kind: "binomial" for kind in ("bcast", "reduce", "gather", "scatter")}
_FOR_EVERY |= {"allreduce": "ring", "reduce_scatter": "ring", "allgather": "circulant", "alltoall": "linear"}
CASES = [(get(kind, name), size) for kind, name in _FOR_EVERY.items() for size in range(1, 65)]
CASES += [(entry, size) for entry in FLAT for size in (2, 5, 8) if entry.collective.name != "barrier"]


def machine(**more: Any) -> Machine:
    """With a copy, and messages that cost more where the sender has written them in the same call."""
    passed = straight(ALPHA, PASSED)
    made = uniform(ALPHA, BETA, overlap=False)
    curves = {"copy": straight(0.0, COPY), "one_way_relayed": passed, "exchange_relayed": passed}
    return replace(made, **{**curves, **more})


def compiled(entry: Algorithm, rank: int, size: int, part: int = 1) -> Any:
    kind = entry.collective
    before, after = (list(parts(rank, size, 0)) for parts in (kind.before, kind.after))

    def source(one: int) -> int | None:
        return part * before.index(one) if one in before else None

    def target(one: int) -> int | None:
        return part * after.index(one) if one in after else None

    layout = Layout(lambda one: part, source, target, in_place=kind.name == "bcast")
    return compile_program(entry, rank, size, entry.resolve(size), layout, 1 << 20)


def test_closed_forms_are_what_programs_copy() -> None:
    for entry, size in CASES:
        if entry.refusal(size) is not None:
            continue
        part = entry.blocks(size) // entry.collective.parts(size) * 2
        own, from_work = 0, 0
        for step in compiled(entry, 0, size, part).steps:
            if isinstance(step, Copy) and step.out.space == RECV:
                own += step.out.length * (step.source.space == SEND)
                from_work += step.out.length * (step.source.space == WORK)
        total = part * entry.collective.parts_in_total(size)
        assert own == pytest.approx(copied(entry.collective.name, size) * total), (str(entry), size)
        assert from_work == 0, (str(entry), size)


def test_buffers_are_what_a_rank_holds_before_and_after() -> None:
    wanted = {"allreduce": 2, "bcast": 1, "reduce": 2, "allgather": 1.25, "reduce_scatter": 1.25,
              "alltoall": 2, "gather": 1.25, "scatter": 1.25}  # fmt: skip
    assert {kind: touched(kind, 4) for kind in KINDS} == wanted


def test_few_ranks_show_who_passes_on() -> None:
    for entry in FLAT:
        for size in (13, 24):
            if entry.refusal(size) is None:
                resolved = entry.resolve(size)
                of_all = _relays(entry, size, frozen(resolved))
                assert relays(entry, size, resolved) == of_all, (str(entry), size)
    passing = {str(e) for e in FLAT if e.refusal(2) is None and relays(e, 2, e.resolve(2))}
    assert {"allreduce/ring", "allreduce/binary_tree", "reduce/circulant"} <= passing
    assert not {"bcast/binomial", "alltoall/pairwise", "allgather/ring", "bcast/chain"} & passing
    assert relays(get("bcast", "chain"), 3, {"segments": 100, "root": 0})


@pytest.mark.parametrize("size", [*range(1, 17), 31, 32, 33, 63, 64])
def test_cost_has_the_copy_and_what_is_passed_on(size: int) -> None:
    n, share = 1e6, (size - 1) / size
    rest, own = max(0, size - 2), COPY * n / size
    step = ALPHA + n / size * BETA
    later = ALPHA + n / size * PASSED
    wanted = {
        "allgather/ring": bool(rest + share) * step + rest * later + own,
        "alltoall/pairwise": (size - 1) * step + own,
        "allreduce/ring": 0.0 if size == 1 else step + (2 * size - 3) * later,
        "scatter/linear": (ALPHA + (size - 2) * ALPHA / 5) * (size > 1) + share * n * BETA + own,
    }
    if size == 1:
        wanted["allreduce/ring"] = COPY * n
    for name, seconds in wanted.items():
        assert cost(name, size, n, machine()).seconds == pytest.approx(seconds, rel=1e-9), name


def test_a_copy_beside_messages_that_travel_by_themselves_takes_what_is_left_of_it() -> None:
    n, by_itself = 1e6, machine(overlap=True)
    hidden = cost("allgather/ring", 4, n, by_itself)
    assert hidden.copy == pytest.approx(n / 4 * (COPY - BETA))
    assert cost("allgather/ring", 4, n, machine(overlap=True, copy=straight(0.0, BETA / 2))).copy == 0
    assert bound("allgather", 4, n, by_itself).copy == 0


def test_bytes_beyond_the_caches_cost_as_much_in_small_messages() -> None:
    """In a call whose buffers have 64 MiB, striped or not."""
    bent = Curve(((0.0, ALPHA, BETA), (8 << 20, ALPHA, 5 * BETA)))
    told = machine(one_way=bent, exchange=bent, one_way_relayed=None, exchange_relayed=None)
    n = 32 << 20
    for channels in (1, 64):
        seconds = cost("allreduce/recursive_doubling", 2, n, told, channels=channels)
        assert seconds.bandwidth == pytest.approx(5 * BETA * n)
    near = cost("allreduce/recursive_doubling", 2, 1 << 20, told)
    assert near.bandwidth == pytest.approx(BETA * (1 << 20))


def test_bound_has_both_ways_and_the_copy() -> None:
    fast = machine(one_way=straight(ALPHA, BETA / 4), combine=straight(0.0, BETA))
    n = 1e9
    least = {kind: bound(kind, 4, n, fast) for kind in KINDS}
    # Twice one way is less than both ways at once here.
    assert least["allgather"].bandwidth == pytest.approx(0.75 * n * BETA / 2)
    assert least["allreduce"].bandwidth == pytest.approx(2 * 0.75 * n * BETA / 2)
    assert least["scatter"].bandwidth == pytest.approx(0.75 * n * BETA / 4)
    assert least["bcast"].bandwidth == pytest.approx(n * BETA / 4)
    copies = {kind: one.copy / (COPY * n) for kind, one in least.items() if one.copy}
    assert copies == pytest.approx(dict.fromkeys(("allgather", "alltoall", "gather", "scatter"), 0.25))


@pytest.mark.parametrize("size", [2, 3, 8, 64])
@pytest.mark.parametrize("extra", [0.0, 0.3, 1.0, 5.0])
def test_what_a_reduce_takes_at_least_is_the_best_of_all_divisions(size: int, extra: float) -> None:
    def busier(c: float) -> float:
        others = 1 - c / (size - 1)
        return max(c + max(0.0, 1 - c) * extra, others + min(1.0, others) * extra)

    grid = [k * (size - 1) / 20_000 for k in range(20_001)]
    assert reduce_terms(size, extra, 1.0) == pytest.approx(min(map(busier, grid)), rel=1e-3)
