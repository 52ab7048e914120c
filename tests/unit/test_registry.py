"""The register: look-up, parameters, refusals, and one short algorithm added and taken away."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import mpicoll.algorithms  # noqa: F401  (importing registers them)
from mpicoll import registry
from mpicoll.collectives import COLLECTIVES, collective
from mpicoll.errors import ArgumentError, Unsupported
from mpicoll.registry import algorithm, algorithms, get, needs_nodes, unregister
from mpicoll.schedule import Schedule, Window, recv, send
from mpicoll.verify import verify


@pytest.fixture
def chain() -> Iterator[registry.Algorithm]:
    """A broadcast along a chain from the root, made for this test only."""

    @algorithm(
        "bcast",
        blocks=lambda size, p: p["segments"],
        requires=lambda size, p: "seven ranks are unlucky here" if size == 7 else None,
        tune={"segments": lambda size, nbytes: max(1, nbytes // 1024)},
        name="chain for tests",
    )
    def chain(rank: int, size: int, *, root: int = 0, segments: int = 2) -> Schedule:
        """Hand each segment on to the next rank.

        Reference: none.
        """
        place = (rank - root) % size
        for segment in range(segments):
            if place > 0:
                yield recv((rank - 1) % size, Window(segment))
            if place < size - 1:
                yield send((rank + 1) % size, Window(segment))

    yield get("bcast", "chain for tests")
    unregister("bcast", "chain for tests")


def test_new_algorithm_is_found_and_proved(chain: registry.Algorithm):
    assert chain in algorithms("bcast")
    assert str(chain) == "bcast/chain for tests"
    assert chain.summary == "Hand each segment on to the next rank."
    assert not chain.hierarchical
    assert verify(chain, 5, {"root": 3, "segments": 3}).messages == 4 * 3


def test_unregistering_forgets(chain: registry.Algorithm):
    unregister("bcast", "chain for tests")
    with pytest.raises(ArgumentError, match="no algorithm 'chain for tests'"):
        get("bcast", "chain for tests")


def test_registering_twice_is_an_error(chain: registry.Algorithm):
    with pytest.raises(ArgumentError, match="registered twice"):
        algorithm("bcast", blocks=lambda size, p: 1, name="chain for tests")(chain.generate)


def test_parameters_are_given_over_tuned_over_default(chain: registry.Algorithm):
    assert chain.resolve(4) == {"root": 0, "segments": 2}
    assert chain.resolve(4, nbytes=8192) == {"root": 0, "segments": 8}
    assert chain.resolve(4, {"segments": 5}, nbytes=8192) == {"root": 0, "segments": 5}
    assert chain.resolve(4, {"segments": None}, nbytes=8192)["segments"] == 8
    assert chain.blocks(4, {"segments": 3}) == 3


def test_unknown_parameter_names_the_known_ones(chain: registry.Algorithm):
    with pytest.raises(ArgumentError, match="has no parameter colour; it has: root, segments"):
        chain.resolve(4, {"colour": 1})


def test_refusal_comes_at_once_and_gives_the_reason(chain: registry.Algorithm):
    assert chain.refusal(7) == "seven ranks are unlucky here"
    assert chain.refusal(6) is None
    with pytest.raises(Unsupported, match="P=7: seven ranks are unlucky here"):
        chain.schedule(0, 7)  # before the first round is asked for


@pytest.mark.parametrize(
    ("rank", "size", "params"),
    [(4, 4, {}), (-1, 4, {}), (0, 0, {}), (0, 4, {"root": 4}), (0, 4, {"root": -1})],
)
def test_ranks_and_roots_out_of_range_are_refused(
    chain: registry.Algorithm, rank: int, size: int, params: dict[str, int]
):
    with pytest.raises(ArgumentError):
        chain.schedule(rank, size, params)


def test_node_maps_must_have_an_entry_per_rank():
    assert "needs a node map" in needs_nodes(4, {"nodes": None})
    assert needs_nodes(4, {"nodes": (0, 0)}) == "its node map has 2 entries for 4 ranks"
    assert needs_nodes(4, {"nodes": (0, 0, 1, 1)}) is None


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ArgumentError, match="unknown collective 'allredcue'; known: allreduce, "):
        collective("allredcue")
    with pytest.raises(ArgumentError, match="unknown collective"):
        get("allredcue", "ring")
    with pytest.raises(ArgumentError, match=r"allreduce has no algorithm 'rign'; it has: .*ring"):
        get("allreduce", "rign")


@pytest.mark.parametrize("entry", algorithms(), ids=str)
def test_algorithm_is_documented(entry: registry.Algorithm):
    """A summary of one sentence, and a reference or a word on where it comes from."""
    text = entry.generate.__doc__
    assert entry.summary.endswith(".")
    assert "Rounds" in text
    assert "Reference" in text
    assert entry.collective is COLLECTIVES[entry.collective.name]


@pytest.mark.parametrize("kind", COLLECTIVES.values(), ids=str)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_promises_are_consistent(kind, size: int):
    """Every part exists, has an origin that holds it, and is promised to somebody (but for a barrier)."""
    parts = set(range(kind.parts(size)))
    for root in {0, size - 1}:
        before = [set(kind.before(rank, size, root)) for rank in range(size)]
        after = [set(kind.after(rank, size, root)) for rank in range(size)]
        if kind.name == "barrier":
            assert not any(before + after)
            continue
        assert set().union(*before) == set().union(*after) == parts
        for part in parts:
            assert part in before[kind.origin(part, size, root)]


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("allreduce/segmented_ring", {"segments": 0}, "segments must be a whole number of at least 1, not 0"),
        ("allreduce/segmented_ring", {"segments": "abc"}, "segments must be .*, not 'abc'"),
        ("allgather/k_ring", {"group": 0}, "group=0 must divide P"),
        ("allgather/k_ring", {"group": "abc"}, "group='abc' must divide P"),
        ("allreduce/leader", {"leaders": 0}, "leaders must be 1 to"),
        # These are served somewhere, and others than the values are to blame where they are not.
        ("allgather/k_ring", {"group": 48}, None),
        ("allreduce/leader", {"leaders": 48}, None),
        ("allreduce/swing", {}, None),
        ("reduce/bine_tree", {}, None),
        ("allreduce/leader", {"intra": "chain"}, None),
    ],
)
def test_a_value_that_no_number_of_ranks_makes_right_is_told_from_a_case(name, params, words):
    found = get(*name.split("/")).impossible(params)
    assert (found is None) if words is None else re.search(words, found)


def test_a_composition_of_an_unknown_algorithm_names_the_known():
    with pytest.raises(ArgumentError, match=r"reduce has no algorithm 'ring'; it has: .*chain"):
        get("allreduce", "leader").impossible({"intra": "ring"})


def test_defaults_are_possible():
    assert [str(entry) for entry in algorithms() if entry.impossible({})] == []
