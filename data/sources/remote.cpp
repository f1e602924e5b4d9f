#include "data/sources/remote.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "data/sources/http.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/random.h"
#include "src/base/sha256.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

constexpr double kLookPatience = 10;      // seconds: a mistyped host is reported soon
constexpr uint64_t kProgress = 64 << 10;  // bytes after which patience begins again

struct RemoteObject {
    const Location where;
    ObjectInfo info = {};     // known once `path` is set; it does not change then
    std::string path = {};    // of the complete file
    int readers = 0;          // that wait for it
    bool is_here = false;     // complete, unless another process has removed it
    bool is_fetched = false;  // by a thread, now
    Answer answer = {};       // of the last attempt
};
using ObjectPtr = std::shared_ptr<RemoteObject>;

bool is_complete(const RemoteObject& object) {
    struct stat status;
    return lstat(object.path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
           uint64_t(status.st_size) == object.info.size;
}

struct File {
    File(const std::string& path, int how)
        : number(::open(path.c_str(), how | O_CLOEXEC | O_NOFOLLOW, 0600)) {}
    ~File() {
        if (number >= 0) ::close(number);
    }
    File(const File&) = delete;
    bool lock() const { return flock(number, LOCK_EX | LOCK_NB) == 0; }
    uint64_t size() const {
        struct stat status = {};
        fstat(number, &status);
        return uint64_t(status.st_size);
    }
    const int number;
};

}  // namespace

std::string shard_folder(const std::string& cache) {
    const std::string folder = cache_folder(cache) + "/convoy-shards";
    if (folder.starts_with("/convoy")) fail("remote data needs a folder: give --cache DIR");
    std::error_code error;
    fs::create_directories(folder, error);
    if (error || access(folder.c_str(), R_OK | W_OK | X_OK) != 0)
        fail("--cache ", folder,
             ": cannot be made or written: ", error ? error.message() : std::strerror(errno));
    return folder;
}

