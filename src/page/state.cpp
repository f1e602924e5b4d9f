#include "src/page/state.h"

#include <algorithm>
#include <cmath>

#include "src/base/check.h"

namespace convoy {
using nlohmann::json;

constexpr size_t kMostItems = 2000, kMostRanks = 1024, kMostText = 400;

double json_number(const json& of, const char* name) {
    const auto found = of.is_object() ? of.find(name) : of.end();
    return found != of.end() && found->is_number() ? found->get<double>() : NAN;
}

std::string json_text(const json& of, const char* name) {
    const auto found = of.is_object() ? of.find(name) : of.end();
    return found != of.end() && found->is_string()
               ? found->get_ref<const std::string&>().substr(0, kMostText)
               : "";
}

// Copies the finite numbers of `from` that have these names.
static void copy_numbers(json& to, const json& from, std::initializer_list<const char*> names,
                         const char* prefix = "") {
    for (const char* name : names)
        if (const double x = json_number(from, name); std::isfinite(x)) to[cat(prefix, name)] = x;
}

// The sentence that the page lists for an event; "" if it lists none.
static std::string sentence(const std::string& name, const json& event) {
    if (name == "regroup" || name == "stall") return json_text(event, "why");
    if (name == "error") return "error: " + json_text(event, "cause");
    if (name == "leave") return "this rank has left the job; the other ranks continue";
    if (name == "start") return "training starts";
    if (name == "done") return "done: " + json_text(event, "how");
    if (name == "trace") return "trace: " + json_text(event, "file");
    if (name == "wait") return "too few ranks: waiting for ranks that --join";
    if (name == "unequal")
        return cat("weights differed between ranks, first in ", json_text(event, "tensor"),
                   "; they are equal again");
    return "";
}

// The fractions of a rank's time. In an older log it computes while it does not wait.
struct RankParts {
    double data, net, compute, other;
};
static RankParts parts_of(const json& rank) {
    const double data = json_number(rank, "data_wait"), net = json_number(rank, "net_wait");
    const double told = json_number(rank, "compute");
    const double compute = std::isfinite(told) ? told : std::max(1 - (data + net), 0.0);
    return {data, net, compute, std::max(1 - data - net - compute, 0.0)};
}

void PageState::add(std::vector<Item>& items, double step, json shown) {
    if (items.size() >= kMostItems) {  // keep every second item
        size_t i = 0;
        std::erase_if(items, [&](const Item&) { return i++ % 2; });
        whole_since_ = ++number_;
    }
    items.push_back({++number_, step, std::move(shown)});
}

// A resumed run goes back to its checkpoint, so later points are dropped.
void PageState::drop_after(double step) {
    size_t dropped = 0;
    for (std::vector<Item>* items : {&train_, &val_})
        dropped += std::erase_if(*items, [&](const Item& item) { return item.step > step; });
    if (dropped > 0) whole_since_ = ++number_;
}

void PageState::line(std::string_view line) {
    if (line.size() > kMostLine) return;
    const json event = json::parse(line, nullptr, false);
    if (event.is_object()) this->event(event);
}

void PageState::event(const json& event) {
    std::lock_guard lock(mutex_);
    const std::string name = json_text(event, "event");
    const double time = json_number(event, "time"), step = json_number(event, "step");
    if (std::isfinite(time)) facts_["time"] = time;
    copy_numbers(facts_, event, {"step", "epoch"});
    if (name == "start") {
        for (const char* setting : {"model", "data", "batch", "optimizer"})
            facts_[setting] = json_text(event, setting);
        phase_ = "training";
    } else if (name == "job") {
        copy_numbers(facts_, event, {"epochs", "steps"});
        begin_time_ = time, begin_step_ = step;
        ranks_ = json::array();  // a number may mean another rank now
        if (const auto told = event.find("ranks"); told != event.end()) take_ranks(*told);
        drop_after(step);
    } else if (name == "step" || name == "local_step") {
        phase_ = "training";
        copy_numbers(facts_, event, {"loss", "top1", "lr", "images_per_second"});
        if (name == "step" && json_number(event, "images") > 0)
            images_ += json_number(event, "images");
        if (std::isfinite(time)) last_step_time_ = time, last_step_ = step;
        json point = {step};
        for (const char* field : {"loss", "top1", "lr", "images_per_second"})
            point.push_back(json_number(event, field));  // null if it is not known
        add(train_, step, std::move(point));
    } else if (name == "val") {
        copy_numbers(facts_, event, {"loss", "top1", "top5"}, "val_");
        add(val_, step, {step, json_number(event, "loss"), json_number(event, "top1")});
    } else if (name == "utilisation") {
        if (const auto told = event.find("ranks"); told != event.end()) take_ranks(*told);
    } else if (name == "regroup") {
        ++regroups_, phase_ = "training";
    } else if (name == "wait") {
        phase_ = "waiting";
    } else if (name == "checkpoint" && std::isfinite(time)) {
        facts_["checkpoint_time"] = time;
    } else if (name == "done" || name == "leave") {
        phase_ = json_text(event, "how") == "finished" ? "done" : "stopped";
        copy_numbers(facts_, event, {"cost", "kwh", "seconds"});
    } else if (name == "error" && !json_text(event, "cause").empty() &&
               !event.contains("goes_on")) {
        phase_ = "failed";
    }
    if (const std::string what = sentence(name, event); !what.empty())
        add(events_, step, {time, step, what});
}

// Adds the figures of each rank from "job" and "utilisation".
void PageState::take_ranks(const json& told) {
    if (!told.is_array()) return;
    for (size_t i = 0; i < std::min(told.size(), kMostRanks); ++i) {
        if (!told[i].is_object()) continue;
        while (ranks_.size() <= i) ranks_.push_back({{"rank", ranks_.size()}});
        json& rank = ranks_[i];
        copy_numbers(rank, told[i],
                     {"share", "seconds", "data_wait", "net_wait", "net_busy", "compute", "cpu",
                      "memory", "sent"});
        for (const char* name : {"address", "host"})
            if (const std::string value = json_text(told[i], name); !value.empty())
                rank[name] = value;
        const double seconds = json_number(told[i], "seconds");
        if (!(seconds > 0)) continue;
        // Sums since the job has these ranks, for /metrics.
        const auto count = [&](const char* sum, double amount) {
            if (amount >= 0) rank[sum] = rank.value(sum, 0.0) + amount;
        };
        const auto [data, net, compute, other] = parts_of(told[i]);
        count("data_seconds", seconds * data);
        count("net_seconds", seconds * net);
        count("compute_seconds", seconds * compute);
        count("other_seconds", seconds * other);
        count("cpu_seconds", seconds * json_number(told[i], "cpu"));
        count("sent_bytes", json_number(told[i], "sent"));
    }
}

// A sentence about what limits the speed of the run.
std::string PageState::limit() const {
    if (phase_ == "waiting") return "waiting for ranks to join";
    if (phase_ != "training") return "";
    const auto net_wait = [](const json& rank) { return json_number(rank, "net_wait"); };
    for (const json& rank : ranks_)
        if (!std::isfinite(net_wait(rank) + json_number(rank, "data_wait"))) return "";
    const auto [busiest, most_patient] = std::ranges::minmax_element(ranks_, {}, net_wait);
    if (busiest == ranks_.end()) return "";
    const auto [data, net, compute, other] = parts_of(*busiest);
    const auto percent = [](double x) { return fmt::format("{:.0f} %", 100 * std::min(x, 1.0)); };
    const std::string cause = data > compute
                                  ? cat("decoding takes ", percent(data), " of its step")
                                  : cat("computing takes ", percent(compute), " of its step");
    if (net_wait(*most_patient) - net > 0.15)
        return cat("all ranks wait for rank ", int64_t((*busiest)["rank"]), " (",
                   json_text(*busiest, "address"), "): ", cause);
    if (net > std::max(data, compute))
        return cat("limited by the network: every rank waits for it at least ", percent(net),
                   " of a step");
    if (data > compute)
        return cat("limited by reading and decoding: waiting for images takes ", percent(data),
                   " of a step");
    if (other > compute)
        return cat("limited by validation, checkpoints and other work: they take ", percent(other),
                   " of the time");
    return cat("limited by computing: ", percent(compute), " of a step");
}

json PageState::snapshot(uint64_t after, double now) const {
    std::lock_guard lock(mutex_);
    json all = facts_;
    const bool reset = after < whole_since_ || after > number_;
    if (reset) after = 0;
    all.update({{"now", now},
                {"state", phase_},
                {"limit", limit()},
                {"ranks", ranks_},
                {"next", number_},
                {"reset", reset},
                {"last_step_time", last_step_time_}});
    for (const Item& item : val_)
        if (const json& top1 = item.shown[2]; top1.is_number())
            all["best_top1"] = std::max(all.value("best_top1", 0.0), double(top1));
    // After the last epoch the log already counts the next one.
    const double epoch = json_number(facts_, "epoch"), epochs = json_number(facts_, "epochs");
    if (epochs > 0 && epoch >= epochs) all["epoch"] = epochs - 1;
    // Other events may tell a later step than that of last_step_time_.
    const double steps = json_number(facts_, "steps");
    const double done = last_step_ - begin_step_, seconds = last_step_time_ - begin_time_;
    if (phase_ == "training" && done > 0 && seconds > 0 && steps >= last_step_)
        all["eta"] = std::max(seconds / done * (steps - last_step_) - (now - last_step_time_), 0.0);
    const std::pair<const char*, const std::vector<Item>*> lists[] = {
        {"train", &train_}, {"val", &val_}, {"events", &events_}};
    for (const auto& [name, items] : lists) {
        json& list = all[name] = json::array();
        for (const Item& item : *items)
            if (item.number > after) list.push_back(item.shown);
    }
    return all;
}

}  // namespace convoy
