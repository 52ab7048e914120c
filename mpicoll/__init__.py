"""mpicoll: collective algorithms as data, run over mpi4py point-to-point messages."""
