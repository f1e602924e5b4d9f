// make_backend.h — the two backends that are made of the files in this folder, without CUDA in the
// header, for kernels/backend.cpp.
#pragma once

#include "kernels/backend.h"

namespace convoy::simt {
std::unique_ptr<Backend> make_device_backend(int index, const BackendOptions& options);
std::string device_identity(int index);
}  // namespace convoy::simt

namespace convoy::cuda {
std::unique_ptr<Backend> make_device_backend(int index, const BackendOptions& options);
// The UUID of a GPU; for the model, of this process.
std::string device_identity(int index);
// GPUs that this process may use; where there are none, why.
int count_devices(std::string* why_none);
}  // namespace convoy::cuda
