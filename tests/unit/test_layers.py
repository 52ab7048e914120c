"""A floor imports only lower floors, and importing mpicoll is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mpicoll

PACKAGE = Path(mpicoll.__file__).parent

#: From the ground up. Modules of one floor may import each other, but not in a circle.
FLOORS = (
    ("errors", "schedule", "partition", "collectives", "registry"),
    ("algorithms",),
    (
        *("network", "holdings", "verify", "verify_large", "traffic"),
        *("loads", "laws", "stagewise", "shifts", "steps", "curves", "ownwork", "cost", "bounds", "fabric"),
        *("draw", "cases", "mutants"),
    ),
    ("agree", "device", "buffers", "ops", "locality", "topology", "program", "plan", "waits", "staging"),
    ("lockstep", "calls"),
    (
        "probe",
        "probe_job",
        "_runner",
        "extension",
        "watch",
        "memory",
        "native",
        "engine",
        "runner",
        "requests",
    ),
    (
        "select",
        "cache",
        "choice",
        "common",
        "planner",
        "mesh",
        "comm",
        "buckets",
        "gradients",
        "overlap",
        "pytorch",
    ),
    ("__init__",),
    ("bench",),
    ("__main__",),
)
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
STANDARD = sys.stdlib_module_names
#: What may be imported at the top of a module of floors 0 to 2: nothing but the standard library.
PURE = ("errors", "schedule", "partition", "collectives", "registry", "algorithms", *FLOORS[2])


def modules() -> list[Path]:
    """All modules of the package but those of the bench, which may import everything."""
    return sorted(p for p in PACKAGE.rglob("*.py") if "bench" not in p.relative_to(PACKAGE).parts)


def name_of(path: Path) -> str:
    """The name that a module has among the floors: of `algorithms`, the package's."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[tuple[str, ...]]:
    """Everything that a module imports anywhere, as absolute dotted names."""
    here = ("mpicoll", *path.relative_to(PACKAGE).parts)[:-1]
    found: list[tuple[str, ...]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            found += [(*base, alias.name) for alias in node.names]
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_only_lower_floors(path: Path):
    name = name_of(path)
    assert name in FLOOR, f"{name} has no floor: add it to FLOORS"
    for target in imports(path):
        if target[0] != "mpicoll" or len(target) == 1:
            continue
        other = target[1] if target[1] in FLOOR else "__init__"
        there = f"{'.'.join(target)} (floor {FLOOR[other]})"
        assert FLOOR[other] <= FLOOR[name], f"{path.name} (floor {FLOOR[name]}) imports {there}"


@pytest.mark.parametrize("path", [p for p in modules() if name_of(p) in PURE], ids=lambda path: path.name)
def test_low_floors_use_the_standard_library_alone(path: Path):
    allowed = {"mpicoll", "numpy"} if path.name == "verify_large.py" else {"mpicoll"}
    assert {target[0] for target in imports(path)} - set(STANDARD) <= allowed


def test_floors_name_no_module_twice():
    names = [name for floor in FLOORS for name in floor]
    assert len(names) == len(set(names))


def test_no_import_circle():
    """Within a floor too, imports go one way."""
    edges: dict[str, set[str]] = {}
    for path in modules():
        targets = {t[1] for t in imports(path) if t[0] == "mpicoll" and len(t) > 1 and t[1] in FLOOR}
        edges.setdefault(name_of(path), set()).update(targets - {name_of(path)})
    done: set[str] = set()
    while edges:
        free = [name for name, targets in edges.items() if targets & edges.keys() <= done]
        assert free, f"a circle among {sorted(edges)}"
        for name in free:
            done.add(name)
            del edges[name]


def test_proof_of_a_small_case_does_without_numpy():
    """All of floors 0 to 2 but one: checked on the modules themselves, without the package's `__init__`."""
    code = (
        "import sys, types; package = types.ModuleType('mpicoll'); "
        f"package.__path__ = [{str(PACKAGE)!r}]; sys.modules['mpicoll'] = package; "
        "import mpicoll.algorithms, mpicoll.verify; mpicoll.verify.verify('allreduce/ring', 5); "
        "print(sorted({'numpy', 'mpi4py'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["mpicoll", "mpicoll.verify", "mpicoll.draw", "mpicoll.pytorch"])
def test_import_brings_no_heavy_module(module: str):
    """A rank of a running job imports mpi4py, numpy and mpicoll only."""
    heavy = {"altair", "cupy", "jinja2", "matplotlib", "pandas", "scipy", "torch", "tqdm"}
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
