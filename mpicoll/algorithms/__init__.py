"""All algorithms. Importing this package registers them."""

from . import allgather as allgather
from . import allreduce as allreduce
from . import allreduce_trees as allreduce_trees
from . import alltoall as alltoall
from . import barrier as barrier
from . import bcast as bcast
from . import gather as gather
from . import hierarchical as hierarchical
from . import hierarchical_parts as hierarchical_parts
from . import reduce as reduce
from . import reduce_scatter as reduce_scatter
from . import scatter as scatter
