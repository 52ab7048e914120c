"""The wheel, the source distribution and the editable install, each in a virtual environment of its own.

To be quick, and to fetch nothing, an environment is given links to the few packages of the running one
that mpicoll depends on, and not those of its extras: what works here works with the bare dependencies.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from launch import mpirun, run

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[2]
SITE = Path(pytest.__file__).parents[1]
RUNTIME = ("numpy", "numpy.libs", "mpi4py", "tomli")
BUILD = ("setuptools", "_distutils_hack", "pkg_resources", "wheel")
BUILT = (".git", ".venv*", "build", "dist", "*.so", "*.egg-info", "__pycache__", ".*_cache", "*results")


@dataclass
class Environment:
    """A fresh virtual environment."""

    path: Path

    def run(self, *argv: str, status: int = 0, env: dict[str, str] | None = None) -> str:
        """Run a program of it, from a directory where nothing lies; standard output and error."""
        elsewhere = self.path / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "MPICOLL"))}
        done = run([self.path / "bin" / argv[0], *argv[1:]], 100, {**clean, **(env or {})}, elsewhere)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def install(self, *what: str, env: dict[str, str] | None = None) -> None:
        """Install with pip, from what lies here only."""
        pip = [sys.executable, "-m", "pip", "--python", self.path / "bin" / "python"]
        options = ["--no-compile", "--no-deps", "--no-index", "--no-build-isolation"]
        done = run([*pip, "install", *options, *what], 200, os.environ | (env or {}))
        assert done.returncode == 0, done.stdout + done.stderr


def fresh(path: Path) -> Environment:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    (site,) = path.glob("lib/python3*/site-packages")
    for name in RUNTIME + BUILD:
        for found in [SITE / name, *SITE.glob(f"{name}-*.dist-info")]:
            if found.exists():
                (site / found.name).symlink_to(found)
    return Environment(path)


@pytest.fixture(autouse=True)
def _mpi_of_the_running_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the MPI was installed as a package, mpi4py would look for it in the fresh environment only."""
    for library in Path(sys.prefix, "lib").glob("libmpi.so.[0-9]*"):
        monkeypatch.setenv("MPI4PY_LIBMPI", str(library))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository without anything that was built."""
    return copy_of_repository(tmp_path_factory.mktemp("source"))


def copy_of_repository(where: Path) -> Path:
    return shutil.copytree(ROOT, where / "mpicoll", symlinks=True, ignore=shutil.ignore_patterns(*BUILT))


@pytest.fixture(scope="module")
def distributions(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the source distribution and the wheel."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", out, source]
    done = run(build, 200)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module", params=["wheel", "sdist", "editable"])
def installed(
    request: pytest.FixtureRequest,
    source: Path,
    distributions: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Environment:
    """The package, installed in one of the three ways."""
    environment = fresh(tmp_path_factory.mktemp(request.param) / "venv")
    if request.param == "editable":
        environment.install("--editable", str(source))
    else:
        (archive,) = distributions.glob("*.whl" if request.param == "wheel" else "*.tar.gz")
        environment.install(str(archive))
    return environment


def test_command_works(installed: Environment) -> None:
    assert "sweep" in installed.run("mpicoll", "--help")
    assert "allreduce/ring" in installed.run("mpicoll", "list", "allreduce")
    assert "allreduce/ring" in installed.run("python", "-m", "mpicoll", "list", "allreduce")


def test_sites_and_batch_scripts_come_along(installed: Environment) -> None:
    text = installed.run("mpicoll", "launch", "--script", "sweep")
    assert text == (ROOT / "slurm" / "sweep.sbatch").read_text(encoding="utf-8")
    assert "generic-gpu" in installed.run("mpicoll", "launch", "--help")


def test_command_needs_no_mpi_to_list(installed: Environment) -> None:
    assert "ring" in installed.run("mpicoll", "list", env={"MPI4PY_LIBMPI": "/nowhere/libmpi.so"})


def test_no_package_is_called_just_bench(installed: Environment) -> None:
    for name in ("bench", "tests", "examples"):
        assert "ModuleNotFoundError" in installed.run("python", "-c", f"import {name}", status=1)


def test_installed_package_is_the_one_that_runs(installed: Environment) -> None:
    where = installed.run("python", "-c", "import mpicoll, mpicoll.bench; print(mpicoll.__file__)").strip()
    assert Path(where).is_relative_to(installed.path.parent) or "source" in where
    assert not Path(where).is_relative_to(ROOT)


def test_report_names_the_extra_that_is_missing(installed: Environment) -> None:
    text = installed.run("mpicoll", "report", ".", status=2)
    assert "mpicoll[report]" in text


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler, so no native engine")
def test_native_engine_is_built_and_used(installed: Environment) -> None:
    assert "native: available" in installed.run("mpicoll", "info")


def test_sweep_runs_with_the_bare_dependencies(installed: Environment, tmp_path: Path) -> None:
    sweep = ["mpicoll", "sweep", "--sizes", "4,1K", "--algorithms", "ring,builtin", "--iterations", "3"]
    done = mpirun(2, [installed.path / "bin" / sweep[0], *sweep[1:], "-o", tmp_path / "out"], 100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out" / "samples.csv").read_text().count("ring") > 0


def test_wheel_holds_the_package_and_nothing_else(distributions: Path) -> None:
    (archive,) = distributions.glob("*.whl")
    names = zipfile.ZipFile(archive).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"mpicoll"}
    assert {"mpicoll/py.typed", "mpicoll/bench/cli.py", "mpicoll/algorithms/allreduce.py"} <= set(names)
    assert [n for n in names if n.endswith("LICENSE")]
    assert not [n for n in names if n.endswith(".c")]


def test_sdist_is_a_real_tree(distributions: Path) -> None:
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        members = {m.name.partition("/")[2]: m for m in tar.getmembers()}
    assert all(m.isfile() or m.isdir() for m in members.values())
    assert {"mpicoll/bench/cli.py", "README.md", "CHANGELOG.md", "LICENSE"} <= members.keys()
    assert {f"mpicoll/{p.name}" for p in (ROOT / "mpicoll").glob("*.[ch]")} <= members.keys()


@pytest.mark.parametrize("how", [[], ["--editable"]], ids=["wheel", "editable"])
def test_install_succeeds_without_a_compiler_and_info_says_so(how: list[str], tmp_path: Path) -> None:
    environment = fresh(tmp_path / "venv")
    environment.install(*how, str(copy_of_repository(tmp_path)), env={"CC": "/bin/false"})
    text = environment.run("mpicoll", "info")
    assert "native: available" not in text
    assert "native engine" in text
    told = environment.run("python", "-c", "import mpicoll; print(mpicoll.native_status())")
    assert told.startswith("(False, ")
    assert "without a working C compiler; fix: " in told
