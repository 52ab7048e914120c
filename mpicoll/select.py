"""Which algorithm `algorithm="auto"` means, and how many channels a plan gets by default.

Chosen from values that are equal on all ranks: collective, number of ranks, message size, order.
"""

from __future__ import annotations

from .algorithms.patterns import ceil_log2

STRIPE_BYTES = 512 << 10  # a channel's landing area should stay in a core's second-level cache
MOST_CHANNELS = 256
DEPTH = 2

# Typical of shared memory and of a good network alike; the tuning file of a real measurement replaces it.
ALPHA, BETA, GAMMA = 1.5e-6, 1e-10, 0.5e-10  # [s], [s/B], [s/B]


def choose_allreduce(size: int, nbytes: int, *, ordered: bool) -> str:
    """All-reduce algorithm with the least α·rounds + β·bytes + γ·bytes reduced (flat machine).

    Only algorithms that work for every size are candidates; ring costs what circulant costs at two
    ranks and is never cheaper in this model, but its messages are whole blocks.
    """
    if ordered:
        return "recursive_doubling"
    rounds, share = ceil_log2(size), (size - 1) / size
    fold = size & (size - 1) != 0
    doubling = (rounds + fold) * ALPHA + (rounds + fold) * nbytes * (BETA + GAMMA)
    halving = 2 * rounds * ALPHA + 2 * share * nbytes * BETA + share * nbytes * GAMMA
    if doubling <= halving:
        return "recursive_doubling"
    return "ring" if size <= 3 else "circulant"


def default_channels(nbytes: int, size: int, rounds: int) -> tuple[int, int]:
    """(channels, depth) for a message of `nbytes`: stripes of about STRIPE_BYTES per rank's share."""
    share = nbytes // max(size, 1)
    channels = max(1, min(MOST_CHANNELS, share // STRIPE_BYTES))
    # Every channel repeats the schedule: no more messages than about ten thousand in one program.
    channels = max(1, min(channels, 10_000 // max(rounds, 1)))
    return channels, min(DEPTH, channels)
