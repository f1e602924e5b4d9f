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

#include "src/base/sha256.h"
#include "src/base/terminal.h"
#include "src/checkpoint/weights.h"

namespace convoy {
namespace fs = std::filesystem;
using nlohmann::json;

static constexpr const char *kFiles[] = {"model.safetensors", "optim.safetensors"},
                            *kMeta = "meta.json";

// ---- files -----------------------------------------------------------------------------------

// The checkpoint that RUN/best or RUN/latest points to. The pointer is a link, or a file with a
// name. In a copied run folder the pointer may be a checkpoint itself.
static fs::path pointed(const fs::path& pointer) {
    std::error_code none;
    std::string target = fs::read_symlink(pointer, none);
    if (fs::is_regular_file(pointer, none) && fs::file_size(pointer, none) < 64)
        if (std::getline(std::ifstream(pointer), target); !target.starts_with("step-"))
            return pointer;
    return target.empty() ? pointer : pointer.parent_path() / target;
}

static void remove_checkpoint(const fs::path& folder) {
    std::error_code failed;
    const fs::path gone = folder.string() + ".writing-old";  // half a folder is no checkpoint
    fs::rename(folder, gone, failed);
    fs::remove_all(failed ? folder : gone, failed);
}

// Makes the pointer point to `target`, by one rename. Returns whether it is a link.
static bool point(const fs::path& pointer, const std::string& target, Log& log) {
    const fs::path fresh = pointer.string() + ".new";
    std::error_code error, no_links;
    fs::remove(fresh, error);  // left by a process that was killed in between
    fs::create_symlink(target, fresh, no_links);
    if (no_links) std::ofstream(fresh) << target << "\n";
    if (fs::is_directory(fs::symlink_status(pointer, error))) {
        remove_checkpoint(pointer);
        log.notice(pointer.string(), " was a folder, because the run was copied; now it points to ",
                   target);
    }
    fs::rename(fresh, pointer, error);
    if (error) fs::remove(pointer, error);  // none is better than an old one
    return !no_links;
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
            {"view", card.whole ? "whole" : "centre"},
            {"classes", json(card.classes).dump()},
            {"mean", json(card.statistics.mean).dump()},
            {"std", json(card.statistics.std).dump()}};
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
        card.whole = metadata.contains("view") && metadata.at("view") == "whole";
        json::parse(metadata.at("mean")).get_to(card.statistics.mean);
        json::parse(metadata.at("std")).get_to(card.statistics.std);
        return card;
    } catch (const std::exception&) {
        fail(path,
             " holds weights, but not the classes and preprocessing they belong to; "
             "`trainer import` adds them");
    }
}

// ---- saving ----------------------------------------------------------------------------------

struct StateSlice {
    std::string name;  // "momentum/conv1.weight"
    Param* param;
    float* data;  // in an arena of the optimizer
};

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

static void remove_old(const fs::path& run, const std::string& newest, int keep) {
    std::error_code ignored;  // no best yet; a folder that cannot be removed costs only space
    const std::string best = pointed(run / "best").filename().string();
    for (const fs::directory_entry& entry : fs::directory_iterator(run, ignored))
        if (entry.path().filename().string().find(".writing-") != std::string::npos)
            fs::remove_all(entry.path(), ignored);  // left by a process that was killed in between
    int kept = 0;
    for (const std::string& name : list_checkpoints(run))
        if (name != newest && name != best && ++kept >= keep) remove_checkpoint(run / name);
}

// Renames `fresh` to `folder`, even if `folder` is a checkpoint of the same step. At every moment
// one of the two is complete and has a name that list_checkpoints() knows. Returns whether folders
// can be renamed on this file system. If not, copies the files, meta.json last.
static bool put_in_place(const fs::path& fresh, const fs::path& folder) {
    if (renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0)
        return true;                                // the old folder has the name of a leftover now
    const fs::path old = folder.string() + "-old";  // a file system that cannot exchange them
    std::error_code error;
    if (fs::exists(folder)) fs::remove_all(old), fs::rename(folder, old, error);
    if (!error) fs::rename(fresh, folder, error);
    if (error) {
        fs::create_directories(folder);
        fs::remove(folder / kMeta);
        for (const char* name : {kFiles[0], kFiles[1], kMeta}) {
            fs::copy_file(fresh / name, folder / name, fs::copy_options::overwrite_existing);
            sync_path(folder / name);
        }
    }
    remove_checkpoint(old);
    return !error;
}

std::string save_checkpoint(const std::string& run, const CheckpointMeta& meta,
                            const ModelCard& card, Model& model, Optimizer& optimizer,
                            Backend& backend, bool is_best, int keep, Log& log) {
    const std::string name = fmt::format("step-{:08}", meta.position.step);
    const fs::path folder = fs::path(run) / name;
    const fs::path fresh = fs::path(run) / cat(name, ".writing-", getpid());
    optimizer.swap_average(/*all=*/true);
    SafeTensors weights = export_weights(model, backend, meta.position.step);
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
            CheckpointMeta complete = meta;
            for (const char* one : kFiles) complete.sha256[one] = sha256_of_file(fresh / one, &bar);
            std::ofstream file(fresh / kMeta, std::ios::binary);
            file << meta_text(complete);
            const bool syncs = close_synced(file, fresh / kMeta) & sync_path(fresh);
            const bool renames = put_in_place(fresh, folder);
            if (is_best) point(fs::path(run) / "best", name, log);
            const bool links = point(fs::path(run) / "latest", name, log);
            sync_path(run);
            if (!(syncs && renames && links) && list_checkpoints(run).size() == 1)
                log.notice("the file system of ", run, " has no ",
                           !links     ? "symbolic links: files hold the names of the best and the "
                                        "latest checkpoint"
                           : !renames ? "renaming of folders: checkpoints are copied"
                                      : "fsync: a power failure may cost the latest checkpoint");
            break;
        } catch (const std::exception& error) {
            std::error_code ignored;  // the first error is the one to report
            fs::remove_all(fresh, ignored);
            const std::string why = error.what();
            const auto is = [&](int cause) { return why.find(std::strerror(cause)) != why.npos; };
            // Too many open files: may pass, as in data/sources/storage.cpp.
            if (tries < 20 && (is(EMFILE) || is(ENFILE)) && ::poll(nullptr, 0, 100) == 0) continue;
            fail("cannot save the checkpoint ", folder.string(), ": ", why,
                 "; the earlier checkpoints did not change");
        }
    remove_old(run, name, keep);
    return folder;
}

