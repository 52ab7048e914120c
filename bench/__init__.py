"""The measuring half of mpicoll: sweeps, reports and the `mpicoll` command (imported as mpicoll.bench).

A rank is a core: before NumPy is imported, its BLAS is told to use one thread, unless the user has said else.
"""

import os
import sys

if "numpy" not in sys.modules:
    for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
        os.environ.setdefault(_name, "1")
