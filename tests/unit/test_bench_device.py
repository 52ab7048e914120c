"""A sweep of device buffers, with a fake device: each contender is proved right, or says why it cannot."""

from __future__ import annotations

import csv
import os
import re
import sys
from pathlib import Path

import pytest

from devices import FAKE
from launch import mpirun
from mpicoll.bench.gpu_report import PARTS, text_of
from mpicoll.bench.spec import make_spec
from mpicoll.errors import ArgumentError

COMMAND = (
    "-m mpicoll sweep --buffer cupy --collective allreduce,bcast --sizes 64K --iterations 5 --case-time 0.1s "
    "--algorithms ring,ring:staging=host,binomial,builtin,builtin_persistent,builtin_host,nccl -o out"
)


@pytest.mark.parametrize("aware", ["0", "1"])
def test_sweep_of_device_buffers(aware: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(FAKE), os.environ.get("PYTHONPATH", "")])
    env = {"PYTHONPATH": path, "MPICOLL_GPU_AWARE": aware}
    done = mpirun(2, [sys.executable, *COMMAND.split()], 100, env, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "out" / "samples.csv").open() as file:
        found = {
            (row["collective"], row["requested"]): (row["status"], row["buffer"], row["implementation"])
            for row in csv.DictReader(file)
        }
    direct, staged = ("cupy", "cupy_staged") if aware == "1" else ("cupy_staged", "cupy_staged")
    builtin = ("ok", "cupy", "mpi") if aware == "1" else ("unsupported", "cupy", "mpi")
    assert found == {
        ("allreduce", "ring"): ("ok", direct, "mpicoll"),
        ("allreduce", "ring:staging=host"): ("ok", staged, "mpicoll"),
        ("bcast", "binomial"): ("ok", direct, "mpicoll"),
        **{(c, "builtin_host"): ("ok", "cupy_staged", "mpi") for c in ("allreduce", "bcast")},
        **{(c, name): builtin for c in ("allreduce", "bcast") for name in ("builtin", "builtin_persistent")},
        **{(c, "nccl"): ("unsupported", "cupy", "nccl") for c in ("allreduce", "bcast")},
    }


def test_device_buffers_are_warm_and_on_the_python_engine() -> None:
    for settings in ({"cache": "cold"}, {"engine": "native"}):
        with pytest.raises(ArgumentError, match="warm, and on the python engine"):
            make_spec({"buffer": "cupy", **settings})


def test_gpu_check_from_end_to_end(tmp_path: Path) -> None:
    path = os.pathsep.join([str(FAKE), os.environ.get("PYTHONPATH", "")])
    argv = "-m mpicoll gpu-check --sizes 4,4K --large 16K --budget 0.001 -o out".split()
    done = mpirun(2, [sys.executable, *argv], 100, {"PYTHONPATH": path, "MPICOLL_GPU_AWARE": "1"}, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / "out" / "report.md").read_text()
    assert "a fake device" in report
    assert "177 proved, 0 wrong" in report
    with (tmp_path / "out" / "checks.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["part"] for row in rows} == {"correctness", "race", "memory", "sizes", "overlap"}
    assert {row["buffer"] for row in rows} == {"", "host", "cupy", "cupy_staged"}
    assert len(re.findall(r"(none|host|device): [\d.]+ of the longer of the two, -?\d+% of the", report)) == 3
    assert "NOT WHOLE" not in report


CRASHES = """
import os, sys
from mpicoll.bench import cli, gpu_check
gpu_check.Check.sizes = lambda self, sizes, large: os._exit(7)
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_crash_of_gpu_check_loses_one_part(tmp_path: Path) -> None:
    path = os.pathsep.join([str(FAKE), os.environ.get("PYTHONPATH", "")])
    argv = "gpu-check --sizes 4 --large 4K --budget 0.001 -o out".split()
    env = {"PYTHONPATH": path, "MPICOLL_GPU_AWARE": "0"}
    done = mpirun(2, [sys.executable, "-c", CRASHES, *argv], 100, env, tmp_path)
    assert done.returncode == 7, done.stdout + done.stderr
    report = (tmp_path / "out" / "report.md").read_text()
    assert "NOT WHOLE: it ended before the part 'sizes' was over" in report
    assert "0 wrong" in report
    assert "reduction's bandwidth / device copy's" in report
    with (tmp_path / "out" / "checks.csv").open() as file:
        assert {row["part"] for row in csv.DictReader(file)} == {"correctness", "race", "memory"}


def test_gpu_report_names_what_is_wrong_and_what_missed_its_aim() -> None:
    def timed(part: str, what: str, seconds: float) -> dict[str, object]:
        return {
            "part": part,
            "what": what,
            "nbytes": 1000,
            "seconds": seconds,
            "status": "ok",
            "reason": None,
        }

    rows = [
        timed("memory", "device copy", 1.0),
        timed("memory", "reduction", 2.0),  # it moves three bytes where a copy moves two
        timed("memory", "copy to pinned host", 3.0),
        timed("memory", "copy from pinned host", 4.0),
        timed("sizes", "ring host", 2.0),
        timed("sizes", "ring staging=host", 5.0),
        timed("sizes", "ring staging=device", 9.0),
        timed("overlap", "kernels (host)", 4.0),
        timed("overlap", "all-reduce (host)", 2.0),
        timed("overlap", "both (host)", 4.5),
        {"part": "race", "what": "allreduce", "seconds": None, "status": "wrong", "reason": "element 3"},
    ]
    facts = {"large": 1000, "devices": [{"name": "D"}], "ranks": 2, "vendor": "V", "aware": None, "how": "h"}
    facts["parts"] = PARTS
    text = text_of(facts, rows)
    assert "1 proved, 1 wrong" in text
    assert "WRONG allreduce: element 3" in text
    assert "reduction's bandwidth / device copy's: 0.75 (aim 0.9: missed)" in text
    assert "staged collective: 0.80 (aim 0.8: met)" in text
    assert "host: 1.12 of the longer of the two, 75% of the shorter one hidden" in text


def test_example_on_a_device(tmp_path: Path) -> None:
    path = os.pathsep.join([str(FAKE), os.environ.get("PYTHONPATH", "")])
    example = Path(__file__).parent.parent.parent / "examples" / "on_a_device.py"
    for aware, words in (("1", "cupy, staging=none: summed on 3 ranks"), ("0", "cupy_staged, staging=host")):
        done = mpirun(3, [sys.executable, example], 60, {"PYTHONPATH": path, "MPICOLL_GPU_AWARE": aware})
        assert done.returncode == 0, done.stdout + done.stderr
        assert words in done.stdout
