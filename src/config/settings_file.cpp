#include "src/config/settings_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "src/base/check.h"
#include "src/base/text.h"
#include "src/config/config.h"

namespace convoy {

std::map<std::string, std::string> read_settings(const std::string& path) {
    std::ifstream file(path);
    if (!file) fail("--settings ", path, ": ", std::strerror(errno));
    std::map<std::string, std::string> settings;
    for (std::string text; std::getline(file, text);) {
        std::istringstream line{std::string(without_bom(text))};
        std::string name, value;
        if (!(line >> name) || name[0] == '#') continue;
        std::getline(line >> std::ws, value);
        if (value.ends_with('\r')) value.pop_back();
        if (const std::string instead = replacement("--" + name);
            !find_option(name) && !instead.empty())
            fail("--settings ", path, ": there is no option ", name, " any more; use ", instead);
        if (!find_option(name) || value.empty() || name == "settings")
            fail("--settings ", path, ": '", printable(text),
                 "' is not an option and its value, such as 'batch 64'");
        settings[name] = value;
    }
    return settings;
}

}  // namespace convoy
