"""The record on disk: whole cases only, whatever cuts a write off, and never two of one kind."""

import errno
import json
import os

import pytest

from mpicoll.bench import store as store_module
from mpicoll.bench.records import Busy
from mpicoll.bench.store import ADDED, COLUMNS, Store, StoreError, encode, read_run, require_same, whole_part
from mpicoll.errors import ArgumentError


@pytest.fixture
def opened():
    """Open stores that are closed when the test is over."""
    stores = []

    def open_store(*args, **kwargs):
        stores.append(Store(*args, **kwargs))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def rows(case, number=3, status="ok", again=0):
    fixed = {"launch": 0, "case": case, "pass": again, "seconds": 1e-6, "status": status}
    return [{**fixed, "iteration": i, "reason": 'a, "b"\nc'} for i in range(number)]


def passes(directory):
    return whole_part((directory / "samples.csv").read_bytes()).passes


def test_a_row_is_one_line_whatever_its_reason(tmp_path, opened):
    store = opened(tmp_path / "new" / "run")
    store.write_case(rows(0))
    text = store.path.read_text()
    assert text.count("\n") == 4
    assert text.startswith(",".join(COLUMNS) + "\n")
    assert '"a, ""b"" c"' in text


def test_an_unknown_column_is_refused():
    with pytest.raises(KeyError, match="secs"):
        encode([{"secs": 1.0}])


def test_resume_is_told_of_what_is_there(tmp_path, opened):
    """Of every pass, whether found in the file or written, once."""
    store = opened(tmp_path)
    store.write_run()
    store.write_case(rows(0))
    store.write_case(rows(4, status="wrong"))
    store.close()
    told = []
    again = opened(tmp_path, resume=True, each=lambda rows: told.append((rows[0]["case"], len(rows))))
    assert (again.wrong, again.set_aside) == (3, None)
    again.write_case(rows(1, number=2))
    again.write_case(rows(0, again=1))
    assert told == [("0", 3), ("4", 3), (1, 2), (0, 3)]
    assert passes(tmp_path) == [("0", "0"), ("4", "0"), ("1", "0"), ("0", "1")]


def test_whatever_byte_a_write_is_cut_at_only_whole_cases_count(tmp_path, opened):
    """Cut the file at every byte of its last case: resume keeps the first, moves the rest aside."""
    store = opened(tmp_path / "whole")
    store.write_run()
    store.write_case(rows(0))
    kept = store.path.stat().st_size
    store.write_case(rows(0, number=2, again=1))
    store.close()
    content = store.path.read_bytes()
    for length in range(kept, len(content)):
        whole = whole_part(content[:length])
        assert (whole.length, whole.passes) == (kept, [("0", "0")])
    assert whole_part(content).passes == [("0", "0"), ("0", "1")]

    (tmp_path / "whole/samples.csv").write_bytes(content[:-7])
    again = opened(tmp_path / "whole", resume=True)
    assert again.set_aside.read_bytes() == content[kept:-7]
    again.write_case(rows(0, number=2, again=1))
    assert again.path.read_bytes() == content


def test_a_file_cut_off_in_its_header_is_begun_again(tmp_path, opened):
    opened(tmp_path).close()
    (tmp_path / "samples.csv").write_text(",".join(COLUMNS)[:20])
    store = opened(tmp_path, resume=True)
    assert store.path.read_text() == ",".join(COLUMNS) + "\n"


def test_damage_before_the_end_is_not_silently_dropped():
    content = (",".join(COLUMNS) + "\n").encode() + encode(rows(0)) + encode(rows(1))
    lines = content.splitlines(keepends=True)
    with pytest.raises(StoreError, match="line 3 has 1 fields"):
        whole_part(b"".join([*lines[:2], b"garbage\n", *lines[2:]]))
    with pytest.raises(StoreError, match="line 4 begins a case before the one above it is whole"):
        whole_part(b"".join([*lines[:3], *lines[4:]]))
    with pytest.raises(StoreError, match="other columns"):
        whole_part(b"launch,algorithm\n")


def test_a_doubled_case_is_refused(tmp_path, opened):
    store = opened(tmp_path)
    store.write_run()
    store.write_case(rows(0))
    store.write_case(rows(0))
    store.close()
    with pytest.raises(StoreError, match="case 0, pass 0 more than once"):
        opened(tmp_path, resume=True)


