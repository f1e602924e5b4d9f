#include "src/plan/tune.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "net/control/asio.h"
#include "src/base/check.h"

namespace convoy {
using nlohmann::json;

std::string Trial::text() const {
    std::string text = ranks > 1 ? cat(ranks, " ranks:") : "";
    for (const auto& [name, value] : options)
        text += cat(text.empty() ? "--" : " --", name, " ", value);
    return text;
}

std::vector<Trial> local_trials(int cores, int gpus) {
    std::vector<Trial> trials;
    const auto add = [&](int ranks, std::map<std::string, std::string> options) {
        if (gpus > 0) options.try_emplace("device", "cpu");
        trials.push_back({std::move(options), ranks});
    };
    const auto each_of = [&](int parts) { return cat(std::max(cores / parts, 1)); };
    std::vector<int> parts;  // all, and powers of two
    if (cores > 1) parts.push_back(cores);
    for (int part = 2; part < cores; part *= 2) parts.push_back(part);

    add(1, {{"threads", "1"}, {"decode-threads", "1"}});
    for (const int threads : parts) add(1, {{"threads", cat(threads)}});
    for (const int ranks : parts) add(ranks, {{"threads", each_of(ranks)}});
    for (const int replicas : parts) add(1, {{"threads", cat(replicas, "x", each_of(replicas))}});
    for (const char* micro_batches : {"2", "4"})
        add(1, {{"threads", cat(cores)}, {"accumulate", micro_batches}});
    if (cores > 1) add(2, {{"threads", each_of(2)}, {"sync", "pipeline:2"}});
    for (int ranks = 1; ranks <= gpus; ranks *= 2) add(ranks, {{"device", "cuda"}});
    if (gpus > 1) add(2, {{"device", "cuda"}, {"sync", "pipeline:2"}});
    return trials;
}

std::vector<Trial> join_trials(int world, const Trial& local) {
    std::vector<Trial> trials = {{{{"sync", "ring"}}},
                                 {{{"wire", "bf16"}}, 1, /*is_exact=*/false},
                                 {{{"sync", "average:8"}}, 1, /*is_exact=*/false},
                                 {{{"sync", "server"}}},
                                 {{{"sync", "async"}}, 1, /*is_exact=*/false},
                                 {{{"sync", cat("pipeline:", world)}}}};
    if (world > 2 && world % 2 == 0) trials.push_back({{{"sync", "pipeline:2"}}});
    for (Trial& one : trials) {
        const bool is_cut = one.text().find("pipeline") != std::string::npos;
        for (const auto& [name, value] : local.options)  // a pipeline has its own micro-batches
            if (!is_cut || (name != "accumulate" && value.find('x') == value.npos))
                one.options.try_emplace(name, value);
    }
    return trials;
}

uint16_t free_port() {
    asio::io_context io;
    const tcp::endpoint any(asio::ip::address_v4::loopback(), 0);
    try {
        return tcp::acceptor(io, any, /*reuse_addr=*/false).local_endpoint().port();
    } catch (const std::system_error& e) {
        fail("no port is free on 127.0.0.1: ", e.code().message());
    }
}

Speed speed_of_log(const std::string& path) {
    std::ifstream file(path);
    Speed speed;
    double images = 0;
    bool is_warm = false;
    for (std::string line; std::getline(file, line);) {
        const json event = json::parse(line, nullptr, /*allow_exceptions=*/false);
        if (!event.is_object() || event.value("event", "") != "step") continue;
        const double n = event.value("images", 0.0), rate = event.value("images_per_second", 0.0);
        if (!std::exchange(is_warm, true) || !(n > 0 && rate > 0)) continue;
        // The means over the time so far; this step's part of it.
        speed.seconds += n / rate, images += n;
        const double part = n / rate / speed.seconds;
        speed.net_wait += part * (event.value("net_wait", 0.0) - speed.net_wait);
        speed.net_busy += part * (event.value("net_busy", 0.0) - speed.net_busy);
        speed.images_per_second = images / speed.seconds;
    }
    return speed;
}

}  // namespace convoy
