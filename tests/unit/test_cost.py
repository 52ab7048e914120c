"""The cost model against schedules run rank by rank, formulas of the textbook, and what papers report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from math import ceil, log2, prod

import pytest

import mpicoll.algorithms  # noqa: F401  (registers them)
from mpicoll.algorithms.nodes import members
from mpicoll.algorithms.patterns import swing_distance
from mpicoll.bounds import bound
from mpicoll.cost import Machine, cost, uniform
from mpicoll.curves import Curve, straight
from mpicoll.errors import ArgumentError, Unsupported
from mpicoll.fabric import (
    Fabric,
    charges,
    cost_on,
    dragonfly,
    hop_bytes,
    levels,
    link_loads,
    make_fabric,
    ring,
    torus,
)
from mpicoll.laws import by_law
from mpicoll.loads import Run, exact_steps, has_rounds, step_of
from mpicoll.registry import Algorithm, algorithms, get
from mpicoll.schedule import Recv, Round, Send, Side, Window
from mpicoll.shifts import by_shifts
from mpicoll.stagewise import _laid_together, by_stages, fewer, like
from mpicoll.steps import _of_size, steps
from mpicoll.traffic import traffic
from mpicoll.verify import verify

EVERY = [pytest.param(a, id=str(a)) for a in algorithms()]
ALPHA, BETA, GAMMA = 2e-6, 1e-10, 3e-11


def params_at(algorithm: Algorithm, size: int, ppn: int = 4, **more: int) -> dict[str, object] | None:
    given: dict[str, object] = {k: v for k, v in more.items() if k in algorithm.defaults}
    if algorithm.hierarchical:
        given["nodes"] = tuple(rank // ppn for rank in range(size))
    return None if algorithm.refusal(size, given) else given


@pytest.mark.parametrize("algorithm", EVERY)
def test_steps_are_the_critical_rounds_of_the_schedule(algorithm: Algorithm) -> None:
    for size in (2, 3, 8, 13):
        params = params_at(algorithm, size)
        if params is not None:
            counted = traffic(algorithm, size, params).critical_rounds
            assert sum(count for count, _ in steps(algorithm, size, params)) == counted


#: Irregular: at 132 ranks no law holds for these, and all ranks are run.
NO_LAW = {
    "allreduce/binary_tree",
    "allreduce/circulant_pipelined",
    "allreduce/recursive_halving_doubling_far",
    "bcast/circulant_pipelined",
    "bcast/double_binary_tree",
    "bcast/scatter_allgather_ring",
}


@pytest.mark.parametrize("regular", [True, False], ids=["a power of two", "another number"])
@pytest.mark.parametrize("algorithm", EVERY)
def test_a_law_gives_the_steps_of_all_ranks(algorithm: Algorithm, regular: bool) -> None:
    """Laws are found at up to 32 ranks, or 16 nodes of up to 4, some checked at 66; these are others."""
    ppn = 8 if regular else 6
    size = ppn * (8 if regular else 13) if algorithm.hierarchical else 64 if regular else 132
    params = params_at(algorithm, size, ppn=ppn, segments=2)
    if params is None:
        return
    resolved = dict(algorithm.resolve(size, params))
    if (
        not regular
        and not algorithm.hierarchical
        and (algorithm.blocks(size, resolved) > 3_000 or not has_rounds(algorithm, size, resolved, 3_000))
    ):
        return  # rings and chains, whose laws are lines; and what would take long
    if algorithm.hierarchical:
        lawful = by_stages(algorithm, size, resolved, _of_size)
    else:
        lawful = by_law(algorithm, size, resolved)
    if not regular and str(algorithm) in NO_LAW:
        assert lawful is None
    else:
        assert lawful == exact_steps(algorithm, size, resolved)


def test_cyclic_nodes_and_blocks_of_nodes_have_the_same_steps() -> None:
    """Whatever number the ranks of a node have, they do the same."""
    entry, size = get("allreduce", "two_level"), 4 * 401  # too many to run all ranks
    cyclic = tuple(rank % 401 for rank in range(size))
    blocks = tuple(rank // 4 for rank in range(size))
    assert steps(entry, size, {"nodes": cyclic}) == steps(entry, size, {"nodes": blocks})


@pytest.mark.parametrize("name", ["scatter/leader", "reduce/two_level", "allgather/leader", "bcast/leader"])
def test_laws_hold_for_cyclic_nodes_and_any_root(name: str) -> None:
    """Their small sets of nodes have the order of ranks asked for, and the root in its place."""
    entry, count, each = get(*name.split("/")), 18, 5
    size = count * each
    for root in (37, size - 1) if "root" in entry.defaults else (0,):
        for nodes in (tuple(r % count for r in range(size)), tuple(r // each for r in range(size))):
            given = {"nodes": nodes, "root": root} if "root" in entry.defaults else {"nodes": nodes}
            resolved = dict(entry.resolve(size, given))
            assert by_stages(entry, size, resolved, _of_size) == exact_steps(entry, size, resolved)


def test_small_sets_of_nodes_are_like_those_asked_for() -> None:
    """Three that differ; cyclic ranks stay cyclic, and a root keeps its place."""
    for count in (*range(17, 300), 4095, 4096, 4097, 5461):
        sets = list(like(count, 12))
        assert len({number for number, _ in sets}) == 3, count
        assert sets[-1][0] % 2 == count % 2
    blocks, cyclic = (members(nodes) for nodes in (
        tuple(r // 8 for r in range(800)), tuple(r % 100 for r in range(800))))  # fmt: skip
    for root, node, place in ((0, 0, 0), (799, 5, 3), (404, 3, 2)):  # of block 50, the fifth
        assert fewer(blocks, 6, 4, root) == (tuple(r // 4 for r in range(24)), 4 * node + place)
    for root, node, place in ((0, 0, 0), (799, 5, 3), (450, 3, 2)):
        assert fewer(cyclic, 6, 4, root) == (tuple(r % 6 for r in range(24)), 6 * place + node)


def test_a_part_without_a_law_is_no_reason_against_another_law() -> None:
    entry = get("scatter", "leader")
    resolved = dict(entry.resolve(100, {"nodes": tuple(rank // 5 for rank in range(100))}))

    def lawless(*_: object) -> tuple[Run, ...]:
        raise Unsupported("it follows no law")

    assert by_stages(entry, 100, resolved, lawless) == exact_steps(entry, 100, resolved)


def test_nodes_of_unequal_sizes_have_no_law() -> None:
    entry = get("allreduce", "two_level")
    nodes = tuple(max(0, rank - 1) // 3 for rank in range(301))
    assert by_stages(entry, 301, dict(entry.resolve(301, {"nodes": nodes})), _of_size) is None


def test_a_law_of_stages_is_not_believed_where_it_is_wrong() -> None:
    """Parts whose stages overlap: what the stages say is not what all ranks do."""
    entry = get("scatter", "leader")
    resolved = dict(entry.resolve(100, {"nodes": tuple(rank // 5 for rank in range(100))}))
    laid_together = _laid_together(entry, {**resolved, "nodes": resolved["nodes"][:15]}, inner=_of_size)
    assert laid_together != exact_steps(entry, 15, {**resolved, "nodes": resolved["nodes"][:15]})
    assert by_stages(entry, 100, resolved, _of_size) == exact_steps(entry, 100, resolved)


def closed_forms(p: int, n: float) -> Iterator[tuple[str, float]]:
    """T(P, n) by the textbook, for powers of two."""
    log, share = log2(p), (p - 1) / p
    yield "allreduce/ring", 2 * (p - 1) * ALPHA + 2 * share * n * BETA + share * n * GAMMA
    for name in ("circulant", "swing", "bine", "recursive_halving_doubling"):
        yield f"allreduce/{name}", 2 * log * ALPHA + 2 * share * n * BETA + share * n * GAMMA
    yield "allreduce/recursive_doubling", log * (ALPHA + n * BETA + n * GAMMA)
    yield "reduce_scatter/ring", (p - 1) * ALPHA + share * n * (BETA + GAMMA)
    yield "allgather/ring", (p - 1) * ALPHA + share * n * BETA
    yield "allgather/circulant", log * ALPHA + share * n * BETA
    yield "bcast/binomial", log * (ALPHA + n * BETA)
    yield "bcast/scatter_allgather", 2 * log * ALPHA + 2 * share * n * BETA
    yield "reduce/binomial", log * (ALPHA + n * BETA + n * GAMMA)
    yield "alltoall/pairwise", (p - 1) * (ALPHA + n / p * BETA)
    yield "alltoall/bruck", log * (ALPHA + n / 2 * BETA)
    yield "scatter/binomial", log * ALPHA + share * n * BETA
    yield "barrier/dissemination", log * ALPHA


@pytest.mark.parametrize("size", [2, 8, 32, 4096])
def test_cost_is_the_closed_form(size: int) -> None:
    machine = uniform(ALPHA, BETA, GAMMA)
    for nbytes in (64.0, float(1 << 20), 1e9):
        for name, seconds in closed_forms(size, nbytes):
            given = {"k": 2} if "bruck" in name else {}
            assert cost(name, size, nbytes, machine, given).seconds == pytest.approx(seconds, rel=1e-9), name


@pytest.mark.parametrize(("size", "segments"), [(8, 1), (16, 5), (4096, 16), (4096, 700)])
def test_pipelines_cost_their_closed_form(size: int, segments: int) -> None:
    machine, n = uniform(ALPHA, BETA), 1e6
    one = ALPHA + n * BETA / segments
    given = {"segments": segments}
    assert cost("bcast/chain", size, n, machine, given).seconds == pytest.approx((size - 2 + segments) * one)
    circulant = cost("bcast/circulant_pipelined", size, n, machine, given).seconds
    assert circulant == pytest.approx((segments - 1 + log2(size)) * one)


def test_no_algorithm_beats_the_bound() -> None:
    plain = uniform(ALPHA, BETA, GAMMA, overlap=False)
    bent = Curve(((0, ALPHA, 2 * BETA), (1 << 12, 2 * ALPHA, BETA / 2), (1 << 22, ALPHA, 3 * BETA)))
    told = replace(plain, one_way=bent, exchange=bent, copy=straight(0.0, 2 * BETA))
    relayed = replace(plain, one_way_relayed=straight(ALPHA / 2, BETA / 2), exchange_relayed=bent)
    ported = replace(plain, ports=4.0)
    for algorithm in algorithms():
        for size in (2, 5, 8):
            params = params_at(algorithm, size)
            for nbytes, machine in product((8, 1 << 17, 1 << 24), (plain, told, relayed, ported)):
                if params is not None:
                    least = bound(algorithm.collective.name, size, nbytes, machine).seconds
                    assert cost(algorithm, size, nbytes, machine, params).seconds >= least * (1 - 1e-12)


def test_bound_is_reached_where_theory_says_so() -> None:
    """The circulant algorithms are optimal in all terms for powers of two (Träff, 2024)."""
    machine = uniform(ALPHA, BETA, GAMMA, gap=ALPHA, overlap=False)
    for name in ("reduce_scatter", "allgather"):
        ours, least = cost(f"{name}/circulant", 64, 1e8, machine), bound(name, 64, 1e8, machine)
        assert ours.seconds == pytest.approx(least.seconds)
    relayed = replace(machine, one_way_relayed=straight(ALPHA, BETA / 2))  # of two ranks none passes on
    assert cost("bcast/linear", 2, 1e8, relayed).seconds == pytest.approx(
        bound("bcast", 2, 1e8, relayed).seconds
    )


def test_algorithm_without_a_law_is_refused_for_many_ranks() -> None:
    def odd_one(rank: int, size: int) -> Iterator[Round]:
        """Rank 0 sends as many blocks as the third root of P says."""
        count = round(size ** (1 / 3)) * (1 + size % 7)
        if rank == 0:
            yield Round(sends=(Send(1, (Window(0, count),)),))

    entry = Algorithm(
        get("bcast", "linear").collective, "odd", odd_one, lambda s, p: 7 * s, False, lambda s, p: None
    )
    with pytest.raises(Exception, match=r"never met|follow no law"):
        steps(entry, 100_000)


# -- published relations -----------------------------------------------------------------------------------


def test_hop_bytes_on_a_ring_of_1024() -> None:
    """De Sensi et al., NSDI 2024: Swing swings to short distances; the circulant graph does not care."""
    wanted = {
        "ring": 1023 / 1024,
        "recursive_halving_near": 5.0,
        "swing": 3.4443359375,
        "circulant": 341.3330078125,
    }
    for name, hops in wanted.items():
        assert hop_bytes(f"reduce_scatter/{name}", 1024, ring(1024)) == pytest.approx(hops, abs=1e-9), name


def swing_on_a_torus(side: int, axes: int) -> Algorithm:
    """Swing's reduce-scatter with all ports of a torus (De Sensi et al., NSDI, 2024), `side` a power of two.

    2·`axes` collectives at once, each with its share of the vector: `axes` that begin with different
    dimensions, which all take in turn, and their mirror images.
    """
    ports, steps = 2 * axes, axes * (side.bit_length() - 1)

    def peer(rank: int, port: int, step: int) -> int:
        stride = prod([side] * (axes - 1 - (port + step) % axes))
        at = rank // stride % side
        ahead = (at % 2 == 0) == (port < axes)
        to = (at + (1 if ahead else -1) * swing_distance(step // axes)) % side
        return rank + (to - at) * stride

    @cache
    def kept(rank: int, port: int, step: int) -> tuple[Window, ...]:
        """What still matters to a rank before a step."""
        if step == steps:
            return (Window(rank * ports + port),)
        return kept(rank, port, step + 1) + kept(peer(rank, port, step), port, step + 1)

    def generate(rank: int, size: int) -> Iterator[Round]:
        for step in range(steps):
            told = [(port, peer(rank, port, step)) for port in range(ports)]
            yield Round(
                tuple(Send(to, tuple(sorted(kept(to, port, step + 1)))) for port, to in told),
                tuple(Recv(to, tuple(sorted(kept(rank, port, step + 1))), Side.RIGHT) for port, to in told),
            )

    kind = get("reduce_scatter", "ring").collective
    return Algorithm(kind, "swing", generate, lambda size, p: ports * size, False, lambda size, p: None)


@pytest.mark.parametrize(("axes", "bits", "published"), [(2, 3, "1.19"), (3, 2, "1.03"), (4, 2, "1.008")])
def test_congestion_deficiency_of_swing_on_a_torus(axes: int, bits: int, published: str) -> None:
    """De Sensi et al., NSDI 2024: the most loaded links over the least that they could carry, Ξ.

    Counted off the schedule, it is the sum over steps σ of distance δ(⌊σ/D⌋) times the share 1/2^(σ+1); of
    endless tori m/(m-1) with m = 2^(D-1)·(2^D-1), which the published numbers are, cut off.
    """

    def summed(bits: int) -> float:
        return sum(abs(swing_distance(step // axes)) / (2 << step) for step in range(axes * bits))

    side = 1 << bits
    size, entry = prod([side] * axes), swing_on_a_torus(side, axes)
    if size <= 64:
        verify(entry, size)
    most = [most["link"] for _, most in link_loads(entry, size, torus((side,) * axes))]
    assert sum(most) / size == summed(bits)
    m = 2 ** (axes - 1) * (2**axes - 1)
    assert summed(40) == pytest.approx(m / (m - 1), abs=1e-9)
    # The sum of a torus of 2^(7·D) ranks, and of any larger one, begins with the published digits.
    assert f"{summed(7):.6f}".startswith(published)
    assert f"{m / (m - 1) - 1e-9:.9f}".startswith(published)


@pytest.mark.parametrize(("size", "ratio"), [(64, 0.703125), (1024, 0.6888671875)])
def test_edges_of_a_bine_tree_are_a_third_shorter(size: int, ratio: float) -> None:
    """De Sensi et al., SC 2025: "by up to 33%". Links passed on a ring, over a binomial tree's."""
    fabric = ring(size)

    def passed(name: str) -> int:
        rounds = ((rank, step) for rank in range(size) for step in get("bcast", name).schedule(rank, size))
        return sum(len(list(fabric.route(rank, m.peer))) for rank, step in rounds for m in step.sends)

    assert passed("bine_tree") / passed("binomial") == ratio
    assert ratio > 2 / 3  # edges over 2^i become (2^(i+1)±1)/3 long


