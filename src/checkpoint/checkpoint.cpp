// checkpoint.cpp — see checkpoint.h.
#include "src/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/check.h"
#include "src/base/sha256.h"
#include "src/base/terminal.h"
#include "src/checkpoint/weights.h"

namespace convoy {

namespace fs = std::filesystem;
using nlohmann::json;

static constexpr const char* kFiles[] = {"model.safetensors", "optim.safetensors"};

// ---- files -----------------------------------------------------------------------------------

// `name` in folder `run` points to `target` from now on; the swap is one rename.
static void swap_link(const fs::path& run, const std::string& name, const std::string& target) {
    const fs::path fresh = run / (name + ".new");
    fs::remove(fresh);  // left by a process that was killed in between
    fs::create_symlink(target, fresh);
    fs::rename(fresh, run / name);
}

std::vector<std::string> list_checkpoints(const std::string& run) {
    std::vector<std::string> names;
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(run, error)) {
        const std::string name = entry.path().filename();
        if (name.starts_with("step-") && name.find('.') == std::string::npos) names.push_back(name);
    }
    std::sort(names.rbegin(), names.rend());
    return names;
}

// ---- the card --------------------------------------------------------------------------------

std::map<std::string, std::string> card_to_metadata(const ModelCard& card) {
    return {{"format", "convoy"},
            {"model", card.model_name},
            {"model_text", card.model_text},
            {"size", input_size_text(card.size)},
            {"classes", json(card.classes).dump()},
            {"mean", json(card.mean).dump()},
            {"std", json(card.std).dump()}};
}

ModelCard card_from_metadata(const std::map<std::string, std::string>& metadata,
                             const std::string& path) {
    try {
        ModelCard card;
        card.model_name = metadata.at("model");
        card.model_text = metadata.at("model_text");
        card.size = parse_input_size(metadata.at("size")).value().or_channels(3);
        card.classes = json::parse(metadata.at("classes")).get<std::vector<std::string>>();
        if (card.classes.empty()) fail("no classes");
        json::parse(metadata.at("mean")).get_to(card.mean);
        json::parse(metadata.at("std")).get_to(card.std);
        return card;
    } catch (const std::exception&) {
        fail(path,
             " holds weights, but not the classes and preprocessing they belong to; "
             "`trainer import` adds them");
    }
}

// ---- saving ----------------------------------------------------------------------------------

namespace {
struct StateSlice {
    std::string name;  // "momentum/conv1.weight"
    Param* param;
    float* data;  // in an arena of the optimizer
};
}  // namespace

static std::vector<StateSlice> state_slices(Model& model, Optimizer& optimizer) {
    std::vector<StateSlice> slices;
    const std::vector<std::string> names = optimizer.state_names();
    for (size_t s = 0; s < names.size(); ++s)
        for (Param* param : model.params().all())
            if (!param->frozen && (!param->running || names[s] == kAverageState))
                slices.push_back(
                    {cat(names[s], "/", param->name), param, optimizer.state()[s] + param->offset});
    return slices;
}

static SafeTensors optimizer_state(Model& model, Optimizer& optimizer, Backend& backend) {
    SafeTensors content;
    for (const auto& [name, param, data] : state_slices(model, optimizer)) {
        const Shape s = param->shape;
        StoredTensor& tensor = content.tensors[name];
        tensor = {"F32", {s.N, s.H, s.W, s.C}, std::vector<float>(s.elems())};
        backend.download(tensor.values.data(), data, s.elems() * sizeof(float));
    }
    return content;
}

static void remove_checkpoint(const fs::path& folder) {
    std::error_code ignored;
    const fs::path gone = folder.string() + ".writing-old";  // half a folder is no checkpoint
    fs::rename(folder, gone, ignored);
    fs::remove_all(gone, ignored);
}

static void remove_old(const fs::path& run, const std::string& newest, int keep) {
    std::error_code ignored;  // no best yet; a folder that cannot be removed costs only space
    const std::string best = fs::read_symlink(run / "best", ignored).string();
    for (const fs::directory_entry& entry : fs::directory_iterator(run, ignored))
        if (entry.path().filename().string().find(".writing-") != std::string::npos)
            fs::remove_all(entry.path(), ignored);  // left by a process that was killed in between
    int kept = 0;
    for (const std::string& name : list_checkpoints(run))
        if (name != newest && name != best && ++kept >= keep) remove_checkpoint(run / name);
}

// `fresh` becomes `folder`, even where that is a checkpoint of the same step: at every moment one
// of them is whole and has a name that list_checkpoints() knows.
static void put_in_place(const fs::path& fresh, const fs::path& folder) {
    if (renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0)
        return;                                     // what was there has the name of a leftover now
    const fs::path old = folder.string() + "-old";  // a file system that cannot exchange them
    if (fs::exists(folder)) fs::remove_all(old), fs::rename(folder, old);
    fs::rename(fresh, folder);
    remove_checkpoint(old);
}

