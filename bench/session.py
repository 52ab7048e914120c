"""One launch of a sweep: its way through the cases, its record, and its end, however that comes."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mpicoll.bench import formats
from mpicoll.bench.cases import Case
from mpicoll.bench.hazards import as_bound, find_hazards
from mpicoll.bench.info import calibration_facts, describe
from mpicoll.bench.loading import Facts, digests
from mpicoll.bench.measure import Bench, Measured
from mpicoll.bench.overhead import measure_overheads
from mpicoll.bench.planning import FINAL, History, Plan, Record, Step
from mpicoll.bench.progress import Progress, summary_line
from mpicoll.bench.records import moment
from mpicoll.bench.rows import rows_of, stage_rows_of
from mpicoll.bench.sizes import format_seconds
from mpicoll.bench.spec import Contender, Spec
from mpicoll.bench.stages import StageFile
from mpicoll.bench.store import Store, require_same
from mpicoll.bench.world import Refused, Stopped, StopSignals, World
from mpicoll.errors import MpicollError


class Session:
    """A launch of a sweep. Everything is collective; the record is rank 0's."""

    def __init__(
        self,
        world: World,
        spec: Spec,
        output: Path | None,
        stop: StopSignals,
        *,
        resume: bool,
        form: str | None = None,
        loaded: Sequence[Facts] = (),
    ):
        self.world, self.spec, self.stop, self.form = world, spec, stop, form
        self.unnamed, self.resume, self.loaded = output is None, resume, loaded
        self.started = time.monotonic()
        self.store: Store | None = None
        self.stages: StageFile | None = None
        self.launch = 0
        self.ended = "complete"
        self.record = Record()  # of all passes, on rank 0
        directory = output or Path("results") / time.strftime("sweep-%Y%m%d-%H%M%S")
        self.directory: Path = world.control.bcast(directory, root=0)
        self.native = self._native()
        with world.together():
            if world.first:
                self.store = self._open()
                self.stages = StageFile(self.directory) if spec.stages else None

    def _native(self) -> tuple[bool, str]:
        import mpicoll

        status = mpicoll.native_status()
        missing = self.world.agree(None if status[0] else status[1])
        return (True, status[1]) if missing is None else (False, missing)

    def _open(self) -> Store:
        """Open or continue the record (rank 0)."""
        world = self.world
        facts = describe(world, self.native, find_hazards(world, self.native, self.spec.sync))
        facts["calibration"] = auto = calibration_facts()
        facts["loaded"] = self.loaded
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
            "placement": world.topology.placement,
            "calibration": auto and auto["digest"],
            "loaded": digests(self.loaded),
            "spec": self.spec.identity(),
        }
        store = Store(self.directory, resume=self.resume, each=self.record.add)
        if store.run["launches"]:
            require_same(store.run["identity"], identity, self.directory)
        if store.set_aside:
            print(f"mpicoll: an unfinished case was moved to {store.set_aside}", file=sys.stderr)
        store.run["identity"] = identity
        self.launch = len(store.run["launches"])
        store.run["launches"].append(
            {"launch": self.launch, "started": moment(), "ended": None, "status": "running",
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
            status = self.ended
        except Refused as error:
            status = str(error)
            raise
        finally:
            if self.store is not None:
                self.store.run["launches"][-1].update(ended=moment(), status=status)
                try:
                    self.store.write_run()
                except MpicollError as error:
                    print(f"mpicoll: {error}", file=sys.stderr)
                self.store.close()

    def run(self, cases: list[Case], contenders: dict[str, list[Contender]]) -> int:
        """Measure what the record does not hold yet; the exit status."""
        world = self.world
        plan = Plan(self.spec, len(cases), self.record) if world.first else None
        progress = Progress(len(cases), len(self.record.cases), first=world.first)
        try:
            with self._recorded():
                self._note_plans(cases)
                bench = Bench(world, self.spec, self.stop)
                overheads = measure_overheads(world)
                if self.store is not None:
                    self.store.run["launches"][-1] |= {"overheads": overheads, **bench.facts()}
                while (step := self._decide(plan)) is not None:
                    self._pass(bench, step, cases[step.case], contenders, plan, progress)
                if plan and plan.missing:
                    self.ended = "time limit"
                self.stop.check(world)
        except Stopped as error:
            raise Refused(
                f"{error} after {progress.done} of {len(cases)} cases, all recorded; continue with\n"
                f"  {self._again()}",
                error.status,
            ) from None
        finally:
            progress.close()
        return self._finish(len(cases))

    def _decide(self, plan: Plan | None) -> Step | None:
        """The next pass, as rank 0 decides. Collective."""
        step = plan.next(time.monotonic() - self.started) if plan else None
        return self.world.control.bcast(step, root=0)

    def _pass(
        self,
        bench: Bench,
        step: Step,
        case: Case,
        contenders: dict[str, list[Contender]],
        plan: Plan | None,
        progress: Progress,
    ) -> None:
        """Measure and record one pass. Collective."""
        history = self.record.cases.get(step.case, History())
        begun = time.monotonic()
        result = bench.run_case(case, contenders[case.collective], _seed(self.spec, step), step, history)
        clocks = bench.window.clocks.facts() if bench.window else None
        with self.world.together(status=1):
            if clocks and self.store is not None:
                self.store.run["launches"][-1]["clocks"] = clocks
            self._record(step, case, result, progress)
        if plan is not None:
            plan.took(step, time.monotonic() - begun, result.elapsed)

    def _record(self, step: Step, case: Case, result: Measured, progress: Progress) -> None:
        """Write a finished pass, and say so (rank 0)."""
        if self.store is None:
            return
        world, spec = self.world, self.spec
        common = {
            "launch": self.launch, "case": step.case, "pass": step.number, "collective": case.collective,
            "buffer": "host" if spec.buffer == "numpy" else spec.buffer,
            "dtype": case.dtype, "op": case.op or None, "root": case.root,
            "ranks": world.size, "nodes": world.node_count, "ppn": world.ppn,
            "placement": world.topology.placement,
            "oversubscribed": world.oversubscribed, "thread_level": world.thread_level, "count": case.count,
            "msg_bytes": case.msg_bytes, "total_bytes": case.total_bytes, "cache": case.cache,
            "primed": case.msg_bytes < spec.prime_below, "sync": spec.sync, "batch": spec.batch,
            "checked": spec.check,
        }  # fmt: skip
        rows = rows_of(result, common, step.first_iteration)
        self.store.write_case(rows)
        if self.stages is not None:
            self.stages.append(stage_rows_of(result, common))
        self._note_plans([case], step.case)
        self.store.write_run()
        progress.case(summary_line(case, rows), again=step.number > 0)

    def _note_plans(self, cases: list[Case], first: int = 0) -> None:
        """Say in `run.json` what is known of some cases: all of it follows from the rows (rank 0)."""
        for number, case in enumerate(cases, start=first):
            if self.store is not None and number in self.record.cases:
                facts = {"case": case.key, **self.record.cases[number].facts()}
                self.store.run["plans"][str(number)] = facts

    def _again(self) -> str:
        """The command that continues this sweep."""
        more = f" -o {self.directory}" if self.unnamed else ""
        more += "" if self.resume else " --resume"
        mpirun = f"mpirun -n {self.world.size}{as_bound(self.world)}"
        return f"{mpirun} {shlex.join(['mpicoll', *sys.argv[1:]])}{more}"

    def _finish(self, cases: int) -> int:
        """Say what came of it; the exit status."""
        record = self.record
        wrong, missing, measured = self.world.control.bcast(
            (self.store.wrong, cases - len(record.cases), record.measured) if self.store else None, root=0
        )
        if self.world.first:
            took = format_seconds(time.monotonic() - self.started)
            told = sys.stderr if self.form else sys.stdout  # a format is there to be read by programs
            print(f"{cases - missing} cases in {self.directory} ({took})", end="; ", file=told)
            print(f"next: mpicoll report {self.directory}", file=told)
            print(_how_well(record, self.spec), file=told, flush=True)
            if self.form:
                formats.show(self.form, formats.Tables([self.directory]))
            if missing:
                late = f"the time limit came before {missing} of {cases} cases; continue with"
                print(f"mpicoll: {late}\n  {self._again()}", file=sys.stderr, flush=True)
            if wrong:
                print(f"WRONG RESULTS in {wrong} rows, see the column `reason`", file=sys.stderr, flush=True)
            if not measured:
                print("mpicoll: NOTHING WAS MEASURED", file=sys.stderr, flush=True)
            for line in _failures(record, all_of_them=not measured):
                print(f"mpicoll: {line}", file=sys.stderr, flush=True)
        return 1 if wrong or missing or not measured else 0


def _how_well(record: Record, spec: Spec) -> str:
    """How many cases are known how well, and what ended the others."""
    ends = Counter(history.stopped_by for history in record.cases.values())
    words = {"precision": f"all medians within ±{spec.precision:g} % (95 % intervals)"}
    return "cases ended by " + ", ".join(
        f"{name}{f' ({words[name]})' if name in words else ''}: {ends[name]}"
        for name in (*FINAL, "time_limit")
        if ends[name]
    )


def _failures(record: Record, *, all_of_them: bool) -> list[str]:
    """Which contenders failed, in how many cases, and why first; what cannot be served only if asked for."""
    return [
        f"{label}{f' ({engine})' if engine else ''}: {status} in {len(cases)} of {len(record.cases)} cases: "
        f"{next(iter(cases.values()))}"
        for ((label, engine), status), cases in record.failures.items()
        if status == "error" or all_of_them
    ]


def _seed(spec: Spec, step: Step) -> int:
    """Orders of calls differ from case to case, and from pass to pass."""
    return (spec.seed * 1_000_003 + step.case) * 1_009 + step.number
