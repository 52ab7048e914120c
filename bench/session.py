"""One launch of a sweep: its way through the cases, its record, and its end, however that comes."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mpicoll.bench.cases import Case
from mpicoll.bench.hazards import find_hazards
from mpicoll.bench.info import describe
from mpicoll.bench.measure import Bench, Measured, rows_of
from mpicoll.bench.overhead import measure_overheads
from mpicoll.bench.progress import Progress, summary_line
from mpicoll.bench.sizes import format_seconds
from mpicoll.bench.spec import Contender, Spec
from mpicoll.bench.store import Store, require_same
from mpicoll.bench.world import Refused, Stopped, StopSignals, World
from mpicoll.errors import MpicollError

# Seconds per byte that a contender's unavoidable calls and proofs take, roughly: kept for large cases.
_RESERVE = 2e-8


class Session:
    """A launch of a sweep. Everything is collective; the record is rank 0's."""

    def __init__(self, world: World, spec: Spec, output: Path | None, stop: StopSignals, *, resume: bool):
        self.world, self.spec, self.stop = world, spec, stop
        self.unnamed, self.resume = output is None, resume
        self.started = time.monotonic()
        self.store: Store | None = None
        self.launch = 0
        directory = output or Path("results") / time.strftime("sweep-%Y%m%d-%H%M%S")
        self.directory: Path = world.control.bcast(directory, root=0)
        self.native = self._native()
        with world.together():
            if world.first:
                self.store = self._open()

    def _native(self) -> tuple[bool, str]:
        import mpicoll

        status = mpicoll.native_status()
        missing = self.world.agree(None if status[0] else status[1])
        return (True, status[1]) if missing is None else (False, missing)

    def _open(self) -> Store:
        """Open or continue the record (rank 0)."""
        world = self.world
        facts = describe(world, self.native, find_hazards(world, self.native))
        identity = {
            **{
                key: facts["machine"][key]
                for key in ("cpu_model", "architecture", "logical_cpus", "physical_cores")
            },
            **{key: facts["software"][key] for key in ("python", "mpicoll", "mpi4py", "numpy")},
            "commit": (facts["software"]["git"] or {}).get("commit"),
            "mpi": facts["mpi"]["library"],
            "thread_level": world.thread_level,
            "native_engine": self.native[0],
            **{key: facts[key] for key in ("ranks", "nodes", "ppn")},
            "spec": self.spec.identity(),
        }
        store = Store(self.directory, resume=self.resume)
        if store.run["launches"]:
            require_same(store.run["identity"], identity, self.directory)
        if store.set_aside:
            print(f"mpicoll: an unfinished case was moved to {store.set_aside}", file=sys.stderr)
        store.run["identity"] = identity
        self.launch = len(store.run["launches"])
        store.run["launches"].append(
            {"launch": self.launch, "started": _now(), "ended": None, "status": "running",
             "command": shlex.join(["mpicoll", *sys.argv[1:]]), **facts}
        )  # fmt: skip
        store.write_run()
        for hazard in facts["hazards"]:
            if hazard["grave"]:
                print(
                    f"mpicoll: {hazard['what']}: {hazard['effect']}; {hazard['fix']}",
                    file=sys.stderr,
                    flush=True,
                )
        return store

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        """However the launch ends, say so in the record."""
        status = "failed"
        try:
            yield
            status = "complete"
        except Refused as error:
            status = str(error)
            raise
        finally:
            if self.store is not None:
                self.store.run["launches"][-1].update(ended=_now(), status=status)
                try:
                    self.store.write_run()
                except MpicollError as error:
                    print(f"mpicoll: {error}", file=sys.stderr)
                self.store.close()

    def run(self, cases: list[Case], contenders: dict[str, list[Contender]]) -> int:
        """Measure all cases that the record does not hold yet; the exit status."""
        world = self.world
        done = world.control.bcast(self.store.done if self.store else None, root=0)
        left = [(number, case) for number, case in enumerate(cases) if str(number) not in done]
        progress = Progress(len(cases), len(cases) - len(left), first=world.first)
        try:
            with self._recorded():
                bench = Bench(world, self.spec, self.stop)
                overheads = measure_overheads(world)
                if self.store is not None:
                    self.store.run["launches"][-1]["overheads"] = overheads
                for position, (number, case) in enumerate(left):
                    rivals = contenders[case.collective]
                    budget = self._budget([c for _, c in left[position:]], len(rivals))
                    result = bench.run_case(case, rivals, _seed(self.spec, number), budget)
                    with world.together(status=1):
                        self._record(number, case, result, progress)
                self.stop.check(world)
        except Stopped as error:
            again = f" -o {self.directory}" if self.unnamed else ""
            again += "" if self.resume else " --resume"
            raise Refused(
                f"{error} after {progress.done} of {len(cases)} cases, all recorded; continue with\n"
                f"  mpirun -n {world.size} {shlex.join(['mpicoll', *sys.argv[1:]])}{again}",
                error.status,
            ) from None
        finally:
            progress.close()
        return self._finish(len(cases))

    def _budget(self, cases: list[Case], rivals: int) -> float:
        """Seconds for timing the first of the `cases` left, as rank 0 sees it."""
        if self.spec.time_limit is None:
            return self.spec.case_time
        left = self.spec.time_limit - (time.monotonic() - self.started)
        if self.spec.check:
            left -= sum(rivals * case.total_bytes * _RESERVE for case in cases)
        # A case takes about a quarter more than its budget: warm-up.
        return max(0.0, min(self.spec.case_time, 0.8 * left / len(cases)))

    def _record(self, number: int, case: Case, result: Measured, progress: Progress) -> None:
        """Write a finished case, and say so (rank 0)."""
        if self.store is None:
            return
        world, spec = self.world, self.spec
        common = {
            "launch": self.launch, "case": number, "collective": case.collective, "buffer": "host",
            "dtype": case.dtype, "op": case.op or None, "root": case.root, "ranks": world.size,
            "nodes": world.node_count, "ppn": world.ppn, "oversubscribed": world.oversubscribed,
            "thread_level": world.thread_level, "count": case.count, "msg_bytes": case.msg_bytes,
            "total_bytes": case.total_bytes, "cache": "warm",
            "primed": case.msg_bytes < spec.prime_below, "sync": "dissemination",
        }  # fmt: skip
        rows = rows_of(result, common, spec.check)
        self.store.run["plans"][str(number)] = {
            "case": case.key, "iterations": len(result.orders) - result.warmup, "warmup": result.warmup,
            "stopped_by": result.stopped_by if result.racing else "nothing could run",
        }  # fmt: skip
        self.store.write_case(rows)
        self.store.write_run()
        progress.case(summary_line(case, rows))

    def _finish(self, cases: int) -> int:
        wrong = self.world.control.bcast(self.store.wrong if self.store else None, root=0)
        if self.world.first:
            took = format_seconds(time.monotonic() - self.started)
            print(
                f"{cases} cases in {self.directory} ({took}); next: mpicoll report {self.directory}",
                flush=True,
            )
            if wrong:
                print(f"WRONG RESULTS in {wrong} rows, see the column `reason`", file=sys.stderr, flush=True)
        return 1 if wrong else 0


def _seed(spec: Spec, number: int) -> int:
    """Orders of calls differ from case to case."""
    return spec.seed * 1_000_003 + number


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
