"""What `mpicoll overlap` leaves behind: rows, conditions, traces, and a few lines on the terminal."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mpicoll.bench import overlap_stats, timeline
from mpicoll.bench.hazards import find_hazards
from mpicoll.bench.info import describe
from mpicoll.bench.overlap_modes import BLOCKING, COMMUNICATE, COMPUTE, OVERLAPPED, PER_TENSOR
from mpicoll.bench.records import moment, replace_file
from mpicoll.bench.sizes import format_bytes, format_seconds
from mpicoll.bench.store import Store, StoreError, explained, format_value, read_run
from mpicoll.bench.training import HELD_BLAS, Shape
from mpicoll.bench.world import Refused, World
from mpicoll.errors import ArgumentError

COLUMNS = (
    "launch", "iteration", "order", "warmup", "mode", "bucket_bytes", "buckets", "gradient_bytes", "seconds",
    "seconds_min", "slowest_rank", "cpu_seconds", "loss", "flops", "layers", "width", "batch", "dtype",
    "ranks",
    "nodes", "ppn", "oversubscribed", "thread_level", "progress", "engine", "algorithm", "status", "reason",
)  # fmt: skip
FILE = "overlap.csv"


class Record:
    """The result directory, if there is one, and what is printed. Rank 0's, but for the traces."""

    def __init__(self, world: World, args: argparse.Namespace, policy: tuple[int, ...] | None) -> None:
        import mpicoll

        self.world, self.args, self.policy = world, args, policy
        self.native = mpicoll.native_status()
        self.store: Store | None = None
        with world.together():
            if world.first and args.output is not None:
                self.store = self._open(args.output)

    def _open(self, directory: Path) -> Store:
        world = self.world
        begun = (directory / "run.json").is_file() and not (directory / FILE).exists()
        if begun and read_run(directory)["launches"][-1]["status"] == "running":
            raise ArgumentError(
                f"{directory} holds a run that was killed, or has not ended yet; it has no result that could "
                "be continued: remove it, or choose another -o"
            )
        facts = describe(world, self.native, find_hazards(world, self.native))
        facts["blas"] = {name: os.environ.get(name) for name in HELD_BLAS}
        store = Store(directory, resume=None)
        machine, software = facts["machine"], facts["software"]
        store.run["identity"] = {
            **{key: machine[key] for key in ("cpu_model", "architecture", "logical_cpus", "physical_cores")},
            **{key: software[key] for key in ("python", "mpicoll", "mpi4py", "numpy")},
            "commit": (software["git"] or {}).get("commit"),
            "mpi": facts["mpi"]["library"],
            "thread_level": world.thread_level,
            "native_engine": self.native[0],
            **{key: facts[key] for key in ("ranks", "nodes", "ppn")},
            "placement": world.topology.placement,
            "spec": {
                key: str(value) for key, value in vars(self.args).items() if key not in ("func", "output")
            },
        }
        store.run["launches"].append(
            {"launch": 0, "started": moment(), "ended": None, "status": "running",
             "command": shlex.join(["mpicoll", *sys.argv[1:]]), "overheads": {}, **facts}
        )  # fmt: skip
        store.write_run()
        return store

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

    def write(self, shape: Shape, bench: Any, rows: list[dict[str, Any]], wrong: str | None) -> None:
        """Complete the record and print what it says. Collective."""
        times = overlap_stats.as_times(rows)
        found = overlap_stats.verdicts(times)
        best = overlap_stats.Resampled(times).recommended()
        shown = [(OVERLAPPED, best[0]), (BLOCKING, bench.middle), (PER_TENSOR, None)]
        if self.args.output is not None:
            with self.world.together(status=1), explained(self.args.output):
                self._write_traces(bench, rows, times, shown)
        buckets = {(mode.name, mode.bucket_bytes): mode.buckets for mode in bench.modes}
        line = overlap_stats.fit_line(times, buckets)
        if self.world.first:
            print("\n".join(as_text(shape, self.world, times, found, best, line, buckets, bench.ready)))
            if wrong:
                print(f"WRONG: {wrong}", file=sys.stderr, flush=True)
        with self.world.together(status=1):
            if self.store is not None:
                self._complete(self.store, shape, bench, rows, wrong, buckets)

    def _complete(
        self, store: Store, shape: Shape, bench: Any, rows: list[dict[str, Any]], wrong: str | None,
        buckets: Any,
    ) -> None:  # fmt: skip
        """Write what rank 0 alone has."""
        store.run["overlap"] = {
            "ready": bench.ready,
            "buckets": [
                {"mode": mode, "bucket_bytes": size, "filled": [list(bucket) for bucket in filled]}
                for (mode, size), filled in buckets.items()
            ],
            "policy": self.policy,
            "first_loss": bench.first_loss,
        }
        store.write_run()
        with explained(self.args.output):
            self._write_rows(shape, bench, rows, wrong)
        print(f"\nin {self.args.output}; next: mpicoll report {self.args.output}", flush=True)

    def _write_rows(self, shape: Shape, bench: Any, rows: list[dict[str, Any]], wrong: str | None) -> None:
        world, args = self.world, self.args
        common = {
            "launch": 0, "gradient_bytes": shape.nbytes, "flops": shape.flops, "layers": shape.layers,
            "width": shape.width, "batch": shape.batch, "dtype": shape.dtype, "ranks": world.size,
            "nodes": world.node_count, "ppn": world.ppn, "oversubscribed": world.oversubscribed,
            "thread_level": world.thread_level, "progress": args.progress, "engine": bench.engine,
            "algorithm": args.algorithm, "status": "wrong" if wrong else "ok", "reason": wrong,
        }  # fmt: skip
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            values = {**common, **row}
            writer.writerow([format_value(values[name]) for name in COLUMNS])
        replace_file(args.output / FILE, text.getvalue())

    def _write_traces(self, bench: Any, rows: list[dict[str, Any]], times: Any, shown: list[Any]) -> None:
        """One trace per rank: of each mode the step whose time is nearest to the median."""
        self.world.control.Barrier()  # the directory is there
        found: list[dict[str, Any]] = []
        for number, (mode, size) in enumerate(shown):
            seconds = times[mode, size]
            iteration = int(np.argmin(np.abs(seconds - np.median(seconds))))
            key = mode if size is None else f"{mode} {size}"
            title = mode if size is None else f"{mode}, buckets of {format_bytes(size)}"
            begin, spans, flights = bench.seen[key, iteration]
            events = timeline.events(self.world.rank, title, begin, spans, flights)
            for event in events:  # one process for each mode, so that they can be compared
                event["pid"] = number
                event.setdefault("args", {}).update(rank=self.world.rank, mode=mode, bucket_bytes=size)
            found += events
        timeline.write(Path(self.args.output) / f"trace-rank{self.world.rank}.json", found)


