"""CPU seconds to predict all algorithms once, by number of ranks.

    python results/model/growth.py 64 4096 65536

Compositions over nodes (8 ranks each) are counted apart. One process for each number, as steps are kept.
"""

import subprocess
import sys
import time

import mpicoll.algorithms  # noqa: F401  (importing registers them)
from mpicoll.cost import cost
from mpicoll.errors import Unsupported
from mpicoll.registry import algorithms


def main(size):
    """Predict, and print a line."""
    seconds, without = {True: 0.0, False: 0.0}, []
    nodes = tuple(rank // 8 for rank in range(size))
    for entry in algorithms():
        begun = time.process_time()
        try:
            cost(entry, size, 1 << 20, params={"nodes": nodes} if entry.hierarchical else {})
        except Unsupported as refusal:
            without += [str(entry)] * ("law" in str(refusal))
        seconds[entry.hierarchical] += time.process_time() - begun
    print(f"P = {size}: flat {seconds[False]:.2f} s, over nodes {seconds[True]:.2f} s; no law:",
          ", ".join(without) or "none", flush=True)  # fmt: skip


if len(sys.argv) == 2:
    main(int(sys.argv[1]))
else:
    for argument in sys.argv[1:]:
        subprocess.run([sys.executable, __file__, argument], check=True)
