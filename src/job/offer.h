// offer.h — what a rank of a job tells a newcomer: the data on which the ranks have agreed.
//
// The offer travels as JSON in an OFFER (net/wire.h). Without a token a stranger may have made it.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace convoy {

struct JobModel {
    std::string text;
    std::vector<std::string> classes;
    bool fresh = true;  // JobSetup::fresh
};

// The images that a rank sees: their fingerprints, and a description.
struct JobData {
    std::string train, val, description;
};

struct Offer {
    std::map<std::string, std::string> settings;  // job_settings()
    JobModel model;
    JobData data;
    size_t bucket = 0;  // bytes
    double speed = 0;   // Shares::speed
};
std::string offer_text(const Offer& offer);
Offer parse_offer(const std::string& text);  // throws Error

}  // namespace convoy
