// checks.cpp — errors that the compiler's instrumentation finds in a kernel, reported as the
// emulator's own: with kernel, block and thread.
#include "kernels/simt/emulator.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>

#include <cstdio>

namespace convoy::simt {
// Last words after the sanitizer's report.
static const bool installed = [] {
    __sanitizer_set_death_callback([] {
        const std::string place = place_text();
        if (!place.empty()) std::fprintf(stderr, "simt: this was %s\n", place.c_str());
    });
    return true;
}();
}  // namespace convoy::simt

#else

// Kernels are compiled with -fsanitize=alignment in every build. It calls this function where a
// pointer lacks the alignment of its type; we replace libubsan's. GCC and Clang have used this
// layout of the argument since 2017.
namespace {
struct Misaligned {
    const char* file;
    uint32_t line, column;
    const struct Type {
        uint16_t kind, info;
        char name[1];
    } * type;
    unsigned char log_alignment, access;
};
}  // namespace

extern "C" void __ubsan_handle_type_mismatch_v1(const Misaligned* what, uintptr_t address) {
    convoy::simt::fault(convoy::cat("misaligned access at ", what->file, ":", what->line,
                                    ": address ", fmt::format("{:#x}", address), " for ",
                                    what->type->name, ", which needs a multiple of ",
                                    1 << what->log_alignment));
}
#endif
