"""How long an algorithm takes on a machine that need not exist: α-β-γ, summed over the steps of its schedule.

A step costs what its busiest rank needs for it:

    α + g·(messages − 1) + β·bytes/ports + γ·bytes combined

α is the latency of a message, g the gap between two messages of one round, β the time per byte, and γ that of
combining. α and β may depend on the size of a message (libraries switch protocols), and on whether a rank
sends and receives at once; γ depends on the size, too (caches). A collective striped over channels sends that
many messages for each, and may combine one stripe while another is under way.

The model is LogGP's (Alexandrov, Ionescu, Schauser, Scheiman, SPAA, 1995) with overheads and latency in one
number. Everything is in seconds, bytes and seconds per byte; data is nccl-tests' size (`total_bytes`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from math import ceil, isfinite, pow
from pathlib import Path
from typing import Any, NamedTuple

from .algorithms.tuning import ALPHA_SECONDS, BETA_SECONDS_PER_BYTE
from .errors import ArgumentError
from .loads import Load, Run, blocks_per_total
from .registry import Algorithm, get
from .steps import steps

Piece = tuple[float, float, float]  # from this size on [B]: seconds, seconds per byte


@dataclass(frozen=True, slots=True)
class Curve:
    """Time by size, linear in pieces: ``seconds + per_byte·size`` from ``from_bytes`` on."""

    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        if not self.pieces or self.pieces[0][0] != 0 or any(b[0] <= a[0] for a, b in pairwise(self.pieces)):
            raise ArgumentError(f"the pieces of a curve begin at 0 B and go up, not {self.pieces}")
        # As a file says them, so that equal curves have equal texts.
        exact = tuple((float(start), float(seconds), float(slope)) for start, seconds, slope in self.pieces)
        object.__setattr__(self, "pieces", exact)

    def at(self, nbytes: float) -> tuple[float, float]:
        """The constant and the slope that hold for a size."""
        seconds, per_byte = self.pieces[0][1:]
        for start, *piece in self.pieces[1:]:
            if nbytes < start:
                break
            seconds, per_byte = piece
        return seconds, per_byte

    def __call__(self, nbytes: float) -> float:
        """Seconds for a size."""
        seconds, per_byte = self.at(nbytes)
        return seconds + per_byte * nbytes

    @property
    def least_latency(self) -> float:
        """No message takes less."""
        return max(0.0, min(self(start) for start, *_ in self.pieces))

    def least_per_byte(self, latency: float) -> float:
        """However data is cut in messages, a byte takes no less, if each of them takes `latency`."""
        corners = [start for start, *_ in self.pieces[1:]]
        rates = [max(0.0, self(x) - latency) / x for x in corners]
        return min([self.pieces[-1][2], *rates])


def straight(seconds: float, per_byte: float) -> Curve:
    """One line for all sizes.

    >>> straight(5e-6, 4e-11)(1e9)
    0.040005
    """
    return Curve(((0, seconds, per_byte),))


@dataclass(frozen=True, slots=True)
class Machine:
    """What a message, a byte, and combining a byte cost. Times in seconds, sizes in bytes."""

    one_way: Curve
    exchange: Curve  # when a rank sends and receives at once
    combine: Curve
    gap: float = 0.0  # for every further message of a round
    call: float = 0.0  # once per call
    ports: float = 1.0
    overlap: bool = True  # whether one stripe is combined while another is under way
    name: str = "nominal"
    #: `combine` of each type and operation that was measured ("float32 sum"); none: it is that of all.
    combines: tuple[tuple[str, Curve], ...] = ()
    host: str = ""  # where it was measured, and on what; "" if nothing is known
    cpu: str = ""

    def combining(self, dtype: str | None, op: str | None) -> Machine | None:
        """The machine whose `combine` is that of a type and operation; None if only others were measured."""
        if not self.combines:
            return self
        known = dict(self.combines).get(f"{dtype} {op}")
        return None if known is None else replace(self, combine=known)

    @property
    def digest(self) -> str:
        """A fingerprint, equal for equal machines only."""
        return blake2b(self.to_json().encode(), digest_size=6).hexdigest()

    def to_json(self) -> str:
        """As text that `from_json` reads."""
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> Machine:
        """Read what `to_json` wrote.

        Raises `ArgumentError` for anything else.
        """
        try:
            facts = json.loads(text)
            for key in ("one_way", "exchange", "combine"):
                facts[key] = _curve(facts[key])
            facts["combines"] = tuple((str(key), _curve(told)) for key, told in facts.get("combines", ()))
            for key, least in (("gap", 0), ("call", 0), ("ports", 1)):
                if not least <= facts[key] < float("inf"):
                    raise ValueError(f"{key} is {facts[key]}")
            for key in ("name", "host", "cpu"):
                if not isinstance(facts.get(key, ""), str):
                    raise ValueError(f"{key} is {facts[key]}")
            return Machine(**facts)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise ArgumentError(f"not a machine as `mpicoll calibrate` writes it: {error}") from None

    @staticmethod
    def read(path: Path) -> Machine:
        """The machine of a file, or of the directory that `mpicoll calibrate` wrote.

        Raises `ArgumentError`, which names the file, if it cannot be read or says something else.
        """
        path = path / "machine.json" if path.is_dir() else path
        try:
            return Machine.from_json(path.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            raise ArgumentError(f"cannot read {path}: {error.strerror}") from None
        except ValueError as error:
            raise ArgumentError(f"{path} is {error}") from None


def _curve(facts: Mapping[str, Any]) -> Curve:
    pieces = tuple((float(start), float(seconds), float(slope)) for start, seconds, slope in facts["pieces"])
    if not all(isfinite(number) and number >= 0 for piece in pieces for number in piece):
        raise ValueError(f"times and sizes are numbers from 0 on, not {pieces}")
    return Curve(pieces)


def uniform(alpha: float, beta: float, gamma: float = 0.0, **more: Any) -> Machine:
    """A machine with one α [s], β [s/B] and γ [s/B] for all sizes; the gap is a fifth of α unless given."""
    line = straight(alpha, beta)
    more.setdefault("gap", alpha / 5)
    return Machine(line, line, straight(0.0, gamma), **more)


#: Where nothing is known: that of `algorithms.tuning`, combining at 33 GB/s. No claim about any machine.
NOMINAL = uniform(ALPHA_SECONDS, BETA_SECONDS_PER_BYTE, 3e-11)


class Cost(NamedTuple):
    """The terms of a time [s]."""

    latency: float
    bandwidth: float
    reduction: float
    call: float = 0.0

    @property
    def seconds(self) -> float:
        """All together."""
        return sum(self)

    @property
    def dominating(self) -> str:
        """The name of the largest term."""
        return max(zip(self, self._fields, strict=True))[1]


def load_cost(load: Load, machine: Machine, block_bytes: float, channels: int = 1) -> Cost:
    """What one rank needs for its round, where a block has `block_bytes`."""
    nbytes, combined = load.blocks * block_bytes, load.reduced * block_bytes
    curve = machine.exchange if load.both_ways else machine.one_way
    alpha, beta = curve.at(nbytes / max(load.messages, 1) / channels)
    latency = channels * (alpha + machine.gap * ceil(load.messages / machine.ports - 1))
    bandwidth = beta * max(nbytes / machine.ports, load.largest * block_bytes)
    reduction = channels * machine.combine(combined / channels) if combined else 0.0
    if (
        machine.overlap
    ):  # all stripes but one are combined while others are under way, as far as there is time
        reduction = max(bandwidth, reduction) + min(bandwidth, reduction) / channels - bandwidth
    return Cost(latency, bandwidth, reduction)


def cost_of_steps(timeline: Iterable[Run], machine: Machine, block_bytes: float, channels: int = 1) -> Cost:
    """The terms of all steps together."""
    latency = bandwidth = reduction = 0.0
    for count, step in timeline:
        slowest = max((load_cost(one, machine, block_bytes, channels) for one in step), key=sum)
        latency += count * slowest.latency
        bandwidth += count * slowest.bandwidth
        reduction += count * slowest.reduction
    return Cost(latency, bandwidth, reduction, machine.call)


def cost(
    algorithm: Algorithm | str,
    size: int,
    nbytes: float,
    machine: Machine = NOMINAL,
    params: Mapping[str, Any] | None = None,
    channels: int = 1,
) -> Cost:
    """The time of `algorithm` (or its name) on `size` ranks for `nbytes` in all (nccl-tests' size).

    Parameters that are not given are tuned to the size as a plan tunes them. Raises `Unsupported` where the
    algorithm does not serve the case.

    >>> import mpicoll.algorithms
    >>> ring = cost("allreduce/ring", 64, 1e9, uniform(alpha=5e-6, beta=1 / 25e9))
    >>> round(1e3 * ring.latency, 2), round(1e3 * ring.bandwidth, 2), ring.dominating
    (0.63, 78.75, 'bandwidth')
    """
    entry = get(*algorithm.split("/", 1)) if isinstance(algorithm, str) else algorithm
    resolved = entry.resolve(size, params, round(nbytes / entry.collective.parts_in_total(size)))
    timeline = steps(entry, size, resolved)
    return cost_of_steps(timeline, machine, nbytes / blocks_per_total(entry, size, resolved), channels)


def best(
    candidates: Sequence[Algorithm],
    size: int,
    nbytes: float,
    machine: Machine,
    params: Mapping[str, Any] | None = None,
) -> list[tuple[float, Algorithm]]:
    """Those of the candidates that serve the case, with their seconds, fastest first."""
    found = []
    for entry in candidates:
        given = {k: v for k, v in (params or {}).items() if k in entry.defaults}
        resolved = entry.resolve(size, given)
        if entry.refusal(size, resolved) is None:
            found.append((cost(entry, size, nbytes, machine, given).seconds, entry))
    return sorted(found, key=lambda pair: pair[0])


# -- lower bounds ------------------------------------------------------------------------------------------


def least_latency(size: int, alpha: float, gap: float) -> float:
    """No algorithm can let all ranks depend on all others in less.

    In r rounds with up to k_i messages a rank hears of ∏(k_i + 1) others at most, so that Σ(k_i + 1) is at
    least r·P^(1/r), by the inequality of the means.
    """
    if size == 1:
        return 0.0
    most = (size - 1).bit_length()
    # Messages beyond the first of every round, for each number of rounds.
    more = {r: max(0, ceil(r * pow(size, 1 / r) - 1e-9) - 2 * r) for r in range(1, most + 1)}
    return min(r * alpha + gap * extra for r, extra in more.items())


#: Bytes that some rank has to send or receive, and to combine, as functions of P, in nccl-tests' sizes.
_DATA = {
    "allreduce": 2.0,
    "reduce_scatter": 1.0,
    "allgather": 1.0,
    "alltoall": 1.0,
    "gather": 1.0,
    "scatter": 1.0,
}


def bound(collective: str, size: int, nbytes: float, machine: Machine = NOMINAL) -> Cost:
    """What no algorithm for the collective can beat on a machine without links shared, term by term [s].

    Latency: see `least_latency`. Data: an all-reduce is a reduce-scatter and an all-gather, in each of which
    a rank has to get (P−1)/P·n (Patarasuk, Yuan, 2009); in a broadcast or reduce some rank gets n.
    Combining: P−1 operations per element, shared by P ranks.

    >>> round(1e3 * bound("allreduce", 64, 1e9, uniform(5e-6, 1 / 25e9)).bandwidth, 2)
    78.75
    """
    if size == 1:
        return Cost(0.0, 0.0, 0.0)
    share = (size - 1) / size
    data = {"barrier": 0.0, "bcast": 1.0, "reduce": 1.0}.get(collective, _DATA.get(collective, 0.0) * share)
    combined = share if collective in ("allreduce", "reduce_scatter", "reduce") else 0.0
    gamma = machine.combine.least_per_byte(0.0) if combined and not machine.overlap else 0.0
    # A message takes latency and so much per byte; or, as truly, less latency and more per byte.
    whole = min(machine.one_way.least_latency, machine.exchange.least_latency)
    bounds = []
    for alpha in (whole, whole / 2, 0.0):
        beta = min(machine.one_way.least_per_byte(alpha), machine.exchange.least_per_byte(alpha))
        bounds.append(
            Cost(
                least_latency(size, alpha, min(machine.gap, alpha)),
                data * nbytes * beta / machine.ports,
                combined * nbytes * gamma,
                machine.call,
            )
        )
    return max(bounds, key=sum)


def faster(machine: Machine, **changes: Any) -> Machine:
    """The machine with something else: a what-if."""
    return replace(machine, **changes)
