"""Device buffers as they come in, the choice of how they travel, and the proof that MPI may see them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from devices import FAKE, fake_device
from mpicoll import device, probe
from mpicoll.buffers import parse
from mpicoll.errors import ArgumentError
from mpicoll.staging import choose_staging, device_channels, reduce_where
from mpicoll.waits import Intervals


@pytest.fixture
def cupy() -> Iterator[Any]:
    with fake_device() as module:
        yield module


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MPICOLL_CACHE", str(tmp_path))
    monkeypatch.delenv("MPICOLL_GPU_AWARE", raising=False)
    probe._remembered.cache_clear()
    return tmp_path


# -- buffers -----------------------------------------------------------------------------------------------


def test_device_arrays_are_buffers(cupy: Any) -> None:
    x = cupy.empty(10, "f")
    whole, part = parse(x, "sendbuf", writable=True), parse([x, (4, 3)], "sendbuf", writable=True)
    assert (whole.device, whole.count, whole.extent, whole.dtype) == (True, 10, 4, np.dtype("f"))
    assert (part.count, part.address) == (4, whole.address + 12)
    foreign = SimpleNamespace(__cuda_array_interface__=x.__cuda_array_interface__)
    assert parse(foreign, "sendbuf", writable=False).address == whole.address
    assert not parse(np.empty(3), "sendbuf", writable=True).device


def test_unusable_device_arrays_are_refused(cupy: Any) -> None:
    with pytest.raises(ArgumentError, match="recvbuf: the device array is not contiguous; pass cupy"):
        parse(cupy.empty(10, "f")[::2], "recvbuf", writable=True)
    facts = {**cupy.empty(3, "f").__cuda_array_interface__}
    facts["data"] = facts["data"][0], True
    with pytest.raises(ArgumentError, match="read-only"):
        parse(SimpleNamespace(__cuda_array_interface__=facts), "recvbuf", writable=True)
    with cupy.cuda.Device(1):
        there = cupy.empty(3, "f")
    with pytest.raises(ArgumentError, match=r"on device 1, the current one is 0; call cupy.cuda.Device\(1\)"):
        parse(there, "recvbuf", writable=True)


@pytest.mark.parametrize(("kind", "word"), [("MemoryAsync", "stream-ordered"), ("ManagedMemory", "managed")])
def test_memory_that_other_processes_cannot_map_is_told_apart(cupy: Any, kind: str, word: str) -> None:
    memory = getattr(cupy.cuda, kind)(40)
    array = cupy.ndarray((10,), "f", cupy.cuda.MemoryPointer(memory, 0))
    found = parse(array, "sendbuf", writable=False)
    assert word in found.unfit
    assert "get_default_memory_pool" in found.unfit
    assert parse(cupy.empty(10, "f"), "sendbuf", writable=False).unfit == ""


def test_without_cupy_a_device_array_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ArgumentError, match=r"install mpicoll\[cuda12\]"):
        parse(SimpleNamespace(__cuda_array_interface__={}), "sendbuf", writable=False)
    assert device.count() == 0


def test_each_rank_of_a_node_takes_a_device(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in device.LOCAL_RANK:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAKE_CUPY_DEVICES", "4")
    with cupy.cuda.Device(0):
        with pytest.raises(ArgumentError, match="SLURM_LOCALID"):
            device.select_device()
        monkeypatch.setenv("SLURM_LOCALID", "6")
        assert device.select_device() == 2
        assert cupy.cuda.Device().id == 2
        assert device.select_device(1) == 1
        assert len(device.describe()) == 4
    monkeypatch.setenv("FAKE_CUPY_DEVICES", "0")
    assert device.select_device() is None


# -- staging -----------------------------------------------------------------------------------------------


def test_staging_is_the_best_that_is_safe() -> None:
    def choose(wanted: str | None = None, collective: str = "allreduce", **facts: Any) -> str:
        return choose_staging(collective, 4, wanted, **{"aware": True, "how": "proved", **facts})

    assert choose() == "none"
    assert choose(unfit="it is managed") == "device"  # where the other ranks reduce
    assert choose(aware=False) == "host" == choose(host_only=True)
    assert choose(aware=False, collective="reduce_scatter") == "device"
    assert [choose(wanted) for wanted in ("none", "host", "device")] == ["none", "host", "device"]
    for wanted, facts, words in (
        ("both", {}, "valid: none, host, device"),
        ("none", {"unfit": "its memory is managed"}, "managed"),
        ("none", {"aware": False, "how": "run `mpicoll probe` once"}, "mpicoll probe"),
        ("device", {"host_only": True}, "use 'host'"),
    ):
        with pytest.raises(ArgumentError, match=words):
            choose(wanted, **facts)


def test_reductions_happen_where_fewer_bytes_cross_the_bus() -> None:
    assert {size: reduce_where("allreduce", size) for size in (2, 3, 64)} == dict.fromkeys((2, 3, 64), "host")
    assert reduce_where("reduce_scatter", 8) == "device"
    assert reduce_where("bcast", 8) == "host"
    assert device_channels("host", 64 << 20) == (32, 2)
    assert device_channels("none", 4) == (1, 1)


def test_intervals_are_sets() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        intervals, flags = Intervals(), np.zeros(40, bool)
        for low, length in rng.integers(0, 20, (8, 2)):
            missing = [x for a, b in intervals.missing(low, low + length) for x in range(a, b)]
            assert missing == [x for x in range(low, low + length) if not flags[x]]
            if length:
                intervals.add(low, low + length)
                flags[low : low + length] = True
        assert [x for a, b in intervals.runs for x in range(a, b)] == np.flatnonzero(flags).tolist()
        assert all(a[1] < b[0] for a, b in zip(intervals.runs, intervals.runs[1:], strict=False))


# -- the probe -----------------------------------------------------------------------------------------------


def child(code: str) -> list[str]:
    """A command that plays the child job."""
    return [sys.executable, "-c", f"import json, os, signal, sys, time\n{code}"]


SAY = (
    "say = lambda **w: print('mpicoll-probe ' + json.dumps(w), flush=True)\nsay(key='k', reported={'a': 1})\n"
)


def test_a_proof_is_remembered() -> None:
    verdict, reported = probe.prove(child(SAY + "say(trying=8); say(proved=True)"))
    assert verdict.aware is True
    assert reported == {"a": 1}
    kept = json.loads(probe.cache_file().read_text())
    assert kept["k"]["aware"] is True


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("say(trying=4194304); os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV while it sent 4194304 bytes"),
        ("say(trying=8); sys.exit(139)", "SIGSEGV while it sent 8 bytes"),  # as launchers report it
        ("say(trying=8); say(wrong='3 of 8 bytes wrong'); sys.exit(1)", "exit status 1.*3 of 8 bytes wrong"),
        ("say(trying=8); time.sleep(60)", "no end after 1 s while it sent 8 bytes"),
        ("say(trying=8)", "exit status 0 while"),  # it never said that it was proved
        ("say(trying=8); print('mpicoll-probe {\"proved\": tr')", "exit status 0 while"),
    ],
)
def test_a_crash_a_hang_or_wrong_bytes_are_a_no(code: str, words: str) -> None:
    verdict, _ = probe.prove(child(SAY + code), seconds=1)
    assert verdict.aware is False
    assert re.search(words, verdict.how), verdict.how
    assert json.loads(probe.cache_file().read_text())["k"]["aware"] is False


@pytest.mark.timeout(60)
def test_what_outlives_a_killed_probe_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a rank does that its launcher has started in a session of its own; it holds the pipes."""
    monkeypatch.setattr(probe, "GRACE", 0.2)
    stop = tmp_path / "stop"
    lives_on = f"import os, time\nfor _ in range(1000): os.path.exists({str(stop)!r}) or time.sleep(0.1)"
    code = (
        f"import subprocess; subprocess.Popen([sys.executable, '-c', {lives_on!r}], start_new_session=True)\n"
        "say(trying=8); time.sleep(60)"
    )
    try:
        verdict, reported = probe.prove(child(SAY + code), seconds=1)
    finally:
        stop.touch()
    assert verdict == (False, "no end after 1 s while it sent 8 bytes of device memory")
    assert reported == {"a": 1}


