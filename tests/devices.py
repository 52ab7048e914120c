"""What tests of device memory share: the fake device, and the question whether there is a real one."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FAKE = Path(__file__).parent / "fake_device"


@functools.cache
def fake_cupy() -> Any:
    """The stand-in for CuPy, under another name, so that nothing finds it by accident."""
    spec = importlib.util.spec_from_file_location("fake_cupy", FAKE / "cupy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fake_cupy"] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def fake_device() -> Iterator[Any]:
    """Within: ``import cupy`` gives the stand-in."""
    before = sys.modules.get("cupy")
    module = sys.modules["cupy"] = fake_cupy()
    try:
        yield module
    finally:
        module.cuda.Device().synchronize()
        if before is None:
            del sys.modules["cupy"]
        else:
            sys.modules["cupy"] = before


def has_device() -> bool:
    """Whether there is a real device, and CuPy for it."""
    try:
        import cupy

        real = Path(cupy.__file__).parent != FAKE
        return real and bool(cupy.cuda.runtime.getDeviceCount())
    except Exception:
        return False
