"""What other benchmarks print becomes rows: units, meanings of sizes, and nothing that they do not say."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from mpicoll.bench import cli
from mpicoll.bench.foreign import read_imb, read_nccl, read_osu, sizes_of
from mpicoll.errors import ArgumentError

SAMPLES = Path(__file__).parent / "foreign"
OSU = (SAMPLES / "osu_allreduce.txt").read_text()
IMB = (SAMPLES / "imb.txt").read_text()
NCCL = (SAMPLES / "nccl_all_reduce.txt").read_text()


def convert(tmp_path, program, name, *flags):
    assert cli.main(["import", program, str(SAMPLES / name), "-o", str(tmp_path / "r"), *flags]) == 0
    with (tmp_path / "r" / "samples.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_osu_rows_have_seconds_of_the_slowest_rank_and_no_invented_iterations(tmp_path):
    rows = convert(tmp_path, "osu", "osu_allreduce.txt", "--ranks", "4")
    assert [int(row["msg_bytes"]) for row in rows] == [4, 8, 1024, 16384, 1048576]
    assert [float(row["seconds"]) for row in rows] == [1.79e-6, 1.80e-6, 3.40e-6, 13.07e-6, 424.50e-6]
    assert float(rows[0]["seconds_min"]) == 1.24e-6
    for row in rows:
        assert (row["implementation"], row["requested"]) == ("mpi", "builtin")
        assert (row["dtype"], row["op"], row["ranks"]) == ("float32", "sum", "4")
        assert int(row["count"]) * 4 == int(row["msg_bytes"]) == int(row["total_bytes"])
        for unknown in (
            "iteration",
            "skew",
            "nodes",
            "ppn",
            "thread_level",
            "cache",
            "sync",
            "root",
            "checked",
        ):
            assert row[unknown] == "", unknown
    run = json.loads((tmp_path / "r" / "run.json").read_text())
    assert run["imported"]["version"] == "7.3"
    assert run["imported"]["statistic"] == ["largest over ranks of each rank's mean over calls"]
    assert [plan["iterations"] for plan in run["plans"].values()] == [1000, 1000, 1000, 100, 100]
    assert run["identity"]["cpu_model"] is None


def test_osu_sizes_mean_what_osu_means(tmp_path):
    rows = {}
    for row in convert(tmp_path, "osu", "osu_several.txt", "--ranks", "4"):
        rows[row["collective"], int(row["msg_bytes"])] = row
    assert int(rows["allgather", 4096]["total_bytes"]) == 4 * 4096  # printed: one rank's part
    assert int(rows["reduce_scatter", 1024]["total_bytes"]) == 1024  # printed: the whole vector
    assert int(rows["alltoall", 64]["total_bytes"]) == 4 * 64  # printed: what goes to one rank
    assert rows["allgather", 1]["buffer"] == "cupy"
    assert (
        rows["reduce_scatter", 4]["dtype"] == rows["reduce_scatter", 4]["count"] == ""
    )  # not printed by 5.9
    assert [rows["alltoall", n]["status"] for n in (1, 64)] == ["ok", "wrong"]
    assert rows["allgather", 1]["seconds_min"] == ""  # without -f there is one number
    run = json.loads((tmp_path / "r" / "run.json").read_text())
    assert any("Neighbor Allgather" in text for text in run["imported"]["left_out"])


def test_imb_knows_its_ranks_and_what_a_reduce_scatter_prints():
    text = read_imb(IMB)
    assert [(table.collective, table.ranks, len(table.lines)) for table in text.tables] == [
        ("allreduce", 2, 3), ("allreduce", 4, 2), ("reduce_scatter", 4, 1), ("alltoall", 4, 1),
    ]  # fmt: skip
    line = text.tables[1].lines[1]
    assert (line.nbytes, line.seconds, line.seconds_min) == (65536, 62.45e-6, 60.10e-6)
    assert line.iterations == 640
    assert sizes_of(text.tables[2], text.tables[2].lines[0]) == (1, 16, 16)  # one rank's result, since 2019
    old = read_imb(IMB.replace("2021.7", "2018.1"))
    assert sizes_of(old.tables[2], old.tables[2].lines[0])[1:] == (4, 4)
    assert text.tables[3].dtype == "uint8"
    assert {reason.partition(":")[0] for reason in text.left_out} == {"allgather", "Barrier"}


def test_nccl_bandwidths_are_recomputed_and_in_place_is_a_contender(tmp_path):
    rows = convert(tmp_path, "nccl", "nccl_all_reduce.txt")
    assert {row["requested"] for row in rows} == {"nccl", "nccl in place"}
    assert {(row["ranks"], row["nodes"], row["buffer"], row["checked"]) for row in rows} == {
        ("8", "2", "cupy", "1")
    }
    large = next(row for row in rows if row["total_bytes"] == "16777216" and row["requested"] == "nccl")
    assert float(large["seconds"]) == 121.33e-6
    assert large["msg_bytes"] == "16777216"
    run = json.loads((tmp_path / "r" / "run.json").read_text())
    assert {plan["iterations"] for plan in run["plans"].values()} == {20}


def test_nccl_sizes_are_totals():
    text = read_nccl((SAMPLES / "nccl_old_all_gather.txt").read_text(), "allgather")
    (table,) = text.tables
    assert (table.ranks, table.nodes, table.dtype, table.op) == (4, 1, "float32", None)
    assert sizes_of(table, table.lines[0]) == (64, 256, 1024)
    assert {line.wrong for line in table.lines} == {None}  # the old column is an error, not a count


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (read_nccl, NCCL.replace("241.99", "138.28"),
         "busbw 138.28 is printed, but allreduce on 8 ranks has 241.99"),
        (read_nccl, re.sub(r"^#  Rank  7.*\n", "", NCCL, flags=re.M), "on 7 ranks has"),
        (read_nccl, NCCL.replace("Rank  7", "Rank  0"), "2 ranks 0 in this text"),
        (read_nccl, NCCL.replace("# Collective test starting: all_reduce_perf", "#"), "--collective one of"),
        (lambda t: read_nccl(t, "allreduce"), re.sub(r"^#.*\n", "", NCCL, flags=re.M), "--ranks N"),
        (read_osu, OSU.replace("Avg Latency(us)", "Overall(us)    "), "no latencies among the columns"),
        (read_imb, IMB.replace("t_max[usec]", "t_pure[usec]"), "no column t_max"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused(read, text, words):
    with pytest.raises(ArgumentError, match=words):
        read(text)


@pytest.mark.parametrize(
    ("program", "name", "flags", "words"),
    [
        ("osu", "osu_allreduce.txt", [], "does not say how many ranks"),
        ("osu", "imb.txt", ["--ranks", "4"], "no results of OSU micro-benchmarks"),
        ("osu", "none.txt", ["--ranks", "4"], "cannot read"),
        ("imb", "imb.txt", ["--ranks", "8"], "--ranks 8, but the text says 2"),
        ("osu", "osu_several.txt", ["--ranks", "4", "--dtype", "quad"], "unknown dtype quad"),
    ],
)
def test_wrong_usage_is_said_and_nothing_is_written(tmp_path, capsys, program, name, flags, words):
    argv = ["import", program, str(SAMPLES / name), "-o", str(tmp_path / "r"), *flags]
    assert cli.main(argv) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_a_run_twice_in_one_file_is_refused(tmp_path, capsys):
    path = tmp_path / "twice.txt"
    path.write_text(OSU + OSU)
    assert cli.main(["import", "osu", str(path), "--ranks", "4", "-o", str(tmp_path / "r")]) == 2
    assert "twice: give each run a file of its own" in capsys.readouterr().err


def scaled(factor):
    """The OSU text with all its times multiplied."""
    return re.sub(r"(?<= )\d+\.\d\d", lambda m: f"{float(m[0]) * factor:.2f}", OSU)


def test_several_files_are_several_launches_and_are_reported(tmp_path):
    paths = []
    for number, factor in enumerate((1.0, 1.1, 0.9)):
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_text(scaled(factor))
    out = tmp_path / "r"
    assert cli.main(["import", "osu", *map(str, paths), "--ranks", "4", "-o", str(out)]) == 0
    from mpicoll.bench import frame, stats

    summary = stats.summarise(frame.load([out]).samples)
    assert list(summary["launches"]) == [3] * 5
    assert list(summary["msg_bytes"]) == [4, 8, 1024, 16384, 1048576]
    assert summary["median"].iloc[0] == pytest.approx(1.79e-6)
    assert summary["busbw"].iloc[-1] == pytest.approx(1.5 * 1048576 / 424.50e-6 / 1e9, rel=1e-6)


def test_report_of_an_import(tmp_path, capsys):
    convert(tmp_path, "osu", "osu_allreduce.txt", "--ranks", "4", "--mpi", "Open MPI 5.0.3")
    assert cli.main(["report", str(tmp_path / "r")]) == 0
    out = capsys.readouterr().out
    assert "all-reduce float32 sum, 4 ranks, Open MPI 5.0.3" in out
    assert "imported from OSU micro-benchmarks 7.3" in out
    page = (tmp_path / "r" / "report.html").read_text()
    assert "from OSU micro-benchmarks 7.3, file osu_allreduce.txt: largest over ranks" in page
    assert not re.findall(r"<d[dt]>[^<]*\bNone\b", page)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("osu", OSU[: OSU.index("1024") + 4]),  # the program was killed, or the disk was full
        ("osu", OSU.replace("424.50", "many")),
        ("imb", IMB[: IMB.index("1.46")]),
    ],
    ids=["no times", "a word", "half a line"],
)
def test_a_broken_text_is_refused_in_a_line(tmp_path, capsys, program, text):
    (tmp_path / "text").write_text(text)
    words = ["import", program, str(tmp_path / "text"), "-o", str(tmp_path / "r"), "--ranks", "4"]
    assert cli.main(words[: None if program == "osu" else -2]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mpicoll: ")
    assert "a line of results is cut off" in said
    assert not (tmp_path / "r").exists()


def test_no_ranks_are_no_number_of_ranks(tmp_path, capsys):
    for flag in ("--ranks", "--nodes"):
        words = ["import", "osu", str(SAMPLES / "osu_allreduce.txt"), "-o", str(tmp_path / "r"), flag, "0"]
        assert cli.main(words) == 2
        assert f"{flag} must be at least 1" in capsys.readouterr().err
