// composite.h — options that set several fields of Config: --augment, --cache, --schedule, --sync
// and --threads, from text and to text. The text can be read back to the same fields.
#pragma once

#include <string>

#include "src/config/config.h"

namespace convoy {

// set_X throws Error that begins with `who` if the text does not fit; `config` may then be half
// set.
std::string augment_text(const Config& config);
void set_augment(Config& config, const std::string& text, const std::string& who);
std::string cache_text(const Config& config);
void set_cache(Config& config, const std::string& text, const std::string& who);
std::string schedule_text(const Config& config);
void set_schedule(Config& config, const std::string& text, const std::string& who);
std::string sync_text(const Config& config);
void set_sync(Config& config, const std::string& text, const std::string& who);
std::string threads_text(const Config& config);
void set_threads(Config& config, const std::string& text, const std::string& who);

}  // namespace convoy
