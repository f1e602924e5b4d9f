// check_data.cpp — one pass over all images by several threads, then a report in their order.
#include "data/check_data.h"

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "data/images/decode.h"
#include "data/images/large_image.h"
#include "src/base/bytes.h"
#include "src/base/parallel.h"
#include "src/base/random.h"
#include "src/base/terminal.h"

namespace convoy {
namespace {

using nlohmann::json;

struct Finding {
    int32_t H = 0, W = 0;
    uint64_t hash = 0;      // of the encoded bytes
    std::string extension;  // that the bytes deserve
    std::string fault;      // "" when it decoded
};

std::vector<Finding> decode_all(const Source& source, const std::string& part, int threads,
                                Log& log) {
    std::vector<Finding> findings(source.size());
    ProgressBar progress(log, cat("checking ", findings.size(), " images for ", part),
                         findings.size());
    source.plan(source.in_order(), 0);
    for_each_parallel(findings.size(), threads, [&](size_t i) {
        source.pass(i > size_t(threads) ? i - size_t(threads) : 0);
        thread_local std::unique_ptr<ImageBuffers> buffers;
        LargeImage large(&buffers);
        auto& [decoder, bytes, image, row] = *buffers;
        Finding& one = findings[i];
        one.fault = image_fault(source, i, [&] {
            source.read(i, bytes);
            one.hash = hash_bytes(as_text(bytes));
            one.extension = image_extension(bytes);
            decoder.open(bytes, source.name(i));
            decoder.read(image);
            one.H = image.H, one.W = image.W;
        });
        progress.add(1);
    });
    return findings;
}

// The bad images, classes, formats and sizes of the training or the validation set.
json describe(const Source& source, const std::vector<Finding>& findings) {
    const size_t K = source.classes().size();
    std::vector<int64_t> images(K), bad(K);
    std::map<std::string, int64_t> formats;
    const Finding *smallest = nullptr, *largest = nullptr;
    json faults = json::array(), classes = json::object();
    for (size_t i = 0; i < findings.size(); ++i) {
        const Finding& one = findings[i];
        ++images[size_t(source.label(i))];
        if (!one.fault.empty()) {
            ++bad[size_t(source.label(i))];
            faults.push_back(one.fault);
            continue;
        }
        ++formats[one.extension];
        const auto area = [](const Finding& x) { return int64_t(x.H) * x.W; };
        if (!smallest || area(one) < area(*smallest)) smallest = &one;
        if (!largest || area(one) > area(*largest)) largest = &one;
    }
    for (size_t k = 0; k < K; ++k)
        classes[source.classes()[k]] = {{"images", images[k]}, {"bad", bad[k]}};
    json part = {{"images", findings.size()},
                 {"bad", faults},
                 {"left_out_of_shards", source.damaged()},
                 {"left_out", source.faults()},
                 {"left_out_by_kind", source.left_out()},
                 {"classes", classes},
                 {"formats", formats}};
    if (smallest) {
        part["smallest"] = {smallest->W, smallest->H};
        part["largest"] = {largest->W, largest->H};
    }
    const auto [few, many] = std::ranges::minmax_element(images);
    if (*few > 0) part["largest_class_to_smallest"] = double(*many) / double(*few);
    return part;
}

void print(const std::string& name, const json& part, const std::vector<std::string>& order,
           std::FILE* out) {
    for (const auto& fault : part["bad"]) fmt::print(out, "bad: {}\n", fault.get<std::string>());
    for (const auto& fault : part["left_out"])
        fmt::print(out, "left out: {}\n", fault.get<std::string>());
    if (const LeftOut left_out = part["left_out_by_kind"]; !left_out.empty())
        fmt::print(out, "left out, neither images nor labels: {}\n", left_out_text(left_out));
    const uint64_t left_out = part["left_out_of_shards"];
    fmt::print(out, "{}: {} images, {} bad{}\n", name, part["images"].get<int64_t>(),
               part["bad"].size(), left_out > 0 ? cat(", ", left_out, " left out") : "");
    size_t width = 5;
    for (const std::string& one : order) width = std::max(width, one.size());
    fmt::print(out, "  {:{}}  {:>8}  {:>6}\n", "class", width, "images", "bad");
    for (const std::string& one : order)
        fmt::print(out, "  {:{}}  {:>8}  {:>6}\n", one, width,
                   part["classes"][one]["images"].get<int64_t>(),
                   part["classes"][one]["bad"].get<int64_t>());
    if (part.contains("largest_class_to_smallest"))
        fmt::print(out, "  the largest class has {:.1f} times the images of the smallest\n",
                   part["largest_class_to_smallest"].get<double>());
    if (!part.contains("smallest")) return;
    std::string formats;
    for (const auto& [extension, count] : part["formats"].items())
        formats += cat(formats.empty() ? "" : ", ", count.get<int64_t>(), " ", extension);
    fmt::print(out, "  {}; sizes from {}x{} to {}x{} pixels\n", formats,
               part["smallest"][0].get<int>(), part["smallest"][1].get<int>(),
               part["largest"][0].get<int>(), part["largest"][1].get<int>());
}

}  // namespace

int64_t check_data(const DataSet& set, int threads, bool as_json, std::FILE* out, Log& log) {
    ENSURE(threads >= 1, threads, " threads");
    std::map<uint64_t, std::pair<const Source*, size_t>> seen;  // by hash
    int64_t bad = 0, harmless = 0;
    json report = {{"event", "check"}};
    json apart = json::array(), leaks = json::array();
    for (const auto& [part, source] : {std::pair{"training", set.train}, {"validation", set.val}}) {
        if (!source) continue;
        const std::vector<Finding> findings = decode_all(*source, part, threads, log);
        report[part] = describe(*source, findings);
        bad += int64_t(report[part]["bad"].size() + source->damaged());
        if (!as_json) print(part, report[part], source->classes(), out);
        for (size_t i = 0; i < findings.size(); ++i) {
            if (!findings[i].fault.empty()) continue;
            const auto [first, is_new] = seen.try_emplace(findings[i].hash, source.get(), i);
            if (is_new) continue;
            const auto [other, at] = first->second;
            const bool differ = other->label(at) != source->label(i);
            if (!differ && other == source.get())
                ++harmless;
            else
                (differ ? apart : leaks).push_back({other->name(at), source->name(i)});
        }
    }
    report["in_two_classes"] = apart, report["in_training_and_validation"] = leaks;
    report["repeated_in_their_class"] = harmless;
    if (as_json) {
        fmt::print(out, "{}\n", report.dump(-1, ' ', false, json::error_handler_t::replace));
        return bad;
    }
    for (const auto& [what, pairs] :
         {std::pair{"two classes", &apart}, {"training and validation", &leaks}})
        for (const auto& pair : *pairs)
            fmt::print(out, "in {}: {} = {}\n", what, pair[0].get<std::string>(),
                       pair[1].get<std::string>());
    if (harmless) fmt::print(out, "{} more images repeat another image of their class\n", harmless);
    return bad;
}

}  // namespace convoy
