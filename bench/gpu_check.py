"""`mpicoll gpu-check`: all that is worth knowing of device buffers on this machine, in a few minutes.

Run under mpirun on two or more ranks, which may share a device. First results are proved: collectives,
algorithms, stagings and types, and collectives whose input a slow kernel is still writing. Then times are
taken: memory and kernels alone, collectives from small to large on every path, and an all-reduce beside
kernels on another stream. Everything goes to `checks.csv` (one row for each check or timed call),
`gpu-check.json` (the conditions) and `report.md`, after each part, so that a crash loses one part at most.
Status 1 if any result was wrong.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mpicoll import device, probe_job
from mpicoll.bench import gpu_report
from mpicoll.bench.cases import RECIPES, Case
from mpicoll.bench.device_contenders import (
    DeviceWorkload,
    builtin_host,
    synchronised,
    use_own_device,
)
from mpicoll.bench.records import replace_file, write_json
from mpicoll.bench.sizes import parse_bytes, parse_sizes
from mpicoll.bench.store import explained
from mpicoll.bench.timing import no_garbage_collection
from mpicoll.bench.workload import Workload
from mpicoll.bench.world import World, start
from mpicoll.errors import ArgumentError, MpicollError
from mpicoll.staging import STAGINGS

COLUMNS = ("part", "what", "buffer", "nbytes", "iteration", "seconds", "status", "reason")
ALGORITHMS = {
    "allreduce": ("ring", "circulant", "recursive_doubling"),
    "reduce_scatter": ("circulant",),
    "allgather": ("circulant",),
    "reduce": ("binomial",),
    "bcast": ("binomial",),
    "alltoall": ("pairwise",),
    "gather": ("binomial",),
    "scatter": ("binomial",),
}
DTYPES = ("float32", "float64", "float16", "int64")
MOST, FEWEST = 50, 5  # timed calls
Row = dict[str, Any]


def add_parser(verbs: Any) -> None:
    """Add the verb `gpu-check`."""
    parser = verbs.add_parser("gpu-check")
    add = parser.add_argument
    add("-o", "--output", default="gpu-check", metavar="DIR", help="where results go (gpu-check)")
    add("--sizes", default="4:256M:8", help="bytes of the timed all-reduces (4:256M:8)")
    add("--large", default="64M", help="bytes at which memory, kernels and staging are compared (64M)")
    add("--budget", type=float, default=0.4, help="seconds for each timed thing (0.4)")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Check, measure, write; 1 if a result was wrong."""
    sizes, large = parse_sizes(args.sizes), parse_bytes(args.large)
    world = start("funneled")
    with world.together():
        use_own_device(world)
        if world.size < 2:
            raise ArgumentError("gpu-check needs two ranks or more; they may share a device")
    check = Check(world, args.budget)
    began = time.monotonic()
    for name in gpu_report.PARTS:
        for row in getattr(check, name)(sizes, large):
            check.rows.append(dict.fromkeys(COLUMNS) | row)
        check.parts.append(name)
        with world.together(status=1):  # what a later part may not live to write is there
            if world.first:
                _write(Path(args.output), check, large)
                print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if world.first:
        print((Path(args.output) / "report.md").read_text(encoding="utf-8"), flush=True)
    return 1 if any(row["status"] == "wrong" for row in check.rows) else 0


def _write(directory: Path, check: Check, large: int) -> None:
    world, verdict = check.world, check.verdict
    facts = {
        "machine": world.machine, "software": world.software, "vendor": world.vendor, "ranks": world.size,
        "devices": device.describe(), "aware": verdict.aware, "how": verdict.how, "parts": check.parts,
        "reported": probe_job.reported(), "large": large, "taken": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }  # fmt: skip
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(check.rows)
    with explained(directory):
        replace_file(directory / "checks.csv", text.getvalue())
        write_json(directory / "gpu-check.json", facts)
        replace_file(directory / "report.md", gpu_report.text_of(facts, check.rows))


