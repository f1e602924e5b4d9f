// spectrograms.cpp — sound files to images to train on: FOLDER/CLASS/NAME.wav (au, flac) becomes
// OUT/CLASS/NAME-0.png, NAME-1.png, …: log-mel segments (tools/mel.h) of all channels' mean, one
// after the other; the rest at the end is dropped. With --music OUT it makes such images of made-up
// music: OUT/KIND/00000.png, … `make spectrograms` builds it.
#include <fftw3.h>
#include <fmt/format.h>
#include <sndfile.h>

#include <array>
#include <atomic>
#include <complex>
#include <filesystem>
#include <fstream>
#include <map>
#include <opencv2/imgcodecs.hpp>
#include <thread>

#include "data/images/decode.h"
#include "src/base/parallel.h"
#include "src/base/text.h"
#include "tools/mel.h"

namespace fs = std::filesystem;
using namespace convoy;

namespace {

constexpr sf_count_t kMostFrames = 1 << 27;  // 50 minutes at 44.1 kHz, held as floats

std::vector<float> read_mono(const fs::path& path, int& rate) {
    SF_INFO info{};
    const std::shared_ptr<SNDFILE> file(sf_open(path.c_str(), SFM_READ, &info), sf_close);
    if (!file) fail(sf_strerror(nullptr));
    rate = info.samplerate;
    if (info.frames > kMostFrames)
        fail("it has ", info.frames, " samples, more than ", kMostFrames, ": cut it into parts");
    std::vector<float> mono, block(size_t(info.channels) * 4096);
    while (const sf_count_t frames = sf_readf_float(file.get(), block.data(), 4096))
        for (const float* at = block.data(); at < block.data() + frames * info.channels;) {
            float sum = 0;
            for (int c = 0; c < info.channels; ++c) sum += *at++;
            if (!std::isfinite(sum)) fail("sample ", mono.size(), " is NaN or infinity");
            mono.push_back(sum / float(info.channels));
        }
    char log[4096] = {};  // libsndfile reads a WAV or AU that was cut off without an error
    sf_command(file.get(), SFC_GET_LOG_INFO, log, sizeof log);
    if (sf_error(file.get()) || sf_count_t(mono.size()) != info.frames ||
        std::string(log).find("should be") != std::string::npos)
        fail("it is cut off or damaged after ", mono.size(),
             " samples; write it anew, as by ffmpeg -i");
    return mono;
}

// Frame f: samples [512·f, 512·f + 1024) times a Hann window. Power of bin k of its transform X:
// (|X_k| / (Σ window / 2))². A band: their sum, weighted by its triangle. Threads share the plan.
Image segment(const float* samples, int rate, fftwf_plan plan) {
    Image image{kMelBands, kMelFrames, std::vector<uint8_t>(kMelBands * kMelFrames), 1};
    std::array<float, kWindow> in;
    std::array<std::complex<float>, kWindow / 2 + 1> out;
    for (int f = 0; f < kMelFrames; ++f, samples += kHop) {
        for (size_t i = 0; i < kWindow; ++i)
            in[i] = samples[i] * float(0.5 - 0.5 * std::cos(2 * M_PI * double(i) / kWindow));
        fftwf_execute_dft_r2c(plan, in.data(), reinterpret_cast<fftwf_complex*>(out.data()));
        std::array<double, kMelBands + 2> bands = {};  // one below and one above, which have no row
        for (size_t k = 1; k < kWindow / 2; ++k) {
            const double power = std::norm(out[k] / (kWindow / 4.0f));
            const double at = band_of(double(k) * rate / kWindow, rate / 2.0) + 1;
            const size_t low = size_t(at);
            bands[low] += power * (double(low) + 1 - at);
            bands[low + 1] += power * (at - double(low));
        }
        for (int band = 0; band < kMelBands; ++band)
            image.pixels[size_t(row_of(band) * kMelFrames + f)] = grey_of(bands[size_t(band) + 1]);
    }
    return image;
}

void write(const std::string& name, const Image& image) {
    cv::Mat grey(image.H, image.W, CV_8U, const_cast<uint8_t*>(image.pixels.data()));  // only read
    std::vector<uint8_t> png;
    cv::imencode(".png", grey, png);
    std::ofstream file(name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(png.data()), std::streamsize(png.size()));
    if (!file.flush()) throw std::runtime_error("cannot write " + name + ": is the disk full?");
}

// Returns the number of segments, of files NAME-0.png and so on.
int convert(const fs::path& sound, const std::string& name, fftwf_plan plan) {
    int rate = 0, segments = 0;
    const std::vector<float> mono = read_mono(sound, rate);
    constexpr size_t kStep = kMelFrames * kHop, kNeeds = kStep - kHop + kWindow;
    if (mono.size() < kNeeds) fail("it is shorter than a segment of ", kNeeds, " samples");
    fs::create_directories(fs::path(name).parent_path());
    for (size_t at = 0; at + kNeeds <= mono.size(); at += kStep, ++segments)
        write(cat(name, "-", segments, ".png"), segment(&mono[at], rate, plan));
    return segments;
}

// Sound files by the path that their segments begin with.
std::map<std::string, fs::path> list_sounds(const fs::path& folder, const fs::path& out) {
    std::map<std::string, fs::path> sounds;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        std::string kind = entry.path().extension();
        for (char& c : kind) c = char(std::tolower(uint8_t(c)));
        if (!entry.is_regular_file() || (kind != ".wav" && kind != ".au" && kind != ".flac"))
            continue;
        const fs::path inside = fs::relative(entry.path(), folder);
        if (!inside.has_parent_path())
            fail(entry.path().string(), " is in no class folder: put it at FOLDER/CLASS/NAME");
        if (!sounds.emplace(out / inside.parent_path() / inside.stem(), entry.path()).second)
            fail(entry.path().string(), " and another file would have the same name: rename one");
    }
    return sounds;
}

