"""CPU seconds to predict all algorithms once, by number of ranks: nodes times ranks on each.

    python results/model/growth.py 8x8 128x8 8192x8 5461x12

Compositions over nodes are counted apart. One process for each number, as steps are kept.
"""

import subprocess
import sys
import time

import mpicoll.algorithms  # noqa: F401  (importing registers them)
from mpicoll.cost import cost
from mpicoll.errors import Unsupported
from mpicoll.registry import algorithms


def main(count, ppn):
    """Predict, and print a line."""
    size = count * ppn
    seconds, without = {True: 0.0, False: 0.0}, []
    nodes = tuple(rank // ppn for rank in range(size))
    for entry in algorithms():
        begun = time.process_time()
        try:
            cost(entry, size, 1 << 20, params={"nodes": nodes} if entry.hierarchical else {})
        except Unsupported as refusal:
            without += [str(entry)] * ("law" in str(refusal))
        seconds[entry.hierarchical] += time.process_time() - begun
    flat, over = seconds[False], seconds[True]
    print(f"P = {size} ({count} nodes of {ppn}): {flat + over:.1f} s "
          f"(flat {flat:.1f}, over nodes {over:.1f}); no law:",
          ", ".join(without) or "none", flush=True)  # fmt: skip


if len(sys.argv) == 2:
    main(*map(int, sys.argv[1].split("x")))
else:
    for argument in sys.argv[1:]:
        subprocess.run([sys.executable, __file__, argument], check=True)
