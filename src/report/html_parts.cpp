#include "src/report/html_parts.h"

#include <openssl/evp.h>

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
figure { margin: 0; width: 150px; font-size: 13px }
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

void write_in(const std::string& folder, const std::string& name, std::string_view text) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) fail("cannot make the folder ", folder, ": ", error.message());
    replace_file(folder + "/" + name, text);
}

}  // namespace convoy
