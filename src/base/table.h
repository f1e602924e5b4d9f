// table.h — rows of named values, as an aligned table or as one JSON object per line.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace convoy {

// One value of a row. `key` is its name in JSON ("": not in JSON), `title` in the table (none: not
// in the table). `format` is fmt's, for the table; for a bool it is the text printed for true.
struct Cell {
    template <class T>
    Cell(std::string key, const T& v, std::optional<std::string> title = {},
         const char* format = "{}")
        : key(std::move(key)), title(std::move(title)), format(format) {
        if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
            value = int64_t(v);
        else
            value = v;
    }
    std::string text() const;

    std::string key;
    std::variant<bool, int64_t, double, std::string> value;
    std::optional<std::string> title;
    const char* format;
};

// Numbers are right-aligned. The first row sets the widths, so rows can be printed at once.
class Table {
 public:
    explicit Table(bool json, std::FILE* out = stdout) : json_(json), out_(out) {}
    void row(const std::vector<Cell>& cells);

 private:
    const bool json_;
    std::FILE* const out_;
    std::vector<size_t> widths_;
};

}  // namespace convoy