class RemoteFetcher {
 public:
    RemoteFetcher(const RemoteOptions& options, Log& log) : options_(options), log_(log) {}
    ~RemoteFetcher() {
        {
            std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        changed_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }

    // Called before any storage is opened.
    void begin() {
        std::lock_guard lock(mutex_);
        folder_ = shard_folder(options_.cache);
        while (threads_.size() < size_t(options_.connections))
            threads_.emplace_back([this] { work(); });
    }

    // Finds out size and version, with one request.
    const ObjectInfo& look(RemoteObject& object) {
        {
            std::lock_guard lock(mutex_);
            if (!object.path.empty()) return object.info;
        }
        ObjectInfo info;
        const Answer answer = ask(object.where, kLookPatience, [&] {
            return http_get(object.where, info, -1, 0, options_.stall, stopping_);
        });
        if (!answer.fault.empty()) refuse(object.where, answer);
        const std::string key =
            sha256_of(cat(object.where.url, '\n', info.version, '\n', info.size));
        std::lock_guard lock(mutex_);
        if (object.path.empty())
            object.info = info, object.path = cat(folder_, "/", key.substr(0, 32));
        return object.info;
    }

    void prepare(const ObjectPtr& object) {
        std::lock_guard lock(mutex_);
        if (object->path.empty()) return;  // its size is not known yet
        add(object, plan_.end());
    }
    void finish(const ObjectPtr& object) {
        std::lock_guard lock(mutex_);
        if (object->readers == 0) std::erase(plan_, object);
        changed_.notify_all();  // there may be room
    }

    uint64_t room() const { return options_.cache_bytes; }
    // `object` was looked at.
    void read(const ObjectPtr& object, uint64_t offset, std::span<uint8_t> bytes) {
        const uint64_t size = object->info.size;
        const std::string& name = object->where.name;
        if (size > options_.cache_bytes)
            fail(name, ": ", size,
                 " bytes are more than --cache may hold: give a larger SIZE by --cache DIR:SIZE");
        for (;;) {
            const File file(object->path, O_RDONLY);
            if (file.number < 0 || !is_complete(*object)) {
                wait_for(object);
                continue;
            }
            timespec now[2];  // finer than that of the file system
            clock_gettime(CLOCK_REALTIME, now), now[1] = now[0];
            futimens(file.number, now);
            const int error = read_from(file.number, offset, bytes);
            if (error == 0) return;
            throw Unreachable(cat(name, ": ", object->path, " cannot be read: ",
                                  error > 0 ? std::strerror(error) : "it became shorter"));
        }
    }

 private:
    [[noreturn]] static void refuse(const Location& where, const Answer& answer) {
        const std::string why = cat(where.name, ": ", answer.fault);
        if (answer.missing) throw Missing(why);
        throw Unreachable(why);
    }

    // A fetch that failed ahead of need is tried again, once for all readers that wait.
    void add(const ObjectPtr& object, std::deque<ObjectPtr>::const_iterator before) {
        if (object->readers == 0 && !object->is_fetched)
            object->answer = {}, object->is_here = false;
        plan_.insert(before, object);
        changed_.notify_all();
    }

    void wait_for(const ObjectPtr& object) {
        std::unique_lock lock(mutex_);
        add(object, plan_.begin());
        ++object->readers;
        changed_.wait(lock, [&] {
            return !object->is_fetched && (!object->answer.fault.empty() || object->is_here);
        });
        --object->readers;
        plan_.erase(std::ranges::find(plan_, object));
        if (!object->answer.fault.empty()) refuse(object->where, object->answer);
    }

    void work() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, nullptr);
        std::unique_lock lock(mutex_);
        while (!stopping_) {
            const ObjectPtr object = next();
            if (!object) {  // another process may make room meanwhile
                changed_.wait_for(lock, std::chrono::seconds(1));
                continue;
            }
            object->is_fetched = true, ++under_way_;
            lock.unlock();
            Answer answer;
            try {
                answer = fetch(*object);
            } catch (const std::exception& error) {
                answer.fault = error.what();
            }
            lock.lock();
            object->answer = answer, object->is_fetched = false;
            object->is_here = is_complete(*object);
            --under_way_, ++done_;
            changed_.notify_all();
        }
    }

    // The first object of the plan that is not here, if there is room for it.
    ObjectPtr next() {
        for (const ObjectPtr& object : plan_) {
            if (object->is_fetched || object->is_here || !object->answer.fault.empty()) continue;
            if (under_way_ > done_ && object->readers == 0) return nullptr;
            if (!is_complete(*object)) return make_room(*object) ? object : nullptr;
            object->is_here = true;
            changed_.notify_all();
        }
        return nullptr;
    }

    bool make_room(const RemoteObject& object) {
        uint64_t taken = object.info.size;
        std::set<std::string> kept, parts = {object.path + ".part"};
        for (const ObjectPtr& one : plan_) {
            kept.insert(one->path);
            if (one->is_fetched && parts.insert(one->path + ".part").second)
                taken += one->info.size;
        }
        struct Old {
            fs::file_time_type read;
            std::string path;
            uint64_t size;
        };
        std::vector<Old> files;
        std::error_code error;
        for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
            if (parts.contains(entry.path()) || !entry.is_regular_file(error)) continue;
            files.push_back({entry.last_write_time(error), entry.path(), entry.file_size(error)});
            taken += files.back().size;
        }
        const auto remove = [&](const std::string& path, uint64_t size) {
            if (taken <= options_.cache_bytes) return;
            const File file(path, O_RDONLY);  // another process may write to a part
            if (file.lock() && unlink(path.c_str()) == 0) taken -= size;
        };
        std::ranges::sort(files, {}, &Old::read);
        for (const Old& file : files)
            if (!kept.contains(file.path)) remove(file.path, file.size);
        // An object that a reader waits for replaces the last ones that were fetched ahead.
        for (size_t i = plan_.size(); object.readers > 0 && i-- > 0;)
            if (plan_[i]->readers == 0) {
                remove(plan_[i]->path, plan_[i]->info.size);
                plan_[i]->is_here = is_complete(*plan_[i]);
            }
        return taken <= options_.cache_bytes;
    }

    Answer fetch(const RemoteObject& object) {
        const std::string part = object.path + ".part";
        const File file(part, O_RDWR | O_CREAT);
        const auto fault = [&] { return Answer{.fault = cat(part, ": ", std::strerror(errno))}; };
        if (file.number < 0) return fault();
        while (!file.lock()) {  // another process fetches it
            if (errno != EWOULDBLOCK) return fault();
            if (is_complete(object) || pause(0.1)) return {};
        }
        if (is_complete(object)) return {};
        ObjectInfo info = object.info;
        if (file.size() > info.size && ftruncate(file.number, 0) != 0) return fault();
        const Answer answer = ask(object.where, options_.patience, [&] {
            const uint64_t from = file.size();
            if (from == info.size) return Answer{};
            return http_get(object.where, info, file.number, from, options_.stall, stopping_);
        });
        if (!answer.fault.empty()) return answer;
        if (fdatasync(file.number) != 0 || ::rename(part.c_str(), object.path.c_str()) != 0)
            return fault();
        return {};
    }

    // Sleeps. Returns true, at once, if the fetcher is being destroyed.
    bool pause(double seconds) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                                 [&] { return stopping_.load(); });
    }

    // Repeats a request until it succeeds, cannot succeed, or brings nothing for `patience`
    // seconds; at least twice.
    Answer ask(const Location& where, double patience, const std::function<Answer()>& request) {
        patience = std::min(patience, options_.patience);
        const auto begin = Clock::now();
        auto progress = begin;
        for (int tries = 1, fruitless = 0;; ++tries) {
            Answer answer = request();
            if (answer.received >= kProgress) progress = Clock::now(), fruitless = 0;
            const bool is_good = answer.fault.empty();
            const bool is_late = tries > 1 && seconds_since(progress) >= patience;
            const bool is_over = is_good || !answer.passing || stopping_ || is_late;
            const std::string tried = fmt::format("{:.1f} s", seconds_since(begin));
            if (is_over && tries > 1 && is_good)
                log_.notice(where.name, ": answers again after ", tried);
            if (is_over && tries > 1 && !is_good)
                answer.fault += cat("; tried ", tries, " times in ", tried);
            if (is_over) return answer;
            if (tries == 1) log_.notice(where.name, ": ", answer.fault, "; trying again");
            // The wait doubles each time. It differs by URL, to spread the requests.
            const double spread = 0.5 + double(hash_bytes(where.url) % 16) / 16,
                         wait = spread * std::min(0.25 * std::exp2(fruitless++), 8.0);
            pause(std::max(answer.wait, wait));
        }
    }

    const RemoteOptions options_;
    Log& log_;
    std::string folder_;

    std::mutex mutex_;                 // guards what follows, and each RemoteObject
    std::condition_variable changed_;  // the plan, an object of it, the room, or stopping_
    std::atomic<bool> stopping_ = false;
    std::deque<ObjectPtr> plan_;  // what readers wait for, then what is prepared
    // Number of fetches that run, and of fetches that ended. The first file is fetched alone, so
    // that training begins early; then two files are fetched at once, then four, and so on.
    int64_t under_way_ = 0, done_ = 0;
    std::vector<std::thread> threads_;  // last: all else must exist when they run
};

