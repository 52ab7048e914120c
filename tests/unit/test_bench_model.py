"""The verb `model`, calibration from rows, fits, predictions of held-out rows, exports: all without MPI."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mpicoll.algorithms  # noqa: F401  (registers them)
from mpicoll.bench import calibrate, calibrated, prediction
from mpicoll.bench.calibrate import describe, machine_from, pairs_of
from mpicoll.bench.cli import main
from mpicoll.bench.export import goal, msccl
from mpicoll.bench.fit import fit_curve
from mpicoll.cost import Machine, cost, uniform
from mpicoll.curves import Curve, straight
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
     ["--machine", "nowhere.json"], ["--topology", "torus", "--ranks", "0"], ["--ports", "0"],
     ["--topology", "ring", "--nic", "1GB/s"]],
)  # fmt: skip
def test_wrong_flags_are_status_2(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "allreduce", "--bytes", "1K", *flags]) == 2
    assert "mpicoll: " in capsys.readouterr().err


N = 1 << 20
BUTTERFLY = ("allreduce", "recursive_doubling", "--nodes", "2", "--ppn", "4")
TREE = ("allreduce", "recursive_doubling", "--nodes", "4", "--topology", "fattree", "--nic", "10GB/s")


@pytest.mark.parametrize(
    ("words", "vectors", "messages"),
    [
        # Two rounds in the node; in the third, four ranks share an interface as fast as one port, or two.
        ((*BUTTERFLY, "--nic", "10GB/s"), 2 + 4, 3),
        ((*BUTTERFLY, "--nic", "20GB/s"), 2 + 2, 3),
        ((*BUTTERFLY, "--topology", "flat"), 3, 3),
        # One round stays below a switch; in the other, two nodes share what comes out of it.
        ((*TREE, "--group", "2", "--taper", "1"), 1 + 1, 2),
        ((*TREE, "--group", "2", "--taper", "2"), 1 + 2, 2),
        ((*TREE, "--group", "2", "--taper", "4"), 1 + 4, 2),
        ((*TREE, "--group", "4", "--taper", "4"), 1 + 1, 2),
        # Four messages of a fifth of the vector at once, through one port or two.
        (("alltoall", "linear", "--ranks", "5"), 4 / 5, 1 + 3 * 0.2),
        (("alltoall", "linear", "--ranks", "5", "--ports", "2"), 2 / 5, 1 + 0.2),
    ],
)
def test_flags_of_a_network_change_the_time_by_what_is_shared(
    words: tuple[str, ...], vectors: float, messages: float, tmp_path: Path
) -> None:
    flags = ["--bytes", str(N), "--alpha", "5us", "--beta", "10GB/s", "--gamma", "inf"]
    assert main(["model", *words, *flags, "--csv", str(tmp_path / "m.csv")]) == 0
    (row,) = csv.DictReader((tmp_path / "m.csv").read_text().splitlines())
    assert float(row["bandwidth"]) == pytest.approx(vectors * N / 10e9, rel=1e-3)
    assert float(row["latency"]) == pytest.approx(messages * 5e-6)


def test_an_interface_is_as_fast_as_said_whatever_the_curves_say(tmp_path: Path) -> None:
    """A calibrated port is ten times as fast in messages of this size as in larger ones."""
    bent = Curve(((0, 0.0, 1e-11), (2 * N, 0.0, 1e-10)))
    (tmp_path / "machine.json").write_text(replace(uniform(0.0, 0.0), exchange=bent).to_json())
    flags = [
        "--machine",
        str(tmp_path),
        "--bytes",
        str(N),
        "--nic",
        "1GB/s",
        "--csv",
        str(tmp_path / "m.csv"),
    ]
    assert main(["model", *BUTTERFLY, *flags]) == 0
    (row,) = csv.DictReader((tmp_path / "m.csv").read_text().splitlines())
    assert float(row["bandwidth"]) == pytest.approx(2 * 1e-11 * N + 4 * N / 1e9)


def test_chart_shows_every_algorithm_and_the_bound(tmp_path: Path) -> None:
    names = ["ring", "recursive_doubling"]
    chart = tmp_path / "m.svg"
    flags = ["--ranks", "8,16", "--bytes", "1K:1M:32", "--chart", str(chart)]
    assert main(["model", "allreduce", *names, *flags]) == 0
    drawing = ET.parse(chart).getroot()
    assert drawing.tag.endswith("svg")
    texts = {"".join(text.itertext()) for text in drawing.iter("{http://www.w3.org/2000/svg}text")}
    assert {*names, "8", "16"} <= texts  # the legend, and a panel for each number of ranks
    dashed = [path for path in drawing.iter() if path.get("stroke-dasharray") == "4,3"]
    assert len(dashed) >= 2


@pytest.mark.parametrize(
    ("verb", "flag"),
    [("model", "--csv"), ("model", "--goal"), ("model", "--msccl"), ("model", "--chart"), ("show", "--svg")],
)
def test_a_place_where_nothing_can_be_written_is_named(
    verb: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk, and a directory that is none."""
    full = tmp_path / "full.svg"
    full.symlink_to("/dev/full")
    (tmp_path / "file").write_text("")
    for place, reason in ((full, "No space left"), (tmp_path / "file" / "of.svg", "File exists")):
        assert main([verb, "allreduce", "ring", "--ranks", "4", flag, str(place)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert reason in said
        assert str(place.name if place is full else tmp_path / "file") in said


def test_a_chart_of_an_unknown_kind_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "allreduce", "ring", "--ranks", "4", "--chart", "x.gif"]) == 2
    assert ".svg, .png, .html" in capsys.readouterr().err


