// torch_file.h — weights that PyTorch's torch.save() wrote: .pth, .pt.
//
//   a zip file (PyTorch 1.6 and later):
//   NAME/data.pkl    a pickle of a dict from names to tensors, or of one that holds such a dict as
//                    state_dict, model, model_state_dict, net, ema, weights or model_ema
//   NAME/data/KEY    a storage: numbers, little-endian, of which each tensor says where it begins
//                    and how far apart its elements are
//   NAME/byteorder   "little", if it is there
//
// Reading is safe with files from strangers: nothing of them is run (pickle.h), members have
// checksums, a tensor must lie within its storage, and neither members nor tensors may take much
// more memory than the file.
#pragma once

#include "src/base/log.h"
#include "src/checkpoint/safetensors.h"

namespace convoy {

// Weights of a safetensors file, or of PyTorch's, by the file's first bytes. `log` tells what is
// dropped from all names (module., _orig_mod., model., backbone., net.), what else lies among the
// tensors, and weights that are NaN or infinite. Throws Error naming the file and what is wrong.
SafeTensors read_weights(const std::string& path, Log& log);

}  // namespace convoy
