"""What `make test` says at its end."""

from __future__ import annotations

from summary import summarise

GOOD = {"what": "unit", "passed": 3, "failed": 0, "skipped": [["a", "no compiler"], ["b", "no compiler"]]}


def test_good_summary_tells_skips_with_their_reason() -> None:
    text, good = summarise([GOOD, {**GOOD, "what": "mpi"}], [])
    assert good
    assert text.splitlines()[-1] == "6 passed, 0 failed, 4 skipped"
    assert "4 × no compiler" in text


def test_failed_test_is_a_failure() -> None:
    text, good = summarise([GOOD, {**GOOD, "failed": 2}], ["unit"])
    assert not good
    assert text.endswith("6 passed, 2 failed, 4 skipped")


def test_broken_part_without_a_failed_test_is_a_failure() -> None:
    text, good = summarise([GOOD], ["lint"])
    assert not good
    assert text.endswith("3 passed, 1 failed, 2 skipped")


def test_no_test_at_all_is_a_failure() -> None:
    assert not summarise([], [])[1]
