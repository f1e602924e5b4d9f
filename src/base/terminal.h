// terminal.h — for streams that are terminals: width, red text, progress bar.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "src/base/clock.h"
#include "src/base/log.h"

namespace convoy {

// Usable columns; 0: not a terminal, or one that cannot redraw a line (TERM=dumb).
int terminal_width(std::FILE* out);
// In red on a terminal, unless NO_COLOR is set (no-color.org).
std::string in_red(const std::string& text, std::FILE* out);

// "[====      ] checking 1000 images: 37 %, 1:10 left" on a terminal (Log::draw), erased by the
// destructor. Elsewhere a line every ten seconds, unless --quiet.
class ProgressBar {
 public:
    // total 0: not known; then only the text is drawn.
    ProgressBar(Log& log, std::string what, uint64_t total);
    ~ProgressBar() { log_.erase(); }
    void add(uint64_t done);  // from any thread

 private:
    Log& log_;
    const std::string what_;
    const uint64_t total_;
    const Clock::time_point begin_ = Clock::now();
    std::mutex mutex_;
    uint64_t done_ = 0;
    Clock::time_point told_ = begin_;
};

}  // namespace convoy
