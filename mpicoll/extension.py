"""Why the extension module `_runner` could not be imported, and what to do about it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

#: Between what is wrong and what mends it.
FIX = "; fix: "
_COMPILERS = ("cc", "gcc", "clang")


def why_missing(error: ImportError, package: Path, path: Sequence[str]) -> str:
    """What is wrong and, after `FIX`, what mends it.

    `package` is the folder of the `mpicoll` that runs, `path` where Python looks for others (`sys.path`).
    """
    here = _built(package)
    if any(_fits(file) for file in here):
        return f"the native engine cannot be loaded: {error}{FIX}{_again(package)}"
    for folder in (Path(entry or ".").resolve() / "mpicoll" for entry in path):
        if folder != package.resolve() and any(_fits(file) for file in _built(folder)):
            sources = package.resolve().parent
            return (
                f"this mpicoll is the sources in {sources}, which hide the one installed in {folder.parent}, "
                f"which has the native engine{FIX}run from another folder, or pip install -e {sources}"
            )
    if here:
        names = ", ".join(file.name for file in here)
        return (
            f"the native engine was built for another Python than this {sys.implementation.cache_tag} on "
            f"{sys.platform}: {names}{FIX}{_again(package)}"
        )
    found = next(filter(None, map(shutil.which, _COMPILERS)), None)
    now = (
        f"there is one now, {found}"
        if found
        else f"install one: none of {', '.join(_COMPILERS)} is on the path"
    )
    what = "these sources were never built, or" if _is_checkout(package) else "mpicoll was installed"
    return f"{what} without a working C compiler{FIX}{now}; then {_again(package)}"


def _built(package: Path) -> list[Path]:
    """The extension modules in a folder, for whichever Python."""
    return sorted(package.glob("_runner*.so"))


def _fits(file: Path) -> bool:
    """Whether this Python would load it."""
    return file.name.removeprefix("_runner") in EXTENSION_SUFFIXES


def _is_checkout(package: Path) -> bool:
    return (package.resolve().parent / "pyproject.toml").exists()


def _again(package: Path) -> str:
    """The command that builds it."""
    if _is_checkout(package):
        return f"pip install -e {package.resolve().parent}"
    return "pip install --force-reinstall --no-deps --no-cache-dir mpicoll"
