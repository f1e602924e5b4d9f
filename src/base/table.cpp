#include "src/base/table.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace convoy {

std::string Cell::text() const {
    if (const bool* is = std::get_if<bool>(&value)) return *is ? format : "";
    return std::visit([&](const auto& v) { return fmt::vformat(format, fmt::make_format_args(v)); },
                      value);
}

void Table::row(const std::vector<Cell>& cells) {
    if (json_) {
        nlohmann::ordered_json line;
        for (const Cell& cell : cells)
            if (!cell.key.empty()) std::visit([&](auto& v) { line[cell.key] = v; }, cell.value);
        fmt::print(out_, "{}\n", line.dump());
    } else {
        std::string titles, line;
        size_t column = 0;
        const bool first = widths_.empty();
        for (const Cell& cell : cells) {
            if (!cell.title) continue;
            const std::string text = cell.text();
            if (column == widths_.size())
                widths_.push_back(std::max(cell.title->size(), text.size()));
            const bool is_text = cell.value.index() == 0 || cell.value.index() == 3;
            const bool left = is_text && !std::string_view(cell.format).starts_with("{:>");
            const auto pad = [&](std::string_view word) {
                return left ? fmt::format("{:<{}}  ", word, widths_[column])
                            : fmt::format("{:>{}}  ", word, widths_[column]);
            };
            titles += pad(*cell.title), line += pad(text);
            ++column;
        }
        for (std::string* one : {&titles, &line}) one->resize(one->find_last_not_of(' ') + 1);
        if (first) fmt::print(out_, "{}\n", titles);
        fmt::print(out_, "{}\n", line);
    }
    std::fflush(out_);
}

}  // namespace convoy