@pytest.mark.parametrize(
    "text", ["", '{"KEY": {"aware": tr', '{"KEY": {"aware": true}}', '{"KEY": 1}', "[1]"]
)
def test_what_is_not_whole_in_the_cache_is_no_proof(text: str, cache: Path) -> None:
    probe.cache_file().write_text(text.replace("KEY", probe.key()))
    assert probe.aware().aware is None
    assert "mpicoll probe" in probe.aware().how
    probe.remember(probe.key(), probe.Verdict(True, "all arrived"))
    assert probe.aware().aware is True


def test_where_nothing_was_tried_nothing_is_remembered() -> None:
    none, _ = probe.prove(child(SAY + "say(no_device='no driver')"))
    assert none == (None, "no device: no driver")
    lost, _ = probe.prove(child("sys.exit('no such module')"))
    assert lost.aware is None
    assert "no such module" in lost.how
    assert not probe.cache_file().exists()


def test_asking_takes_the_override_then_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe.aware().aware is None
    assert "mpicoll probe" in probe.aware().how
    probe.remember(probe.key(), probe.Verdict(True, "all arrived"))
    assert probe.aware().aware is True
    monkeypatch.setenv("UCX_TLS", "tcp")  # other settings are another case
    probe._remembered.cache_clear()
    assert probe.aware().aware is None
    monkeypatch.setenv("MPICOLL_GPU_AWARE", "0")
    assert probe.aware() == (False, "MPICOLL_GPU_AWARE=0")
    monkeypatch.setenv("MPICOLL_GPU_AWARE", "yes")
    with pytest.raises(ArgumentError, match="0 or 1"):
        probe.aware()


def test_probe_with_a_fake_device_and_a_real_mpi(cache: Path) -> None:
    """Host memory behind the device's names: MPI can send it, and the child job proves so."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FAKE), os.environ.get("PYTHONPATH", "")])}
    for devices, status, words in (("1", 0, "proved"), ("0", 1, "no device")):
        done = subprocess.run(
            [sys.executable, "-m", "mpicoll", "probe"], env={**env, "FAKE_CUPY_DEVICES": devices},
            capture_output=True, text=True, timeout=110,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        assert words in done.stdout, done.stdout + done.stderr
        assert "MPIX_Query_cuda_support" in done.stdout


def test_collectives_of_host_memory_do_not_import_cupy() -> None:
    code = (
        "import sys, numpy as np; from mpi4py import MPI; import mpicoll; c = mpicoll.Comm(MPI.COMM_SELF);"
        "c.Allreduce(np.zeros(3), np.zeros(3)); import mpicoll.bench.cli; print('cupy' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(FAKE), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