def test_bine_cuts_traffic_between_groups_by_up_to_a_third() -> None:
    """De Sensi et al., SC 2025: "cutting global-link traffic by up to 33%", against a binomial butterfly."""

    def outside(name: str, group: int) -> int:
        fabric, entry = levels(group), get("allreduce", name)
        messages = ((r, m) for r in range(64) for step in entry.schedule(r, 64) for m in step.sends)
        return sum(w.length for r, m in messages if list(fabric.route(r, m.peer)) for w in m.windows)

    other, groups = "recursive_halving_doubling_far", (4, 8, 12, 16, 24, 32)
    saved = [1 - outside("bine", group) / outside(other, group) for group in groups]
    assert min(saved) >= 0
    assert 0.05 < max(saved) < 1 / 3 + 1e-9


@pytest.mark.parametrize("size", [2, 3, 5, 6, 7, 12, 31, 64, 100, 65536])
def test_round_counts_of_circulant_algorithms(size: int) -> None:
    """Träff 2024, and IEEE CLUSTER 2022: ⌈log2 P⌉ for every P; S−1+⌈log2 P⌉ for a broadcast in S segments."""
    log = ceil(log2(size))

    def count(name: str, **params: int) -> int:
        return sum(n for n, _ in steps(get(*name.split("/")), size, params))

    assert count("reduce_scatter/circulant") == count("allgather/circulant") == log
    assert count("allreduce/circulant") == 2 * log
    assert count("bcast/circulant_pipelined", segments=9) == 8 + log


