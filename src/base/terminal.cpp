#include "src/base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "src/base/text.h"

namespace convoy {

static constexpr const char* kErase = "\r\033[K";

int terminal_width(std::FILE* out) {
    winsize size{};
    if (!isatty(fileno(out)) || environment_variable("TERM") == "dumb") return 0;
    // Some terminals start a new line after the last column.
    return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
}

std::string in_red(const std::string& text, std::FILE* out) {
    const bool plain = terminal_width(out) == 0 || !environment_variable("NO_COLOR").empty();
    return plain ? text : cat("\033[1;31m", text, "\033[0m");
}

bool Log::draws() const { return draws_ && terminal_width(stderr) > 0; }

void Log::draw(double part, const std::string& text) {
    if (!draws()) return;
    const int width = terminal_width(stderr);
    const std::string bar = bar_text(part, std::clamp(width / 6, 8, 20));
    std::lock_guard lock(mutex_);
    fmt::print(stderr, "{}{}", kErase, cut_text(cat(bar, " ", text), width));
    drawn_ = true;
}

void Log::erase() {
    std::lock_guard lock(mutex_);
    if (std::exchange(drawn_, false)) std::fputs(kErase, stderr);
}

void Log::write(const std::string& text, std::string lead) {
    if (!out_) return;
    erase();
    std::lock_guard lock(mutex_);
    const std::string stamp = verbose_ ? fmt::format("{:9.3f} s  ", seconds_since(begin_)) : "";
    std::string all;
    for (const std::string& line : split(text, '\n'))
        all += stamp + prefix_ + std::exchange(lead, "") + printable(line) + "\n";
    std::fwrite(all.data(), 1, all.size(), out_);  // one write, so that lines of ranks do not mix
    std::fflush(out_);
}

ProgressBar::ProgressBar(Log& log, std::string what, uint64_t total)
    : log_(log), what_(std::move(what)), total_(total) {
    if (total == 0) log_.draw(0, what_);
}

void ProgressBar::add(uint64_t done) {
    std::lock_guard lock(mutex_);
    done_ += done;
    if (seconds_since(told_) < (log_.draws() ? 0.2 : 10)) return;
    told_ = Clock::now();
    const double part = std::clamp(double(done_) / double(total_), 1e-9, 1.0);
    const std::string text = fmt::format("{}: {:.0f} %, {} left", what_, 100 * part,
                                         clock_text(seconds_since(begin_) * (1 / part - 1)));
    log_.draws() ? log_.draw(part, text) : log_.info(text);
}

}  // namespace convoy
