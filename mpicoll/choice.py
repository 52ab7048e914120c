"""How a call will be carried out: algorithm, parameters, engine, channels and paths of device buffers.

Chosen from what all ranks know, so that all choose alike.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from .calls import Call
from .cost import Machine
from .errors import ArgumentError, Unsupported
from .ops import name_of
from .probe import Verdict
from .registry import Algorithm, Params, get
from .registry import algorithms as registered
from .runner import check_background, check_engine
from .schedule import blocks_of
from .select import check_channels, choose, default_channels
from .staging import choose_staging, device_channels
from .topology import Topology


@dataclass(slots=True)
class Chosen:
    """How a call will be carried out; equal on all ranks."""

    algorithm: Algorithm
    params: Params
    engine: str
    channels: int
    depth: int
    background: bool = False
    stages: bool = False
    staging: str | None = None  # of device buffers; see `staging`

    def signature(self, call: Call) -> Hashable:
        """What all ranks must agree on."""
        operation = call.operation
        return (
            call.collective,
            call.shape,
            (name_of(operation.op), operation.commutative) if operation else (),
            self.algorithm.name,
            tuple(sorted(self.params.items())),
            (self.engine, self.channels, self.depth, self.stages, "background" if self.background else ""),
            # Where reductions happen; whether messages pass through the host is each rank's own affair.
            self.staging and ("host" if self.staging == "host" else "device"),
        )

    def key(self, call: Call, signature: Hashable) -> Hashable:
        """What a plan can be used for again."""
        send, recv, operation = call.send, call.recv, call.operation
        return (
            signature,
            send and send.address,
            recv and recv.address,
            operation and operation.op.handle,
            call.local,
            self.staging,
        )


@dataclass(slots=True)
class Choice:
    """Chooses for the calls of one communicator."""

    rank: int
    size: int
    topology: Topology
    engine: str  # unless a call names another
    machine: Machine | None  # that was calibrated
    aware: Verdict  # whether MPI may be given device memory
    threads: bool  # whether all ranks have a thread for calls that leave `background` open
    direct: dict[Hashable, bool] = field(default_factory=dict)  # what `_is_direct` has found

    def of(
        self,
        call: Call,
        algorithm: str = "auto",
        engine: str | None = None,
        channels: Any = None,
        depth: Any = None,
        background: bool | None = None,
        stages: bool = False,
        staging: str | None = None,
        **params: Any,
    ) -> Chosen:
        """How a call will be carried out.

        `background` None: in the background if all ranks can, whatever their programs do.

        Raises `ArgumentError` or `Unsupported` where it cannot be.
        """
        staging = self._staging(call, staging)
        if staging is not None and engine == "native":
            raise ArgumentError("device buffers need engine='python': the native engine reduces on the host")
        engine = "python" if staging is not None else self.engine if engine is None else check_engine(engine)
        background = self.may_thread(engine) if background is None else check_background(engine, background)
        entry, resolved = self._algorithm(call, algorithm, params, background)
        between = entry.hierarchical and len(set(resolved["nodes"])) > 1
        automatic = (
            default_channels(call.collective, call.nbytes, self.size, between_nodes=between)
            if staging is None
            else device_channels(staging, call.nbytes)
        )
        channels = automatic[0] if channels is None else channels
        depth = automatic[1] if depth is None else depth
        check_channels(channels=channels, depth=depth)
        depth = min(depth, channels)
        return Chosen(entry, resolved, engine, channels, depth, background, bool(stages), staging)

    def _algorithm(
        self, call: Call, name: str, params: dict[str, Any], background: bool
    ) -> tuple[Algorithm, Params]:
        """The algorithm of that name, or for "auto" the one for the case, with all its parameters.

        Raises `Unsupported` if it does not serve the call.
        """
        ordered = call.operation is not None and not call.operation.commutative
        if name == "auto":
            name = choose(
                call.collective,
                self.size,
                call.nbytes,
                nodes=len(self.topology.nodes),
                ordered=ordered,
                direct=call.direct_only,
                background=background,
                machine=self.machine,
            )
        entry = get(call.collective, name)
        if ordered and not entry.ordered:
            able = ", ".join(a.name for a in registered(call.collective) if a.ordered) or "none"
            raise Unsupported(
                f"{entry} does not combine in rank order, which this non-commutative operation needs; "
                f"these do: {able}"
            )
        if entry.hierarchical and params.get("nodes") is None:
            params["nodes"] = self.topology.node_of
        if call.root is not None:
            params["root"] = call.root
        resolved = entry.resolve(self.size, params, call.nbytes)
        if reason := entry.refusal(self.size, resolved):
            raise Unsupported(f"{entry} with P={self.size}: {reason}")
        if call.direct_only and not self._is_direct(entry, resolved):
            raise Unsupported(
                f"{entry} forwards parts of other ranks, whose lengths this rank does not know; "
                "use linear or pairwise"
            )
        return entry, resolved

    def may_thread(self, engine: str) -> bool:
        """Whether calls that leave `background` open run in the background: on all ranks or on none."""
        return engine == "native" and self.threads

    def _staging(self, call: Call, wanted: str | None) -> str | None:
        """How a call's device buffers travel; None for buffers in host memory."""
        if not call.device:
            if wanted is not None:
                raise ArgumentError("staging is for device buffers; these are in host memory")
            return None
        host_only = call.operation is not None and call.operation.ufunc is None
        return choose_staging(
            call.collective,
            self.size,
            wanted,
            aware=bool(self.aware.aware),
            how=self.aware.how,
            unfit=call.unfit,
            host_only=host_only,
        )

    def _is_direct(self, entry: Algorithm, params: Params) -> bool:
        """Whether every part goes straight from its source to its target."""
        case = entry.name, tuple(sorted(params.items()))
        if case not in self.direct:
            self.direct[case] = self._goes_direct(entry, params)
        return self.direct[case]

    def _goes_direct(self, entry: Algorithm, params: Params) -> bool:
        blocks = entry.blocks(self.size, params)
        per_part = blocks // entry.collective.parts(self.size)
        for step in entry.schedule(self.rank, self.size, params):
            for windows in [m.windows for m in step.sends] + [m.windows for m in step.recvs]:
                for block in blocks_of(windows, blocks):
                    if self.rank not in divmod(block // per_part, self.size):
                        return False
        return True
