// torch_names.cpp — from the names of tensors in files of PyTorch to those of the model.
#include <algorithm>
#include <map>
#include <set>

#include "src/base/text.h"
#include "src/checkpoint/torch_file.h"

namespace convoy {

void drop_wrappers(SafeTensors& content, const std::string& path, Log& log) {
    std::map<std::string, std::string> names;  // plain → as it is
    std::set<std::string> dropped;
    for (const auto& [name, _] : content.tensors) {
        std::vector<std::string> parts;
        for (const std::string& part : split(name, '.'))
            if (part == "module" || part == "_orig_mod")
                dropped.insert(part);
            else if ((part == "1" || part == "2") && parts.size() > 1 &&
                     (parts.back() == "norm" || parts.back() == "conv") &&
                     parts[parts.size() - 2].starts_with("denselayer"))
                parts.back() += part;
            else
                parts.push_back(part);
        names[join_text(parts, ".")] = name;
    }
    for (bool again = true; again;) {
        again = false;
        for (const std::string prefix : {"model.", "backbone.", "net."}) {
            const auto has = [&](const auto& one) { return one.first.starts_with(prefix); };
            if (2 * std::ranges::count_if(names, has) <= std::ssize(names)) continue;
            std::map<std::string, std::string> shorter;
            for (const auto& one : names)
                shorter[has(one) ? one.first.substr(prefix.size()) : one.first] = one.second;
            names = shorter, again = true;
            dropped.insert(prefix.substr(0, prefix.size() - 1));
        }
    }
    if (names.size() != content.tensors.size()) return;
    std::map<std::string, StoredTensor> tensors;
    for (const auto& [plain, name] : names) tensors[plain] = std::move(content.tensors[name]);
    content.tensors = std::move(tensors);
    if (dropped.empty()) return;
    log.notice(path, ": '", join_text(dropped, ".', '"), ".' is dropped from the names of tensors");
}

}  // namespace convoy
