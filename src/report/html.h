// html.h — pages that need nothing but themselves: text, pictures as data, a line chart as SVG.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

// Text from anywhere, for the inside of an element or of "…": no markup is left in it.
std::string html_text(std::string_view text);
// <img> of a JPEG or PNG; "" without bytes.
std::string html_image(std::span<const uint8_t> file, std::string_view alt);
// A whole page; body is HTML. It may load nothing and run nothing.
std::string html_page(std::string_view title, std::string_view body);
// A table; cells are HTML, the first of a row its heading.
std::string html_table(const std::vector<std::string>& heads,
                       const std::vector<std::vector<std::string>>& rows);

struct Curve {
    std::string name;
    std::vector<std::array<double, 2>> points;  // by x; those that are not finite are left out
};
// An SVG of 640×320, with axes, ticks and a legend; stands alone too. x begins at 0, and y shows
// `values` in any case. Where a curve has more points than pixels, the least and the greatest of
// each pixel are drawn.
std::string line_chart(const std::string& title, const std::string& x_name,
                       std::vector<Curve> curves, const std::vector<double>& values = {});

// Writes FOLDER/NAME; makes the folder. Throws Error.
void write_in(const std::string& folder, const std::string& name, std::string_view text);

}  // namespace convoy
