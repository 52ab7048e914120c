"""Nothing here is a test: `cupy.py` stands for CuPy where tests ask for it (`fake_device` in `gpu.py`)."""

collect_ignore_glob = ["*.py"]
