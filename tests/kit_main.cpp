// kit_main.cpp — the GPU kit: the trainer, its tests and the ladders as one program that holds the
// kernels once. The first argument says which: `kit trainer bench kernels`. The Makefile renames
// the main of each.
#include <cstdio>
#include <cstring>

extern "C" {
int trainer_main(int argc, char** argv);
int run_tests_main(int argc, char** argv);
int gemm_ladder_main(int argc, char** argv);
int bandwidth_ladder_main(int argc, char** argv);
}

int main(int argc, char** argv) {
    const char* name = argc > 1 ? argv[1] : "";
    if (std::strcmp(name, "trainer") == 0) return trainer_main(argc - 1, argv + 1);
    if (std::strcmp(name, "run_tests") == 0) return run_tests_main(argc - 1, argv + 1);
    if (std::strcmp(name, "gemm_ladder") == 0) return gemm_ladder_main(argc - 1, argv + 1);
    if (std::strcmp(name, "bandwidth_ladder") == 0)
        return bandwidth_ladder_main(argc - 1, argv + 1);
    std::fprintf(stderr, "usage: kit trainer|run_tests|gemm_ladder|bandwidth_ladder ARGUMENTS\n");
    return 1;
}
