// train_run_show.cpp — what a run shows while it trains: its page, its ranks, and what they
// use.
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "src/base/check.h"
#include "src/run/train_run.h"

namespace convoy {

// With --page, on rank 0 or its heir. A port that is taken costs the page, not the run.
void TrainRun::serve_page() {
    if (config_.page.empty() || setup_.rank() != 0 || page_) return;
    char host[256] = "localhost";
    gethostname(host, sizeof host - 1);
    try {
        page_ = std::make_unique<PageServer>(config_.page, page_state_);
        log_.notice("page: ", page_->url(host));
    } catch (const Error& error) {
        log_.notice(error.what(), ". The run goes on without it");
    }
}

// The length of the job and its ranks, as they are from now on.
void TrainRun::log_job() {
    nlohmann::json ranks;
    for (int rank = 0; rank < setup_.world(); ++rank)
        ranks.push_back({{"share", setup_.shares.weights[size_t(rank)]}});
    for (const Peer& peer : setup_.job.peers())
        ranks[size_t(peer.rank)].update({{"address", peer.address}, {"host", peer.host}});
    run_log_->event("job", {{"epoch", at_.epoch},
                            {"step", at_.step},
                            {"epochs", config_.steps > 0 ? 0 : config_.epochs},
                            {"steps", total_steps_},
                            {"ranks", ranks}});
}

// Collective: what all ranks use of their machines goes to the log.
void TrainRun::tell_usage() {
    take_usage();
    usage_->tell(at_.step, communicator_, clocks());
    take_usage();
}

// Once, when some steps have shown how long ranks compute and how long they wait.
void TrainRun::advise() {
    if (is_advised_ || setup_.world() == 1 || config_.sync != SyncKind::kRing ||
        config_.sync_every > 1 || config_.pipeline > 1)
        return;
    const Clocks now = clocks();
    const double own = now.compute + now.data_wait - pace_.compute - pace_.data_wait;
    const double waited = now.net_wait - pace_.net_wait;
    const int64_t steps = at_.step - pace_step_;
    if (steps < 20 || own + waited < 2) return;
    is_advised_ = true;
    const std::vector<double>& shares = setup_.shares.weights;
    const double part = shares[0] / std::accumulate(shares.begin(), shares.end(), 0.0);
    const std::string text = advice_of_network(own, waited, double(steps * config_.batch), part);
    if (!text.empty() && setup_.rank() == 0) log_.notice(text);
}

void TrainRun::take_usage() {
    if (!usage_->told()) return;
    const int64_t step = usage_->step();
    run_log_->event("utilisation", {{"step", step}, {"ranks", usage_->take()}});
}

}  // namespace convoy
