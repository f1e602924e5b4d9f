// class_bias.h — --balance: rare classes count as much as frequent ones.
//
//   bias[c] = log(images of class c / all images), added to the logits in training only
//
// The network then learns logits that favour no class: Menon et al., "Long-tail learning via logit
// adjustment" (2021).
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/backend.h"

namespace convoy {

class ClassBias {
 public:
    // images: of each class; 0 counts as 1. For batches of up to `batch`. balances false: no bias.
    ClassBias(const std::vector<int64_t>& images, bool balances, int batch, Backend& backend) {
        if (!balances) return;
        double all = 0;
        for (const int64_t n : images) all += double(n);
        std::vector<float> rows;
        for (int n = 0; n < batch; ++n)
            for (const int64_t of_class : images)
                rows.push_back(float(std::log(double(std::max<int64_t>(of_class, 1)) / all)));
        const Shape shape{batch, 1, 1, int(images.size())};
        bias_ = backend.alloc(shape, Type::kFloat32), sum_ = backend.alloc(shape, Type::kFloat32);
        backend.upload(bias_.floats(), rows.data(), rows.size() * sizeof(float));
    }

    // logits + bias, for the images of the batch from `begin` on, valid until the next call for
    // them; without a bias the logits themselves.
    Tensor added(Tensor logits, int begin, Backend& backend) const {
        if (!bias_) return logits;
        const Tensor sum = sum_.images(begin, begin + logits.N);
        backend.copy(sum, bias_.first(logits.N));
        backend.axpby(1, logits.floats(), 1, sum.floats(), sum.elems());
        return sum;
    }

 private:
    Tensor bias_, sum_;  // a row per image
};

}  // namespace convoy
