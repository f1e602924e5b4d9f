// text.cpp — see text.h and check.h.
#include "src/base/text.h"

#include <algorithm>
#include <boost/locale/utf.hpp>
#include <cstdlib>
#include <numeric>

namespace convoy {

void append_number(std::string& text, int64_t number) { text += fmt::format("{}", number); }
void append_number(std::string& text, uint64_t number) { text += fmt::format("{}", number); }
void append_number(std::string& text, double number) { text += fmt::format("{}", number); }
void append_number(std::string& text, float number) { text += fmt::format("{}", number); }

void throw_error(const std::string& text) { throw Error(text); }

std::vector<std::string> split(std::string_view text, char separator) {
    std::vector<std::string> parts;
    for (size_t at = 0; at <= text.size();) {
        const size_t end = std::min(text.find(separator, at), text.size());
        parts.emplace_back(text.substr(at, end - at));
        at = end + 1;
    }
    return parts;
}

std::string some_of(std::vector<std::string> names, size_t most) {
    const size_t all = names.size();
    names.resize(std::min(all, most));
    return join_text(names) + (all > most ? cat(" and ", all - most, " more") : "");
}

std::string ranges_text(const std::vector<int>& numbers) {
    std::string text;
    for (size_t i = 0, last; i < numbers.size(); i = last + 1) {
        for (last = i; last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1;) ++last;
        text += cat(text.empty() ? "" : ", ", numbers[i]);
        if (last > i) text += cat("-", numbers[last]);
    }
    return text;
}

std::string too_many_bad(uint64_t bad, uint64_t all, double max_bad, std::string_view images) {
    const double few = max_bad > 0 ? double(std::min<uint64_t>(5, all / 4)) : 0;
    if (double(bad) <= std::max(few, max_bad * double(all))) return "";
    return cat(bad, " of ", all, " ", images, " are bad or missing, more than --max-bad ", max_bad,
               " allows; `trainer check` names them all");
}

std::string environment_variable(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

std::string_view without_bom(std::string_view text) {
    return text.substr(text.starts_with("\xEF\xBB\xBF") ? 3 : 0);
}

// Levenshtein's.
static size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), 0);
    for (size_t i = 0; i < a.size(); ++i) {
        size_t diagonal = row[0]++;
        for (size_t j = 0; j < b.size(); ++j) {
            const size_t substitute = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            row[j + 1] = std::min({substitute, row[j] + 1, diagonal + 1});
        }
    }
    return row.back();
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
    std::string best;
    size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
    for (const std::string& candidate : candidates) {
        const bool begins = (word.size() >= 3 && candidate.starts_with(word)) ||
                            (candidate.size() >= 5 && word.starts_with(candidate));
        const size_t distance = begins ? 1 : edit_distance(word, candidate);
        if (distance < best_distance) best = candidate, best_distance = distance;
    }
    return best;
}

std::string printable(std::string_view text) {
    std::string all;
    for (size_t n = 1; !text.empty(); text.remove_prefix(n)) {
        for (n = 1; n < std::min<size_t>(4, text.size()) && !is_utf8(text.substr(0, n));) ++n;
        if (!is_utf8(text.substr(0, n))) n = 1;
        const std::string_view c = text.substr(0, n);
        // U+0080… are control characters; U+202A… and U+2066… change the direction of text.
        if (std::iscntrl(static_cast<unsigned char>(c[0])) || !is_utf8(c) ||
            (c >= "\u0080" && c <= "\u009f") || (c >= "\u202a" && c <= "\u202e") ||
            (c >= "\u2066" && c <= "\u2069"))
            for (const char byte : c) all += fmt::format("\\x{:02x}", uint8_t(byte));
        else
            all += c;
    }
    return all;
}

std::string shell_word(const std::string& path) {
    const auto is_plain = [](char c) {
        return std::isalnum(uint8_t(c)) || uint8_t(c) > 127 || strchr("/._-+=:,@%", c);
    };
    std::string word = path;
    for (size_t at = 0; (at = word.find('\'', at)) < word.size(); at += 4)
        word.replace(at, 1, "'\\''");
    return std::ranges::all_of(path, is_plain) ? path : "'" + word + "'";
}

bool is_utf8(std::string_view text) {
    namespace utf = boost::locale::utf;  // headers only
    for (auto at = text.begin(); at != text.end();)
        if (!utf::is_valid_codepoint(utf::utf_traits<char>::decode(at, text.end()))) return false;
    return true;
}

std::string cut_text(const std::string& line, int width) {
    size_t at = 0;
    for (; at < line.size(); ++at)
        if ((line[at] & 0xC0) != 0x80 && width-- == 0) break;
    return line.substr(0, at);
}

std::string wrapped(const std::string& text, int width) {
    std::string all;
    for (std::string line : split(text, '\n')) {
        const size_t first = line.find_first_not_of(' ');
        const size_t column = line.find_first_not_of(' ', line.find("  ", first));
        const std::string indent(column < size_t(width) * 2 / 3 ? column : 2, ' ');
        for (std::string head; width > 0 && (head = cut_text(line, width)) != line;) {
            const size_t blank = line.rfind(' ', head.size());
            if (blank == line.npos || blank <= indent.size()) break;  // the word is too long
            all += head.substr(0, blank) + "\n";
            line = indent + line.substr(blank + 1);
        }
        all += line + "\n";
    }
    all.pop_back();
    return all;
}

std::string bar_text(double part, int width) {
    return fmt::format("[{:<{}}]", std::string(size_t(std::clamp(part, 0.0, 1.0) * width), '='),
                       width);
}

std::string clock_text(double seconds) {
    const long s = seconds > 0 ? long(std::min(seconds, 1e15) + 0.5) : 0;
    return s < 3600 ? fmt::format("{}:{:02}", s / 60, s % 60)
                    : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string bytes_text(double bytes) {
    const std::string count = count_text(bytes);
    return cat(count, count.back() >= 'A' ? "B" : " B");
}

std::string count_text(double n) {
    if (n >= 1e9) return fmt::format("{:.2f} G", n / 1e9);
    if (n >= 1e6) return fmt::format("{:.2f} M", n / 1e6);
    if (n >= 1e4) return fmt::format("{:.1f} k", n / 1e3);
    return fmt::format("{:.0f}", n);
}

}  // namespace convoy
