"""What other benchmarks print, read: OSU micro-benchmarks, Intel MPI Benchmarks, nccl-tests.

Each reader is a pure function from text to `Table`s. It takes what the text says and nothing more: no
iteration is invented, and what a program does not print (OSU: the number of ranks) stays missing for the
user to add. Layouts as of OSU 5 to 7.4, IMB 2018 to 2021.11, nccl-tests 2.0 to 2.17.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from mpicoll.collectives import collective
from mpicoll.errors import ArgumentError

DTYPES = {  # by the names that these programs print: NumPy's name, bytes of an element
    "MPI_CHAR": ("int8", 1), "MPI_BYTE": ("uint8", 1), "MPI_INT": ("int32", 4), "MPI_FLOAT": ("float32", 4),
    "MPI_DOUBLE": ("float64", 8), "MPI_SIGNED_CHAR": ("int8", 1), "MPI_UNSIGNED_CHAR": ("uint8", 1),
    "int8": ("int8", 1), "uint8": ("uint8", 1), "int32": ("int32", 4), "uint32": ("uint32", 4),
    "int64": ("int64", 8), "uint64": ("uint64", 8), "half": ("float16", 2), "float": ("float32", 4),
    "double": ("float64", 8), "bfloat16": ("bfloat16", 2), "fp8_e4m3": ("float8_e4m3", 1),
    "fp8_e5m2": ("float8_e5m2", 1), "f8e4m3": ("float8_e4m3", 1), "f8e5m2": ("float8_e5m2", 1),
}  # fmt: skip


@dataclass(slots=True)
class Line:
    """One result: `nbytes` as printed, times in seconds."""

    nbytes: int
    seconds: float
    seconds_min: float | None = None
    contender: str = "builtin"
    iterations: int | None = None
    wrong: bool | None = None  # None: not checked
    root: int | None = None


@dataclass(slots=True)
class Table:
    """The results of one collective with one datatype on one number of ranks; None: the text does not say."""

    collective: str
    parts: str  # what the printed size is: "message" (OSU), "part" (one rank's result), "total" (nccl-tests)
    statistic: str  # what `seconds` is
    ranks: int | None = None
    nodes: int | None = None
    dtype: str | None = None
    itemsize: int | None = None
    op: str | None = None
    buffer: str = "host"
    implementation: str = "mpi"
    lines: list[Line] = field(default_factory=list)


@dataclass(slots=True)
class Text:
    """All that a text says."""

    program: str
    version: str | None = None
    tables: list[Table] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def _numbers(line: str) -> list[str] | None:
    """The words of a line that begins with a whole number."""
    words = line.split()
    return words if words and words[0].isdigit() else None


# -- OSU ---------------------------------------------------------------------------------------------------

_OSU_NAMES = {
    "Allreduce": "allreduce", "Reduce": "reduce", "Reduce_scatter": "reduce_scatter",
    "Allgather": "allgather", "Broadcast": "bcast", "Gather": "gather", "Scatter": "scatter",
    "All-to-All Personalized Exchange": "alltoall",
}  # fmt: skip
_OSU_TITLE = re.compile(r"^#\s*OSU MPI(?P<device>-\S+)? (?P<name>.+?) Latency Test(?:\s+v(?P<version>\S+))?")
_OSU_COLUMNS = {"Size": "size", "Avg Latency(us)": "avg", "Min Latency(us)": "min", "Max Latency(us)": "max",
                "Iterations": "iterations", "Validation": "validation", "Latency (us)": "avg"}  # fmt: skip


def read_osu(text: str) -> Text:
    """Output of the OSU micro-benchmarks' collectives (``osu_allreduce -f`` and its like).

    A time is the mean over calls on each rank; ``-f`` adds the least and the largest of these over ranks, and
    the largest is taken: it is nearest to mpicoll's "all ranks are done". Without it there is only the
    average.
    """
    found = Text("OSU micro-benchmarks")
    table: Table | None = None
    columns: list[str] = []
    for line in text.splitlines():
        if title := _OSU_TITLE.match(line):
            found.version = title["version"] or found.version
            table, columns = _osu_table(title, found), []
        elif table and (datatype := re.match(r"^#\s*Datatype:\s*(\w+)", line)):
            table.dtype, table.itemsize = DTYPES.get(datatype[1], (datatype[1], None))
        elif table and re.match(r"^#\s*Size\b", line):
            names = re.split(r"\s{2,}", line.lstrip("# ").strip())
            columns = [_OSU_COLUMNS.get(name, name) for name in names]
            table.statistic = _osu_statistic(columns)
        elif table and columns and (words := _numbers(line)):
            table.lines.append(_osu_line(dict(zip(columns, words, strict=False))))
    return found


def _osu_table(title: re.Match[str], found: Text) -> Table | None:
    name = _OSU_NAMES.get(title["name"])
    if name is None:
        found.left_out.append(f"{title['name']}: no collective that mpicoll knows")
        return None
    op = "sum" if collective(name).reduces else None  # the only one that these programs use
    buffer = {None: "host", "-CUDA": "cupy"}.get(title["device"], str(title["device"]).strip("-").lower())
    table = Table(name, "message", "", op=op, buffer=buffer)
    found.tables.append(table)
    return table


def _osu_statistic(columns: list[str]) -> str:
    if "avg" not in columns:
        raise ArgumentError(f"no latencies among the columns {', '.join(columns)}: no blocking collective?")
    return f"{'largest' if 'max' in columns else 'mean'} over ranks of each rank's mean over calls"


def _osu_line(words: dict[str, str]) -> Line:
    return Line(
        int(words["size"]),
        float(words.get("max", words["avg"])) * 1e-6,
        float(words["min"]) * 1e-6 if "min" in words else None,
        iterations=int(words["iterations"]) if "iterations" in words else None,
        wrong={"Pass": False, "Fail": True}.get(words.get("validation", "")),
    )


# -- Intel MPI Benchmarks ----------------------------------------------------------------------------------

_IMB_NAMES = {
    "Allreduce": "allreduce", "Reduce": "reduce", "Reduce_scatter": "reduce_scatter",
    "Reduce_scatter_block": "reduce_scatter", "Allgather": "allgather", "Bcast": "bcast",
    "Gather": "gather", "Scatter": "scatter", "Alltoall": "alltoall",
}  # fmt: skip


def read_imb(text: str) -> Text:
    """Output of IMB-MPI1's collectives.

    The printed size of a reduce-scatter is one rank's result in IMB 2019 and later, and the whole vector
    before (and in OSU's): the version in the text decides.
    """
    found = Text("Intel MPI Benchmarks")
    table: Table | None = None
    types: dict[str, str] = {}
    columns: list[str] = []
    for line in text.splitlines():
        if version := re.search(r"Intel\(R\) MPI Benchmarks (\S+?),", line):
            found.version = version[1]
        elif datatype := re.match(r"^#\s*MPI_(Datatype(?: for reductions)?|Op)\s*:\s*(\w+)", line):
            types[datatype[1]] = datatype[2]
        elif title := re.match(r"^#\s*Benchmarking (\S+)", line):
            table, columns = _imb_table(title[1], types, found), []
        elif table and (ranks := re.match(r"^#\s*#processes = (\d+)", line)):
            table.ranks = int(ranks[1])
        elif table and re.match(r"^#\s*\(?\s*\d+ groups of", line):
            found.tables.remove(table)
            found.left_out.append(f"{table.collective}: several groups ran at the same time")
            table = None
        elif table and line.lstrip().startswith("#bytes"):
            columns = line.split()
        elif table and columns and (words := _numbers(line)):
            if "t_max[usec]" not in columns:
                raise ArgumentError(f"no column t_max[usec] among {' '.join(columns)}")
            table.lines.append(_imb_line(dict(zip(columns, words, strict=False))))
    return found


def _imb_table(name: str, types: dict[str, str], found: Text) -> Table | None:
    known = _IMB_NAMES.get(name)
    if known is None:
        found.left_out.append(f"{name}: no collective that mpicoll knows")
        return None
    reduces = collective(known).reduces
    printed = types.get("Datatype for reductions" if reduces else "Datatype", "")
    dtype, itemsize = DTYPES.get(printed, (None, None))
    whole = known != "reduce_scatter" or int((found.version or "0").partition(".")[0]) < 2019
    op = types["Op"].removeprefix("MPI_").lower() if reduces and "Op" in types else None
    statistic = "largest over ranks of each rank's mean over calls"
    table = Table(known, "message" if whole else "part", statistic, dtype=dtype, itemsize=itemsize, op=op)
    found.tables.append(table)
    return table


def _imb_line(words: dict[str, str]) -> Line:
    return Line(
        int(words["#bytes"]),
        float(words["t_max[usec]"]) * 1e-6,
        float(words["t_min[usec]"]) * 1e-6,
        iterations=int(words["#repetitions"]),
        wrong=float(words["defects"]) != 0 if "defects" in words else None,
    )


# -- nccl-tests --------------------------------------------------------------------------------------------

_NCCL_NAMES = {
    "all_reduce": "allreduce", "reduce_scatter": "reduce_scatter", "all_gather": "allgather",
    "broadcast": "bcast", "reduce": "reduce", "alltoall": "alltoall", "gather": "gather",
    "scatter": "scatter",
}  # fmt: skip
_NCCL_TAIL = 8  # columns of results: time, algbw, busbw, #wrong, out of place and in place
_ROUNDING = 0.006  # GB/s: two decimals, and the time behind them is rounded too


def read_nccl(text: str, name: str | None = None, ranks: int | None = None) -> Text:
    """Output of nccl-tests (or rccl-tests): out of place and in place are two contenders.

    `name` is the collective where the text does not say it (before version 2.17), `ranks` their number where
    the list of devices is missing. Each line's bandwidths are recomputed from its size and time.

    Raises `ArgumentError` for bandwidths that are not those of the collective, size, time and ranks.
    """
    found = Text("nccl-tests")
    if version := re.search(r"^# nccl-tests version (\S+)", text, re.MULTILINE):
        found.version = version[1]
    program = re.search(r"Collective test starting: (?:\S*/)?(\w+?)(?:_perf)?\s*$", text, re.MULTILINE)
    name = _NCCL_NAMES.get(program[1]) if program else name
    if name is None:
        known = ", ".join(sorted(set(_NCCL_NAMES.values())))
        raise ArgumentError(f"the text does not say which collective it is: --collective one of {known}")
    listed, nodes = _nccl_devices(text)
    iterations = re.search(r"warmup iters: \d+\s+iters: (\d+)", text)
    table = Table(name, "total", "mean over queued calls, in the program's own mean over ranks",
                  ranks=listed or ranks, nodes=nodes, buffer="cupy", implementation="nccl")  # fmt: skip
    if table.ranks is None:
        raise ArgumentError("the text lists no devices: --ranks N says how many there were")
    for words in filter(None, map(_numbers, text.splitlines())):
        _nccl_line(words, table, int(iterations[1]) if iterations else None)
    found.tables.append(table)
    return found


def _nccl_devices(text: str) -> tuple[int | None, int | None]:
    devices = re.findall(r"^#\s+Rank\s+(\d+) .*?Pid\s+\d+ on\s+(\S+)\s+device", text, re.MULTILINE)
    ranks = [int(rank) for rank, _ in devices]
    if len(set(ranks)) < len(ranks):
        raise ArgumentError(
            f"there are {ranks.count(0)} ranks 0 in this text: worlds of their own, side by side; "
            "build nccl-tests with MPI=1, and start them with the mpirun of that MPI"
        )
    return (len(ranks), len({host for _, host in devices})) if devices else (None, None)


def _nccl_line(words: list[str], table: Table, iterations: int | None) -> None:
    """One printed line: the two contenders' results, checked."""
    if len(words) < 3 + _NCCL_TAIL or words[2] not in DTYPES:
        raise ArgumentError(f"not a line of results: {' '.join(words)}")
    head, tail = words[:-_NCCL_TAIL], words[-_NCCL_TAIL:]
    nbytes, dtype = int(head[0]), DTYPES[head[2]]
    if table.dtype not in (None, dtype[0]):
        raise ArgumentError("several datatypes in one text: split it")
    table.dtype, table.itemsize = dtype
    if collective(table.collective).reduces and len(head) > 3:
        table.op = head[3]
    root = int(head[4]) if len(head) > 4 and head[4] != "-1" else None
    for contender, (time, algbw, busbw, wrong) in (("nccl", tail[:4]), ("nccl in place", tail[4:])):
        if time == "N/A":
            continue
        seconds = float(time) * 1e-6
        _check_bandwidths(table, nbytes, seconds, float(algbw), float(busbw))
        # Before 2.13 this column was the largest error, which is not zero in a right result.
        failed = None if not wrong.isdigit() else int(wrong) > 0
        table.lines.append(Line(nbytes, seconds, None, contender, iterations, failed, root))


def _check_bandwidths(table: Table, nbytes: int, seconds: float, algbw: float, busbw: float) -> None:
    ranks = table.ranks or 1
    factor = collective(table.collective).busbw_factor(ranks)
    expected = nbytes / seconds / 1e9 if seconds else 0.0
    for word, printed, own in (("algbw", algbw, expected), ("busbw", busbw, expected * factor)):
        if abs(printed - own) > _ROUNDING + 0.01 * own:
            raise ArgumentError(
                f"{nbytes} bytes in {seconds * 1e6:g} µs: {word} {printed} is printed, but "
                f"{table.collective} on {ranks} ranks has {own:.2f}; another collective or number of ranks?"
            )


def sizes_of(table: Table, line: Line) -> tuple[int | None, int, int]:
    """(count, msg_bytes, total_bytes) of a line, as `mpicoll.bench.cases.Case` defines them.

    `count` is None if the datatype is not known, or if the size is not divisible: then parts differ.
    Raises `ArgumentError` for a size of nccl-tests that is no whole number of parts.
    """
    kind, ranks = collective(table.collective), table.ranks or 1
    in_message, in_total = kind.parts_in_message(ranks), kind.parts_in_total(ranks)
    inside = {"message": in_message, "part": 1, "total": in_total}[table.parts]
    part, rest = divmod(line.nbytes, inside)
    if rest and table.parts == "total":
        raise ArgumentError(f"{line.nbytes} bytes are no {inside} equal parts: are there {ranks} ranks?")
    even = table.itemsize is not None and not rest and not part % table.itemsize
    count = part // table.itemsize if even and table.itemsize else None
    return count, line.nbytes * in_message // inside, line.nbytes * in_total // inside


def all_lines(text: Text) -> Iterator[tuple[Table, Line]]:
    """Every result with its table."""
    for table in text.tables:
        for line in table.lines:
            yield table, line