namespace {

class RemoteFile final : public Storage {
 public:
    RemoteFile(const Remote& fetcher, const Location& where)
        : Storage(where.name),
          fetcher_(fetcher),
          object_(std::make_shared<RemoteObject>(RemoteObject{where})) {}
    ~RemoteFile() override { fetcher_->finish(object_); }

    uint64_t size() const override { return fetcher_->look(*object_).size; }
    uint64_t stamp() const override {
        const std::string& version = fetcher_->look(*object_).version;
        return version.empty() ? 0 : hash_bytes(version);
    }
    void prepare() const override { fetcher_->prepare(object_); }
    void finish() const override { fetcher_->finish(object_); }
    uint64_t room() const override { return fetcher_->room(); }

 private:
    void fill(uint64_t offset, std::span<uint8_t> bytes) const override {
        fetcher_->read(object_, offset, bytes);
    }

    const Remote fetcher_;
    const ObjectPtr object_;
};

}  // namespace

Remote make_remote(const RemoteOptions& options, Log& log) {
    return std::make_shared<RemoteFetcher>(options, log);
}

StoragePtr open_remote(const Remote& remote, const std::string& url) {
    const Location where = locate(url);
    remote->begin();
    return std::make_shared<RemoteFile>(remote, where);
}

}  // namespace convoy
