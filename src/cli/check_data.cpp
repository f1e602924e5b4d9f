// check_data.cpp — one pass over all files by several threads, then a report in the files' order.
#include "src/cli/check_data.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <vector>

#include "data/decode.h"
#include "src/base/check.h"
#include "src/base/random.h"

namespace convoy {
namespace {

struct Finding {
    int64_t H = 0, W = 0;
    uint64_t hash = 0;  // of the file's bytes
    std::string fault;  // "" when it decoded
};

std::vector<Finding> decode_all(const Source& source, int threads) {
    std::vector<Finding> findings(source.size());
    std::atomic<size_t> next = 0;
    const auto work = [&] {
        std::vector<uint8_t> bytes;
        Decoder decoder;
        Image image;
        for (size_t i; (i = next++) < findings.size();) try {
                source.read(i, bytes);
                findings[i].hash =
                    hash_bytes({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
                decoder.open(bytes, source.name(i));
                decoder.read(image);
                findings[i].H = image.H, findings[i].W = image.W;
            } catch (const Error& error) {
                findings[i].fault = error.what();
            }
    };
    std::vector<std::future<void>> workers;
    for (int t = 0; t < threads; ++t) workers.push_back(std::async(std::launch::async, work));
    for (std::future<void>& worker : workers) worker.get();
    return findings;
}

// Prints the bad files, a table of the classes, and the range of sizes. Returns how many are bad.
int64_t report(const char* part, const Source& source, const std::vector<Finding>& findings,
               std::FILE* out) {
    std::vector<int64_t> images(source.classes().size()), bad(source.classes().size());
    const Finding *smallest = nullptr, *largest = nullptr;
    int64_t all_bad = 0;
    const auto area = [](const Finding* one) { return one->H * one->W; };
    for (size_t i = 0; i < findings.size(); ++i) {
        const Finding* one = &findings[i];
        ++images[size_t(source.label(i))];
        if (!one->fault.empty()) {
            ++bad[size_t(source.label(i))], ++all_bad;
            fmt::print(out, "bad: {}\n", one->fault);
            continue;
        }
        if (!smallest || area(one) < area(smallest)) smallest = one;
        if (!largest || area(one) > area(largest)) largest = one;
    }
    fmt::print(out, "{}: {} images, {} bad\n", part, findings.size(), all_bad);
    size_t width = 5;
    for (const std::string& name : source.classes()) width = std::max(width, name.size());
    fmt::print(out, "  {:{}}  {:>8}  {:>6}\n", "class", width, "images", "bad");
    for (size_t k = 0; k < images.size(); ++k)
        fmt::print(out, "  {:{}}  {:>8}  {:>6}\n", source.classes()[k], width, images[k], bad[k]);
    if (smallest)
        fmt::print(out, "  sizes from {}x{} to {}x{} pixels\n", smallest->W, smallest->H,
                   largest->W, largest->H);
    return all_bad;
}

}  // namespace

int64_t check_data(const DataSet& set, int threads, std::FILE* out) {
    ENSURE(threads >= 1, threads, " threads");
    std::map<uint64_t, std::pair<const Source*, size_t>> seen;  // by hash
    int64_t bad = 0, harmless = 0;
    for (const auto& [part, source] : {std::pair{"training", set.train}, {"validation", set.val}}) {
        if (!source) continue;
        const std::vector<Finding> findings = decode_all(*source, threads);
        bad += report(part, *source, findings, out);
        for (size_t i = 0; i < findings.size(); ++i) {
            if (!findings[i].fault.empty()) continue;
            const auto [first, is_new] = seen.try_emplace(findings[i].hash, source.get(), i);
            const auto [other, at] = first->second;
            if (is_new) continue;
            const bool apart = other->label(at) != source->label(i);
            if (!apart && other == source.get())
                ++harmless;
            else
                fmt::print(out, "in {}: {} = {}\n",
                           apart ? "two classes" : "training and validation", other->name(at),
                           source->name(i));
        }
    }
    if (harmless) fmt::print(out, "{} more files repeat another of their class\n", harmless);
    return bad;
}

}  // namespace convoy
