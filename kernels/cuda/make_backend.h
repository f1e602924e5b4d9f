// make_backend.h — the two backends made of the files in this folder, without CUDA in the header.
//
// Their functions are weak symbols. If a program is linked without the emulator's objects or nvcc's
// objects, the symbols are null (kernels/backend.cpp), so no other source is compiled twice.
#pragma once

#include "kernels/backend.h"

namespace convoy {
// The notice for description() if `built` ("80 90a") has no machine code for this GPU; else "".
std::string compile_notice(const std::string& built, int major, int minor);
// If the driver cannot write its cache of compiled kernels (~/.nv), moves the cache to TMPDIR.
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
// The number of GPUs that this process may use. If it is 0, *why_none says why.
[[gnu::weak]] int count_devices(std::string* why_none);
// The compute capabilities for which nvcc compiled: "75 80 90".
[[gnu::weak]] const char* architectures();
}  // namespace convoy::cuda
