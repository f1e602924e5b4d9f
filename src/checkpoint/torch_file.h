// torch_file.h — weights that PyTorch's torch.save() wrote: .pth, .pt.
//
//   a zip file (PyTorch 1.6 and later):
//   NAME/data.pkl    a pickle of a dict from names to tensors, or of a dict that holds such a dict
//                    as state_dict, model, model_state_dict, net, ema, weights or model_ema
//   NAME/data/KEY    a storage: little-endian numbers; each tensor has an offset and strides in it
//   NAME/byteorder   "little"; may be missing
//
//   before 1.6: five pickles (a magic number, the version 1001, sizes of C's types, the dict, a
//   list of KEYs), then for each KEY the count of its storage's numbers (8) and these,
//   little-endian
//
// Reading is safe with files from strangers: nothing is run (pickle.h), members of zip files have
// checksums, a tensor must lie within its storage, and nothing may take much more memory than the
// file.
#pragma once

#include "src/base/log.h"
#include "src/checkpoint/safetensors.h"

namespace convoy {

// Reads weights from a safetensors file or a file of PyTorch, by its first bytes. `log` names the
// prefixes that are dropped, values that are not tensors of weights, and weights that are NaN or
// infinite. Throws Error with the file and what is wrong.
SafeTensors read_weights(const std::string& path, Log& log);

// The names of a file → those of the model (torch_names.cpp). Drops the words that DataParallel,
// torch.compile and trainers add: module. and _orig_mod. everywhere, and model., backbone. and net.
// if most names begin with them. Joins what later torchvision joins: denselayer1.norm.1 →
// denselayer1.norm1.
void drop_wrappers(SafeTensors& content, const std::string& path, Log& log);

}  // namespace convoy
