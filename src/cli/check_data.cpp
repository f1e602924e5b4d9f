// check_data.cpp — one pass over all files by several threads, then a report in the files' order.
#include "src/cli/check_data.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "data/decode.h"
#include "src/base/check.h"
#include "src/base/random.h"

namespace convoy {
namespace {

struct Finding {
    int H = 0, W = 0;
    uint64_t hash = 0;  // of the file's bytes
    std::string fault;  // "" when it decoded
};

std::vector<Finding> look_at_all(const Source& source, int threads) {
    std::vector<Finding> findings(source.size());
    std::atomic<size_t> next = 0;
    std::exception_ptr failure;
    std::mutex mutex;
    const auto work = [&] {
        std::vector<uint8_t> bytes;
        Decoder decoder;
        Image image;
        try {
            for (size_t i; (i = next++) < findings.size();) try {
                    source.read(i, bytes);
                    const char* text = reinterpret_cast<const char*>(bytes.data());
                    findings[i].hash = hash_bytes({text, bytes.size()});
                    decoder.open(bytes, source.name(i));
                    decoder.read(image);
                    findings[i].H = image.H, findings[i].W = image.W;
                } catch (const Error& error) {
                    findings[i].fault = error.what();
                }
        } catch (...) {
            std::lock_guard lock(mutex);
            failure = std::current_exception();
        }
    };
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; ++t) workers.emplace_back(work);
    for (std::thread& worker : workers) worker.join();
    if (failure) std::rethrow_exception(failure);
    return findings;
}

void print_sizes(const std::vector<Finding>& findings, std::FILE* out) {
    const Finding *smallest = nullptr, *largest = nullptr;
    for (const Finding& one : findings) {
        if (!one.fault.empty()) continue;
        const auto area = [](const Finding& f) { return int64_t(f.H) * f.W; };
        if (!smallest || area(one) < area(*smallest)) smallest = &one;
        if (!largest || area(one) > area(*largest)) largest = &one;
    }
    if (smallest)
        fmt::print(out, "  sizes from {}x{} to {}x{} pixels\n", smallest->W, smallest->H,
                   largest->W, largest->H);
}

int64_t report(const char* part, const Source& source, const std::vector<Finding>& findings,
               std::FILE* out) {
    std::vector<int64_t> images(source.classes().size()), bad(source.classes().size());
    int64_t all_bad = 0;
    for (size_t i = 0; i < findings.size(); ++i) {
        ++images[size_t(source.label(i))];
        if (findings[i].fault.empty()) continue;
        ++bad[size_t(source.label(i))], ++all_bad;
        fmt::print(out, "bad: {}\n", findings[i].fault);
    }
    fmt::print(out, "{}: {} images, {} bad\n", part, findings.size(), all_bad);
    size_t width = 5;
    for (const std::string& name : source.classes()) width = std::max(width, name.size());
    fmt::print(out, "  {:{}}  {:>8}  {:>6}\n", "class", width, "images", "bad");
    for (size_t k = 0; k < images.size(); ++k)
        fmt::print(out, "  {:{}}  {:>8}  {:>6}\n", source.classes()[k], width, images[k], bad[k]);
    print_sizes(findings, out);
    return all_bad;
}

// Files with the same bytes: harmless within a class, misleading elsewhere.
class Duplicates {
 public:
    explicit Duplicates(std::FILE* out) : out_(out) {}

    void add(const Source& source, const std::vector<Finding>& findings, bool validation) {
        for (size_t i = 0; i < findings.size(); ++i) {
            if (!findings[i].fault.empty()) continue;
            const auto [first, is_new] = seen_.try_emplace(
                findings[i].hash, Seen{source.name(i), source.label(i), validation});
            if (is_new) continue;
            const Seen& other = first->second;
            if (other.label != source.label(i))
                fmt::print(out_, "in two classes: {} = {}\n", other.name, source.name(i));
            else if (other.validation != validation)
                fmt::print(out_, "in training and validation: {} = {}\n", other.name,
                           source.name(i));
            else
                ++harmless_;
        }
    }
    void print_rest() const {
        if (harmless_) fmt::print(out_, "{} more files repeat another of their class\n", harmless_);
    }

 private:
    struct Seen {
        std::string name;
        int32_t label;
        bool validation;
    };
    std::FILE* out_;
    std::unordered_map<uint64_t, Seen> seen_;
    int64_t harmless_ = 0;
};

}  // namespace

int64_t check_data(const DataSet& set, int threads, std::FILE* out) {
    ENSURE(threads >= 1, threads, " threads");
    int64_t bad = 0;
    Duplicates duplicates(out);
    for (const auto& [part, source] : {std::pair{"training", set.train}, {"validation", set.val}}) {
        if (!source) continue;
        const std::vector<Finding> findings = look_at_all(*source, threads);
        bad += report(part, *source, findings, out);
        duplicates.add(*source, findings, source == set.val);
    }
    duplicates.print_rest();
    return bad;
}

}  // namespace convoy
