// test_spectrograms.cpp — tools/spectrograms, which stands beside this program where
// `make spectrograms` has built it, on sounds that the test writes.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "pictures.h"
#include "tests/process.h"

using namespace convoy;
namespace fs = std::filesystem;

namespace {

constexpr int kRate = 22050;

// A WAV of 16 bits with `channels` equal channels: sines of these frequencies, each at -12 dB.
std::string wav(const std::vector<double>& hertz, int samples, int channels = 1) {
    std::string bytes;
    const auto put = [&](uint32_t value, int size) {
        for (int i = 0; i < size; ++i) bytes += char(value >> (8 * i));
    };
    const uint32_t data = uint32_t(2 * samples * channels);
    bytes += "RIFF", put(36 + data, 4), bytes += "WAVEfmt ", put(16, 4), put(1, 2);
    put(uint32_t(channels), 2), put(kRate, 4), put(uint32_t(2 * kRate * channels), 4);
    put(uint32_t(2 * channels), 2), put(16, 2), bytes += "data", put(data, 4);
    for (int i = 0; i < samples; ++i) {
        double value = 0;
        for (const double f : hertz) value += 0.25 * std::sin(2 * M_PI * f * i / kRate);
        for (int c = 0; c < channels; ++c) put(uint32_t(std::lround(32767 * value)), 2);
    }
    return bytes;
}

void write(const fs::path& path, const std::string& bytes) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
}

struct Told {
    int status = 0;
    std::string text;
};

std::string tool() { return (fs::path(trainer_path()).parent_path() / "spectrograms").string(); }

Told run_tool(const TempDir& folder, const std::string& words) {
    const std::string told = folder / "told";
    const int status = shell(cat(tool(), " ", words, " >", told, " 2>&1"));
    return {WEXITSTATUS(status), read_file(told)};
}

Told convert(const TempDir& folder, const std::string& out = "out") {
    return run_tool(folder, cat(folder / "in", " ", folder / out));
}

Image picture(const std::string& path) {
    const std::string bytes = read_file(path);
    return decoded(std::vector<uint8_t>(bytes.begin(), bytes.end()), path, 1);
}

// The mel formula once more: row 79 is the lowest of 80 bands up to half the sampling rate.
int row_of_sine(double hertz) {
    const auto mel = [](double f) { return 1127.0104781 * std::log(1 + f / 700); };
    return 79 - int(std::lround(81 * mel(hertz) / mel(kRate / 2.0) - 1));
}

}  // namespace

TEST_CASE("spectrograms: sines are bright in their mel bands, at their level, and nowhere else") {
    if (!fs::exists(tool())) {
        MESSAGE("left out: make spectrograms builds the tool (libsndfile, FFTW)");
        return;
    }
    TempDir folder;
    const int segment = 80 * 512 + 512;
    for (const double f : {440.0, 1000.0, 3000.0, 9000.0})
        write(folder / cat("in/sine/", int(f), ".wav"), wav({f}, segment));
    write(folder / "in/chord/two.WAV", wav({500, 4000}, 2 * 80 * 512 + 512, 2));
    const Told told = convert(folder);
    INFO(told.text);
    CHECK(told.status == 0);
    CHECK(contains(told.text, "6 segments of 5 files"));
    for (const double f : {440.0, 1000.0, 3000.0, 9000.0}) {
        CAPTURE(f);
        const Image image = picture(folder / cat("out/sine/", int(f), "-0.png"));
        REQUIRE(image.pixels.size() == 80 * 80);
        for (const int frame : {0, 40, 79})
            for (int row = 0; row < 80; ++row) {
                const int grey = image.pixels[size_t(row * 80 + frame)];
                const int away = std::abs(row - row_of_sine(f));
                // -12 dB of 80 below white; its power is shared with the bands beside it.
                if (away == 0) CHECK(std::abs(grey - 255 * 68 / 80) < 255 * 4 / 80);
                if (away > 5) CHECK(grey < 255 * 30 / 80);  // the window leaks 38 dB less
            }
    }
    for (const int n : {0, 1}) {
        const Image two = picture(folder / cat("out/chord/two-", n, ".png"));
        for (const double f : {500.0, 4000.0})
            CHECK(two.pixels[size_t(row_of_sine(f) * 80 + 40)] > 255 * 62 / 80);
        CHECK(two.pixels[size_t(row_of_sine(1500) * 80 + 40)] < 255 * 20 / 80);
    }
    CHECK(!fs::exists(folder / "out/chord/two-2.png"));
    // Again: the same bytes, and nothing is overwritten.
    CHECK(convert(folder, "again").status == 0);
    CHECK(read_file(folder / "out/sine/440-0.png") == read_file(folder / "again/sine/440-0.png"));
    const Told refused = convert(folder);
    CHECK(refused.status == 1);
    CHECK(contains(refused.text, "holds files already"));
}

