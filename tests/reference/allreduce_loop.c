/* All-reduce timed as the OSU micro-benchmarks do it, for comparison with `mpicoll sweep`: MPI_Allreduce of floats
 * between two reads of MPI_Wtime, then MPI_Barrier; 1000 calls after 100 untimed ones up to 8 KiB, 100 after 10
 * above (`-i` and `-x` of osu_allreduce). Unlike OSU's it prints every sample, as the slowest rank's time and as
 * the mean over ranks, of which OSU's figure is the average.
 *
 *     mpirun -n 2 ./allreduce_loop 4 1024 65536 > samples.csv
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { LARGE = 8192, PAGE = 4096, HUGE_PAGE = 2 << 20, HUGE_FROM = 4 << 20 };

static void check(int code)
{
    if (code != MPI_SUCCESS)
        MPI_Abort(MPI_COMM_WORLD, 1);
}

static float *vector(size_t bytes, float value)
{
    void *memory = NULL;
    if (posix_memalign(&memory, bytes >= HUGE_FROM ? HUGE_PAGE : PAGE, bytes ? bytes : 1))
        MPI_Abort(MPI_COMM_WORLD, 1);
#ifdef MADV_HUGEPAGE
    if (bytes >= HUGE_FROM) /* as NumPy does: otherwise two kinds of memory would be compared */
        madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        ((float *)memory)[i] = value;
    return memory;
}

/* Not static, and with a pointer to the communicator: Python calls it too, see paired.py. */
void time_calls(double *seconds, int skip, int calls, int count, float *send, float *recv, MPI_Comm *comm)
{
    check(MPI_Barrier(*comm));
    for (int i = 0; i < skip + calls; i++) {
        double start = MPI_Wtime();
        check(MPI_Allreduce(send, recv, count, MPI_FLOAT, MPI_SUM, *comm));
        double stop = MPI_Wtime();
        if (i >= skip)
            seconds[i - skip] = stop - start;
        check(MPI_Barrier(*comm));
    }
}

static void report(const char *what, size_t bytes, const double *mine, int calls, MPI_Comm comm)
{
    int rank, size;
    double *slowest = malloc(calls * sizeof *slowest), *sum = malloc(calls * sizeof *sum);
    check(MPI_Comm_rank(comm, &rank));
    check(MPI_Comm_size(comm, &size));
    check(MPI_Reduce(mine, slowest, calls, MPI_DOUBLE, MPI_MAX, 0, comm));
    check(MPI_Reduce(mine, sum, calls, MPI_DOUBLE, MPI_SUM, 0, comm));
    for (int i = 0; rank == 0 && i < calls; i++)
        printf("%s,%zu,%d,%.9f,%.9f\n", what, bytes, i, slowest[i], sum[i] / size);
    free(slowest);
    free(sum);
}

static void measure(const char *what, size_t bytes, MPI_Comm comm)
{
    int calls = bytes > LARGE ? 100 : 1000, skip = bytes > LARGE ? 10 : 100;
    double *seconds = calloc(calls, sizeof *seconds);
    float *send = vector(bytes, 1), *recv = vector(bytes, 0);
    time_calls(seconds, skip, calls, (int)(bytes / sizeof(float)), send, recv, &comm);
    report(what, bytes, seconds, calls, comm);
    free(send);
    free(recv);
    free(seconds);
}

int main(int argc, char **argv)
{
    int level, rank;
    check(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level));
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    if (level != MPI_THREAD_FUNNELED && rank == 0)
        fprintf(stderr, "note: MPI gave thread level %d instead of funneled\n", level);
    if (rank == 0) {
        printf("what,msg_bytes,iteration,seconds,seconds_mean\n");
        /* On one rank there is no message: what remains is the call, which mpi4py makes, too. */
        measure("alone", 0, MPI_COMM_SELF);
        measure("alone", sizeof(float), MPI_COMM_SELF);
    }
    for (int i = 1; i < argc; i++)
        measure("together", strtoull(argv[i], NULL, 10), MPI_COMM_WORLD);
    check(MPI_Finalize());
    return 0;
}
