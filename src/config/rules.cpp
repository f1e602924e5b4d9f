// rules.cpp — defaults of single commands, and the options that exclude or need each other.
#include "src/config/config.h"

#include <algorithm>

#include "src/base/text.h"

namespace convoy {

static constexpr unsigned kEveryCommand = ~0u;

// If an option has two defaults, the later one counts.
static constexpr CommandDefault kDefaults[] = {
    {kEveryCommand, "data", nullptr, "generated images"},
    {kEveryCommand, "device", nullptr, "a GPU if there is one"},
    {kEveryCommand, "rank", nullptr, "assigned on arrival"},
    {kEveryCommand, "advertise", nullptr, "as the coordinator sees it"},
    {kEveryCommand, "token-file", nullptr, "CONVOY_TOKEN"},
    {kEveryCommand, "world", nullptr, ""},
    {kTrain | kFinetune, "out", nullptr, "runs/<time>"},
    {kFinetune, "model", nullptr, "by the weights"},
    {kFinetune, "lr", "0.002", "0.002 per 64 images of --batch"},
    {kFinetune, "epochs", "3"},
    {kFinetune, "freeze", "batchnorm"},
    {kFinetune, "freeze-epochs", "3"},
    {kFinetune, "weight-decay", "0.0001"},
    {kFinetune, "label-smoothing", "0.05"},
    {kImport, "model", nullptr, "by the weights"},
    {kImport, "classes", nullptr, "numbers"},
    {kTune, "out", "tuned.settings"},
    {kTune, "generated", nullptr, "8 per image of --batch"},
    {kTune | kLrFind, "lr", nullptr, "10; 1 for adamw"},
    {kLrFind, "steps", "120"},
    {kBenchKernels, "batch", nullptr, "8 to 64, by the model"},
    {kLrFind, "out", nullptr, "none"},
};

std::span<const CommandDefault> command_defaults() { return kDefaults; }

enum class Needs { kNot, kAlso };

// A condition is "clip-norm" (its value differs from the default), "sync=server|async" (its first
// word is one of these), "world>1" (its number is larger), or "" (always true).
struct Rule {
    const char* option;
    Needs kind;
    const char *other, *why;
    unsigned commands = kEveryCommand;
};

static constexpr Rule kRules[] = {
    {"clip-norm", Needs::kNot, "sync=server|async", "a server sees a part of the gradient"},
    {"wire=bf16", Needs::kNot, "sync=server|async", "servers get each gradient in fp32"},
    {"factors=on", Needs::kNot, "sync=server|async|pipeline", "only a ring can send factors"},
    {"optimizer=muon", Needs::kNot, "sync=server|async",
     "a server may hold a part of a tensor; use sgd or adamw"},
    {"share", Needs::kNot, "sync=pipeline", "each rank holds a part of the model"},
    {"shards=mine", Needs::kNot, "sync=pipeline", "each rank holds a part of the model"},
    {"share=auto", Needs::kNot, "preflight=off", "it measures the ranks before training"},
    {"accumulate", Needs::kNot, "sync=pipeline", "pipeline:S:M sets the number of micro-batches"},
    {"replicas>1", Needs::kNot, "sync=pipeline", "each rank holds a part of the model"},
    {"accumulate", Needs::kNot, "factors=on", "factors need a rank's whole batch in one pass"},
    {"replicas>1", Needs::kNot, "factors=on", "factors need a rank's whole batch in one pass"},
    {"warmup", Needs::kNot, "schedule=onecycle|range", "the rate rises by the schedule"},
    {"shards=mine", Needs::kAlso, "data", "every rank can draw the whole generated set"},
    {"schedule=range", Needs::kNot, "sync=average|diloco", "it needs a loss of all ranks per step"},
    {"share", Needs::kNot, "shards=mine", "each rank trains the images that it holds"},
    {"init", Needs::kNot, "resume", "each is a source of the weights"},
    {"alone", Needs::kNot, "elastic=off", "a lost rank ends the job"},
    {"min-world", Needs::kNot, "elastic=off", "a lost rank ends the job"},
    {"join", Needs::kAlso, "coord", "the address of the coordinator or of a rank of the job"},
    {"join", Needs::kNot, "rank", "the new rank becomes the last one"},
    {"join", Needs::kNot, "world>1", "the new rank becomes the last one"},
    {"world>1", Needs::kAlso, "coord", "the address of rank 0", ~kBenchAllreduce},
    {"rank>0", Needs::kAlso, "coord", "the address of rank 0", ~kBenchAllreduce},
    {"forward", Needs::kNot, "compute", "--compute sleeps, so there is nothing to time"},
    {"forward", Needs::kNot, "coord", "it times one rank"},
    {"sync=diloco|server|async|pipeline", Needs::kNot, "", "use ring or average:H", kBenchTrain},
};

struct Condition {
    explicit Condition(std::string_view text)
        : end(std::min(text.find_first_of("=>"), text.size())),
          option(find_option(std::string(text.substr(0, end)))),
          sign(end < text.size() ? text[end] : ' '),
          operand(text.substr(std::min(end + 1, text.size()))) {}

    bool holds(const Config& config) const {
        if (!option) return true;
        const std::string value = get_option(config, option->name);
        if (sign == ' ') return value != get_option({}, option->name);
        if (sign == '>') return to_number<int>(value).value_or(0) > to_number<int>(operand);
        const std::vector<std::string> words = split(operand, '|');
        return std::ranges::count(words, value.substr(0, value.find(':'))) > 0;
    }
    bool is_taken(unsigned command) const { return !option || option->commands & command; }
    bool is_own() const { return !option || !(option->flags & (kJob | kFollows)); }

    size_t end;
    const Option* option;
    char sign;
    std::string_view operand;
};

void check_rules(const Config& config, Command command,
                 const std::map<std::string, std::string>& given, bool own_only) {
    // "--sync async:2", or what gave it: "WORLD_SIZE"
    const auto named = [&](const Option& option) {
        const auto who = given.find(option.name);
        const std::string value = get_option(config, option.name);
        return cat(who == given.end() ? option_name(option) : who->second,
                   option.is_flag() ? "" : " " + value);
    };
    for (const Rule& rule : kRules) {
        const Condition one(rule.option), other(rule.other);
        if (!(rule.commands & command) || !one.is_taken(command) || !other.is_taken(command) ||
            (own_only && !(one.is_own() && other.is_own())) || !one.holds(config) ||
            other.holds(config) != (rule.kind == Needs::kNot))
            continue;
        const std::string needed = other.sign == ' '   ? ""
                                   : other.sign == '=' ? cat(" ", other.operand)
                                                       : " above 0";
        fail(named(*one.option),
             !other.option              ? " does not work here"
             : rule.kind == Needs::kNot ? " does not go with " + named(*other.option)
                                        : cat(" needs ", option_name(*other.option), needed),
             ": ", rule.why);
    }
}

}  // namespace convoy
