"""All algorithms. Importing this package registers them."""

from . import allreduce as allreduce
