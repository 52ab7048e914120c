"""The steps that an algorithm takes: what its busiest ranks do in each, for up to very many ranks.

For few ranks, or few rounds, the schedules of all ranks are run against each other (`loads`). Above, a law
must hold (`laws`), or all are run as long as that takes some seconds. Pipelines of very many segments are
treated likewise: the lengths of their runs grow linearly with the number of segments.
"""

from __future__ import annotations

from .errors import Unsupported
from .laws import SMALL, by_law, linear
from .loads import FEW_ROUNDS, MOST_ROUNDS, Frozen, Params, Run, exact, frozen, has_rounds, kept
from .registry import Algorithm
from .stagewise import by_stages

#: A pipeline of more segments is continued from shorter ones.
FEW_SEGMENTS = 24


def steps(algorithm: Algorithm, size: int, params: Params | None = None) -> tuple[Run, ...]:
    """The steps of `algorithm` on `size` ranks, by a law where there are many ranks.

    Raises `Unsupported` where the algorithm does not serve the case, and where it is irregular and ranks
    are too many to run them all.

    >>> import mpicoll.algorithms
    >>> from mpicoll.registry import get
    >>> [count for count, _ in steps(get("allreduce", "ring"), 65536)]
    [65535, 65535]
    """
    resolved = algorithm.resolve(size, params)
    refuse(algorithm, size, resolved)
    return _steps(algorithm, size, frozen(resolved))


def refuse(algorithm: Algorithm, size: int, params: Params) -> None:
    """Raise `Unsupported` where the algorithm does not serve the case; parameters are resolved."""
    if reason := algorithm.refusal(size, params):
        raise Unsupported(f"{algorithm} with P={size}: {reason}")


@kept
def _steps(algorithm: Algorithm, size: int, key: Frozen) -> tuple[Run, ...]:
    params = dict(key)
    segments = params.get("segments")
    if (
        isinstance(segments, int)
        and segments > FEW_SEGMENTS + 8
        and (found := _longer(algorithm, size, params))
    ):
        return found
    return _of_size(algorithm, size, key)


@kept
def _of_size(algorithm: Algorithm, size: int, key: Frozen) -> tuple[Run, ...]:
    """The steps for these very parameters."""
    params = dict(key)
    if size <= SMALL or has_rounds(algorithm, size, params, FEW_ROUNDS):
        return exact(algorithm, size, key)
    composed = params.get("nodes") is not None
    found = by_stages(algorithm, size, params, _of_size) if composed else by_law(algorithm, size, params)
    if found is None and has_rounds(algorithm, size, params, MOST_ROUNDS):
        found = exact(algorithm, size, key)
    if found is None:
        raise Unsupported(
            f"the ranks of {algorithm} follow no law that could be found, and the rounds of {size} are too "
            f"many to run them all (the most are {MOST_ROUNDS}): take a power of two, which has more laws, "
            "or fewer ranks"
        )
    return found


def _longer(algorithm: Algorithm, size: int, params: Params) -> tuple[Run, ...] | None:
    """The steps of a long pipeline, from those of three of a few segments each.

    Segments may be dealt to two trees in turn, so that odd and even numbers of them are different cases; and
    a pipeline over many ranks takes longer to fill.
    """
    segments = params["segments"]
    for few in (FEW_SEGMENTS, FEW_SEGMENTS + 2 * size.bit_length()):
        start = few + segments % 2
        shorter = {s: frozen({**params, "segments": s}) for s in (start, start + 2, start + 4)}
        if segments > start + 4 and (
            found := linear({s: _of_size(algorithm, size, key) for s, key in shorter.items()}, segments)
        ):
            return found
    return None
