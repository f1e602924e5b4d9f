// state.h — a run as its page shows it, made from the events of RUN/log.jsonl and nothing else: so
// the page of a run that trains (RunLog hands on what it writes), of a finished one (trainer page),
// and /metrics cannot differ.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace convoy {

// A field of a stranger's object: NaN or "" where it is missing or something else; long texts are
// cut.
double json_number(const nlohmann::json& of, const char* name);
std::string json_text(const nlohmann::json& of, const char* name);

class PageState {
 public:
    // An object of the log (src/run/log.md lists them). Any thread. Trusts nothing: fields of
    // another type or size are left out.
    void event(const nlohmann::json& event);
    // A line of the log; one that is no object is left out.
    void line(std::string_view text);

    // What page.js shows; src/page/README.md has the fields. after: the `next`
    // of the answer before, for only what is new since; 0: everything. now: Unix seconds.
    nlohmann::json snapshot(uint64_t after, double now) const;
    // In Prometheus's text format 0.0.4.
    std::string metrics() const;

 private:
    struct Item {  // a point or an event, in the order of their arrival
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
    uint64_t number_ = 0, whole_since_ = 0;  // who has seen less than that needs everything
    double images_ = 0, regroups_ = 0, last_step_time_ = 0;
    double begin_time_ = 0, begin_step_ = 0;
};

// Reads a log that may still grow into a state.
class LogReader {
 public:
    // Throws Error where `run` (a folder, or the file itself) has no log.
    explicit LogReader(const std::string& run);
    // Takes what is new in whole lines.
    void read(PageState& state);

 private:
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
    std::string rest_;
};

}  // namespace convoy