def test_a_result_is_not_overwritten(tmp_path, opened):
    store = opened(tmp_path)
    store.write_run()
    store.close()
    with pytest.raises(StoreError, match="already holds a result; continue it with --resume"):
        opened(tmp_path)


def test_a_verb_that_cannot_resume_advises_no_resume(tmp_path, opened):
    store = opened(tmp_path)
    store.write_run()
    store.close()
    with pytest.raises(StoreError, match="already holds a result; choose another -o"):
        opened(tmp_path, resume=None)


def test_resume_begins_where_there_is_nothing(tmp_path, opened):
    store = opened(tmp_path / "none", resume=True)
    assert store.path.read_text() == ",".join(COLUMNS) + "\n"


def test_samples_without_their_conditions_are_refused(tmp_path, opened):
    store = opened(tmp_path)
    store.write_case(rows(0))
    store.close()
    with pytest.raises(StoreError, match=r"no run\.json"):
        opened(tmp_path, resume=True)


def test_two_writers_are_one_too_many(tmp_path, opened):
    store = opened(tmp_path)
    store.write_run()
    with pytest.raises(Busy, match=f"another sweep works in .*process {os.getpid()} on .* since 20"):
        opened(tmp_path, resume=True)
    store.close()
    opened(tmp_path, resume=True).close()


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, opened, monkeypatch):
    store = opened(tmp_path)
    store.write_run()
    store.write_case(rows(0))
    before = store.path.read_bytes()

    class Full:
        """A file on which only some bytes still fit."""

        def __init__(self, file):
            self.file = file

        def write(self, block):
            if len(block) > 50:
                return self.file.write(block[:50])
            raise OSError(errno.ENOSPC, "No space left on device")

        def __getattr__(self, name):
            return getattr(self.file, name)

    monkeypatch.setattr(store, "_file", Full(store._file))
    with pytest.raises(
        StoreError, match=r"No space left on device; free some space, then continue with --resume"
    ):
        store.write_case(rows(1))
    assert store.path.read_bytes() == before


def test_run_json_is_replaced_in_one_step(tmp_path, opened, monkeypatch):
    store = opened(tmp_path)
    store.run["note"] = "first"
    store.write_run()
    store.run["note"] = "second"

    def broken(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store_module.os, "fsync", broken)
    with pytest.raises(StoreError, match="No space"):
        store.write_run()
    assert read_run(tmp_path)["note"] == "first"


def test_another_schema_is_refused(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"schema": 99}))
    with pytest.raises(StoreError, match="schema 99"):
        read_run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(StoreError, match="cannot read"):
        read_run(tmp_path)
    with pytest.raises(StoreError, match="holds no result"):
        read_run(tmp_path / "none")


def test_the_first_schema_is_read_but_not_continued(tmp_path, opened):
    old = [name for name in COLUMNS if name not in ADDED]
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "launches": []}))
    values = {"launch": "0", "case": "7", "case_rows": "1", "status": "wrong"}
    lines = [",".join(old), ",".join(values.get(name, "") for name in old)]
    (tmp_path / "samples.csv").write_text("\n".join(lines) + "\n")
    assert read_run(tmp_path)["schema"] == 1
    whole = whole_part((tmp_path / "samples.csv").read_bytes())
    assert (whole.passes, whole.wrong) == ([("7", "0")], 1)
    with pytest.raises(StoreError, match=r"older mpicoll \(schema 1\).*choose another -o"):
        opened(tmp_path, resume=True)


def test_other_conditions_are_named(tmp_path):
    """Each by its whole name, and nothing that is equal."""
    there = {"mpi": "A", "ranks": 2, "spec": {"seed": 1, "sizes": [4, 8], "site": {"a": 1, "b": 2}}}
    now = {"mpi": "B", "ranks": 2, "spec": {"seed": 1, "sizes": [4], "site": {"a": 1, "c": 3}}}
    require_same(there, there, tmp_path)
    with pytest.raises(ArgumentError, match="other conditions") as caught:
        require_same(there, now, tmp_path)
    assert str(caught.value).split("\n")[1:] == [
        "  mpi: 'A' → 'B'", "  spec.sizes: [4, 8] → [4]",
        "  spec.site.b: 2 → None", "  spec.site.c: None → 3",
    ]  # fmt: skip