TEST_CASE("spectrograms: damaged and short files are named and left out, the others are not") {
    if (!fs::exists(tool())) return;
    TempDir folder;
    const std::string good = wav({440}, 80 * 512 + 512);
    write(folder / "in/a/good.wav", good);
    write(folder / "in/a/cut.wav", good.substr(0, good.size() - 1001));
    write(folder / "in/b/noise.au", std::string(5000, 'x'));
    write(folder / "in/b/short.wav", wav({440}, 80 * 512));
    write(folder / "in/b/empty.flac", "");
    const Told told = convert(folder);
    INFO(told.text);
    CHECK(told.status == 0);
    CHECK(contains(told.text, "1 segments of 1 files"));
    for (const char* name :
         {"cut.wav: it is cut off", "noise.au: ", "short.wav: it is shorter", "empty.flac: "})
        CHECK(contains(told.text, name));
    CHECK(fs::exists(folder / "out/a/good-0.png"));
    CHECK(!fs::exists(folder / "out/a/cut-0.png"));
    fs::remove(folder / "in/a/good.wav");
    CHECK(convert(folder, "none").status == 1);
    write(folder / "in/stray.wav", good);
    const Told stray = convert(folder, "none");
    CHECK(contains(stray.text, "stray.wav is in no class folder"));
    fs::remove(folder / "in/stray.wav");
    write(folder / "in/a/twice.wav", good), write(folder / "in/a/twice.WAV", good);
    CHECK(contains(convert(folder, "none").text, "would have the same name"));
}

TEST_CASE("spectrograms: made-up music has ten kinds, told by their form, the same for a seed") {
    if (!fs::exists(tool())) return;
    TempDir folder;
    const Told told = run_tool(folder, cat("--music ", folder / "music", " 600 1"));
    INFO(told.text);
    REQUIRE(told.status == 0);
    std::vector<std::string> kinds;
    for (const auto& entry : fs::directory_iterator(folder / "music"))
        kinds.push_back(entry.path().filename());
    REQUIRE(kinds.size() == 10);
    CHECK(run_tool(folder, cat("--music ", folder / "again", " 10 1")).status == 0);
    CHECK(run_tool(folder, cat("--music ", folder / "other", " 10 2")).status == 0);
    CHECK(run_tool(folder, cat("--music ", folder / "music", " 10")).status == 1);
    CHECK(run_tool(folder, cat("--music ", folder / "bad", " 1e9")).status == 1);
    // Loudness is drawn alike for all kinds, so the mean grey of a segment says little: the nearest
    // of the kinds' means, of 30 segments each, is right for far less than all of the next 30.
    std::vector<std::vector<double>> greys;  // by kind
    for (const std::string& kind : kinds) {
        std::vector<std::string> files;
        for (const auto& entry : fs::directory_iterator(folder / cat("music/", kind)))
            files.push_back(entry.path());
        std::ranges::sort(files);
        REQUIRE(files.size() == 60);
        greys.emplace_back();
        for (const std::string& file : files) {
            const Image image = picture(file);
            REQUIRE((image.H == 80 && image.W == 80));
            double sum = 0;
            for (const uint8_t grey : image.pixels) sum += grey / 6400.0;
            greys.back().push_back(sum);
        }
        const std::string name = cat(kind, "/", fs::path(files[0]).filename().string());
        CHECK(read_file(files[0]) == read_file(folder / cat("again/", name)));
        CHECK(read_file(files[0]) != read_file(folder / cat("other/", name)));
    }
    const auto mean = [&](size_t kind) {
        return std::accumulate(greys[kind].begin(), greys[kind].begin() + 30, 0.0) / 30;
    };
    int right = 0;
    for (size_t kind = 0; kind < 10; ++kind)
        for (size_t i = 30; i < 60; ++i) {
            size_t best = 0;
            for (size_t k = 1; k < 10; ++k)
                if (std::abs(mean(k) - greys[kind][i]) < std::abs(mean(best) - greys[kind][i]))
                    best = k;
            right += best == kind;
        }
    CHECK(right < 150);
}
