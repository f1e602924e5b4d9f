// torch_file.h — weights that PyTorch's torch.save() wrote: .pth, .pt.
//
//   a zip file whose members are stored as they are (PyTorch 1.6 and later):
//   NAME/data.pkl    a pickle of a dict from names to tensors, or of one that holds such a dict as
//                    "state_dict", "model" or "model_state_dict"
//   NAME/data/KEY    a storage: numbers, little-endian, of which each tensor says where it begins
//                    and how far apart its elements are
//   NAME/byteorder   "little", if it is there
//
// Reading is safe with files from strangers: nothing of them is run (pickle.h), members have
// checksums, a tensor must lie within its storage as it is in the file, and all tensors together
// may not take much more memory than the file.
#pragma once

#include "src/base/log.h"
#include "src/checkpoint/safetensors.h"

namespace convoy {

// Weights of a safetensors file, or of PyTorch's, by the file's first bytes. Where every name
// begins with "module." (DataParallel) that is dropped, and `log` says so. Throws Error naming the
// file and what is wrong.
SafeTensors read_weights(const std::string& path, Log& log);

}  // namespace convoy
