// settings_file.h — the file of --settings: lines "name value" and comments, which begin with #.
#pragma once

#include <map>
#include <string>

namespace convoy {

// Names of options and their texts, which are not parsed here. Throws Error.
std::map<std::string, std::string> read_settings(const std::string& path);

}  // namespace convoy