// ---- loading ---------------------------------------------------------------------------------

static CheckpointMeta read_meta(const fs::path& folder) {
    constexpr uintmax_t kMostBytes = 16 << 20;
    const std::string path = folder / kMeta;
    std::ifstream file(path, std::ios::binary);
    if (!file) fail(path, ": ", std::strerror(errno));
    try {
        if (fs::file_size(path) > kMostBytes) fail("it has more than ", kMostBytes, " bytes");
        return parse_meta({std::istreambuf_iterator<char>(file), {}});
    } catch (const std::exception& error) {
        fail(path, " is not valid in a checkpoint: ", error.what());
    }
}

static void check_file(const std::string& path, const std::string& hash, ProgressBar* bar) {
    if (sha256_of_file(path, bar) != hash)
        fail(path, " was changed or cut short after it was written");
}

static Checkpoint read_checkpoint(const std::string& folder, Log& log) {
    Checkpoint checkpoint{folder, read_meta(folder), {}, {}};
    uint64_t bytes = 0;
    std::error_code missing;  // said when it is opened
    for (const char* name : kFiles) bytes += fs::file_size(fs::path(folder) / name, missing);
    ProgressBar bar(log, cat("checking and reading ", folder), 2 * bytes);
    for (const char* name : kFiles)
        check_file(cat(folder, "/", name), checkpoint.meta.sha256[name], &bar);
    checkpoint.model = read_safetensors(cat(folder, "/", kFiles[0]));
    bar.add(fs::file_size(fs::path(folder) / kFiles[0], missing));
    checkpoint.optimizer = read_safetensors(cat(folder, "/", kFiles[1]));
    return checkpoint;
}

// Returns read(folder) for the first folder that can be read; fails with `otherwise` if none can.
template <class Read>
static auto first_valid(std::vector<fs::path> folders, const fs::path& run, const Read& read,
                        Log& log, const std::string& otherwise) {
    const auto add = [&](const fs::path& one) {
        if (std::ranges::find(folders, one) == folders.end()) folders.push_back(one);
    };
    for (const std::string& name : list_checkpoints(run)) add(run / name);
    add(pointed(run / "best"));
    for (const fs::path& folder : folders) try {
            if (fs::is_directory(folder)) return read(folder);
        } catch (const Error& error) {
            log.notice("checkpoint ", folder.filename().string(),
                       " is damaged and skipped: ", error.what());
        }
    fail(otherwise);
}

Checkpoint load_checkpoint(const std::string& path, Log& log) {
    if (!fs::exists(path)) fail("--resume: there is no folder ", path, "; check the path");
    const fs::path folder = pointed(path);
    if (fs::exists(folder / kMeta)) return read_checkpoint(folder, log);
    return first_valid(
        {pointed(folder / "latest")}, folder,
        [&](const fs::path& one) { return read_checkpoint(one, log); }, log,
        cat("--resume: ", path,
            " holds no valid checkpoint: name the folder of another run, or leave --resume out to "
            "begin anew"));
}

void restore(const Checkpoint& checkpoint, Model& model, Optimizer& optimizer, Backend& backend) {
    import_weights(checkpoint.model, model, backend, /*partial=*/false);
    for (const auto& [name, param, data] : state_slices(model, optimizer)) {
        const auto found = checkpoint.optimizer.tensors.find(name);
        const bool begins =
            found == checkpoint.optimizer.tensors.end() && name.starts_with(cat(kOuterState, "/"));
        if (begins) continue;  // DiLoCo from here on
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
    try {
        return read_meta(fs::path(model_file).parent_path()).settings;
    } catch (const Error&) {
        return {};
    }
}

std::string find_model_file(const std::string& path, Log& log) {
    if (path.empty()) fail("give --from: a run folder, a checkpoint or a .safetensors file");
    if (!fs::exists(path)) fail("there is no file or folder ", path, "; check the path");
    if (path.ends_with(".onnx")) fail(path, " is for other programs: give the run it is from");
    const fs::path folder = pointed(path);
    const bool is_file = !fs::is_directory(folder);
    if (const fs::path file = is_file ? folder : folder / kFiles[0]; fs::exists(file)) {
        const fs::path around = file.parent_path();  // a checkpoint, or other weights
        if (file.filename() == kFiles[0] && fs::exists(around / kMeta))
            check_file(file, read_meta(around).sha256[kFiles[0]], nullptr);
        return is_file ? fs::path(path) : file;  // a link keeps its name
    }
    const auto whole_file = [](const fs::path& one) {
        check_file(one / kFiles[0], read_meta(one).sha256[kFiles[0]], nullptr);
        return one / kFiles[0];
    };
    return first_valid(
        {pointed(folder / "best"), pointed(folder / "latest")}, folder, whole_file, log,
        cat(path, " holds no model; a run folder has one after its first checkpoint"));
}

}  // namespace convoy
