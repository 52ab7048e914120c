"""Named groups of ranks: a grid over a communicator, each axis of which is a `Comm`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from mpi4py import MPI

from .algorithms.nodes import members
from .comm import Comm
from .errors import ArgumentError, MismatchError


class Mesh:
    """Ranks as a grid with named axes, the last one varying fastest.

    ``mesh = Mesh(comm, data=4, tensor=2)`` puts rank r at data = r // 2, tensor = r % 2.
    ``mesh["tensor"]`` is the `Comm` of the ranks that differ from this one in that coordinate only, ordered
    by it. One axis may have the size -1: as many as are left. Every rank is in one group of each axis, and
    collectives under way on different axes do not mix. Construction is collective.

    Raises `ArgumentError` if the sizes do not multiply to the number of ranks, and `MismatchError` if ranks
    give different axes; on all ranks alike.
    """

    def __init__(self, comm: MPI.Intracomm, /, **axes: int) -> None:
        self._own_comm = not isinstance(comm, Comm)
        self.comm = comm if isinstance(comm, Comm) else Comm(comm)
        try:
            self.shape: Mapping[str, int] = self._settle(
                lambda: _complete(axes, comm.size), f"mesh of {axes}"
            )
        except (ArgumentError, MismatchError):
            if self._own_comm:
                self.comm.Free()
            raise
        coordinates, rest = {}, comm.rank
        for name in reversed(self.shape):
            rest, coordinates[name] = divmod(rest, self.shape[name])
        self.coordinates: Mapping[str, int] = {name: coordinates[name] for name in self.shape}
        self._groups = {name: self.group(name) for name in self.shape}

    @classmethod
    def over_nodes(cls, comm: MPI.Intracomm, /, level: str = "node") -> Mesh:
        """The mesh of nodes and places on them, for any placement of ranks. Collective.

        Along "local" lie the ranks of one node, along "node" those at the same place of each. With `level`
        "socket" or "numa" it is these instead of nodes. Ranks keep their numbers in `comm`, not in the
        mesh's own communicator.

        Raises `ArgumentError`, on all ranks, if nodes have different numbers of ranks.
        """
        own = comm if isinstance(comm, Comm) else Comm(comm)
        try:
            domains = own._planner.settle(lambda: own.node_topology.domains(level), f"mesh over {level}")
            nodes = members(domains)
            counts = sorted({len(ranks) for ranks in nodes})
            if len(counts) > 1:
                raise ArgumentError(f"the mesh needs equally many ranks on every {level}, not {counts}")
            order = [rank for ranks in nodes for rank in ranks]
            mesh = cls(own.Split(0, order.index(own.rank)), node=len(nodes), local=counts[0])
        finally:
            if own is not comm:
                own.Free()
        mesh._own_comm = True
        return mesh

    def __getitem__(self, axis: str) -> Comm:
        """The group of this rank along an axis."""
        if axis not in self._groups:
            raise ArgumentError(f"the mesh has no axis {axis!r}; it has: {', '.join(self._groups)}")
        return self._groups[axis]

    def group(self, *axes: str) -> Comm:
        """A new `Comm` of the ranks that differ from this one in these axes only. Collective.

        It belongs to the caller, who frees it.
        """

        def check() -> None:
            if not set(axes) <= set(self.shape) or len(set(axes)) != len(axes):
                raise ArgumentError(f"expected distinct axes among {', '.join(self.shape)}, got {axes}")

        self._settle(check, f"group along {axes}")
        color = key = 0
        for name, size in self.shape.items():
            if name not in axes:
                color = color * size + self.coordinates[name]
        for name in axes:
            key = key * self.shape[name] + self.coordinates[name]
        return self.comm.Split(color, key)

    def _settle(self, make: Callable[[], Any], what: str) -> Any:
        """What this rank makes, if all ranks ask for the same and can make it. Collective."""
        return self.comm._planner.settle(make, what)

    def Free(self) -> None:
        """Free the groups. Collective."""
        for group in self._groups.values():
            group.Free()
        self._groups = {}
        if self._own_comm:
            self.comm.Free()

    def __repr__(self) -> str:
        """Shape, and where this rank is."""
        places = ", ".join(f"{name} {self.coordinates[name]} of {size}" for name, size in self.shape.items())
        return f"<Mesh: {places}>"


def _complete(axes: Mapping[str, int], size: int) -> dict[str, int]:
    """The sizes of all axes, checked, with the one that is -1 computed."""
    if not axes:
        raise ArgumentError("a mesh needs at least one axis, as in Mesh(comm, data=4, tensor=2)")
    sizes: Mapping[str, Any] = axes  # whatever a caller may give
    wrong = [f"{name}={n!r}" for name, n in sizes.items() if not isinstance(n, int) or (n < 1 and n != -1)]
    open_axes = [name for name, n in sizes.items() if n == -1]
    if wrong or len(open_axes) > 1:
        what = ", ".join(wrong or open_axes)
        raise ArgumentError(f"axis sizes are positive integers, one of them may be -1: {what}")
    known = prod(n for n in axes.values() if n != -1)
    if open_axes and size % known == 0:
        return {name: size // known if n == -1 else n for name, n in axes.items()}
    if open_axes or known != size:
        text = " x ".join(f"{name}={n}" for name, n in axes.items())
        raise ArgumentError(f"{text} does not make {size} ranks")
    return dict(axes)
