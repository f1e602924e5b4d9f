#include "src/report/html.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "src/base/replace_file.h"
#include "src/base/text.h"

namespace convoy {

std::string html_text(std::string_view text) {
    const bool readable = is_utf8(text);
    std::string out;
    for (const char c : text) switch (c) {
            case '&': out += "&amp;"; break;
            case '<': out += "&lt;"; break;
            case '>': out += "&gt;"; break;
            case '"': out += "&quot;"; break;
            case '\'': out += "&#39;"; break;
            default: out += readable || !(c & 0x80) ? c : '?';
        }
    return out;
}

std::string html_image(std::span<const uint8_t> file, std::string_view alt) {
    if (file.empty()) return "";
    std::string base64((file.size() + 2) / 3 * 4 + 1, '\0');  // and a zero byte
    const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(base64.data()), file.data(),
                                     int(file.size()));
    base64.resize(size_t(size));
    return cat("<img alt=\"", html_text(alt), "\" src=\"data:image/",
               file[0] == 0xff ? "jpeg" : "png", ";base64,", base64, "\">");
}

std::string html_page(std::string_view title, std::string_view body) {
    constexpr std::string_view kHead = R"(<!doctype html>
<html lang="en"><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em;
  color: #222; background: #fff; overflow-wrap: anywhere }
h2 { margin-top: 2em; font-size: 1.2em } td, th { padding: .15em .7em; text-align: right; white-space: nowrap }
table { border-collapse: collapse; display: block; overflow-x: auto; overflow-wrap: normal }
th { font-weight: 600; border-bottom: 1px solid #ccc } tr > :first-child { text-align: left }
.tiles { display: flex; flex-wrap: wrap; gap: 1em } .tiles div { background: #f2f4f7;
  padding: .6em 1em; border-radius: 8px } .tiles div b { display: block; font-size: 1.5em }
figure { margin: 0; width: 150px; font-size: 13px } svg { width: 100%; max-width: 640px }
figure img { max-width: 100%; display: block } .pairs td + td { padding: .15em .45em; text-align: center }
</style>
)";
    return cat(kHead, "<title>", html_text(title), "</title>\n<h1>", html_text(title), "</h1>\n",
               body, "</html>\n");
}

std::string html_table(const std::vector<std::string>& heads,
                       const std::vector<std::vector<std::string>>& rows) {
    const auto line = [](const std::vector<std::string>& cells, const char* tag) {
        std::string text = "<tr>";
        for (const std::string& cell : cells) text += cat("<", tag, ">", cell, "</", tag, ">");
        return text + "</tr>\n";
    };
    std::string text = "<table>\n" + line(heads, "th");
    for (const auto& row : rows) text += line(row, "td");
    return text + "</table>\n";
}

namespace {

constexpr double kWidth = 640, kHeight = 320, kLeft = 60, kRight = 12, kTop = 52, kBottom = 36;

// An axis: the positions of numbers in the picture, and round numbers for the ticks.
struct Axis {
    double low = INFINITY, high = -INFINITY, from, to;

    void take(double value) { low = std::min(low, value), high = std::max(high, value); }
    void close() {
        if (!(low <= high)) low = 0, high = 1;
        if (low == high) low -= std::abs(low) / 2 + 0.5, high += std::abs(high) / 2 + 0.5;
    }
    double at(double value) const { return from + (value - low) / (high - low) * (to - from); }
    // About five ticks; the distance is 1, 2 or 5 times a power of ten.
    std::vector<double> ticks() const {
        const double rough = (high - low) / 5, power = std::pow(10, std::floor(std::log10(rough)));
        double step = 10 * power;
        for (const double factor : {5, 2, 1})
            if (factor * power >= rough) step = factor * power;
        std::vector<double> all;
        const double first = std::ceil(low / step - 1e-9);
        for (int i = 0; i < 12 && (first + i) * step <= high + 1e-9 * step; ++i)
            all.push_back((first + i) * step + 0.0);  // no −0
        return all;
    }
};

}  // namespace

std::string line_chart(const std::string& x_name, std::vector<Curve> curves,
                       const std::vector<double>& values) {
    Axis x{.from = kLeft, .to = kWidth - kRight}, y{.from = kHeight - kBottom, .to = kTop};
    for (Curve& curve : curves) {
        std::erase_if(curve.points,
                      [](auto& p) { return !std::isfinite(p[0]) || !std::isfinite(p[1]); });
        for (const auto& [at, value] : curve.points) x.take(at), y.take(value);
    }
    x.take(0);
    for (const double value : values) y.take(value);
    x.close(), y.close();
    std::string svg = fmt::format(
        R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" )"
        R"(font-family="sans-serif" font-size="11" fill="#333"><rect width="{0}" height="{1}" )"
        R"(fill="#fff"/><text x="{2}" y="{3}" text-anchor="end">{4}</text>)",
        kWidth, kHeight, kWidth - kRight, kHeight - 4, html_text(x_name));
    for (const double value : y.ticks())
        svg += fmt::format(R"(<path d="M{} {:.1f}H{}" stroke="#e3e3e3"/><text x="{}" y="{:.1f}" )"
                           R"(text-anchor="end">{:.4g}</text>)",
                           kLeft, y.at(value), kWidth - kRight, kLeft - 6, y.at(value) + 4, value);
    for (const double value : x.ticks())
        svg += fmt::format(R"(<text x="{:.1f}" y="{}" text-anchor="middle">{:.6g}</text>)",
                           x.at(value), kHeight - kBottom + 16, value);
    double legend = kLeft;
    for (const Curve& curve : curves) {
        const char* colour = &curve == &curves[0] ? "#1f6fb4" : "#e07b00";
        std::string path;
        for (const auto& [at, value] : curve.points)
            path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? 'M' : 'L', x.at(at), y.at(value));
        if (curve.points.size() == 1) path += "h2";  // otherwise nothing would be visible
        svg += fmt::format(
            R"(<path d="{}" fill="none" stroke="{}" stroke-width="1.6"/><path d="M{:.0f} 32h18" )"
            R"(stroke="{}" stroke-width="2"/><text x="{:.0f}" y="36">{}</text>)",
            path, colour, legend, colour, legend + 22, html_text(curve.name));
        legend += 36 + 6.2 * double(curve.name.size());
    }
    return svg + "</svg>\n";
}

void write_in(const std::string& folder, const std::string& name, std::string_view text) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) fail("cannot make the folder ", folder, ": ", error.message());
    replace_file(folder + "/" + name, text);
}

}  // namespace convoy