def test_case_that_nobody_serves_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "allreduce", "swing", "--ranks", "3", "--bytes", "8"]) == 1
    assert "even" in capsys.readouterr().err


def test_fit_finds_the_switch_despite_an_outlier() -> None:
    points = [(2.0**k, 1e-6 + 1e-9 * 2**k if k < 13 else 8e-6 + 3e-10 * 2**k) for k in range(3, 24)]
    points[4] = points[4][0], 5 * points[4][1]
    first, second, *_ = fit_curve(points).pieces
    assert second[0] == 2**13
    assert first[1:] == pytest.approx((1e-6, 1e-9), rel=0.1)
    assert second[1:] == pytest.approx((8e-6, 3e-10), rel=0.02)


def _measured(
    pattern: str, nbytes: int, seconds: float, dtype: str = "uint8", op: str = ""
) -> dict[str, Any]:
    return {"pattern": pattern, "dtype": dtype, "op": op, "bytes": nbytes, "round": seconds, "call": 3e-7}


def _rows() -> list[dict[str, Any]]:
    rows = []
    for n in (8 * 4**k for k in range(11)):
        rows += [
            _measured("one_way", n, 1e-6 + 1e-10 * n),
            _measured("one_way_relayed", n, 1e-6 + 4e-10 * n),
            _measured("exchange", n, 1.2e-6 + 2e-10 * n),
            _measured("exchange_relayed", n, 1.2e-6 + 3e-10 * n),
            _measured("copy", n, 0.7e-10 * n),
            _measured("combine", n, 0.5e-10 * n, "float32", "sum"),
            _measured("combine", n, 4e-10 * n, "float64", "max"),
        ]
    return [*rows, _measured("burst", 8, 1.2e-6 + 4 * 3e-7)]


