#include "data/decoded_cache.h"

#include <algorithm>

#include "data/images/decode.h"

namespace convoy {
namespace {

class DecodedSource final : public ChangedSource {
 public:
    DecodedSource(const SourcePtr& source, int channels, Room room)
        : ChangedSource(source),
          channels_(channels),
          room_(std::move(room)),
          kept_(new std::atomic<Bytes*>[size()]()) {}
    ~DecodedSource() override {
        for (size_t i = 0; i < size(); ++i) delete kept_[i].load();
    }
    void read(size_t i, std::vector<uint8_t>& bytes) const override {
        if (const Bytes* kept = kept_[i]) {
            bytes.assign(kept->begin(), kept->end());
            return;
        }
        source_->read(i, bytes);
        if (*room_ > 0) keep(i, bytes);
    }

 private:
    using Bytes = std::vector<uint8_t>;

    // Replaces `bytes` by the pixels too, so that the caller does not decode once more.
    void keep(size_t i, Bytes& bytes) const {
        int64_t size = 0;
        try {
            Decoder decoder(channels_);
            decoder.open(bytes, "");
            const std::string header =
                cat(channels_ == 1 ? "P5 " : "P6 ", decoder.W(), " ", decoder.H(), " 255\n");
            size = int64_t(header.size()) + int64_t(decoder.H()) * decoder.W() * channels_;
            if (room_->fetch_sub(size) >= size) {
                Image image;
                decoder.read(image);
                bytes.assign(header.begin(), header.end());
                bytes.insert(bytes.end(), image.pixels.begin(), image.pixels.end());
                auto kept = std::make_unique<Bytes>(bytes);
                Bytes* none = nullptr;
                if (kept_[i].compare_exchange_strong(none, kept.get())) {
                    kept.release();
                    return;
                }
            }
        } catch (const Error&) {}
        room_->fetch_add(size);  // no room, damaged, or another thread was first
    }

    const int channels_;
    const Room room_;
    const std::unique_ptr<std::atomic<Bytes*>[]> kept_;  // of each sample, null: not yet
};

}  // namespace

SourcePtr keep_decoded(SourcePtr source, int channels, Room room) {
    return std::make_shared<DecodedSource>(source, channels, std::move(room));
}

int64_t decoded_bytes(const Source& source, int channels) {
    std::vector<uint8_t> bytes;
    Decoder decoder(channels);
    double pixels = 0;
    int64_t images = 0;
    for (size_t i = 0, n = std::min<size_t>(source.size(), 32); i < n; ++i)
        image_fault(source, i * source.size() / n, [&] {  // a bad one is named when its turn comes
            source.read(i * source.size() / n, bytes);
            decoder.open(bytes, "");
            pixels += double(decoder.H()) * decoder.W(), ++images;
        });
    return images ? int64_t(pixels * channels / double(images) * double(source.size())) : 0;
}

}  // namespace convoy