std::string save_checkpoint(const std::string& run, const CheckpointMeta& meta,
                            const ModelCard& card, Model& model, Optimizer& optimizer,
                            Backend& backend, bool is_best, int keep, Log& log) {
    const std::string name = fmt::format("step-{:08}", meta.position.step);
    const fs::path folder = fs::path(run) / name;
    const fs::path fresh = fs::path(run) / cat(name, ".writing-", getpid());
    optimizer.swap_average(/*all=*/true);
    SafeTensors weights = export_weights(model, backend);
    SafeTensors state = optimizer_state(model, optimizer, backend);
    optimizer.swap_average(/*all=*/true);
    for (int tries = 0;; ++tries) try {
            fs::remove_all(fresh);
            fs::create_directories(fresh);
            weights.metadata = card_to_metadata(card);
            uint64_t floats = 0;
            for (SafeTensors* part : {&weights, &state})
                for (const auto& [tensor_name, tensor] : part->tensors)
                    floats += tensor.values.size();
            ProgressBar bar(log, cat("saving the checkpoint ", folder.string()),
                            2 * floats * sizeof(float));
            write_safetensors(fresh / kFiles[0], weights, &bar);
            write_safetensors(fresh / kFiles[1], state, &bar);
            FileHashes hashes;
            for (const char* one : kFiles) hashes[one] = sha256_of_file(fresh / one, &bar);
            std::ofstream file(fresh / "meta.json", std::ios::binary);
            file << meta_text(meta, hashes);
            close_synced(file, fresh / "meta.json");
            sync_path(fresh);
            put_in_place(fresh, folder);
            if (is_best) swap_link(run, "best", name);
            swap_link(run, "latest", name);
            sync_path(run);
            break;
        } catch (const std::exception& error) {
            std::error_code ignored;  // the first error is the one to report
            fs::remove_all(fresh, ignored);
            const std::string why = error.what();
            const auto is = [&](int cause) { return why.find(std::strerror(cause)) != why.npos; };
            // Too many open files: may pass, as in data/storage.cpp.
            if (tries < 20 && (is(EMFILE) || is(ENFILE)) && ::poll(nullptr, 0, 100) == 0) continue;
            fail("cannot save the checkpoint ", folder.string(), ": ", why,
                 "; the checkpoints before it are as they were");
        }
    remove_old(run, name, keep);
    return folder;
}

// ---- loading ---------------------------------------------------------------------------------

static Checkpoint read_checkpoint(const std::string& folder, Log& log) {
    constexpr uintmax_t kMostBytes = 16 << 20;
    const std::string path = folder + "/meta.json";
    std::ifstream file(path, std::ios::binary);
    if (!file) fail(path, ": ", std::strerror(errno));
    Checkpoint checkpoint;
    checkpoint.folder = folder;
    FileHashes hashes;
    try {
        if (fs::file_size(path) > kMostBytes) fail("it has more than ", kMostBytes, " bytes");
        checkpoint.meta = parse_meta({std::istreambuf_iterator<char>(file), {}}, hashes);
    } catch (const std::exception& error) {
        fail(path, " is not what a checkpoint holds: ", error.what());
    }
    uint64_t bytes = 0;
    std::error_code missing;  // said when it is opened
    for (const char* name : kFiles) bytes += fs::file_size(fs::path(folder) / name, missing);
    ProgressBar bar(log, cat("checking and reading ", folder), 2 * bytes);
    for (const char* name : kFiles)
        if (sha256_of_file(cat(folder, "/", name), &bar) != hashes[name])
            fail(folder, "/", name, " was changed or cut short after it was written");
    checkpoint.model = read_safetensors(cat(folder, "/", kFiles[0]));
    bar.add(fs::file_size(fs::path(folder) / kFiles[0], missing));
    checkpoint.optimizer = read_safetensors(cat(folder, "/", kFiles[1]));
    return checkpoint;
}

Checkpoint load_checkpoint(const std::string& path, Log& log) {
    if (!fs::exists(path)) fail("--resume: there is no folder ", path, "; check the path");
    if (fs::exists(fs::path(path) / "meta.json")) return read_checkpoint(path, log);
    const std::vector<std::string> names = list_checkpoints(path);
    for (const std::string& name : names) {
        try {
            return read_checkpoint(fs::path(path) / name, log);
        } catch (const Error& error) {
            log.notice("checkpoint ", name, " is damaged and skipped: ", error.what());
        }
    }
    fail("--resume: ", path, names.empty() ? " holds no checkpoint" : " holds no valid checkpoint",
         ": name the folder of another run, or leave --resume out to begin anew");
}

void restore(const Checkpoint& checkpoint, Model& model, Optimizer& optimizer, Backend& backend) {
    import_weights(checkpoint.model, model, backend, /*partial=*/false);
    for (const auto& [name, param, data] : state_slices(model, optimizer)) {
        const auto found = checkpoint.optimizer.tensors.find(name);
        const bool begins =
            found == checkpoint.optimizer.tensors.end() && name.starts_with(cat(kOuterState, "/"));
        if (begins) continue;  // --outer from here on
        if (found == checkpoint.optimizer.tensors.end() ||
            found->second.values.size() != param->shape.elems())
            fail(checkpoint.folder, " holds no ", name,
                 "; was it trained with another --optimizer?");
        backend.upload(data, found->second.values.data(), param->shape.elems() * sizeof(float));
    }
    optimizer.steps_done = checkpoint.meta.optimizer_steps;
    optimizer.swap_average(/*all=*/true);
}

std::map<std::string, std::string> settings_beside(const std::string& model_file) {
    std::ifstream file(fs::path(model_file).parent_path() / "meta.json");
    const json content = json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (!content.is_object() || !content.contains("options")) return {};
    std::map<std::string, std::string> settings;
    for (const auto& [name, value] : content["options"].items())
        if (value.is_string()) settings[name] = value;
    return settings;
}

std::string find_model_file(const std::string& path) {
    if (path.empty()) fail("give --from: a run folder, a checkpoint or a .safetensors file");
    if (!fs::exists(path)) fail("--from: there is no ", path, "; check the path");
    if (!fs::is_directory(path)) return path;
    for (const char* folder : {"", "best", "latest"}) {
        const fs::path file = fs::path(path) / folder / "model.safetensors";
        if (fs::exists(file)) return file;
    }
    fail("--from: ", path, " holds no model; a run folder has one after its first checkpoint");
}

}  // namespace convoy
