// make_backend.h — the two backends that are made of the files in this folder, without CUDA in the
// header, for kernels/backend.cpp.
#pragma once

#include "kernels/backend.h"

namespace convoy::simt {
std::unique_ptr<Backend> make_device_backend(int index, const BackendOptions& options);
}

namespace convoy::cuda {
std::unique_ptr<Backend> make_device_backend(int index, const BackendOptions& options);
// GPUs that this process may use; where there are none, why.
int count_devices(std::string* why_none);
}  // namespace convoy::cuda
