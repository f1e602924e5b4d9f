// command_tools.cpp — the small commands: check, coordinator, health, models, export,
// import.
#include <filesystem>

#include "net/health.h"
#include "src/base/check.h"
#include "src/base/text.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/weights.h"
#include "src/cli/check_data.h"
#include "src/cli/commands.h"
#include "src/job/device_choice.h"
#include "src/job/job_setup.h"

namespace convoy {

static int command_check(const CommandLine& line, Log& log, const Stop&) {
    Config config = line.config;
    if (line.files.size() > 1) fail("check takes one folder, not ", line.files.size());
    if (!line.files.empty()) config.data = line.files[0];
    if (config.data.empty()) fail("check needs a folder: trainer check DIR");
    const DataSet data = open_data(data_options(config), log);
    return check_data(data, decode_threads(config), stdout) > 0 ? 1 : 0;
}

static int command_coordinator(const CommandLine& line, Log& log, const Stop& stop) {
    const Config& config = line.config;
    if (config.coord.empty()) fail("coordinator needs --coord HOST:PORT to listen at");
    const auto [host, port] = coordinator_address(config.coord);
    serve_coordinator(host, port, config.world, log, stop);
    return stop() ? 128 + stop() : 0;
}

static int command_health(const CommandLine& line, Log&, const Stop&) {
    const Config& config = line.config;
    const uint16_t default_port =
        coordinator_address(config.coord.empty() ? "localhost" : config.coord).second;
    const uint16_t port = config.port > 0 ? uint16_t(config.port) : default_port;
    HealthReport report = ask_health(port, std::chrono::milliseconds(1'500));
    if (report.none_is_there && config.port == 0 && config.coord.empty())
        report = {true, false,
                  cat("no rank listens on port ", port,
                      " and no --coord is set: a run alone has no port, and is healthy while it "
                      "lives")};
    if (!report.healthy) fail(report.text);
    fmt::print("{}\n", report.text);
    return 0;
}

static int command_models(const CommandLine& line, Log&, const Stop&) {
    if (!line.files.empty()) {
        fmt::print("{}", model_text(line.files[0]));
        return 0;
    }
    for (const std::string& name : built_in_models())
        fmt::print("{:<10} input {}\n", name, model_input_size(model_text(name)));
    fmt::print(
        "\n`trainer models NAME` prints a network's text: a start for a --model FILE of your "
        "own.\n");
    return 0;
}

static int command_export(const CommandLine& line, Log& log, const Stop&) {
    const Config& config = line.config;
    if (config.out.empty()) fail("export needs --out FILE.safetensors");
    const std::string file = find_model_file(config.from);
    SafeTensors content = read_safetensors(file);
    if (config.layout == WeightLayout::kKrsc) {
        const ModelCard card = card_from_metadata(content.metadata, file);
        const auto backend = make_backend("cpu");
        Model model(card.model_text, card.options(), *backend);
        import_weights(content, model, *backend, /*partial=*/false);
        content.tensors = export_weights(model, *backend, /*ours=*/true).tensors;
    }
    write_safetensors(config.out, content);
    log.info("wrote ", config.out, ": ", content.tensors.size(), " tensors, ",
             count_text(double(std::filesystem::file_size(config.out))), "B, from ", file);
    return 0;
}

static int command_import(const CommandLine& line, Log& log, const Stop&) {
    const Config& config = line.config;
    if (line.files.size() != 1) fail("import takes one weights file, not ", line.files.size());
    if (config.out.empty()) fail("import needs --out FILE.safetensors");
    if (config.classes.empty()) fail("import needs --classes A,B,C: the names behind the outputs");
    ModelCard card;
    card.model_name = config.model;
    card.model_text = model_text(config.model);
    card.size = config.size > 0 ? config.size : model_input_size(card.model_text);
    card.classes = split(config.classes, ',');
    const auto backend = make_backend("cpu");
    Model model(card.model_text, card.options(), *backend);
    const SafeTensors content = read_safetensors(line.files[0]);
    const ImportReport report = import_weights(content, model, *backend, /*partial=*/true);
    if (!report.fresh.empty())
        fail(line.files[0], " does not fill a ", config.model, " with ", card.classes.size(),
             " classes: ", report.text(), "; to train what is missing use --init");
    SafeTensors out = export_weights(model, *backend);
    out.metadata = card_to_metadata(card);
    write_safetensors(config.out, out);
    log.info("wrote ", config.out, ": ", report.text());
    return 0;
}

const CommandRow kCheckRow =
    with_files({"check", kCheck, "DIR", "decode every image of a data set and name those that fail",
                command_check});
const CommandRow kCoordinatorRow = {
    "coordinator", kCoordinator, "--coord HOST:PORT --world W",
    "only the meeting point, for jobs whose rank 0 should not serve it", command_coordinator};
const CommandRow kHealthRow = {
    "health", kHealth, "[--coord HOST:PORT | --port P]",
    "ask the rank that runs on this machine how it is; exit status 0 or 1", command_health};
const CommandRow kModelsRow =
    with_files({"models", kModels, "[NAME]", "list the built-in networks, or print the text of one",
                command_models});
const CommandRow kExportRow = {"export", kExport, "--from RUN --out FILE",
                               "write the weights of a model to one safetensors file",
                               command_export};
const CommandRow kImportRow = with_files(
    {"import", kImport, "FILE --model NAME --classes A,B --out FILE",
     "make weights with torchvision's names ready for eval and predict", command_import});

}  // namespace convoy
