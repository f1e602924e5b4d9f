// remote.cpp — see remote.h.
#include "data/remote.h"

#include "data/range_fetcher.h"
#include "src/base/random.h"

namespace convoy {
namespace {

class RemoteFile final : public Storage {
 public:
    RemoteFile(std::shared_ptr<RangeFetcher> fetcher, const Location& where)
        : Storage(where.name), fetcher_(std::move(fetcher)), object_(fetcher_->open(where)) {}
    ~RemoteFile() override { fetcher_->forget(object_); }

    uint64_t size() const override { return fetcher_->size(object_); }
    uint64_t stamp() const override {
        size();
        return object_->version.empty() ? 0 : hash_bytes(object_->version);
    }
    void read(uint64_t offset, std::span<uint8_t> bytes) const override {
        fetcher_->read(object_, offset, bytes);
    }
    void expect(uint64_t offset, uint64_t length) const override {
        fetcher_->expect(object_, offset, length);
    }

 private:
    const std::shared_ptr<RangeFetcher> fetcher_;
    const std::shared_ptr<RangeFetcher::Object> object_;
};

}  // namespace

Remote::Remote(const RemoteOptions& options, Log& log)
    : fetcher_(std::make_shared<RangeFetcher>(options, log)) {}

std::shared_ptr<const Storage> Remote::open(const std::string& url) const {
    return std::make_shared<RemoteFile>(fetcher_, locate(url));
}

}  // namespace convoy
