// remote.cpp — see remote.h.
#include "data/remote.h"

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

#include "data/http.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/random.h"
#include "src/base/sha256.h"

namespace convoy {
namespace fs = std::filesystem;
namespace {

constexpr double kLookPatience = 10;      // seconds: a mistyped host is told soon
constexpr uint64_t kProgress = 64 << 10;  // bytes after which patience begins again

struct RemoteObject {
    const Location where;
    ObjectInfo info = {};   // known once `path` is set; it does not change then
    std::string path = {};  // of the complete file
    enum State { idle, wanted, on_the_way, failed } state = idle;
    int readers = 0;     // that wait for it
    Answer answer = {};  // failed: why
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
    const int number;
};

}  // namespace

class RemoteFetcher {
 public:
    RemoteFetcher(const RemoteOptions& options, Log& log)
        : options_(options), log_(log), folder_(cache_folder(options.cache) + "/convoy-shards") {}
    ~RemoteFetcher() {
        {
            std::lock_guard lock(mutex_);
            stopping_ = true;
        }
        changed_.notify_all(), stop_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }

    void make_folder() const {
        if (folder_.starts_with("/convoy")) fail("remote data needs a folder: give --cache DIR");
        std::error_code error;
        fs::create_directories(folder_, error);
        if (error || access(folder_.c_str(), R_OK | W_OK | X_OK) != 0)
            fail("--cache ", folder_,
                 ": cannot be made or written: ", error ? error.message() : std::strerror(errno));
    }

    // Finds out size and version, with one request.
    const ObjectInfo& look(RemoteObject& object) {
        std::unique_lock lock(mutex_);
        if (!object.path.empty()) return object.info;
        ObjectInfo info;
        const Answer answer = ask(lock, object.where, kLookPatience, [&](HttpClient& client) {
            return client.look(object.where, info);
        });
        if (!answer.fault.empty()) refuse(object.where, answer);
        const std::string key =
            sha256_of(cat(object.where.url, '\n', info.version, '\n', info.size));
        object.info = info, object.path = cat(folder_, "/", key.substr(0, 32));
        return object.info;
    }

    void prepare(const ObjectPtr& object) {
        std::lock_guard lock(mutex_);
        if (object->path.empty()) return;  // nothing is known of it
        needed_.push_back(object);
        if (object->state == RemoteObject::idle) want(object, wanted_);
    }
    void finish(const ObjectPtr& object) {
        std::lock_guard lock(mutex_);
        if (object->state == RemoteObject::wanted && object->readers == 0)
            object->state = RemoteObject::idle;
        std::erase(needed_, object);
        changed_.notify_all();  // there may be room
    }

    uint64_t room() const { return options_.cache_bytes; }
    void read(const ObjectPtr& object, uint64_t offset, std::span<uint8_t> bytes) {
        const uint64_t size = look(*object).size;
        const std::string& name = object->where.name;
        if (offset > size || bytes.size() > size - offset)
            fail(name, ": ends at byte ", size, ", before ", offset, " + ", bytes.size());
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

    void want(const ObjectPtr& object, std::deque<ObjectPtr>& queue) {
        object->state = RemoteObject::wanted;
        queue.push_back(object);
        if (threads_.size() < size_t(options_.connections))
            threads_.emplace_back([this] { work(); });
        changed_.notify_all();
    }

    void wait_for(const ObjectPtr& object) {
        std::unique_lock lock(mutex_);
        ++object->readers;
        if (object->state != RemoteObject::on_the_way) want(object, urgent_);
        changed_.wait(lock, [&] {
            return object->state == RemoteObject::idle || object->state == RemoteObject::failed;
        });
        --object->readers;
        const bool has_failed = object->state == RemoteObject::failed;
        if (object->readers == 0) object->state = RemoteObject::idle;
        if (has_failed) refuse(object->where, object->answer);
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
            object->state = RemoteObject::on_the_way;
            on_the_way_.push_back(object);
            try {
                object->answer = fetch(lock, *object);
            } catch (const std::exception& error) {
                if (!lock.owns_lock()) lock.lock();
                object->answer = {.fault = error.what()};
            }
            std::erase(on_the_way_, object);
            // What fails ahead of need is tried again when it is read.
            const bool has_failed = !object->answer.fault.empty() && object->readers > 0;
            object->state = has_failed ? RemoteObject::failed : RemoteObject::idle;
            changed_.notify_all();
        }
    }

    // The object to fetch now, if there is one and room for it.
    ObjectPtr next() {
        for (auto* queue : {&urgent_, &wanted_})
            for (; !queue->empty(); queue->pop_front()) {
                const ObjectPtr object = queue->front();
                if (object->state != RemoteObject::wanted) continue;
                if (!is_complete(*object) && !make_room(*object, queue == &urgent_)) break;
                queue->pop_front();
                return object;
            }
        return nullptr;
    }

    bool make_room(const RemoteObject& object, bool is_urgent) {
        uint64_t taken = object.info.size;
        std::set<std::string> kept, parts = {object.path + ".part"};
        for (const ObjectPtr& one : on_the_way_)
            taken += one->info.size, parts.insert(one->path + ".part");
        for (const ObjectPtr& one : needed_) kept.insert(one->path);
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
            if (flock(file.number, LOCK_EX | LOCK_NB) == 0 && unlink(path.c_str()) == 0)
                taken -= size;
        };
        std::ranges::sort(files, {}, &Old::read);
        for (const Old& file : files)
            if (!kept.contains(file.path)) remove(file.path, file.size);
        // What a reader waits for goes before what was fetched ahead for the time after.
        for (size_t i = needed_.size(); is_urgent && i-- > 0;)
            if (needed_[i]->readers == 0) remove(needed_[i]->path, needed_[i]->info.size);
        return taken <= options_.cache_bytes;
    }

