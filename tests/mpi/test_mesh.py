"""Meshes: groups along axes, one rank in many groups, collectives on two groups at a time."""

from __future__ import annotations

import numpy as np
import pytest

import mpicoll

from .support import ENGINES, WORLD, world

SIZE, RANK = WORLD.size, WORLD.rank
INNER = 2 if SIZE % 2 == 0 else 1


def test_every_axis_is_a_comm_of_the_ranks_along_it() -> None:
    mesh = mpicoll.Mesh(world(ENGINES[-1]), data=-1, tensor=INNER)
    assert dict(mesh.shape) == {"data": SIZE // INNER, "tensor": INNER}
    assert mesh.coordinates == {"data": RANK // INNER, "tensor": RANK % INNER}
    for axis, members in (
        ("data", [r for r in range(SIZE) if r % INNER == RANK % INNER]),
        ("tensor", [r for r in range(SIZE) if r // INNER == RANK // INNER]),
    ):
        group = mesh[axis]
        assert isinstance(group, mpicoll.Comm)
        assert (group.rank, group.size) == (mesh.coordinates[axis], mesh.shape[axis])
        total = np.zeros(3)
        group.Allreduce(np.full(3, RANK, "d"), total, algorithm="ring")
        np.testing.assert_array_equal(total, sum(members))
    both = mesh.group("tensor", "data")
    gathered = np.zeros(SIZE, int)
    both.Allgather(np.array([RANK]), gathered)
    expected = [d * INNER + t for t in range(INNER) for d in range(SIZE // INNER)]
    np.testing.assert_array_equal(gathered, expected)
    both.Free()
    mesh.Free()


def test_a_mesh_over_nodes_has_the_ranks_of_a_node_along_one_axis() -> None:
    """One node here; tests/cluster has several."""
    for comm in (WORLD, world(ENGINES[-1])):
        mesh = mpicoll.Mesh.over_nodes(comm)
        assert dict(mesh.shape) == {"node": 1, "local": SIZE}
        assert mesh.coordinates == {"node": 0, "local": RANK}
        mesh.Free()


def test_collectives_outstanding_on_two_groups_do_not_mix() -> None:
    mesh = mpicoll.Mesh(world(ENGINES[-1]), data=SIZE // INNER, tensor=INNER)
    whole = mpicoll.Mesh(world(ENGINES[-1]), one=SIZE, none=1)
    for turn in range(3):
        x = np.arange(2000.0) + RANK + turn
        y, z, w = np.zeros(2000), np.zeros(2000), np.zeros(2000)
        requests = [
            mesh["data"].Iallreduce(x, y),
            whole["one"].Iallreduce(x, w),
            mesh["tensor"].Iallreduce(x, z),
        ]
        for i in (turn % 3, (turn + 1) % 3, (turn + 2) % 3):
            requests[i].Wait()
        base = np.arange(2000.0) + turn
        data = [r for r in range(SIZE) if r % INNER == RANK % INNER]
        tensor = [r for r in range(SIZE) if r // INNER == RANK // INNER]
        for result, members in ((y, data), (z, tensor), (w, list(range(SIZE)))):
            np.testing.assert_array_equal(result, len(members) * base + sum(members))
    mesh.Free()
    whole.Free()


def test_wrong_shapes_are_refused() -> None:
    comm = world(ENGINES[0])
    with pytest.raises(mpicoll.ArgumentError, match=f"does not make {SIZE} ranks"):
        mpicoll.Mesh(comm, data=SIZE + 1)
    with pytest.raises(mpicoll.ArgumentError, match="at least one axis"):
        mpicoll.Mesh(comm)
    with pytest.raises(mpicoll.ArgumentError, match="positive"):
        mpicoll.Mesh(comm, data=0)
    mesh = mpicoll.Mesh(comm, data=SIZE)
    with pytest.raises(mpicoll.ArgumentError, match="it has: data"):
        mesh["tensor"]
    with pytest.raises(mpicoll.ArgumentError, match="distinct axes"):
        mesh.group("data", "data")
    mesh.Free()


@pytest.mark.ranks(2, 3)
def test_what_one_rank_asks_of_a_mesh_and_the_others_do_not_is_refused_by_all() -> None:
    last = RANK == SIZE - 1
    for comm in (WORLD, world(ENGINES[0])):
        with pytest.raises(mpicoll.ArgumentError, match="positive"):
            mpicoll.Mesh(comm, data=0 if last else SIZE)
        with pytest.raises(mpicoll.MismatchError, match="mesh of"):
            mpicoll.Mesh(comm, **({"data": 1, "tensor": SIZE} if last else {"data": SIZE, "tensor": 1}))
        with pytest.raises(mpicoll.ArgumentError, match="choose one of node"):
            mpicoll.Mesh.over_nodes(comm, "core" if last else "node")
        mesh = mpicoll.Mesh(comm, data=SIZE, tensor=1)
        with pytest.raises(mpicoll.ArgumentError, match="distinct axes"):
            mesh.group("none" if last else "data")
        with pytest.raises(mpicoll.MismatchError, match="group along"):
            mesh.group("tensor" if last else "data")
        mesh.Free()
