// command_tools.cpp — check, pack, health, token, models, export and import.
#include <filesystem>

#include "data/check_data.h"
#include "data/pack_data.h"
#include "net/control/ask_health.h"
#include "net/control/tls.h"
#include "src/base/table.h"
#include "src/base/text.h"
#include "src/checkpoint/onnx.h"
#include "src/checkpoint/torch_file.h"
#include "src/checkpoint/weights.h"
#include "src/cli/commands.h"
#include "src/model/model_text.h"
#include "src/session/device_choice.h"
#include "src/session/job_setup.h"

namespace convoy {

int command_check(const CommandLine& line, Log& log, const Stop&) {
    Config config = line.config;
    if (line.files.size() > 1) fail("check takes one data set: trainer check PATH");
    if (!line.files.empty() && line.given.contains("data"))
        fail("check takes the data set as a word or by ", line.given.at("data"), ", not both");
    if (!line.files.empty()) config.data = line.files[0];
    if (config.data.empty()) fail("check needs a data set: trainer check PATH");
    DataOptions options = data_options(config);
    options.is_check = true;
    const DataSet data = open_data(options, log);
    return check_data(data, options.threads, config.json, stdout, log) > 0;
}

// Whether --format is the first of two formats, which `both` names; for auto, `usually`.
static bool writes(const Config& config, FileFormat first, FileFormat second, const char* both,
                   bool usually) {
    if (config.format == FileFormat::kAuto) return usually;
    if (config.format != first && config.format != second)
        fail("--format ", get_option(config, "format"),
             " does not go with this command, which writes ", both);
    return config.format == first;
}

int command_pack(const CommandLine& line, Log& log, const Stop&) {
    Config config = line.config;
    if (line.files.size() != 2) fail("pack takes a data set and a folder: trainer pack SRC OUT");
    config.data = line.files[0];
    namespace fs = std::filesystem;
    const auto whole = [](const std::string& path) {
        return fs::weakly_canonical(fs::absolute(path));
    };
    const fs::path from_data = whole(line.files[1]).lexically_relative(whole(config.data));
    if (fs::is_directory(config.data) && *from_data.begin() != "..")
        fail("pack: '", line.files[1], "' is inside '", config.data, "': name a folder beside it");
    const bool to_tar =
        writes(config, FileFormat::kTar, FileFormat::kTfrecord, "tar or tfrecord", true);
    const DataOptions options = data_options(config);
    pack_data(open_data(options, log),
              {.out = line.files[1],
               .format = to_tar ? ShardFormat::tar : ShardFormat::tfrecord,
               .shard_bytes = config.shard_size.bytes,
               .max_side = config.max_side,
               .keep_order = config.keep_order,
               .seed = uint64_t(config.seed),
               .threads = options.threads,
               .max_bad = config.max_bad},
              log);
    return 0;
}

int command_health(const CommandLine& line, Log&, const Stop&) {
    const Config& config = line.config;
    const uint16_t default_port =
        coordinator_address(config.coord.empty() ? "localhost" : config.coord).second;
    const uint16_t port = config.port > 0 ? uint16_t(config.port) : default_port;
    HealthReport report =
        ask_health(port, std::chrono::milliseconds(1'500), access_of(config).token);
    if (report.none_is_there && config.port == 0 && config.coord.empty())
        report = {true, false,
                  cat("no rank listens on port ", port,
                      " and no --coord is set: a run of one rank has no port, so it counts as "
                      "healthy")};
    if (!report.healthy) fail(report.text);
    fmt::print("{}\n", report.text);
    return 0;
}

int command_token(const CommandLine&, Log&, const Stop&) {
    fmt::print("{}\n", make_token());
    return 0;
}

int command_models(const CommandLine& line, Log& log, const Stop&) {
    if (!line.files.empty()) {
        fmt::print("{}", model_text(line.files[0]));
        return 0;
    }
    Table table(line.config.json);
    for (const std::string& name : built_in_models())
        table.row({{"model", name, "model", "{:<18}"},
                   {"input", input_size_text(parse_model(model_text(name), name).input), "input"}});
    log.info(
        "\n`trainer models NAME` prints the text of a network, as a start for your own --model "
        "FILE.");
    return 0;
}

int command_export(const CommandLine& line, Log& log, const Stop&) {
    const Config& config = line.config;
    if (config.out.empty()) fail("export needs --out FILE");
    const bool to_onnx = writes(config, FileFormat::kOnnx, FileFormat::kSafetensors,
                                "safetensors or onnx", config.out.ends_with(".onnx"));
    if (config.with_preprocessing && !to_onnx)
        fail("--with-preprocessing needs --out FILE.onnx: safetensors hold weights only");
    const std::string file = find_model_file(config.from, log);
    SafeTensors content = read_safetensors(file);
    if (to_onnx) {
        const ModelCard card = card_from_metadata(content.metadata, file);
        const auto backend = make_backend("cpu");
        Model model(card.model_text, card.options(), *backend);
        import_weights(content, model, *backend, /*partial=*/false);
        content.tensors = export_weights(model, *backend).tensors;
        write_onnx(config.out, card, content, config.with_preprocessing);
    } else {
        if (config.format == FileFormat::kAuto && !config.out.ends_with(".safetensors"))
            fail(
                "export writes --out FILE.safetensors, which PyTorch loads by safetensors.torch, "
                "or FILE.onnx; for another name give --format");
        write_safetensors(config.out, content);
    }
    log.info("wrote ", config.out, ": ", content.tensors.size(), " tensors, ",
             count_text(double(std::filesystem::file_size(config.out))), "B, from ", file,
             content.left_out.empty() ? "" : ", whose tensors of other types are left out");
    return 0;
}

// "0", "1", …: one per output of the last layer in the file; "0" if the file has no such layer.
static std::vector<std::string> numbered_classes(const SafeTensors& content,
                                                 const std::string& text, Backend& backend) {
    const auto params = std::make_shared<Params>();  // not allocated: only names
    const Model model(text, {.classes = 1}, backend, params);
    std::vector<std::string> names = {"0"};
    std::string weights;
    for (const Param* param : params->all())
        if (param->dims > 1) weights = param->name;
    const auto last = content.tensors.find(weights);
    if (last != content.tensors.end() && !last->second.shape.empty())
        while (std::ssize(names) < last->second.shape[0]) names.push_back(cat(names.size()));
    return names;
}

int command_import(const CommandLine& line, Log& log, const Stop&) {
    Config config = line.config;
    if (line.files.size() != 1)
        fail("import takes one file: trainer import ", row_of(kImport).usage);
    if (!config.out.ends_with(".safetensors"))
        fail("import needs --out FILE.safetensors; `export --from` writes ONNX");
    const SafeTensors content = read_weights(line.files[0], log);
    const auto backend = make_backend("cpu");
    if (!line.given.contains("model"))
        config.model = recognised_model(content, line.files[0], *backend);
    const std::string text = model_text(config.model);
    std::vector<std::string> classes = split(config.classes, ',');
    if (config.classes.empty()) classes = numbered_classes(content, text, *backend);
    Model model(text, model_options(config, int(classes.size())), *backend);
    const ImportReport report = import_weights(content, model, *backend, /*partial=*/false);
    SafeTensors out = export_weights(model, *backend);
    for (auto& [name, tensor] : out.tensors)  // counters of batches
        if (tensor.dtype == "I64" && content.tensors.contains(name))
            tensor = content.tensors.at(name);
    ModelCard card{config.model, text, model.input(), classes, model.statistics()};
    if (content.metadata.contains("view")) card.whole = content.metadata.at("view") == "whole";
    out.metadata = card_to_metadata(card);
    write_safetensors(config.out, out);
    log.info("wrote ", config.out, ": ", config.model, " with ", classes.size(), " classes",
             config.classes.empty() ? ", numbered (--classes A,B,C names them)" : "", "; ",
             report.text());
    return 0;
}

}  // namespace convoy
