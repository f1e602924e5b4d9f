// state.h — the state of a run that the page and /metrics show. It is made only from the events of
// RUN/log.jsonl, so a training run (RunLog passes on each event) and a finished one look the same.
#pragma once

#include <cstdint>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

// A field of an object from outside: NaN or "" if it has another type or none. Long texts are cut.
double json_number(const nlohmann::json& of, const char* name);
std::string json_text(const nlohmann::json& of, const char* name);

class PageState {
 public:
    // Takes an object of the log (src/run/log.md). Any thread. Ignores fields of another type.
    void event(const nlohmann::json& event);
    // Takes a line of the log. Ignores a line that is longer, or not an object.
    static constexpr size_t kMostLine = 1 << 20;
    void line(std::string_view text);

    // The data that page.js shows; src/page/README.md has the fields. after: `next` of the previous
    // answer, to get only newer items; 0: everything. now: Unix seconds.
    nlohmann::json snapshot(uint64_t after, double now) const;
    // In Prometheus's text format 0.0.4.
    std::string metrics() const;

 private:
    struct Item {  // a point or an event; numbered in the order of arrival
        uint64_t number;
        double step;
        nlohmann::json shown;
    };
    void add(std::vector<Item>& items, double step, nlohmann::json shown);
    void drop_after(double step);
    void take_ranks(const nlohmann::json& told);
    std::string limit() const;

    mutable std::mutex mutex_;
    std::string phase_ = "starting";                   // training, waiting, done, stopped, failed
    nlohmann::json facts_ = nlohmann::json::object();  // newest values by their names on the page
    nlohmann::json ranks_ = nlohmann::json::array();
    std::vector<Item> train_, val_, events_;
    // A viewer whose `after` is below whole_since_ needs everything.
    uint64_t number_ = 0, whole_since_ = 0;
    double images_ = 0, regroups_ = 0, last_step_time_ = 0, last_step_ = 0;
    double begin_time_ = 0, begin_step_ = 0;
};

}  // namespace convoy
