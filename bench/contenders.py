"""How a contender is bound to a case: own plans, and MPI's collectives through mpi4py."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mpicoll import registry
from mpicoll.bench import data
from mpicoll.bench.device_contenders import (
    DeviceWorkload,
    builtin_host,
    nccl,
    require_aware,
    synchronised,
)
from mpicoll.bench.spec import Contender
from mpicoll.bench.workload import Workload
from mpicoll.errors import Unsupported


@dataclass(slots=True)
class Runnable:
    """A contender bound to a case: calling `call` runs the collective once."""

    contender: Contender
    call: Callable[[], Any]
    free: Callable[[], Any] = lambda: None
    algorithm: str = ""
    engine: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    build_seconds: float | None = None


def own_algorithms(collective_name: str) -> list[str]:
    """The names of mpicoll's algorithms for a collective."""
    import mpicoll.algorithms  # noqa: F401  (registers them)

    return [entry.name for entry in registry.algorithms(collective_name)]


def build(contender: Contender, work: Workload, own: Any, plain: Any) -> Runnable:
    """Bind a contender to a workload; `own` is a `mpicoll.Comm`, `plain` an mpi4py communicator.

    Raises `Unsupported` where it cannot serve the case.
    """
    from mpi4py import MPI

    reason = data.undefined(work.case.op, work.dtype)
    if reason:
        raise Unsupported(reason)
    op = getattr(MPI, work.case.op.upper(), None)
    arguments = work.arguments(op)
    start = time.perf_counter()
    if isinstance(work, DeviceWorkload):
        made = _build_on_device(contender, work, own, plain, op)
    elif not contender.builtin:
        made = _build_own(contender, work, own, arguments)
    elif contender.name == "builtin":
        call = partial(getattr(plain, work.recipe.method), *arguments)
        made = Runnable(contender, call, algorithm="builtin")
    else:
        made = _build_persistent(contender, getattr(plain, work.recipe.method + "_init")(*arguments))
    made.build_seconds = time.perf_counter() - start
    return made


def _build_on_device(contender: Contender, work: DeviceWorkload, own: Any, plain: Any, op: Any) -> Runnable:
    """As below, with the wait for the results inside of the call."""
    arguments, method = work.arguments(op), work.recipe.method
    if contender.name == "builtin_host":
        call = builtin_host(work, plain, op)
        return Runnable(contender, call, algorithm="builtin_host", facts={"buffer": "cupy_staged"})
    if contender.name == "nccl":
        call, free = nccl(work, plain)
        return Runnable(contender, call, free, algorithm="nccl", facts={"buffer": "cupy"})
    if contender.builtin:
        require_aware(own)
        if contender.name == "builtin":
            made = Runnable(contender, partial(getattr(plain, method), *arguments), algorithm="builtin")
        else:
            made = _build_persistent(contender, getattr(plain, method + "_init")(*arguments))
        made.facts["buffer"] = "cupy"
    else:
        made = _build_own(contender, work, own, arguments)
    made.call = synchronised(made.call)
    return made


def _build_own(contender: Contender, work: Workload, own: Any, arguments: tuple[Any, ...]) -> Runnable:
    from mpi4py import MPI

    name = work.recipe.method + "_init"
    make = getattr(own, name, None)
    if make is None or getattr(type(own), name, None) is getattr(MPI.Intracomm, name, None):
        raise Unsupported(f"mpicoll.Comm has no {name} of its own")
    engine = None if contender.engine in ("", "auto") else contender.engine
    plan = make(*arguments, algorithm=contender.name, engine=engine, **dict(contender.options))
    params = {key: value for key, value in dict(plan.params).items() if key != "nodes" and value is not None}
    facts = {"rounds": plan.rounds, "params": params}
    facts.update({key: getattr(plan, key) for key in ("channels", "depth", "buffer") if hasattr(plan, key)})
    return Runnable(contender, plan, plan.free, plan.algorithm, plan.engine, facts)


def _build_persistent(contender: Contender, request: Any) -> Runnable:
    start, wait = request.Start, request.Wait

    def call() -> None:
        start()
        wait()

    return Runnable(contender, call, request.Free, "builtin_persistent")
