"""The verb `model`, calibration from rows, fits, predictions of held-out rows, exports: all without MPI."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import mpicoll.algorithms  # noqa: F401  (registers them)
from mpicoll.bench import calibrated, prediction
from mpicoll.bench.calibrate import describe, machine_from
from mpicoll.bench.cli import main
from mpicoll.bench.export import goal, msccl
from mpicoll.bench.fit import fit_curve
from mpicoll.cost import Machine, cost, uniform
from mpicoll.errors import ArgumentError, Unsupported
from mpicoll.registry import algorithms, get
from mpicoll.traffic import peer_bytes, traffic


def test_model_says_what_dominates_and_writes_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--ranks", "64", "--bytes", "1000000000", "--alpha", "5us", "--beta", "25GB/s", "--gamma", "inf"]
    assert main(["model", "allreduce", "ring", *flags, "--csv", str(tmp_path / "m.csv")]) == 0
    assert "79.4 ms" in capsys.readouterr().out
    (row,) = csv.DictReader((tmp_path / "m.csv").read_text().splitlines())
    assert float(row["latency"]) == pytest.approx(0.63e-3)
    assert float(row["bandwidth"]) == pytest.approx(78.75e-3)


@pytest.mark.parametrize(
    "flags",
    [["--alpha", "5 apples"], ["--beta", "25"], ["--nodes", "2", "--ranks", "4"],
     ["--machine", "nowhere.json"], ["--topology", "torus", "--ranks", "0"], ["--ports", "0"]],
)  # fmt: skip
def test_wrong_flags_are_status_2(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "allreduce", "--bytes", "1K", *flags]) == 2
    assert "mpicoll: " in capsys.readouterr().err


def test_case_that_nobody_serves_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "allreduce", "swing", "--ranks", "3", "--bytes", "8"]) == 1
    assert "even" in capsys.readouterr().err


def test_fit_finds_the_switch_despite_an_outlier() -> None:
    points = [(2.0**k, 1e-6 + 1e-9 * 2**k if k < 13 else 8e-6 + 3e-10 * 2**k) for k in range(3, 24)]
    points[4] = points[4][0], 5 * points[4][1]
    first, second = fit_curve(points).pieces
    assert second[0] == 2**13
    assert first[1:] == pytest.approx((1e-6, 1e-9), rel=0.1)
    assert second[1:] == pytest.approx((8e-6, 3e-10), rel=0.02)


def test_machine_is_found_again_from_rows_it_made() -> None:
    rows = []
    for n in (8 * 4**k for k in range(11)):
        for pattern, seconds in (("one_way", 1e-6 + 1e-10 * n), ("exchange", 1.2e-6 + 2e-10 * n),
                                 ("combine", 1.2e-6 + 2.5e-10 * n)):  # fmt: skip
            rows.append({"pattern": pattern, "bytes": n, "round": seconds, "call": 3e-7, "engine": "native"})
    rows.append(
        {"pattern": "burst", "bytes": 8, "round": 1.2e-6 + 4 * 3e-7, "call": 3e-7, "engine": "native"}
    )
    machine, told = machine_from(rows, "made")
    assert machine.exchange(1 << 20) == pytest.approx(1.2e-6 + 2e-10 * (1 << 20), rel=1e-3)
    assert machine.combine(1 << 20) == pytest.approx(5e-11 * (1 << 20), rel=1e-3)
    assert (machine.gap, machine.call) == pytest.approx((3e-7, 3e-7), rel=1e-2)
    assert max(abs(row["residual"]) for row in told if row["residual"] is not None) < 1e-3
    assert "GB/s" in describe(machine)


def _summary(machine: Machine) -> pd.DataFrame:
    rng, rows = np.random.default_rng(1), []
    for size in (2, 3, 4):
        for name in ("ring", "recursive_doubling", "circulant", "binary_tree"):
            for nbytes in (4 * 4**k for k in range(12)):
                seconds = cost(
                    f"allreduce/{name}", size, nbytes, machine, get("allreduce", name).defaults
                ).seconds
                seconds *= rng.lognormal(0, 0.02)
                rows.append(
                    {"environment": "test", "thread_level": "funneled", "engine": "native", "status": "ok",
                     "collective": "allreduce", "contender": name, "algorithm": name, "root": 0,
                     "implementation": "mpicoll", "ranks": size, "msg_bytes": nbytes,
                     "total_bytes": nbytes, "median": seconds,
                     "median_low": 0.97 * seconds, "median_high": 1.03 * seconds, "oversubscribed": False,
                     "channels": 1, "params": "segments=1" if name == "binary_tree" else None}
                )  # fmt: skip
    return pd.DataFrame(rows)


def test_held_out_rows_are_predicted() -> None:
    rows = prediction.predict(_summary(uniform(2e-6, 1e-10, 3e-11, overlap=False)))
    held = rows[rows["held_out"]]
    assert set(held["ranks"]) == {2, 3, 4}  # every other size, and the largest number of ranks
    assert held["residual"].abs().median() < 0.05
    right, cases = prediction.winners(rows)
    assert right >= 0.85 * cases > 10


def test_rows_carry_model_bound_and_residual_of_a_calibration(tmp_path: Path) -> None:
    machine = uniform(2e-6, 1e-10, 3e-11, overlap=False)
    rows = _summary(machine).assign(dtype="float32", op="sum")
    mpi = rows[:1].assign(implementation="mpi", contender="builtin", algorithm="builtin")
    rows = pd.concat([rows, mpi], ignore_index=True)
    sources = pd.DataFrame({"source": [str(tmp_path / "run")], "environment": ["test"]})
    results = SimpleNamespace(environments={"test": {}}, samples=sources)

    calibrated.add_columns(rows, calibrated.machines(None, [tmp_path], results))
    assert rows[list(calibrated.COLUMNS)].isna().all(axis=None)  # there is no calibration yet

    (tmp_path / "machine.json").write_text(machine.to_json())
    calibrated.add_columns(rows, calibrated.machines(None, [tmp_path], results))
    assert rows["residual"][:-1].abs().max() < 0.1
    assert (rows["bound_seconds"] <= rows["model_seconds"].fillna(1) * (1 + 1e-9)).all()
    assert np.isnan(rows["model_seconds"].iloc[-1])  # of MPI's own call nothing is known but the bound
    assert rows["bound_seconds"].iloc[-1] > 0

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "machine.json").write_text(uniform(1e-6, 1e-10).to_json())
    with pytest.raises(ArgumentError, match="different machines; say which with --calibration"):
        calibrated.machines(None, [tmp_path], results)
    doubled = uniform(4e-6, 2e-10, 6e-11, overlap=False)
    calibrated.add_columns(rows, {"test": doubled})
    assert rows["residual"][:-1].median() == pytest.approx(1, abs=0.1)

    several = rows.assign(nodes=2, ranks=4)  # links of two kinds, and one calibration
    calibrated.add_columns(several, {"test": doubled})
    assert several[list(calibrated.COLUMNS)].isna().all(axis=None)


def test_oversubscribed_rows_are_not_predicted() -> None:
    summary = _summary(uniform(2e-6, 1e-10))
    assert prediction.predict(summary.assign(oversubscribed=True)).empty
    unknown = pd.Series([pd.NA] * len(summary), dtype="boolean")  # as in imported results
    assert prediction.predict(summary.assign(oversubscribed=unknown)).empty


def test_an_algorithm_that_is_not_loaded_is_named_in_the_report() -> None:
    summary = _summary(uniform(2e-6, 1e-10)).assign(algorithm="from_a_file")
    made = prediction.section(SimpleNamespace(summary=summary))
    assert "from_a_file" in " ".join(made.words)


@pytest.mark.parametrize("algorithm", [a for a in algorithms() if not a.hierarchical], ids=str)
def test_goal_sends_what_the_schedule_sends(algorithm) -> None:
    text = goal(algorithm, 4, 4096)
    sent = [[0] * 4 for _ in range(4)]
    rank = -1
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["rank"]:
            rank = int(words[1])
        elif words[1:2] == ["send"]:
            sent[rank][int(words[4])] += int(words[2].removesuffix("b"))
        elif words[1:2] == ["requires"]:
            assert int(words[2][1:]) < int(words[0][1:])
    if algorithm.collective.name != "barrier":
        assert sent == peer_bytes(algorithm, 4, 4096, 1)
    assert text.count(" send ") == text.count(" recv ") == traffic(algorithm, 4).messages


def test_msccl_is_well_formed_and_matched() -> None:
    for algorithm in algorithms("allreduce"):
        if algorithm.hierarchical:
            continue
        root = ET.fromstring(msccl(algorithm, 4))
        ends: dict[tuple[str, str, str], list[str]] = {}
        for gpu in root:
            for thread in gpu:
                steps = [s for s in thread if s.get("type") != "nop"]
                assert [s.get("s") for s in thread] == [str(i) for i in range(len(thread))]
                me, to, source = gpu.get("id", ""), thread.get("send", ""), thread.get("recv", "")
                key = ("s", me, to) if to != "-1" else ("r", source, me)
                ends[key] = [s.get("srcoff", "") + ":" + s.get("cnt", "") for s in steps]
        for (kind, source, to), steps in ends.items():
            assert kind == "r" or ends["r", source, to] == steps, algorithm
    with pytest.raises(Unsupported, match="only an all-reduce"):
        msccl(get("bcast", "binomial"), 4)
