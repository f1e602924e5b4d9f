/* mpi_allreduce.c — what compare_allreduce runs through MPI: the median time of MPI_Allreduce on
 * floats, in place, for each number of bytes on the command line. Prints "bytes median_us". */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void* a, const void* b) {
    const double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

int main(int argc, char** argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const double seconds = atof(argv[1]);
    for (int arg = 2; arg < argc; ++arg) {
        const size_t bytes = strtoull(argv[arg], NULL, 10);
        const int n = (int)(bytes / sizeof(float));
        float* data = calloc(bytes, 1);
        MPI_Allreduce(MPI_IN_PLACE, data, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (int i = 0; i < 3; ++i)
            MPI_Allreduce(MPI_IN_PLACE, data, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        int sums = (int)(seconds / ((MPI_Wtime() - start) / 3));
        sums = sums < 5 ? 5 : sums > 5000 ? 5000 : sums;
        MPI_Bcast(&sums, 1, MPI_INT, 0, MPI_COMM_WORLD);
        double* times = malloc(sums * sizeof(double));
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < sums; ++i) {
            start = MPI_Wtime();
            MPI_Allreduce(MPI_IN_PLACE, data, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            times[i] = 1e6 * (MPI_Wtime() - start);
        }
        qsort(times, sums, sizeof(double), by_value);
        if (rank == 0) printf("%zu %.1f\n", bytes, times[sums / 2]);
        fflush(stdout);
        free(times);
        free(data);
    }
    MPI_Finalize();
    return 0;
}
