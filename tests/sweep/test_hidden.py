"""`mpicoll hidden` measures every mode and says so in JSON, too."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from launch import mpirun


def test_every_mode_is_measured(tmp_path: Path) -> None:
    target = tmp_path / "hidden.json"
    argv = [
        sys.executable,
        "-m",
        "mpicoll",
        "hidden",
        "--sizes",
        "4K",
        "--iterations",
        "3",
        "-o",
        str(target),
    ]
    done = mpirun(2, argv, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = json.loads(target.read_text())["rows"]
    modes = {"own thread", "own test", "own wait", "builtin test", "builtin wait"}
    assert {(row["mode"], row["computation"]) for row in rows} == {
        (mode, kind) for mode in modes for kind in ("holds the GIL", "releases the GIL")
    }
    for row in rows:
        assert row["total"] > 0
        assert row["communicate"] > 0
        assert row["hidden_p25"] <= row["hidden"] <= row["hidden_p75"]
        assert row["mode"] in done.stdout
