"""What `mpicoll overlap` leaves behind: rows, conditions, traces, and what it needs to go on from there."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mpicoll import device
from mpicoll.bench import overlap_text, timeline
from mpicoll.bench.hazards import as_bound, find_hazards
from mpicoll.bench.info import calibration_facts, describe
from mpicoll.bench.overlap_file import Row, RowFile
from mpicoll.bench.overlap_modes import BLOCKING, OVERLAPPED, PER_TENSOR
from mpicoll.bench.overlap_outcome import Outcome
from mpicoll.bench.records import moment
from mpicoll.bench.sizes import format_bytes
from mpicoll.bench.store import Store, StoreError, explained, require_same
from mpicoll.bench.training import HELD_BLAS, Shape
from mpicoll.bench.world import Refused, World
from mpicoll.locality import parse_cpus

_NO_SETTINGS = ("func", "output", "resume")  # flags that change nothing of what is measured


class Record:
    """The result directory, if there is one, and all rows so far. Rank 0's, but for the traces.

    `done` and `batch` are known to all ranks: iterations that are recorded, and rows of a batch in them.
    """

    def __init__(self, world: World, args: argparse.Namespace, policy: tuple[int, ...] | None) -> None:
        import mpicoll

        self.world, self.args, self.policy = world, args, policy
        self.native = mpicoll.native_status()
        self.store: Store | None = None
        self.file: RowFile | None = None
        self.rows: list[Row] = []
        self.launch = 0
        self._told: dict[str, Any] = {}  # what rows do not say
        with world.together():
            if world.first and args.output is not None:
                self._open(args.output)
        if self.store is not None:
            self._told = self.store.run.get("overlap", {})
        timed = {row["iteration"] for row in self.rows if not row["warmup"]}
        self.done, self.batch = world.control.bcast((len(timed), self._told.get("batch")), root=0)

    def _open(self, directory: Path) -> None:
        world = self.world
        facts = describe(world, self.native, find_hazards(world, self.native))
        facts["blas"] = {name: os.environ.get(name) for name in HELD_BLAS}
        facts["calibration"] = calibration_facts()
        facts["devices"] = device.describe() if self.args.buffer == "cupy" else []
        store = Store(directory, resume=self.args.resume)
        try:
            identity = self._identity(facts)
            if store.run["launches"]:
                require_same(store.run["identity"], identity, directory)
            store.run["identity"] = identity
            self.file = RowFile(directory, len(store.run.get("overlap", {}).get("buckets", ())) or None)
            self.rows = self.file.rows
            if self.file.set_aside:
                print(f"mpicoll: an unfinished step was moved to {self.file.set_aside}", file=sys.stderr)
            self.launch = len(store.run["launches"])
            store.run["launches"].append(
                {"launch": self.launch, "started": moment(), "ended": None, "status": "running",
                 "command": shlex.join(["mpicoll", *sys.argv[1:]]), "overheads": {}, **facts}
            )  # fmt: skip
            store.write_run()
        except BaseException:
            store.close()
            raise
        self.store = store

    def _identity(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """What launches must have in common to belong to one result."""
        world, machine, software = self.world, facts["machine"], facts["software"]
        return {
            **{key: machine[key] for key in ("cpu_model", "architecture", "logical_cpus", "physical_cores")},
            **{key: software[key] for key in ("python", "mpicoll", "mpi4py", "numpy")},
            "commit": (software["git"] or {}).get("commit"),
            "mpi": facts["mpi"]["library"],
            "thread_level": world.thread_level,
            "native_engine": self.native[0],
            **{key: facts[key] for key in ("ranks", "nodes", "ppn")},
            "placement": world.topology.placement,
            "cpus_of_ranks": [len(parse_cpus(cpus)) for cpus in world.cpus],  # one each: bound to it
            "calibration": facts["calibration"] and facts["calibration"]["digest"],
            "spec": {key: str(value) for key, value in vars(self.args).items() if key not in _NO_SETTINGS},
        }

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        """Within is what is measured: however it ends, the record says so."""
        status = "failed"
        try:
            yield
            status = "complete"
        except Refused as error:
            status = str(error)
            raise
        finally:
            if self.store is not None:
                self.store.run["launches"][-1].update(ended=moment(), status=status)
                try:
                    self.store.write_run()
                except StoreError as error:
                    print(f"mpicoll: {error}", file=sys.stderr)
                self.store.close()

    def add(self, shape: Shape, bench: Any, rows: Sequence[Row], wrong: str | None) -> None:
        """Keep the rows of finished iterations, whose results were checked. Collective."""
        world, args = self.world, self.args
        common = {
            "launch": self.launch, "gradient_bytes": shape.nbytes, "flops": shape.flops,
            "layers": shape.layers, "width": shape.width, "batch": shape.batch, "dtype": shape.dtype,
            "ranks": world.size, "nodes": world.node_count, "ppn": world.ppn,
            "oversubscribed": world.oversubscribed, "thread_level": world.thread_level,
            "progress": args.progress, "engine": bench.engine, "algorithm": args.algorithm,
            "status": "wrong" if wrong else "ok", "reason": wrong, "buffer": bench.buffer,
        }  # fmt: skip
        complete = [{**common, **row} for row in rows]
        self.rows = self.rows + complete
        self._told = {
            "batch": shape.batch,
            "ready": bench.ready,
            "buckets": [
                {
                    "mode": mode.name,
                    "bucket_bytes": mode.bucket_bytes,
                    "filled": list(map(list, mode.buckets)),
                    "algorithms": mode.algorithms,
                }
                for mode in bench.modes
            ],
            "policy": self.policy,
            "first_loss": bench.first_loss,
            "cpus_per_rank": cpus_per_rank(world),
        }
        with world.together(status=1):
            if self.store is not None and self.file is not None:
                self.store.run["overlap"] = self._told
                self.store.write_run()  # first: it says how many rows an iteration has
                self.file.append(complete)

    def outcome(self) -> Outcome | None:
        """What all rows say (rank 0); None if they are of warm-ups only, as after a wrong result in one."""
        timed = any(not row["warmup"] for row in self.rows)
        return Outcome(self.rows, self._told) if self.world.first and timed else None

    def finish(self, bench: Any) -> None:
        """Write traces, where something was measured, and say what came of it. Collective."""
        world, output = self.world, self.args.output
        outcome = self.outcome()
        if output is not None and bench is not None:
            shown = None
            if outcome is not None:
                keys = [(OVERLAPPED, outcome.best[0]), (BLOCKING, bench.middle), (PER_TENSOR, None)]
                shown = [(mode, size, float(np.median(outcome.times[mode, size]))) for mode, size in keys]
            with world.together(status=1), explained(output):
                self._write_traces(bench, world.control.bcast(shown, root=0) or ())
        if outcome is not None:
            print("\n".join(overlap_text.as_text(outcome, world.node_count)))
            if output is not None:
                print(f"\nin {output}; next: mpicoll report {output}", flush=True)

    def wrong(self) -> str | None:
        """What was wrong in any step, on all ranks."""
        found = next((row["reason"] for row in self.rows if row["status"] == "wrong"), None)
        said: str | None = self.world.control.bcast(found, root=0)
        if said and self.world.first:
            print(f"WRONG: {said}", file=sys.stderr, flush=True)
        return said

    def again(self) -> str:
        """The command that continues this run."""
        more = "" if self.args.resume else " --resume"
        mpirun = f"mpirun -n {self.world.size}{as_bound(self.world)}"
        return f"{mpirun} {shlex.join(['mpicoll', *sys.argv[1:]])}{more}"

    def _write_traces(self, bench: Any, shown: Sequence[tuple[str, int | None, float]]) -> None:
        """One trace per rank: of each mode the step whose time is nearest to the median."""
        found: list[dict[str, Any]] = []
        for number, (mode, size, median) in enumerate(shown):
            key = mode if size is None else f"{mode} {size}"
            step = bench.nearest(key, median)
            title = mode if size is None else f"{mode}, buckets of {format_bytes(size)}"
            events = timeline.events(self.world.rank, title, step)
            for event in events:  # one process for each mode, so that they can be compared
                event["pid"] = number
                event.setdefault("args", {}).update(rank=self.world.rank, mode=mode, bucket_bytes=size)
            found += events
        timeline.write(Path(self.args.output) / f"trace-rank{self.world.rank}.json", found)


def cpus_per_rank(world: World) -> float:
    """How many CPUs a rank has to itself, where it has fewest."""
    return min(world.cpus_together(ranks) / len(ranks) for ranks in world.topology.machines)
