// freeze.h — --freeze: the first N layers with parameters, or layers by prefixes of their names;
// "batchnorm" stands for all layers of this kind, if there are any.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/base/text.h"

namespace convoy {

class Freeze {
 public:
    // "", "3", or "conv1,layer1."
    explicit Freeze(const std::string& option) : option_(option) {
        const auto number = to_number<size_t>(option);
        first_ = number.value_or(0);
        if (option.empty() || number) return;
        for (const std::string& prefix : split(option, ',')) {
            if (prefix.empty()) fail("--freeze ", option, " has an empty name");
            matched_[prefix] = prefix == "batchnorm";
        }
    }

    // Whether the layer is frozen. Must be called once for each layer with parameters, in order.
    bool freezes(const std::string& layer, const std::string& kind) {
        names_.push_back(layer);
        bool frozen = names_.size() <= first_;
        for (auto& [prefix, matched] : matched_)
            if ((layer + ".").starts_with(prefix) || kind == prefix) frozen = matched = true;
        frozen_ += frozen;
        return frozen;
    }

    // After the last layer: throws Error if a name is unknown or all layers are frozen.
    void check() const {
        for (auto& [prefix, matched] : matched_)
            if (!matched)
                fail("--freeze: no layer's name begins with '", prefix, "'; the layers are ",
                     some_of(names_));
        if (first_ > names_.size())
            fail("--freeze ", first_, ": the model has only ", names_.size(),
                 " layers with parameters");
        if (!names_.empty() && frozen_ == names_.size())
            fail("--freeze ", option_, " matches all ", frozen_, " layers; leave one to train");
    }

 private:
    const std::string option_;
    size_t first_ = 0;
    std::map<std::string, bool> matched_;  // prefix → whether a layer matched
    std::vector<std::string> names_;
    size_t frozen_ = 0;
};

}  // namespace convoy