    // Unlocks while it waits.
    Answer fetch(std::unique_lock<std::mutex>& lock, const RemoteObject& object) {
        if (is_complete(object)) return {};
        const std::string part = object.path + ".part";
        const File file(part, O_RDWR | O_CREAT);
        const auto fault = [&] { return Answer{.fault = cat(part, ": ", std::strerror(errno))}; };
        if (file.number < 0) return fault();
        while (flock(file.number, LOCK_EX | LOCK_NB) != 0) {  // another process fetches it
            changed_.wait_for(lock, std::chrono::milliseconds(100));
            if (stopping_ || is_complete(object)) return {};
        }
        if (is_complete(object)) return {};
        const uint64_t size = object.info.size;
        const auto here = [&] {
            struct stat status = {};
            fstat(file.number, &status);
            return uint64_t(status.st_size);
        };
        if (here() > size && ftruncate(file.number, 0) != 0) return fault();
        const Answer answer = ask(lock, object.where, options_.patience, [&](HttpClient& client) {
            const uint64_t from = here();
            return from == size ? Answer{}
                                : client.fetch(object.where, object.info, file.number, from);
        });
        if (!answer.fault.empty()) return answer;
        lock.unlock();
        const bool is_safe = fdatasync(file.number) == 0;
        lock.lock();
        if (!is_safe || ::rename(part.c_str(), object.path.c_str()) != 0) return fault();
        return {};
    }

    // Makes a request, unlocked, again until it succeeds, cannot succeed, or brings nothing for
    // `patience` seconds; at least twice.
    Answer ask(std::unique_lock<std::mutex>& lock, const Location& where, double patience,
               const std::function<Answer(HttpClient&)>& request) {
        std::unique_ptr<HttpClient> client;
        if (!clients_.empty()) client = std::move(clients_.back()), clients_.pop_back();
        if (!client) client = std::make_unique<HttpClient>(options_.stall, stopping_);
        auto start = Clock::now();
        for (int tries = 1, fruitless = 0;; ++tries) {
            lock.unlock();
            Answer answer = request(*client);
            lock.lock();
            if (answer.received >= kProgress) start = Clock::now(), fruitless = 0;
            const bool is_good = answer.fault.empty();
            const bool is_late =
                tries > 1 && seconds_since(start) >= std::min(patience, options_.patience);
            const bool is_over = is_good || !answer.passing || stopping_ || is_late;
            if (!is_over && tries == 1 && failing_++ == 0) {
                failing_since_ = Clock::now();
                log_.notice(where.name, ": ", answer.fault, "; trying again");
            }
            if (is_over && tries > 1 && --failing_ == 0 && is_good)
                log_.notice(where.name, ": answers again after ",
                            fmt::format("{:.1f} s", seconds_since(failing_since_)));
            if (is_over && !is_good && tries > 1)
                answer.fault +=
                    fmt::format("; tried {} times in {:.0f} s", tries, seconds_since(start));
            if (is_over) {
                clients_.push_back(std::move(client));
                return answer;
            }
            // Doubled each time; not the same for all, so that they do not come back at once.
            const double spread = 0.5 + double(hash_bytes(where.url) % 16) / 16,
                         wait = spread * std::min(0.25 * std::exp2(fruitless++), 8.0);
            stop_.wait_for(lock, std::chrono::duration<double>(std::max(answer.wait, wait)),
                           [&] { return stopping_.load(); });
        }
    }

    const RemoteOptions options_;
    Log& log_;
    const std::string folder_;

    std::mutex mutex_;                 // guards what follows, and each RemoteObject
    std::condition_variable changed_;  // a state, the queues, or the room
    std::condition_variable stop_;     // for threads that wait to try again: the end
    std::atomic<bool> stopping_ = false;
    std::deque<ObjectPtr> urgent_, wanted_;  // may hold objects that are done
    std::vector<ObjectPtr> on_the_way_;
    std::vector<ObjectPtr> needed_;  // prepared and not finished, in the order of reading
    std::vector<std::unique_ptr<HttpClient>> clients_;  // idle connections
    int failing_ = 0;                                   // requests that are tried again
    Clock::time_point failing_since_;
    std::vector<std::thread> threads_;  // last: all else must exist when they run
};

namespace {

class RemoteFile final : public Storage {
 public:
    RemoteFile(std::shared_ptr<RemoteFetcher> fetcher, const Location& where)
        : Storage(where.name),
          fetcher_(std::move(fetcher)),
          object_(std::make_shared<RemoteObject>(RemoteObject{where})) {}
    ~RemoteFile() override { fetcher_->finish(object_); }

    uint64_t size() const override { return fetcher_->look(*object_).size; }
    uint64_t stamp() const override {
        const std::string& version = fetcher_->look(*object_).version;
        return version.empty() ? 0 : hash_bytes(version);
    }
    void read(uint64_t offset, std::span<uint8_t> bytes) const override {
        fetcher_->read(object_, offset, bytes);
    }
    void prepare() const override { fetcher_->prepare(object_); }
    void finish() const override { fetcher_->finish(object_); }
    uint64_t room() const override { return fetcher_->room(); }

 private:
    const std::shared_ptr<RemoteFetcher> fetcher_;
    const ObjectPtr object_;
};

}  // namespace

Remote::Remote(const RemoteOptions& options, Log& log)
    : fetcher_(std::make_shared<RemoteFetcher>(options, log)) {}

StoragePtr Remote::open(const std::string& url) const {
    const Location where = locate(url);
    fetcher_->make_folder();
    return std::make_shared<RemoteFile>(fetcher_, where);
}

}  // namespace convoy
