"""The steps for many ranks by a law: from those for few.

Running the schedules of all ranks against each other takes long where they are many, and is not needed, as
algorithms are regular. `by_law` looks for a *law* that gives the steps for P ranks from less, and uses it
only if it reproduces those of all ranks at every one of several small P that are like P (and, unless P is a
power of two, at up to a dozen larger ones):

- the runs of equal steps are as many for all P; their lengths grow linearly with P (rings, chains) or with
  ⌊log2 P⌋ (trees, pipelines), and what is done in them is constant or grows linearly with P;
- or every doubling of P adds a run, or two;
- or the steps are the rounds of a few ranks (any rank of a vertex-transitive algorithm; a proxy in a fold and
  a rank without; the root of a tree), whose schedules are then all that is made for P ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from operator import mul
from typing import Any

from .algorithms.patterns import base_factors, circulant_skips, fold_ranks
from .loads import FEW_ROUNDS, Load, Params, Run, exact, frozen, has_rounds, of_ranks
from .registry import Algorithm

#: Laws are found at up to so many ranks.
SMALL = 32

Law = Callable[[int], tuple[Run, ...] | None]  # from P


def linear(
    known: Mapping[int, tuple[Run, ...]], at: int, x: Callable[[int], int] = int
) -> tuple[Run, ...] | None:
    """The runs at P = `at`, if those at the known P are as many, and every number in them is linear.

    Lengths are linear in ``x(P)``, the numbers of a load in P.
    """
    first, *others = known.values()
    if any([len(step) for _, step in value] != [len(step) for _, step in first] for value in others):
        return None

    def lengths(place: int) -> int | None:
        return _line({x(p): value[place][0] for p, value in known.items()}, x(at))

    def loads(place: int, which: int) -> Load | None:
        rows = {p: value[place][1][which] for p, value in known.items()}
        fields = [_line({p: row[field] for p, row in rows.items()}, at) for field in range(len(Load._fields))]
        numbers = [n for n in fields if n is not None]
        if len(numbers) < len(fields):
            return None
        messages, blocks, reduced, largest, both = numbers
        return Load(messages, blocks, reduced, largest, bool(both))

    result: list[Run] = []
    for place, (_, step) in enumerate(first):
        length, step_loads = lengths(place), [loads(place, which) for which in range(len(step))]
        if length is None or length < 1 or None in step_loads:
            return None
        result.append((length, tuple(one for one in step_loads if one is not None)))
    return tuple(result)


def _line(points: Mapping[int, int], at: int) -> int | None:
    """The value at `at` of the line through all points; None if there is none, or no whole value.

    >>> _line({1: 2, 2: 4, 4: 8}, 7), _line({1: 2, 2: 4, 4: 7}, 7), _line({0: 0, 2: 1}, 3)
    (14, None, None)
    """
    (x0, y0), (x1, y1), *_ = points.items()
    slope = Fraction(y1 - y0, x1 - x0)
    value = y0 + slope * (at - x0)
    if value.denominator != 1 or any(y != y0 + slope * (x - x0) for x, y in points.items()):
        return None
    return int(value)


def grown(known: Mapping[int, tuple[Run, ...]], at: int) -> tuple[Run, ...] | None:
    """The runs at P = `at`, if every doubling of P adds one run at a place, or one each at two places.

    The place is the same counted from the start (the second: from the end) for all P; what was added stays
    as it is, and is linear in the P that added it; all other runs are as for `linear`.
    """
    sizes = list(known)
    more = len(known[sizes[1]]) - len(known[sizes[0]]) if len(sizes) > 3 else 0
    doubled = all(b == 2 * a and len(known[b]) == len(known[a]) + more for a, b in pairwise(sizes))
    if more not in (1, 2) or not doubled or at % sizes[0] or (at // sizes[0]).bit_count() != 1:
        return None
    count = len(known[sizes[0]])
    for before in range(count + 1):
        for after in range(count - before + 1) if more == 2 else (count - before,):
            if found := _grown_at(known, at, before, count - after, more == 2):
                return found
    return None


def _grown_at(
    known: Mapping[int, tuple[Run, ...]], at: int, before: int, stop: int, twice: bool
) -> tuple[Run, ...] | None:
    """`grown` where runs are added behind the first `before` ones, and if `twice` before number `stop`, too.

    (Both are counted at the smallest P.)
    """
    old, first, second = {}, {}, {}
    for age, (size, told) in enumerate(known.items()):
        old[size] = told[:before] + told[before + age : stop + age] + told[stop + age * (1 + twice) :]
        first[size], second[size] = told[before : before + age], told[stop + age : stop + age * (1 + twice)]
    kept = [(a, b) for sides in (first, second) for a, b in pairwise(sides.values())]
    if any(b[len(b) - len(a) :] != a for a, b in kept[: len(known) - 1]):
        return None
    if any(b[: len(a)] != a for a, b in kept[len(known) - 1 :]):
        return None
    new = {size: first[size][:1] + second[size][-1:] for size in list(known)[1:]}
    doublings = (at // next(iter(known))).bit_length() - 1
    added = [linear(new, next(iter(known)) << (1 + k)) for k in range(doublings)]
    rest = linear(old, at)
    if rest is None or None in added:
        return None
    fresh = [runs for runs in added if runs is not None]
    left = tuple(runs[0] for runs in reversed(fresh))
    right = tuple(runs[1] for runs in fresh) if twice else ()
    return rest[:before] + left + rest[before:stop] + right + rest[stop:]


def alike(size: int, *, even: bool = False) -> list[int]:
    """Small numbers of ranks that are like `size`: what halving it again and again leads to.

    Their binary digits begin as those of `size`, and they are powers of two only where it is one. `even`
    leaves no odd ones.

    >>> alike(65536), alike(96), alike(65), alike(127), alike(100), alike(100, even=True)
    ([4, 8, 16, 32], [6, 12, 24], [5, 9, 17], [7, 15, 31], [6, 12, 25], [6, 12, 24])
    """
    found = set()
    shrunk = size // 2
    while shrunk >= 4:
        small = shrunk & ~1 if even else shrunk
        if small & (small - 1) == 0 and size & (size - 1):
            small += 1 + even
        if small <= SMALL:
            found.add(small)
        shrunk //= 2
    return sorted(found)


def scattered(size: int) -> list[int]:
    """Small numbers of ranks of the parity of `size` (or powers of two) that are far from a geometric series.

    >>> scattered(64), scattered(96), scattered(97)
    ([4, 8, 16, 32], [6, 10, 14, 18, 26], [5, 7, 11, 17, 27])
    """
    if size & (size - 1) == 0:
        return [4, 8, 16, 32]
    return [6, 10, 14, 18, 26] if size % 2 == 0 else [5, 7, 11, 17, 27]


def akin(size: int) -> list[int]:
    """Larger numbers of ranks that no law has seen: the first binary digits of `size`, and then its last.

    Where `size` is no power of two, every digit and every carry may matter. None is a power of two, and all
    are even or odd as `size` is.

    >>> [f"{p:b}" for p in akin(0b111_0000_0011)]
    ['100011', '110011', '111011', '111001', '1000011', '1100011', '1110011', '1110001']
    >>> akin(132)
    [36, 34, 68, 66]
    """
    found: dict[int, None] = {}
    for digits in (SMALL.bit_length(), SMALL.bit_length() + 1):
        for first in range(1, digits + 1):
            last = digits - first
            like = (size >> (size.bit_length() - first) << last) | (size & ((1 << last) - 1))
            like += (like ^ size) & 1
            found[like + 2 * (like & (like - 1) == 0)] = None
    return [*found]


def _unseen(algorithm: Algorithm, size: int, params: Params) -> list[int] | None:
    """Those of `akin` without too many rounds; none for a power of two, which is as regular as it looks.

    None if the algorithm does not serve such numbers.
    """
    if size & (size - 1) == 0:
        return []
    found = akin(size)
    if any(algorithm.refusal(like, at_size(like, params)) for like in found):
        return None
    return [p for p in found if has_rounds(algorithm, p, at_size(p, params), FEW_ROUNDS)]


def by_law(algorithm: Algorithm, size: int, params: Params) -> tuple[Run, ...] | None:
    """The steps by the first law that holds at small P and, but for powers of two, at unseen ones."""
    unseen = _unseen(algorithm, size, params)
    if unseen is None:
        return None
    right = {p: exact(algorithm, p, frozen(at_size(p, params))) for p in unseen}
    if size in right:
        return right[size]
    for law in _laws(algorithm, size, params):
        if all(law(p) == steps for p, steps in right.items()) and (found := law(size)):
            return found
    return None


def unbent(params: Params, least: int) -> bool:
    """Whether no limit, such as alltoall's throttle, is reached by more than `least` ranks only.

    It would bend every line through smaller numbers.
    """
    return not any(
        isinstance(v, int) and v >= least for k, v in params.items() if k not in ("segments", "root")
    )


def _laws(algorithm: Algorithm, size: int, params: Params) -> Iterator[Law]:
    """Functions from P to steps that hold at small P like `size`."""
    far = scattered(size)
    straight = unbent(params, min((*far, 4)))
    if straight and (known := _known(algorithm, far, params)):
        yield partial(linear, known)
    families = (_known(algorithm, alike(size, even=even), params) for even in (False, True))
    served = [family for family in families if family]
    for near in served:
        fewest = 3 if size & (size - 1) == 0 else 2  # two lie on any line, but others are checked, too
        for least in list(near)[: 1 - fewest] if straight else ():  # the smallest trees may lack something
            some = {p: v for p, v in near.items() if p >= least}
            yield partial(linear, some, x=int.bit_length)
        if straight:
            yield partial(grown, near)
    if not served:
        return
    # What depends on whether there is a fold must be right with one, too.
    folded = [p + 2 - p % 2 for p in alike(size)] if size & (size - 1) else []
    known = {**served[0], **(_known(algorithm, folded, params) or {})}
    for ranks in _CANDIDATES:
        law = partial(_by_ranks, algorithm, params, ranks)
        if all(law(p) == steps for p, steps in known.items()):
            yield law


def at_size(small: int, params: Params) -> dict[str, Any]:
    """The parameters of a smaller case: a root that is there, and the first of the nodes."""
    fitted = dict(params)
    if fitted.get("root"):
        fitted["root"] = fitted["root"] % small
    if fitted.get("nodes") is not None:
        fitted["nodes"] = tuple(fitted["nodes"][:small])
    return fitted


def _known(algorithm: Algorithm, sizes: Iterable[int], params: Params) -> dict[int, tuple[Run, ...]] | None:
    """The exact steps for small numbers of ranks; None if one of them is not served."""
    found = {}
    for small in sizes:
        fitted = at_size(small, params)
        if algorithm.refusal(small, fitted):
            return None
        found[small] = exact(algorithm, small, frozen(fitted))
    return found


def twins(size: int, params: Params) -> list[int]:
    """The powers of two, and as far from the middle: left spines of trees over all, or over either half."""
    powers = [1 << bit for bit in range(size.bit_length()) if 1 << bit < size]
    return [0, *powers, *(size // 2 + power for power in powers if power < size - size // 2)]


def folds(size: int, params: Params) -> list[int]:
    """Along a fold: an extra, and proxies whose digits are the highest up to a place, or from one on.

    Each of these meets the next at the first place where they differ, so that the delay of one who had to
    wait for an extra goes through all of them, as it does through all ranks.
    """
    factors = base_factors(size, int(params.get("k", 2)))
    base = prod(factors)
    weights = [*accumulate(factors, mul, initial=1)]
    ends = {end for w in weights for end in (w - 1, base - w, base - base // w, base // w - 1)}
    return sorted({0, *(fold_ranks(size, base)[v] for v in ends)})


def spines(size: int, params: Params) -> list[int]:
    """`folds`, and proxies whose digits are the highest but for a run of zeros: every delay on the way."""
    factors = base_factors(size, int(params.get("k", 2)))
    base = prod(factors)
    weights = [*accumulate(factors, mul, initial=1)]
    gaps = {base - 1 - (high - low) for high in weights for low in weights if low <= high}
    return sorted({*folds(size, params), *(fold_ranks(size, base)[v] for v in gaps)})


def beginnings(size: int, params: Params) -> list[int]:
    """The first ranks that a circulant graph reaches: one or two of its skips from the root."""
    skips = [0, *circulant_skips(size)[1:]]
    return sorted({(a + b) % size for a in skips for b in skips})


Choice = Callable[[int, Params], list[int]]
#: Ranks, counted from the root, among whose rounds may be all the steps.
_CANDIDATES: tuple[Choice, ...] = (
    lambda size, params: [0],
    lambda size, params: [1],
    lambda size, params: [0, 1],
    lambda size, params: [1, -1],
    lambda size, params: [0, -1],
    lambda size, params: [0, 1, -1],
    twins,
    folds,
    spines,
    beginnings,
)


def _by_ranks(algorithm: Algorithm, params: Params, ranks: Choice, size: int) -> tuple[Run, ...]:
    """The steps of a few ranks; at numbers that are smaller than that of `params`, those are fitted."""
    fitted = at_size(size, params)
    root = fitted.get("root", 0)
    return of_ranks(algorithm, size, fitted, [(root + rank) % size for rank in ranks(size, params)])
