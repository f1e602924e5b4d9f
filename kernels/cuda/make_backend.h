// make_backend.h — the two backends made of the files in this folder, without CUDA in the header.
//
// They are weak symbols: a program that is linked without the emulator's objects, or without those
// of nvcc, finds null there (kernels/backend.cpp), and no source has to be compiled twice.
#pragma once

#include "kernels/backend.h"

namespace convoy {
// What description() adds on a GPU for which `built` ("80 90a") has no machine code: "" if it has.
std::string compile_notice(const std::string& built, int major, int minor);
// If the driver cannot write where it keeps what it compiles, ~/.nv, names a folder in TMPDIR.
void choose_kernel_cache();
}  // namespace convoy

namespace convoy::simt {
[[gnu::weak]] std::unique_ptr<Backend> make_device_backend(int index,
                                                           const BackendOptions& options);
[[gnu::weak]] std::string device_identity(int index);  // of this process
}  // namespace convoy::simt

namespace convoy::cuda {
[[gnu::weak]] std::unique_ptr<Backend> make_device_backend(int index,
                                                           const BackendOptions& options);
[[gnu::weak]] std::string device_identity(int index);  // the UUID of a GPU
// GPUs that this process may use; where there are none, why.
[[gnu::weak]] int count_devices(std::string* why_none);
// What nvcc built for: "75 80 90".
[[gnu::weak]] const char* architectures();
}  // namespace convoy::cuda