void make_empty(const fs::path& out) {
    if (fs::exists(out) && !fs::is_empty(out))
        fail(out.string(), " holds files already: remove it, or name another folder");
}

// `count` images of made-up music, the kinds in turns.
void make_music(const fs::path& out, int count, uint64_t seed) {
    make_empty(out);
    const std::vector<std::string> kinds = music_kinds();
    for (const std::string& kind : kinds) fs::create_directories(out / kind);
    for_each_parallel(size_t(count), int(std::max(1u, std::thread::hardware_concurrency())),
                      [&](size_t i) {
                          const size_t kind = i % kinds.size();
                          write(fmt::format("{}/{}/{:05}.png", out.string(), kinds[kind], i),
                                draw_music(int(kind), seed, i));
                      });
    fmt::print("{} segments of {} kinds of music in {}\n", count, kinds.size(), out.string());
}

void run(const fs::path& folder, const fs::path& out) {
    make_empty(out);
    const auto listed = list_sounds(folder, out);
    const std::vector<std::pair<std::string, fs::path>> sounds(listed.begin(), listed.end());
    std::vector<std::string> faults(sounds.size());
    std::atomic<int> segments = 0;
    fftwf_complex any[kWindow + 1];  // estimated: the same plan, and so the same bits, always
    const fftwf_plan plan =
        fftwf_plan_dft_r2c_1d(kWindow, any[0], any + kWindow / 2, FFTW_ESTIMATE | FFTW_UNALIGNED);
    const int threads = int(std::max(1u, std::thread::hardware_concurrency()));
    for_each_parallel(sounds.size(), threads, [&](size_t i) {
        try {
            segments += convert(sounds[i].second, sounds[i].first, plan);
        } catch (const Error& error) {
            faults[i] = cat("left out: ", sounds[i].second.string(), ": ", error.what(), "\n");
        }
    });
    fftwf_destroy_plan(plan);
    for (const std::string& fault : faults) fmt::print(stderr, "{}", fault);
    if (segments == 0)
        fail("no .wav, .au or .flac in the folders of ", folder.string(), " is good");
    fmt::print("{} segments of {} files in {}\n", segments.load(),
               std::ranges::count(faults, std::string()), out.string());
}

}  // namespace

int main(int count, char** words) {
    try {
        const bool is_music = count > 2 && std::string_view(words[1]) == "--music";
        const auto number = [&](int i, long none) {
            const auto n = i < count ? to_number<long>(words[i]) : none;
            if (!n || *n < 0 || *n > 1'000'000) fail(words[i], " is no number up to 1000000");
            return *n;
        };
        if (is_music && count < 6)
            make_music(words[2], int(number(3, 3000)), uint64_t(number(4, 0)));
        else if (count == 3 && !is_music)
            run(words[1], words[2]);
        else
            fail("usage: spectrograms FOLDER OUT, or spectrograms --music OUT [COUNT [SEED]]");
    } catch (const std::exception& error) {
        fmt::print(stderr, "error: {}\n", error.what());
        return 1;
    }
}