# -- fabrics, curves, machines -----------------------------------------------------------------------------


def test_ring_is_the_best_on_a_ring_and_circulant_on_a_flat_network() -> None:
    machine, n = uniform(1e-9, BETA), 1 << 24
    times = {
        a: cost_on(ring(64), f"allreduce/{a}", 64, n, machine).seconds for a in ("ring", "swing", "circulant")
    }
    assert times["ring"] < times["swing"] < times["circulant"]
    flat = {a: cost(f"allreduce/{a}", 64, n, uniform(ALPHA, BETA)).seconds for a in ("ring", "circulant")}
    assert flat["circulant"] < flat["ring"]


def test_shared_interface_slows_what_leaves_the_node() -> None:
    """All 4 ranks of a node send to the other node at once through an interface as fast as one rank."""
    machine, n = uniform(0.0, BETA, gap=0.0), 1e6
    seconds = cost_on(levels(4), "allreduce/recursive_doubling", 8, n, machine).seconds
    assert seconds == pytest.approx((2 + 4) * n * BETA)
    assert (
        max(most.get("out", 0) for _, most in link_loads("allreduce/recursive_doubling", 8, levels(4))) == 4
    )


@pytest.mark.parametrize("name", ["allreduce/ring", "allgather/bruck", "alltoall/linear", "bcast/chain"])
def test_one_node_costs_what_a_flat_network_does(name: str) -> None:
    """On a machine where what is passed on costs otherwise, and a copy may be hidden."""
    bent = Curve(((0, ALPHA, 2 * BETA), (1 << 12, 2 * ALPHA, BETA / 2)))
    machine = replace(
        uniform(ALPHA, BETA, GAMMA), one_way=bent, copy=straight(0.0, 2 * BETA),
        one_way_relayed=straight(ALPHA, 5 * BETA), exchange_relayed=straight(ALPHA, 4 * BETA),
    )  # fmt: skip
    for nbytes in (1 << 12, 1 << 20):
        flat = cost(name, 8, nbytes, machine)
        assert cost_on(levels(8), name, 8, nbytes, machine) == pytest.approx(flat, rel=1e-12)
    with pytest.raises(Unsupported, match="even"):
        cost_on(ring(3), "allreduce/swing", 3, 8, machine)


