#include "src/run/run_folder.h"

#include <unistd.h>

#include <ctime>
#include <filesystem>

#include "src/base/check.h"

namespace convoy {

namespace fs = std::filesystem;

std::string open_run_folder(const Config& config, int rank) {
    std::string folder = config.out;
    if (folder.empty() && !config.resume.empty()) {
        folder = config.resume;
        if (fs::exists(fs::path(folder) / "meta.json"))  // one checkpoint: its run goes on
            folder = fs::canonical(folder).parent_path();
    } else if (folder.empty()) {
        const std::time_t now = std::time(nullptr);
        char text[32];
        std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", std::localtime(&now));
        const std::string suffix = rank == 0 ? "" : cat("-rank", rank);
        folder = cat("runs/", text, suffix);
        for (int n = 2; fs::exists(folder); ++n) folder = cat("runs/", text, suffix, "-", n);
    }
    std::error_code error;
    const bool goes_on = !config.resume.empty() && fs::equivalent(folder, config.resume, error);
    if (!config.out.empty() && !goes_on && rank == 0 && fs::exists(fs::path(folder) / "latest"))
        fail("--out: ", folder, " holds a run already; go on with it by --resume ", folder,
             ", or choose another folder");
    fs::create_directories(folder, error);
    if (error || access(folder.c_str(), W_OK) != 0)
        fail("--out: cannot write into ", folder, ": ",
             error ? error.message() : std::string("no permission"));
    return folder;
}

}  // namespace convoy