class Check:
    """The parts of the check; each gives its rows, the same on all ranks."""

    def __init__(self, world: World, budget: float) -> None:
        import mpicoll

        self.world, self.budget = world, budget
        self.own: Any = mpicoll.Comm(world.control)
        self.plain = world.control.Dup()
        self.verdict = self.own._planner.aware
        self.aware = bool(self.verdict.aware)
        self.stagings = STAGINGS if self.aware else STAGINGS[1:]
        self.rows: list[Row] = []
        self.parts: list[str] = []  # that are over
        self.epoch = 0

    # -- results -------------------------------------------------------------------------------------------

    def correctness(self, sizes: list[int], large: int) -> Iterator[Row]:
        """Every collective, several algorithms and types, on every path, small and pipelined."""
        for collective, names in ALGORITHMS.items():
            for dtype in DTYPES if collective == "allreduce" else DTYPES[:1]:
                for count in (1, 1003, large // 16 + 3):
                    op = "sum" if collective in ("allreduce", "reduce", "reduce_scatter") else ""
                    case = _case(collective, dtype, op, count, self.world.size)
                    work = DeviceWorkload(case, self.world.rank)
                    for name in names:
                        for staging in self.stagings:
                            yield self._prove("correctness", case, work, name, staging)

    def races(self, sizes: list[int], large: int) -> Iterator[Row]:
        """A slow kernel is still writing the input when the collective begins."""
        for count in (1003, large // 16 + 3):
            case = _case("allreduce", "float32", "sum", count, self.world.size)
            work = DeviceWorkload(case, self.world.rank)
            for staging in self.stagings:
                yield self._prove("race", case, work, "ring", staging, slowly=True)

    def _prove(
        self, part: str, case: Case, work: DeviceWorkload, name: str, staging: str, *, slowly: bool = False
    ) -> Row:
        self.epoch += 1
        work.refresh(self.epoch)
        problem = None
        try:
            plan = self._plan(case, work, name, staging=staging)
            if slowly:
                _write_slowly(work)
            plan()
            device.current_stream().synchronize()
            plan.Free()
            problem = work.problem()
        except MpicollError as error:
            problem = str(error)
        problem = self.world.agree(problem)
        return {
            "part": part, "what": f"{case.key} {name} staging={staging}", "nbytes": case.msg_bytes,
            "buffer": "cupy" if staging == "none" else "cupy_staged",
            "status": "wrong" if problem else "ok", "reason": problem,
        }  # fmt: skip

    def _plan(self, case: Case, work: Workload, algorithm: str, **options: Any) -> Any:
        make = getattr(self.own, RECIPES[case.collective].method + "_init")
        return make(*work.arguments(_op(case)), algorithm=algorithm, **options)

    # -- times ---------------------------------------------------------------------------------------------

    def memory(self, sizes: list[int], large: int) -> Iterator[Row]:
        """Copies within the device, to and from the host, and the reduction kernel, at the large size."""
        module, stream = device.cupy(), device.current_stream()
        count = large // 4
        left, right, out = (module.zeros(count, "float32") for _ in range(3))
        image = device.pinned(count, np.dtype("float32"))
        host = int(image.__array_interface__["data"][0])
        add = device.reduction("add")
        at = [int(array.data.ptr) for array in (left, out)]
        calls: dict[str, Callable[[], Any]] = {
            "device copy": lambda: device.copy(at[1], at[0], large, stream),
            "reduction": lambda: add(left, right, out=out),
            "copy to pinned host": lambda: device.copy(host, at[0], large, stream),
            "copy from pinned host": lambda: device.copy(at[0], host, large, stream),
        }
        for what, call in calls.items():
            # One rank at a time: they may share the device, and the bus.
            for rank in range(self.world.size):
                mine = rank == self.world.rank
                rows = list(self._timed("memory", what, "", large, synchronised(call) if mine else _nothing))
                if rank == 0:
                    yield from rows

    def sizes(self, sizes: list[int], large: int) -> Iterator[Row]:
        """All-reduces of host memory and of device memory on every path."""
        for nbytes in sorted({*sizes, large}):
            case = _case("allreduce", "float32", "sum", max(1, nbytes // 4), self.world.size)
            host, work = Workload(case, self.world.rank), DeviceWorkload(case, self.world.rank)
            host.refresh(1)
            work.refresh(1)
            ways = {"host": self._plan(case, host, "ring")}
            ways |= {f"staging={s}": self._plan(case, work, "ring", staging=s) for s in self.stagings}
            for name, plan in ways.items():
                call = plan if name == "host" else synchronised(plan)
                yield from self._timed("sizes", f"ring {name}", plan.buffer, nbytes, call)
                plan.Free()
            call = builtin_host(work, self.plain, _op(case))
            yield from self._timed("sizes", "builtin through host", "cupy_staged", nbytes, call)
            if self.aware:
                builtin = partial(self.plain.Allreduce, *work.arguments(_op(case)))
                yield from self._timed("sizes", "builtin", "cupy", nbytes, synchronised(builtin))

    def overlap(self, sizes: list[int], large: int) -> Iterator[Row]:
        """An all-reduce on one stream and kernels on another: alone, and together."""
        module = device.cupy()
        case = _case("allreduce", "float32", "sum", large // 4, self.world.size)
        work = DeviceWorkload(case, self.world.rank)
        work.refresh(1)
        x = module.zeros(large // 4, "float32")
        compute, add = module.cuda.Stream(non_blocking=True), device.reduction("add")

        def kernels() -> None:
            with compute:
                for _ in range(20):
                    add(x, x, out=x)

        def finish() -> None:
            compute.synchronize()
            device.current_stream().synchronize()

        for staging in self.stagings:
            plan = self._plan(case, work, "ring", staging=staging)
            ways: dict[str, tuple[Callable[[], Any], ...]] = {
                "kernels": (kernels, finish),
                "all-reduce": (plan, finish),
                "both": (kernels, plan, finish),
            }
            for what, steps in ways.items():
                yield from self._timed("overlap", f"{what} ({staging})", plan.buffer, large, _sequence(steps))
            plan.Free()

    def _timed(
        self, part: str, what: str, buffer: str, nbytes: int, call: Callable[[], Any]
    ) -> Iterator[Row]:
        """Rows of the slowest rank's seconds, call by call, after two untimed ones."""
        control = self.world.control
        call()
        began = time.perf_counter()
        call()
        took = control.allreduce(time.perf_counter() - began, _max())
        count = int(max(FEWEST, min(MOST, self.budget / max(took, 1e-7))))
        seconds = np.empty(count)
        with no_garbage_collection():
            for number in range(count):
                control.Barrier()
                began = time.perf_counter()
                call()
                seconds[number] = time.perf_counter() - began
        slowest = np.empty_like(seconds)
        control.Allreduce(seconds, slowest, _max())
        for number, value in enumerate(slowest.tolist()):
            yield {"part": part, "what": what, "buffer": buffer, "nbytes": nbytes, "iteration": number,
                   "seconds": round(value, 9), "status": "ok"}  # fmt: skip


def _case(collective: str, dtype: str, op: str, count: int, ranks: int) -> Case:
    return Case(collective=collective, dtype=dtype, op=op, root=0, count=count, ranks=ranks)


def _op(case: Case) -> Any:
    from mpi4py import MPI

    return getattr(MPI, case.op.upper()) if case.op else None


def _min() -> Any:
    from mpi4py import MPI

    return MPI.MIN


def _max() -> Any:
    from mpi4py import MPI

    return MPI.MAX


def _nothing() -> None:
    pass


def _sequence(steps: tuple[Callable[[], Any], ...]) -> Callable[[], None]:
    def run_all() -> None:
        for step in steps:
            step()

    return run_all


def _write_slowly(work: DeviceWorkload) -> None:
    """Take the input away and bring it back behind kernels that take many times as long as a message."""
    module = device.cupy()
    x = work.inner(work.send)
    kept = x.copy()
    x.fill(0)
    big = module.zeros(1 << 20, "float32")
    add = device.reduction("add")
    for _ in range(300):
        add(big, big, out=big)
    x[...] = kept
