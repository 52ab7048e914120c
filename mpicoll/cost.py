"""How long an algorithm takes on a machine that need not exist: α-β-γ, summed over the steps of its schedule.

A step costs what its busiest rank needs for it:

    α + g·(messages − 1) + β·bytes/ports + γ·bytes combined

and the call the copy of a rank's own part besides (`ownwork`). α is the latency of a message, g the gap
between two messages of one round, β the time per byte, and γ that of combining. α and β may depend on the
size of a message (libraries switch protocols), on whether a rank sends and receives at once, and on whether
it passes on what it has just written: where that is read from the sender's cache, it takes longer. γ depends
on the size, too. What is too large for the caches costs as much in small messages as in one (`Curve.within`).
A collective striped over channels sends that many messages for each, and may combine one stripe while another
is under way.

The model is LogGP's (Alexandrov, Ionescu, Schauser, Scheiman, SPAA, 1995) with overheads and latency in one
number. Everything is in seconds, bytes and seconds per byte; data is nccl-tests' size (`total_bytes`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from math import ceil, isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from .algorithms.tuning import ALPHA_SECONDS, BETA_SECONDS_PER_BYTE
from .curves import FREE, Curve, straight
from .errors import ArgumentError
from .loads import Load, Params, Step, blocks_per_total
from .ownwork import copied, relays, touched
from .registry import Algorithm, get
from .steps import refuse, steps

T = TypeVar("T")


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
    copy: Curve = FREE  # of bytes within a rank's memory, while the others copy, too
    #: Of what the sender has written in the same call; None: no difference.
    one_way_relayed: Curve | None = None
    exchange_relayed: Curve | None = None
    host: str = ""  # where it was measured, and on what; "" if nothing is known
    cpu: str = ""

    def combining(self, dtype: str | None, op: str | None) -> Machine | None:
        """The machine whose `combine` is that of a type and operation; None if only others were measured."""
        if not self.combines:
            return self
        known = dict(self.combines).get(f"{dtype} {op}")
        return None if known is None else replace(self, combine=known)

    @property
    def relaying(self) -> Machine:
        """The machine where senders have just written what they send."""
        return replace(
            self,
            one_way=self.one_way_relayed or self.one_way,
            exchange=self.exchange_relayed or self.exchange,
        )

    def within(self, nbytes: float) -> Machine:
        """For calls whose buffers have `nbytes` on a rank: no byte costs less than one of so many.

        In calibration a message has a buffer at either end, and what is combined three operands.
        """
        two, three = nbytes / 2, nbytes / 3
        passed, swapped = self.one_way_relayed, self.exchange_relayed
        return replace(
            self,
            one_way=self.one_way.within(two),
            exchange=self.exchange.within(two),
            combine=self.combine.within(three),
            copy=self.copy.within(two),
            one_way_relayed=passed and passed.within(two),
            exchange_relayed=swapped and swapped.within(two),
        )

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
            if "copy" in facts:
                facts["copy"] = _curve(facts["copy"])
            for key in ("one_way_relayed", "exchange_relayed"):  # None: no difference
                if facts.get(key) is not None:
                    facts[key] = _curve(facts[key])
            facts["combines"] = tuple((str(key), _curve(told)) for key, told in facts.get("combines", ()))
            for key, least in (("gap", 0), ("call", 0), ("ports", 1)):
                if not least <= facts[key] < float("inf"):
                    raise ValueError(f"{key} is {facts[key]}")
            for key in ("name", "host", "cpu"):
                if not isinstance(facts.get(key, ""), str):
                    raise ValueError(f"{key} is {facts[key]}")
            return Machine(**facts)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise ArgumentError(f"not a machine as `mpicoll calibrate` writes it: {error}") from None

    @staticmethod
    def read(path: Path) -> Machine:
        """The machine of a file, or of the directory that `mpicoll calibrate` wrote.

        Raises `ArgumentError`, which names the file, if it cannot be read or says something else.
        """
        try:  # of a folder that may not be looked into, `is_dir`, too, raises
            path = path / "machine.json" if path.is_dir() else path
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
    copy: float = 0.0

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


class Call(NamedTuple):
    """A call of an algorithm: what its time depends on besides the steps."""

    params: Params  # resolved
    block: float  # bytes
    machine: Machine  # as it finds it with its buffers
    relay: bool  # whether from the second step on ranks send what they have written, and that differs
    own: float  # bytes that the busiest rank copies


def call_of(
    entry: Algorithm, size: int, nbytes: float, machine: Machine, params: Mapping[str, Any] | None = None
) -> Call:
    """The call for `nbytes` in all. Raises `Unsupported` where the algorithm does not serve the case."""
    resolved = entry.resolve(size, params, round(nbytes / entry.collective.parts_in_total(size)))
    refuse(entry, size, resolved)
    block = nbytes / blocks_per_total(entry, size, resolved)
    differs = machine.one_way_relayed is not None or machine.exchange_relayed is not None
    machine, own = of_call(entry.collective.name, size, nbytes, machine)
    return Call(resolved, block, machine, differs and relays(entry, size, resolved), own)


def summed(call: Call, timeline: Iterable[tuple[int, T]], cost_of: Callable[[T, Machine], Cost]) -> Cost:
    """The terms of all steps of a call together, and of what it takes besides.

    `cost_of` gives those of a step on the machine as that step finds it.
    """
    latency = bandwidth = reduction = 0.0
    machine = call.machine
    then = machine.relaying if call.relay else machine
    own = machine.copy(call.own) if call.own else 0.0
    for number, (count, step) in enumerate(first_apart(timeline)):
        slowest = cost_of(step, machine)
        if machine.overlap and not number:  # the copy is made while the first messages are under way
            own = max(0.0, own - slowest.bandwidth)
        latency += count * slowest.latency
        bandwidth += count * slowest.bandwidth
        reduction += count * slowest.reduction
        machine = then
    return Cost(latency, bandwidth, reduction, machine.call, own)


def slowest_of(loads: Iterable[Load], machine: Machine, block_bytes: float, channels: int = 1) -> Cost:
    """What the busiest rank of a step needs for it."""
    return max((load_cost(one, machine, block_bytes, channels) for one in loads), key=sum)


def first_apart(timeline: Iterable[tuple[int, T]]) -> Iterator[tuple[int, T]]:
    """The runs of steps, the first step as one of its own."""
    for number, (count, step) in enumerate(timeline):
        if number == 0:
            yield 1, step
            count -= 1
        if count:
            yield count, step


def of_call(collective: str, size: int, nbytes: float, machine: Machine) -> tuple[Machine, float]:
    """The machine as a call with its buffers finds it, and the bytes that its busiest rank copies."""
    return machine.within(touched(collective, size) * nbytes), copied(collective, size) * nbytes


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
    call = call_of(entry, size, nbytes, machine, params)

    def busiest(step: Step, machine: Machine) -> Cost:
        return slowest_of(step, machine, call.block, channels)

    return summed(call, steps(entry, size, call.params), busiest)


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


def faster(machine: Machine, **changes: Any) -> Machine:
    """The machine with something else: a what-if."""
    return replace(machine, **changes)
