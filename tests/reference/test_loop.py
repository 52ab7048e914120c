"""The reference program builds with the MPI at hand, and measures what it says."""

from __future__ import annotations

import csv
from collections import Counter

import pytest

from launch import find_mpirun, mpirun
from tests.reference.agreement import compare, compile_loop


def test_the_c_program_prints_every_sample(tmp_path):
    if not (find_mpirun().parent / "mpicc").exists():
        pytest.skip("this MPI brings no mpicc")
    result = mpirun(2, [compile_loop(tmp_path), "4", "16384"], 60)
    assert result.returncode == 0, result.stderr
    rows = list(csv.DictReader(result.stdout.splitlines()))
    numbers = Counter((row["what"], row["msg_bytes"]) for row in rows)
    # As many calls as osu_allreduce takes by default.
    assert numbers == {
        ("alone", "0"): 1000, ("alone", "4"): 1000, ("together", "4"): 1000, ("together", "16384"): 100,
    }  # fmt: skip
    together = [row for row in rows if row["what"] == "together"]
    assert all(0 < float(row["seconds_mean"]) <= float(row["seconds"]) < 30 for row in together)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ([1.04] * 7, "within 5 %"),
        ([0.8, 0.9, 1.0, 1.2, 1.3, 1.4, 1.5], "within intervals"),
        ([1.2] * 7, "no"),
    ],
)
def test_agreement_is_within_five_percent_or_each_others_intervals(monkeypatch, own, words):
    monkeypatch.setattr("tests.reference.agreement.SIZES", [4])
    c = [0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3]
    (row,) = compare({("c", 4): c, ("mpicoll", 4): own})
    assert row["agreement"] == words
