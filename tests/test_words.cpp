// The words of the project (src/README.md): each row explains one, and no file has a retired word.
#include <doctest/doctest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "src/base/text.h"
#include "tests/support.h"

namespace convoy {

// The words of a text in small letters; "FooBar" and "foo_bar" are two words each.
static std::set<std::string> words_of(const std::string& text) {
    std::set<std::string> words;
    std::string word;
    char before = ' ';
    for (const char c : text + " ") {
        const bool begins = std::isupper(uint8_t(c)) && std::islower(uint8_t(before));
        if (begins || !(std::isalpha(uint8_t(c)) || c == '-'))
            words.insert(std::exchange(word, ""));
        if (std::isalpha(uint8_t(c)) || c == '-') word += char(std::tolower(uint8_t(c)));
        before = c;
    }
    return words;
}

static std::string text_of(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

TEST_CASE("words: each has one row in src/README.md, and no source has a retired one") {
    CHECK(words_of("A RankLost, re_join mini-batch") ==
          std::set<std::string>{"", "a", "rank", "lost", "re", "join", "mini-batch"});
    const std::string readme = text_of("src/README.md");
    const size_t table = readme.find("| word | meaning |"), end = readme.find("Not used, as");
    REQUIRE(table != readme.npos);
    REQUIRE(end != readme.npos);
    std::set<std::string> rows;
    for (const std::string& line : split(readme.substr(table, end - table), '\n'))
        if (line.starts_with("| ")) CHECK(rows.insert(split(line, '|')[1]).second);
    CHECK(rows.size() > 15);

    const std::string list = readme.substr(readme.find("checks: ", end) + 8);
    std::vector<std::string> retired = split(list.substr(0, list.find('.')), ',');
    CHECK(retired.size() > 5);
    for (const char* folder : {"src", "net", "kernels", "data", "tools"})
        for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
            const std::string path = entry.path();
            const std::string ending = entry.path().extension();
            if (!std::set<std::string>{".h", ".cpp", ".cu", ".cuh", ".md"}.contains(ending) ||
                path == "src/README.md")
                continue;
            const std::set<std::string> words = words_of(text_of(path));
            for (const std::string& word : retired) {
                const std::string bare = word.substr(word.find_first_not_of(" \n"));
                for (const char* form : {"", "s", "es"})
                    CHECK_MESSAGE(!words.contains(bare + form), path, " has '", bare, "'");
            }
        }
}

}  // namespace convoy
