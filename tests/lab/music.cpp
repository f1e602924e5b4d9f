// music.cpp — see mel.h. No sound is computed: each partial of a note, and each drum, is added
// as power to the mel bands and frames in which a spectrogram would show it, with its decay.
#include "tools/mel.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "src/base/random.h"

namespace convoy {
namespace {

constexpr double kTop = 11025, kFrameSeconds = kHop / (2 * kTop);

// A bar of each part in equal steps; x: struck. A part without steps is silent.
struct Kind {
    const char* name;
    double slowest, fastest;  // steps a second
    std::string_view kick, snare, hat, bass, chord;
    std::array<int, 4> tones;  // of the chord, in semitones above its root
    bool one_by_one;           // they follow each other
    double root;               // Hz, at the lowest key
    int partials;
    double fall, decay;     // dB for each octave of partials; seconds to 1/e of the amplitude
    double stretch, swing;  // partial k is at k^stretch; bands that the pitch swings each way
};

// clang-format off
constexpr Kind kKinds[] = {
    {"drone", 2, 4, "", "", "", "x...............", "x.......", {0, 7, 12, 19}, false, 98, 14, 5, 6, 1, 0.15},
    {"ballad", 4, 6, "", "", "", "x.......", "x.x.x.x.", {0, 3, 7, 12}, true, 220, 6, 9, 0.6, 1, 0},
    {"march", 7, 9, "x...x...", "..x...xx", "", "x...x...", "x...x...", {0, 4, 7, 12}, false, 233, 16, 3, 0.2, 1, 0},
    {"waltz", 8, 12, "", "", "", "x...........", "....x...x...", {0, 4, 7, 12}, false, 262, 8, 7, 0.25, 1, 0},
    {"techno", 8, 9.5, "x...", "", "..x.", "..xx", "", {}, false, 110, 12, 4, 0.12, 1, 0},
    {"swing", 7, 9, "", "", "x..x.x", "x..", "..x.....x...", {0, 4, 10, 14}, false, 196, 8, 8, 0.18, 1, 0},
    {"chimes", 4, 7, "", "", "", "", "x..x.xx.", {0, 4, 7, 11}, true, 1046, 5, 4, 1.2, 1.4, 0},
    {"metal", 9, 12, "x.xx", "....x...", "x...", "", "x.xxx.x.", {0, 7, 12, 12}, false, 82, 40, 1.5, 0.3, 1, 0},
    {"theremin", 1, 3, "", "", "", "", "x...", {}, false, 440, 4, 10, 5, 1, 5},
    {"samba", 9, 12, "x..xx..x", "x.xx.x.xx.x.x.xx", "xxxx", "", "", {}, false, 110, 1, 0, 0.1, 1, 0},
};
// clang-format on

double ratio(double db) { return std::pow(10.0, db / 10); }

// Power of the bands in each frame, to which sounds are added.
struct Sheet {
    std::array<double, (kMelBands + 1) * kMelFrames> power;

    // Between two bands, with a share to each, from `start` seconds on; it swings by so many bands.
    void add(double at, double db, double start, double decay, double swing = 0) {
        int f = std::max(0, int(std::ceil(start / kFrameSeconds)));
        double since = f * kFrameSeconds - start, now = ratio(db) * std::exp(-2 * since / decay);
        const double fade = std::exp(-2 * kFrameSeconds / decay);
        for (; f < kMelFrames && now > 1e-9; ++f, since += kFrameSeconds, now *= fade) {
            const double moved = swing == 0 ? at : at + swing * std::sin(6 * M_PI * since);
            const double band = std::clamp(moved, 0.0, kMelBands - 1.0);
            const int low = int(band);
            power[size_t(low * kMelFrames + f)] += now * (low + 1 - band);
            power[size_t((low + 1) * kMelFrames + f)] += now * (band - low);
        }
    }
    // What is struck in a step. key: a factor of frequencies; tilt: dB for an octave of partials.
    void play(const Kind& kind, double key, double tilt, size_t step, double start) {
        const auto struck = [&](std::string_view part) {
            return !part.empty() && part[step % part.size()] == 'x';
        };
        const auto note = [&](double semitones) {
            for (int k = 1; k <= kind.partials; ++k) {
                const double hertz =
                    kind.root * key * std::exp2(semitones / 12) * std::pow(k, kind.stretch);
                const double db = -18 - (kind.fall + tilt) * std::log2(k);
                if (hertz < kTop) add(band_of(hertz, kTop), db, start, kind.decay, kind.swing);
            }
        };
        for (int band = 0; band < kMelBands; ++band) {
            if (band < 5 && struck(kind.kick)) add(band, -12 - band, start, 0.08);
            if (band >= 12 && band < 68 && struck(kind.snare)) add(band, -36, start, 0.08);
            if (band >= 58 && struck(kind.hat)) add(band, -38, start, 0.03);
        }
        if (struck(kind.bass)) note(-12);
        for (size_t i = 0; i < kind.tones.size() && struck(kind.chord); ++i)
            if (!kind.one_by_one || i == step * 5 / 2 % 4) note(kind.tones[i]);
    }
};

}  // namespace

std::vector<std::string> music_kinds() {
    std::vector<std::string> names;
    for (const Kind& kind : kKinds) names.emplace_back(kind.name);
    return names;
}

Image draw_music(int number, uint64_t seed, uint64_t index) {
    const Kind& kind = kKinds[number];
    Random random(seed, 0, index, kGenerate);
    const double key = std::exp2(double(random.below(12)) / 12), tilt = random.uniform(-2, 2);
    const double level = ratio(random.uniform(-15, 3));
    const double step = 1 / random.uniform(float(kind.slowest), float(kind.fastest));
    Sheet sheet;
    sheet.power.fill(ratio(random.uniform(-75, -55)));
    const size_t first = random.below(48);
    // Notes struck five seconds before may still sound.
    double start = -5 - step * random.uniform();
    for (size_t i = first; start < kMelFrames * kFrameSeconds; ++i, start += step)
        sheet.play(kind, key, tilt, i, start);
    Image image{kMelBands, kMelFrames, std::vector<uint8_t>(kMelBands * kMelFrames), 1};
    for (int i = 0; i < kMelBands * kMelFrames; ++i)
        image.pixels[size_t(row_of(i / kMelFrames) * kMelFrames + i % kMelFrames)] =
            grey_of(level * sheet.power[size_t(i)] * ratio(random.uniform(-3, 3)));
    return image;
}

}  // namespace convoy