@pytest.mark.parametrize(
    "name",
    ["allreduce/ring", "allreduce/circulant", "bcast/scatter_allgather", "alltoall/pairwise",
     "alltoall/linear", "allreduce/two_level"],
)  # fmt: skip
def test_law_of_links_is_what_all_ranks_send(name: str) -> None:
    """Found with up to 16 nodes, compared with all ranks of 32."""
    size, fabric = 64, levels(2)
    params = {"nodes": tuple(rank // 2 for rank in range(size))} if "two_level" in name else {}
    lawful = [charge for count, charge in charges(name, size, fabric, params) for charge in [charge] * count]
    exact = link_loads(name, size, fabric, params)
    assert [(step_of(loads), most) for loads, most in lawful] == [
        (step_of(loads), most) for loads, most in exact
    ]


SHIFTED = (
    *("allgather/bruck", "allgather/ring", "allgather/sparse_halving", "allreduce/circulant"),
    *("alltoall/linear", "alltoall/pairwise", "barrier/dissemination", "reduce_scatter/linear"),
)


@pytest.mark.parametrize(
    "fabric",
    [torus((4, 6)), torus((2, 3, 4)), ring(24), levels(4), levels(2, group=3), dragonfly(2, 4)],
    ids=lambda fabric: fabric.name,
)
def test_shifts_load_links_as_all_ranks_do(fabric: Fabric) -> None:
    for name in SHIFTED:
        entry, links = get(*name.split("/")), fabric.shifted
        assert links is not None
        found = by_shifts(entry, 24, dict(entry.resolve(24)), links)
        assert found is not None
        assert [({load}, most) for load, most in found] == link_loads(entry, 24, fabric), name


def test_what_does_not_consist_of_shifts_is_not_charged_as_such() -> None:
    for name in ("allreduce/swing", "allreduce/recursive_doubling", "bcast/chain", "alltoall/in_place"):
        entry, links = get(*name.split("/")), ring(24).shifted
        assert links is not None
        assert by_shifts(entry, 24, dict(entry.resolve(24)), links) is None


def test_shifts_of_very_many_ranks_and_a_refusal_that_says_what_to_do() -> None:
    """A ring's link carries what its ranks send; pairwise, the farthest go over half of a dimension."""
    size, fabric = 1 << 12, torus((64, 64))
    assert all(most == {"link": 1} for _, (_, most) in charges("allreduce/ring", size, fabric))
    told = [
        most["link"] for count, (_, most) in charges("alltoall/pairwise", size, fabric) for _ in range(count)
    ]
    assert (len(told), max(told)) == (size - 1, 32)
    # Of a tree, only the root has many rounds.
    assert len(charges("bcast/binomial", 1 << 15, dragonfly(8, 16))) == 15
    with pytest.raises(Unsupported, match=r"4096 ranks have more than .* take fewer ranks"):
        charges("allreduce/binary_tree", size, fabric, {"segments": 200})


def test_what_shares_an_interface_is_predicted_for_4096_nodes() -> None:
    machine, n = uniform(ALPHA, BETA), 1e8
    for name, traffic_of_a_node in (("ring", 2.0), ("circulant", 2 * 2.0)):
        seconds = cost_on(levels(2), f"allreduce/{name}", 1 << 13, n, machine)
        assert seconds.bandwidth == pytest.approx(traffic_of_a_node * n * BETA, rel=0.01)


def test_torus_routes_take_the_shorter_way() -> None:
    fabric = torus((4, 4))
    assert [len(list(fabric.route(0, peer))) for peer in (0, 1, 3, 5, 10, 12)] == [0, 1, 1, 2, 4, 1]
    with pytest.raises(ArgumentError, match="has 6 ranks, not 8"):
        make_fabric("torus", 8, dims=(2, 3))
    with pytest.raises(ArgumentError, match="known: flat"):
        make_fabric("moebius", 8)
    for shape in ({"group": 0}, {"group": -1}, {"taper": 0.0}, {"taper": -2.0}, {"taper": float("nan")}):
        with pytest.raises(ArgumentError, match="group is 1 or more"):
            make_fabric("fattree", 8, **shape)


def test_curve_holds_piecewise_and_machine_survives_json() -> None:
    curve = Curve(((0, 1e-6, 1e-9), (1000, 5e-6, 1e-10)))
    assert (curve(0), curve(999), curve(1000)) == pytest.approx((1e-6, 1.999e-6, 5.1e-6))
    assert curve.least_latency == 1e-6
    machine = Machine(curve, straight(1e-6, 1e-9), straight(0, 1e-11), gap=1e-7)
    assert Machine.from_json(machine.to_json()) == machine
    broken = machine.to_json().replace("1e-07", "NaN"), machine.to_json().replace("5e-06", '"five"')
    no_copy = json.dumps({**json.loads(machine.to_json()), "copy": None})
    for text in ("", "[]", "{}", '{"one_way": 3}', "[" * 100_000, *broken, no_copy):
        with pytest.raises(ArgumentError, match="not a machine"):
            Machine.from_json(text)
    with pytest.raises(ArgumentError, match="begin at 0"):
        Curve(((1, 0, 0),))


def test_channels_cost_latency_and_hide_combining() -> None:
    machine = uniform(ALPHA, BETA, GAMMA)
    one, four = (cost("allreduce/ring", 2, 1e8, machine, channels=c) for c in (1, 4))
    assert four.latency == pytest.approx(4 * one.latency)
    assert four.reduction == pytest.approx(one.reduction / 4)
