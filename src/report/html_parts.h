// html_parts.h — pages without other files: text, tables, pictures as data.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

// Escapes text from anywhere, for the inside of an element or of an attribute in "…".
std::string html_text(std::string_view text);
// <img> of a JPEG or PNG; "" without bytes.
std::string html_image(std::span<const uint8_t> file, std::string_view alt);
// A whole page; body is HTML. The page cannot load or run anything.
std::string html_page(std::string_view title, std::string_view body);
// A table; the cells are HTML, and the first cell of a row is its heading.
std::string html_table(const std::vector<std::string>& heads,
                       const std::vector<std::vector<std::string>>& rows);

// Writes FOLDER/NAME, and makes the folder if necessary. Throws Error.
void write_in(const std::string& folder, const std::string& name, std::string_view text);

}  // namespace convoy