def as_text(
    shape: Shape, world: World, times: Any, found: list[Any], best: Any, line: Any, buckets: Any, ready: Any
) -> list[str]:
    """The result in words."""
    resampled = overlap_stats.Resampled(times)
    compute = resampled.median((COMPUTE, None))
    lines = [
        f"{shape.layers} layers of {shape.width}, {shape.batch} rows a rank, {shape.nbytes / 2**20:.1f} MiB "
        f"of gradients, {world.size} ranks on {world.node_count} nodes; times in ms, with 95 % intervals",
        f"compute only {compute.text(1e3)}: {shape.flops / compute.value / 1e9:.1f} useful GFLOP/s a rank",
        "",
    ]
    rows = [
        ("mode", "buckets", "step", "exposed", "alone", "hidden [%]", "utilisation [%]", "model", "bound")
    ]
    for one in found:
        key = one.mode, one.bucket_bytes
        alone = times.get((COMMUNICATE, one.bucket_bytes))
        model = limit = "-"
        if one.mode == OVERLAPPED and line is not None:
            model = f"{1e3 * overlap_stats.predict(buckets[key], ready, compute.value, line):.1f}"
            limit = f"{1e3 * overlap_stats.bound(times, one.bucket_bytes, buckets[key][-1][0], line):.1f}"
        size = "" if one.bucket_bytes is None else f" of {format_bytes(one.bucket_bytes)}"
        rows.append((
            one.mode, f"{len(buckets[key])}{size}", one.step.text(1e3), one.exposed.text(1e3),
            "-" if alone is None else f"{1e3 * np.median(alone):.1f}",
            "-" if one.hidden is None else one.hidden.text(100, ".0f"), one.utilisation.text(100, ".0f"),
            model, limit,
        ))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += ["", recommendation(best)]
    if line is not None:
        lines.append(
            f"model: a bucket takes {format_seconds(line.alpha)} + {format_seconds(line.beta * 2**20)} "
            f"per MiB alone (off by up to {line.error:.0%})"
        )
    return lines


def recommendation(best: tuple[int, int, int]) -> str:
    """The bucket size to use, in words."""
    size, low, high = map(format_bytes, best)
    sure = "in 95 % of resamples, too" if low == high else f"95 % of resamples choose {low} to {high}"
    return f"recommended bucket size: {size} ({sure})"
