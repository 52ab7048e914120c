"""What is said of a native engine that is not there: each cause has its own words and its own fix."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import mpicoll
from mpicoll.bench.hazards import _engine
from mpicoll.extension import FIX, why_missing

HERE = EXTENSION_SUFFIXES[0]
ELSEWHERE = ".cpython-299-x86_64-linux-gnu.so"


def package(folder: Path, *files: str) -> Path:
    """A folder with a package `mpicoll` that holds some files."""
    inside = folder / "mpicoll"
    inside.mkdir(parents=True)
    for name in files:
        (inside / name).touch()
    return inside


def told(inside: Path, *path: Path) -> tuple[str, str]:
    what, _, fix = why_missing(ImportError("a reason"), inside, ["", *map(str, path)]).partition(FIX)
    return what, fix


def test_each_cause_is_told_apart_and_has_its_own_fix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "which", {"gcc": "/x/gcc"}.get)
    sources, installed = package(tmp_path / "checkout"), package(tmp_path / "site", f"_runner{HERE}")
    (tmp_path / "checkout" / "pyproject.toml").touch()
    again = f"pip install -e {tmp_path}/checkout"

    what, fix = told(sources, installed.parent)
    assert f"sources in {tmp_path}/checkout, which hide the one installed in {tmp_path}/site" in what
    assert fix == f"run from another folder, or {again}"

    what, fix = told(sources)  # there is no other: so it is not that
    assert what == "these sources were never built, or without a working C compiler"
    assert fix == f"there is one now, /x/gcc; then {again}"

    other = package(tmp_path / "other", f"_runner{ELSEWHERE}")
    what, fix = told(other)
    assert what.startswith("the native engine was built for another Python than this cpython-3")
    assert ELSEWHERE in what
    assert fix == "pip install --force-reinstall --no-deps --no-cache-dir mpicoll"

    assert told(installed)[0] == "the native engine cannot be loaded: a reason"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    what, fix = told(package(tmp_path / "bare"))
    assert what == "mpicoll was installed without a working C compiler"
    assert fix.startswith("install one: none of cc, gcc, clang is on the path; then pip install --force-re")


def test_the_hazard_names_the_fix_of_its_cause():
    hazard = _engine((False, f"the cause{FIX}the cure"))
    assert hazard is not None
    assert (hazard.what, hazard.fix) == ("no native engine: the cause", "the cure")


@pytest.mark.skipif(
    not list(Path(mpicoll.__file__).parent.glob("_runner*.so")), reason="no native engine here"
)
def test_sources_that_hide_an_installed_package_are_named_by_the_engine_itself(tmp_path):
    """As a newcomer had it: installed without -e, run from the checkout."""
    built = Path(mpicoll.__file__).parent
    shutil.copytree(built, tmp_path / "site" / "mpicoll", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(
        built, tmp_path / "checkout" / "mpicoll", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    # Where mpicoll is installed with -e, as in CI, its finder would serve the extension, too.
    program = (
        "import sys; sys.meta_path = [f for f in sys.meta_path if 'ditable' not in repr(f)]\n"
        "import mpicoll; print(mpicoll.native_status())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path / "checkout", env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert f"which hide the one installed in {tmp_path}/site" in done.stdout
