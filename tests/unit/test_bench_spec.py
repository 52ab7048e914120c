"""Sizes, durations, contenders and specs: what is accepted, and what is refused with which words."""

import pytest

from mpicoll.bench.sizes import format_bytes, parse_bytes, parse_seconds, parse_sizes
from mpicoll.bench.spec import Spec, make_spec, parse_contender
from mpicoll.errors import ArgumentError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("0", 0), ("4", 4), ("4B", 4), ("64k", 65536), ("1MiB", 1 << 20), ("2 GB", 2 << 30), (9, 9)],
)
def test_a_size_is_in_binary_units(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "-4", "1.5K", "4X", "K", True, None])
def test_a_wrong_size_is_refused(text):
    with pytest.raises(ArgumentError, match="not a size"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["99999999999T", "8388608T", 1 << 63, "9" * 9999, "4:99999999999T"])
def test_a_size_that_no_memory_has_is_refused_by_name(text):
    with pytest.raises(ArgumentError, match=f"no memory holds so much: .*{str(text)[-9:]}"):
        parse_sizes(text)


@pytest.mark.parametrize("nbytes", [0, 1, 1023, 1024, 3 << 20, 1 << 40])
def test_an_exact_size_survives_formatting(nbytes):
    assert parse_bytes(format_bytes(nbytes)) == nbytes


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4:64:2", [4, 8, 16, 32, 64]),
        ("4:64M:16", [4, 64, 1024, 16384, 262144, 1 << 22, 1 << 26]),
        ("0:4:2", [0, 1, 2, 4]),
        ("1:3:1.1", [1, 2, 3]),
        ("7:7", [7]),
        ("4:50:2", [4, 8, 16, 32, 50]),
        ("4,1K,4", [4, 1024]),
        ("16:32,4", [4, 16, 32]),
        ([8, "2K"], [8, 2048]),
        (12, [12]),
    ],
)
def test_sizes_from_a_range_or_a_list(text, sizes):
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", ",", "64:4:2", "4:64:1", "4:64:x", "4:64:2:2", "4:", "a:b"])
def test_wrong_sizes_are_refused(text):
    with pytest.raises(ArgumentError):
        parse_sizes(text)


def test_durations():
    assert [parse_seconds(text) for text in ("250ms", "3", "2m", "0.5h")] == [0.25, 3.0, 120.0, 1800.0]
    with pytest.raises(ArgumentError, match="not a duration"):
        parse_seconds("soon")
    for text in ("0s", "0", "0.0h", "9" * 400):
        with pytest.raises(ArgumentError, match="more than 0 seconds"):
            parse_seconds(text)


def test_a_contender_carries_its_options():
    one = parse_contender("ring:channels=2:segment=64K:mode=fast")
    assert (one.name, dict(one.options)) == ("ring", {"channels": 2, "segment": 65536, "mode": "fast"})
    assert one.label == "ring:channels=2:segment=65536:mode=fast"


@pytest.mark.parametrize("text", ["", ":a=1", "ring:a", "ring:a=", "ring:a=1:a=2", "builtin:a=1"])
def test_a_wrong_contender_is_refused(text):
    with pytest.raises(ArgumentError):
        parse_contender(text)


def test_all_means_every_own_algorithm_and_both_builtins():
    spec = make_spec({"algorithms": "all,ring:channels=2", "engine": "native,python"})
    found = [(one.label, one.engine) for one in spec.contenders("allreduce", ["ring", "tree"])]
    assert found == [
        ("ring", "native"), ("ring", "python"), ("tree", "native"), ("tree", "python"),
        ("builtin", ""), ("builtin_persistent", ""),
        ("ring:channels=2", "native"), ("ring:channels=2", "python"),
    ]  # fmt: skip


def test_flags_override_the_file(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text('sizes = "4:16:2"\ndtype = ["float64", "int32"]\ntime-limit = "2m"\niterations = 7\n')
    spec = make_spec({"iterations": 9, "op": None}, path)
    assert spec == Spec(sizes=(4, 8, 16), dtype=("float64", "int32"), time_limit=120.0, iterations=9)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("iteration = 3", "unknown setting iteration .*known: .*iterations"),
        ("iterations = 0", "iterations = 0: needs a whole number from 1 on"),
        ("iterations = 2.5", "whole number"),
        ("check = 1", "true or false"),
        ('thread_level = "many"', "single, funneled"),
        ('sync = "barrier"', "dissemination, window"),
        ('cache = ["warm", "lukewarm"]', "warm, cold"),
        ('order = "random"', "shuffled, sequential"),
        ("batch = 99999999999999999999", "whole number from 1 to 1000000"),
        ("batch = 0", "batch = 0: needs a whole number from 1 on"),
        ('batch = 2\ncache = "cold"', "only the first call of a batch"),
        ('time_limit = "0s"', "time_limit = '0s': .*more than 0 seconds"),
        ('precision = "fine"', "needs a percentage"),
        ("precision = -1", "percentage"),
        ('engine = "fast"', "auto, native, python"),
        ("dtype = []", "empty list"),
        ("sizes = 4:8", "is not TOML"),
    ],
)
def test_a_wrong_spec_file_is_refused_with_the_fix(tmp_path, text, words):
    path = tmp_path / "spec.toml"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=words):
        make_spec({}, path)


def test_a_missing_spec_file_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"cannot read .*No such file"):
        make_spec({}, tmp_path / "none.toml")


@pytest.mark.parametrize(("value", "percent"), [("5", 5.0), ("2.5%", 2.5), (0, 0.0)])
def test_precision_is_a_percentage(value, percent):
    assert make_spec({"precision": value}).precision == percent


def test_the_identity_of_a_spec_ignores_only_the_time_limit():
    spec = Spec()
    assert spec.identity() == Spec(time_limit=9.0).identity()
    assert spec.identity() != Spec(seed=2).identity()


@pytest.mark.parametrize("key", ["collective", "algorithms", "engine", "dtype", "op", "cache"])
@pytest.mark.parametrize("value", [3, {"a": 1}, [["a"]], [3]])
def test_a_value_of_another_kind_is_refused_with_what_is_needed(key, value):
    with pytest.raises(ArgumentError, match=f"{key} = .*: needs a text or a list of texts"):
        make_spec({key: value})


@pytest.mark.parametrize("value", ["x", [1], True, 200])
def test_a_wrong_percentage_is_refused(value):
    with pytest.raises(ArgumentError, match=r"precision = .*: needs a percentage"):
        make_spec({"precision": value})
