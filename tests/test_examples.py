"""Every example and every command of the README is run; one that is not listed here fails."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path

import pytest

from launch import environment, find_mpirun, mpirun, run, scratch_directory

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
SHELL = [text for language, text in BLOCKS if language == "shell"]
PYTHON = [text for language, text in BLOCKS if language == "python"]

# What each example must print when it is run on some ranks, {n} of them.
EXAMPLES = {
    "over_nodes.py": "summed in two steps on {n} ranks",
    "my_allreduce.py": "ran on {n} ranks: equal to NumPy's sum",
    "on_a_device.py": "summed on {n} ranks",
    "quickstart.py": "on {n} ranks",
    "train.py": "parameters equal, bit for bit",
    "train_pytorch.py": "parameters equal, bit for bit",
}
NEEDS = {"train_pytorch.py": "torch"}  # is not installed for tests; whoever has it tests these, too
# Examples that are no programs, and the command of the README or of a page in docs that uses them.
USED = {
    "campaign.toml": "mpicoll launch examples/campaign.toml",
    "site.toml": "--site examples/site.toml",
    "sweep.toml": "mpicoll sweep examples/sweep.toml",
}

# Blocks that begin like this are not run here, because of the installs in them or because they run these very
# tests; what checks them instead:
ELSEWHERE = {
    "make demo": "test_demo_recipe below, and `make test` runs this",
    "python3 -m venv .venv": "tests/packaging",
    "make lint": "`make test` runs it; the runner has its own tests in tests/runner",
}


def elsewhere(block: str) -> bool:
    return block.startswith(tuple(ELSEWHERE))


def lacking(words: str) -> str:
    """The package that an example named in `words` needs and that is not installed, or nothing."""
    return next((p for name, p in NEEDS.items() if name in words and find_spec(p) is None), "")


def shell(command: str, directory: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    with scratch_directory() as scratch:
        env = environment(find_mpirun(), scratch)
        return run(["bash", "-euo", "pipefail", "-c", command], timeout, env, directory)


def test_all_examples_are_listed() -> None:
    files = {p.name for p in (ROOT / "examples").iterdir() if p.name != "__pycache__"}
    assert files == EXAMPLES.keys() | USED.keys()
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")]
    blocks = SHELL + [b for page in pages for b in re.findall(r"^```shell\n(.*?)^```$", page, re.M | re.S)]
    for name, command in USED.items():
        assert any(command in block and not elsewhere(block) for block in blocks), name


def test_every_exception_is_in_the_readme() -> None:
    assert all(any(block.startswith(start) for block in SHELL) for start in ELSEWHERE)


def test_every_block_says_its_language() -> None:
    assert {language for language, _ in BLOCKS} <= {"shell", "python", "text"}
    assert README.count("```") == 2 * len(BLOCKS)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name: str, ranks: int) -> None:
    if package := lacking(name):
        pytest.skip(f"{package} is not installed")
    done = mpirun(ranks, [sys.executable, ROOT / "examples" / name], 60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert EXAMPLES[name].format(n=ranks) in done.stdout


@pytest.mark.parametrize("block", PYTHON, ids=lambda b: b.partition("\n")[0])
def test_python_in_the_readme_is_part_of_an_example(block: str) -> None:
    assert any(block in (ROOT / "examples" / name).read_text(encoding="utf-8") for name in EXAMPLES)


def test_the_imports_that_a_page_names_are_those_of_the_example() -> None:
    example = (ROOT / "examples" / "my_allreduce.py").read_text(encoding="utf-8").splitlines()
    for page in (README, (ROOT / "docs" / "writing-an-algorithm.md").read_text(encoding="utf-8")):
        named = re.findall(r"`(from mpicoll import [^`]+)`", page)
        assert named
        assert set(named) <= set(example)


def test_git_ignores_what_the_commands_leave() -> None:
    """Of the README and the pages in docs: whoever tries them in the checkout has a clean one."""
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    pages = [README, *(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))]
    text = "\n".join(b for page in pages for b in re.findall(r"^```shell\n(.*?)^```$", page, re.M | re.S))
    left = re.findall(r"(?:-o|--svg|--csv|--chart|--goal|--msccl|>) ([\w.-]+)(?![\w./-])", text)
    assert {"my-ring", "overlap-here", "forgot.py"} <= set(left)
    assert [name for name in left if not any(fnmatch(name, pattern) for pattern in ignored)] == []


@pytest.mark.parametrize("block", [b for b in SHELL if not elsewhere(b)], ids=lambda b: b.partition("\n")[0])
def test_command_in_the_readme_runs(block: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = shell(block, tmp_path, 100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_demo_recipe(tmp_path: Path) -> None:
    flags = "--sizes 4,64K --iterations 5 --algorithms ring,builtin"
    bin_dir = Path(sys.executable).parent
    command = f"make -s -C '{ROOT}' demo-run BIN='{bin_dir}' DEMO_DIR='{tmp_path}/out' DEMO_FLAGS='{flags}'"
    done = shell(command, tmp_path, 100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"The report: {tmp_path}/out/report.html"
    assert (tmp_path / "out" / "report.html").stat().st_size > 0