def test_machine_is_found_again_from_rows_it_made() -> None:
    machine, told = machine_from(_rows(), "made")
    n = 1 << 20
    assert machine.exchange(n) == pytest.approx(1.2e-6 + 2e-10 * n, rel=1e-3)
    assert machine.relaying.one_way(n) == pytest.approx(1e-6 + 4e-10 * n, rel=1e-3)
    assert machine.relaying.exchange(n) == pytest.approx(1.2e-6 + 3e-10 * n, rel=1e-3)
    assert machine.copy(n) == pytest.approx(0.7e-10 * n, rel=1e-3)
    for pair, gamma in ((("float32", "sum"), 5e-11), (("float64", "max"), 4e-10)):
        combining = machine.combining(*pair)
        assert combining is not None
        assert combining.combine(n) == pytest.approx(gamma * n, rel=1e-3)
    assert machine.combine == dict(machine.combines)["float32 sum"]  # the first is that of `mpicoll model`
    assert machine.combining("float64", "sum") is None
    assert (machine.gap, machine.call) == pytest.approx((3e-7, 3e-7), rel=1e-2)
    assert max(abs(row["residual"]) for row in told if row["residual"] is not None) < 1e-2
    assert Machine.from_json(machine.to_json()) == machine
    for words in ("float64 max", "copy", "one_way_relayed"):
        assert words in describe(machine)
    for pattern in ("copy", "burst", "exchange_relayed"):
        with pytest.raises(ArgumentError, match=f"needs .*{pattern}"):
            machine_from([row for row in _rows() if row["pattern"] != pattern], "made")


