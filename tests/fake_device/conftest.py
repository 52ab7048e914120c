"""Nothing here is a test: `cupy.py` stands for CuPy where tests ask for it (see `devices.fake_device`)."""

collect_ignore_glob = ["*.py"]
