"""Texts in other benchmarks' layouts: read by parsers of the kinds in use, and by our own readers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mpicoll.bench import cli, formats
from mpicoll.bench.foreign import read_nccl, read_osu
from mpicoll.errors import ArgumentError
from synthetic import row, write_result

SAMPLES = Path(__file__).parent / "foreign"


@pytest.fixture
def results(tmp_path):
    def imported(program, name, *flags):
        cli.main(["import", program, str(SAMPLES / name), "-o", str(tmp_path / "r"), *flags])
        return tmp_path / "r"

    return imported


def test_osu_layout_is_read_as_reframe_and_others_read_it(results, capsys):
    directory = results("osu", "osu_allreduce.txt", "--ranks", "4")
    capsys.readouterr()
    assert cli.main(["report", str(directory), "--format", "osu"]) == 0
    out = capsys.readouterr().out
    assert not (directory / "report.html").exists()
    # ReFrame's tests ask for one size by its line, and for the title.
    assert re.search(r"OSU MPI Allreduce Latency Test", out)
    assert re.search(r"^8\s+(\S+)", out, re.MULTILINE)[1] == "1.80"
    # Others split lines that do not begin with a hash.
    rows = [line.split() for line in out.splitlines() if line and not line.startswith("#")]
    assert [int(row[0]) for row in rows] == [4, 8, 1024, 16384, 1048576]
    assert {len(row) for row in rows} == {5}
    # Columns stand where osu_allreduce -f has them.
    original = (SAMPLES / "osu_allreduce.txt").read_text().splitlines()
    assert original[3] in out.splitlines()
    assert {line.index(".") for line in out.splitlines() if line[:1].isdigit()} == {
        line.index(".") for line in original if line[:1].isdigit()
    }
    again = read_osu(out).tables[0]
    assert (again.lines[0].nbytes, again.lines[0].seconds) == (4, 1.79e-6)


def superbench_style(text):
    """Columns by the first of their names in the header line between two landmarks."""
    lines = text.splitlines()
    first = next(k for k, line in enumerate(lines) if "out-of-place" in line)
    last = next(k for k, line in enumerate(lines) if "Out of bounds values" in line)
    header = next(line for line in lines[first:last] if "time" in line and "busbw" in line)
    names = header[1:].split()
    at = {name: names.index(name) for name in ("size", "time", "algbw", "busbw")}
    rows = [line.split() for line in lines[first:last] if re.match(r"\s*\d+", line)]
    return {
        int(row[at["size"]]): tuple(float(row[at[n]]) for n in ("time", "algbw", "busbw")) for row in rows
    }


def test_nccl_layout_is_read_as_others_read_it(results, capsys):
    directory = results("nccl", "nccl_all_reduce.txt")
    capsys.readouterr()
    assert cli.main(["report", str(directory), "--format", "nccl"]) == 0
    out = capsys.readouterr().out
    first, second = (f"# measured{part}" for part in out.split("# measured")[1:])
    assert "nccl, 8 ranks on 2 nodes" in first
    assert "nccl in place" in second
    original = (SAMPLES / "nccl_all_reduce.txt").read_text()
    assert superbench_style(first) == superbench_style(original)
    for line in original.splitlines():
        if line.startswith("#") and ("redop" in line or "(elements)" in line or "out-of-place" in line):
            assert line.rstrip() in [own.rstrip() for own in first.splitlines()]
    # A pattern of whole lines, in-place columns being whatever is there.
    pattern = r"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+(\S+)\s+\S+"
    assert len(re.findall(pattern, first, re.MULTILINE)) == 5
    assert float(re.search(r"Avg bus bandwidth\s+: ([0-9.]+)", first)[1]) == pytest.approx(130.2, abs=0.3)
    again = read_nccl(first, ranks=8)
    assert again.tables[0].collective == "allreduce"
    assert [line.contender for line in again.tables[0].lines] == ["nccl"] * 5  # nothing was measured in place


def test_a_wrong_result_has_no_line_and_is_named(results):
    tables = formats.Tables([results("osu", "osu_several.txt", "--ranks", "4")])
    text = tables.as_text("osu")
    part = text[text.index("# OSU MPI All-to-All") - 120 :]
    assert "# left out: 64 B: wrong" in part
    assert not re.search(r"^64 ", part, re.MULTILINE)
    assert "Out of bounds values : 1 FAILED" in tables.as_text("nccl")


@pytest.mark.parametrize("name", formats.FORMATS)
def test_several_launches_count_alike_and_contenders_apart(tmp_path, capsys, name):
    calls = [2e-6, 4e-6, 6e-6], [10e-6]
    for number, times in enumerate(calls):
        rows = [row(seconds=t, iteration=i, checked=True, cache="warm") for i, t in enumerate(times)]
        rows += [row(seconds=1e-3, iteration=9, warmup=True), row(seconds=1e-3, iteration=9, late=True)]
        rows.append(row(requested="builtin", seconds=20e-6, seconds_min=10e-6, iteration=0))
        write_result(tmp_path / str(number), {}, extra=rows)
    assert cli.main(["report", str(tmp_path), "--format", name]) == 0
    out = capsys.readouterr().out
    assert out.count("# measured by mpicoll") == 2
    own, builtin = out.split("# measured by mpicoll: ")[1:]
    assert own.startswith("ring, 2 ranks on 1 node, ")
    assert builtin.startswith("builtin, ")
    (line,) = re.findall(r"^ *1024 .*", own, re.MULTILINE)
    assert " 7.00 " in line  # the mean of 4 and 10 µs, not that of all calls
    (line,) = re.findall(r"^ *1024 .*", builtin, re.MULTILINE)
    assert (line.split()[1:5] if name == "osu" else line.split()[5:6]) == (
        ["20.00", "10.00", "20.00", "2"] if name == "osu" else ["20.00"]
    )


@pytest.mark.parametrize("name", formats.FORMATS)
def test_nothing_to_print_is_said(tmp_path, capsys, name):
    write_result(tmp_path, {}, extra=[row(status="unsupported", seconds=None, reason="no", iteration=None)])
    assert cli.main(["report", str(tmp_path), "--format", name]) == 1
    out, err = capsys.readouterr()
    assert "# left out: 1024 B: unsupported" in out
    assert err == f"mpicoll: nothing to print as {name}: no right result with a time\n"


def test_an_unknown_format_is_refused():
    with pytest.raises(ArgumentError, match="known: osu, nccl"):
        formats.Tables().as_text("imb")