def test_launches_of_a_calibration_are_merged_to_their_medians(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = []
    for factor in (1.0, 1.5, 3.0):
        names.append(str(tmp_path / str(factor)))
        rows = [{**row, "round": factor * row["round"], "engine": "native", "samples": 7} for row in _rows()]
        Path(names[-1]).mkdir()
        calibrate._write(rows, Path(names[-1]), "MPI", "box", "cpu", {"mpi": "x"})
    assert main(["calibrate", "--merge", *names, "-o", str(tmp_path / "all")]) == 0
    merged, middle = (Machine.read(Path(folder)) for folder in (tmp_path / "all", names[1]))
    assert merged == middle
    assert json.loads((tmp_path / "all" / "calibration.json").read_text())["launches"] == 3
    lines = Path(names[0], "calibration.csv").read_text().splitlines(keepends=True)
    Path(names[0], "calibration.csv").write_text("".join(lines[:-1]))
    assert main(["calibrate", "--merge", *names, "-o", str(tmp_path / "other")]) == 2
    calibrate._write(rows, Path(names[0]), "MPI", "box", "another", {})
    capsys.readouterr()
    assert main(["calibrate", "--merge", *names, "-o", str(tmp_path / "other")]) == 2
    assert "MPI on box with another; MPI on box with cpu" in capsys.readouterr().err


def test_a_calibration_that_cannot_be_merged_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file is missing, of an older version, or broken."""
    rows = [{**row, "engine": "native", "samples": 7} for row in _rows()]
    calibrate._write(rows, tmp_path, "MPI", "box", "cpu", {})
    for name, text, words in (
        ("calibration.json", None, "cannot read"),
        ("calibration.json", "{", "is not as"),
        ("calibration.json", "3", "is not as"),
        ("calibration.csv", None, "cannot read"),
        ("calibration.csv", "pattern,bytes\ncopy,8\n", "there is no 'dtype'"),
        ("calibration.csv", "pattern,dtype,op,bytes\ncopy,uint8,,many\n", "invalid literal"),
    ):
        good = (tmp_path / name).read_text()
        (tmp_path / name).unlink()
        if text is not None:
            (tmp_path / name).write_text(text)
        capsys.readouterr()
        assert main(["calibrate", "--merge", str(tmp_path), "-o", str(tmp_path / "all")]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert words in said
        assert str(tmp_path / name) in said
        (tmp_path / name).write_text(good)


def test_residuals_are_what_the_model_says_too_much() -> None:
    rows = [{**row, "round": 1e-6} for row in _rows()]
    rows[21]["round"] = 0.5e-6
    _, told = machine_from(rows, "made")
    assert told[21]["residual"] == pytest.approx(told[21]["model"] / 0.5e-6 - 1)
    assert told[21]["residual"] != 0
    assert told[-1]["residual"] is None


def test_what_is_calibrated_is_all_that_mpi_defines() -> None:
    sizes = [8, 64]
    assert pairs_of(["float32", "int64"], ["sum", "band"], sizes) == [
        ("float32", "sum"), ("int64", "sum"), ("int64", "band")
    ]  # fmt: skip
    for dtypes, ops, words in (
        ("float99", "sum", "unknown dtype 'float99'"),
        ("float32", "plus", "unknown operation 'plus'"),
        ("float32,int32", "band", "MPI defines none of band on float32"),
        ("float32,float64", "sum,band", "MPI defines band on none of float32, float64"),
        ("complex128", "sum", "two multiples of the 16 bytes of complex128"),
    ):
        with pytest.raises(ArgumentError, match=words):
            pairs_of(dtypes.split(","), ops.split(","), sizes)


ALLREDUCES = [f"allreduce/{name}" for name in ("ring", "recursive_doubling", "circulant", "binary_tree")]


def _summary(machine: Machine, which: Sequence[str] = ALLREDUCES) -> pd.DataFrame:
    rng, rows = np.random.default_rng(1), []
    for size in (2, 3, 4):
        for full in which:
            kind, name = full.split("/")
            for nbytes in (4 * 4**k for k in range(12)):
                seconds = cost(full, size, nbytes, machine, get(kind, name).defaults).seconds
                seconds *= rng.lognormal(0, 0.02)
                rows.append(
                    {"environment": "test", "thread_level": "funneled", "engine": "native", "status": "ok",
                     "collective": kind, "contender": name, "algorithm": name, "root": 0,
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
    assert held["fitted_residual"].abs().median() < 0.05
    right, cases = prediction.winners(held)
    assert right >= 0.85 * cases > 10


def test_the_fit_knows_copies_and_what_is_passed_on() -> None:
    """A copy as dear as ten messages, and bytes five times as dear where they were just written."""
    passed = straight(2e-6, 5e-10)
    machine = replace(
        uniform(2e-6, 1e-10, 0.0, overlap=False),
        copy=straight(0.0, 1e-9), one_way_relayed=passed, exchange_relayed=passed,
    )  # fmt: skip
    which = ["allreduce/ring", "allreduce/recursive_doubling", "allgather/circulant", "allgather/ring",
             "alltoall/pairwise", "reduce_scatter/pairwise", "reduce_scatter/ring"]  # fmt: skip
    rows = prediction.predict(_summary(machine, which))
    held = rows[rows["held_out"] & (rows["msg_bytes"] > 4096)]
    off = held["fitted_residual"].abs().groupby(held["collective"]).median()
    assert off.max() < 0.05


def test_rows_carry_model_bound_and_residual_of_a_calibration(tmp_path: Path) -> None:
    machine = uniform(2e-6, 1e-10, 3e-11, overlap=False)
    rows = _summary(machine).assign(dtype="float32", op="sum")
    mpi = rows[:1].assign(implementation="mpi", contender="builtin", algorithm="builtin")
    rows = pd.concat([rows, mpi], ignore_index=True)
    sources = pd.DataFrame({"source": [str(tmp_path / "run")], "environment": ["test"]})
    results = SimpleNamespace(environments={"test": {}}, samples=sources)

    assert calibrated.calibrations(None, [tmp_path], results) == {}
    calibrated.add_columns(rows, {})
    assert rows[list(calibrated.COLUMNS)].isna().all(axis=None)  # there is no calibration yet

    (tmp_path / "machine.json").write_text(machine.to_json())
    found = calibrated.calibrations(None, [tmp_path], results)["test"]
    assert found.path == tmp_path / "machine.json"
    calibrated.add_columns(rows, {"test": found.machine})
    assert rows["residual"][:-1].abs().max() < 0.1
    assert (rows["bound_seconds"] <= rows["model_seconds"].fillna(1) * (1 + 1e-9)).all()
    assert np.isnan(rows["model_seconds"].iloc[-1])  # of MPI's own call nothing is known but the bound
    assert rows["bound_seconds"].iloc[-1] > 0

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "machine.json").write_text(uniform(1e-6, 1e-10).to_json())
    with pytest.raises(ArgumentError, match="different machines; say which with --calibration"):
        calibrated.calibrations(None, [tmp_path], results)
    doubled = uniform(4e-6, 2e-10, 6e-11, overlap=False)
    calibrated.add_columns(rows, {"test": doubled})
    assert rows["residual"][:-1].median() == pytest.approx(1, abs=0.1)

    several = rows.assign(nodes=2, ranks=4)  # links of two kinds, and one calibration
    calibrated.add_columns(several, {"test": doubled})
    assert several[list(calibrated.COLUMNS)].isna().all(axis=None)


def test_a_calibration_says_what_it_is_of() -> None:
    made = uniform(1e-6, 1e-10, name="MPICH 4, same node", host="box", cpu="CPU one")
    machine = replace(made, combines=(("float32 sum", made.combine),))
    assert Machine.from_json(machine.to_json()) == machine
    words = calibrated.Calibration(Path("c.json"), machine).words("CPU two")
    for told in ("c.json", machine.digest, "MPICH 4, same node", "host box with CPU one", "CPU two"):
        assert told in words
    assert "these results" not in calibrated.Calibration(Path("c.json"), machine).words("CPU one")
    facts = json.loads(made.to_json())
    for key in ("host", "cpu", "combines"):
        del facts[key]
    old = calibrated.Calibration(Path("c.json"), Machine.from_json(json.dumps(facts)))
    assert "the file does not say" in old.words(None)


def test_rows_of_a_type_that_was_not_calibrated_have_no_model() -> None:
    """Of those that combine; what is sent costs the same whatever it is."""
    machine = uniform(2e-6, 1e-10, 3e-11, overlap=False)
    twice = ("float64 sum", uniform(2e-6, 1e-10, 6e-11).combine)
    machine = replace(machine, combines=(("float32 sum", machine.combine), twice))
    line = _summary(machine)[11:12].assign(channels=1)  # 16 MiB by a ring of two
    pairs = (("float32", "sum"), ("float64", "sum"), ("int32", "max"))
    reduced = [line.assign(dtype=dtype, op=op) for dtype, op in pairs]
    sent = line.assign(collective="allgather", dtype="int32", op=None)
    rows = pd.concat([*reduced, sent], ignore_index=True)
    calibrated.add_columns(rows, {"test": machine})
    assert rows[["model_seconds", "residual"]].isna().any(axis=1).tolist() == [False, False, True, False]
    assert rows["bound_seconds"].notna().all()
    told = rows["model_seconds"]
    assert told[1] - told[0] == pytest.approx(3e-11 * float(line["total_bytes"].iloc[0]) / 2)


def test_oversubscribed_rows_are_not_predicted() -> None:
    summary = _summary(uniform(2e-6, 1e-10))
    assert prediction.predict(summary.assign(oversubscribed=True)).empty
    unknown = pd.Series([pd.NA] * len(summary), dtype="boolean")  # as in imported results
    assert prediction.predict(summary.assign(oversubscribed=unknown)).empty


def test_an_algorithm_that_is_not_loaded_is_named_in_the_report() -> None:
    summary = _summary(uniform(2e-6, 1e-10)).assign(algorithm="from_a_file")
    made = prediction.section(SimpleNamespace(summary=summary))
    assert "from_a_file" in " ".join(made.words)


def test_a_section_says_of_which_sizes_its_errors_are_and_what_it_takes() -> None:
    """Six sizes of two algorithms are three each to fit to, and of one size nothing is left to predict."""
    summary = _summary(uniform(2e-6, 1e-10))
    made = prediction.section(SimpleNamespace(summary=summary))
    assert {row[2] for row in made.tables[0].rows} == {"below 64 KiB", "from 64 KiB"}

    sizes = sorted(summary["msg_bytes"].unique())[:6]
    few = summary[(summary["ranks"] == 2) & summary["msg_bytes"].isin(sizes)]
    for rows, number in (
        (few[few["algorithm"].isin(["ring", "circulant"])], 6),
        (few[few["msg_bytes"] == 4], 4),
    ):
        made = prediction.section(SimpleNamespace(summary=rows))
        assert made.words[0].startswith("No machine was fitted: it takes 8 rows")
        assert f"Here are {number}: measure more sizes" in made.words[0]
    assert prediction.section(SimpleNamespace(summary=few.assign(implementation="mpi"))) is None


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
