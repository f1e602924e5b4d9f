// mini.cpp — a distributed trainer of convolutional networks, in one file to read top to bottom.
// It learns to tell the classes of a folder of photos apart, alone or on several machines:
//     flowers/daisy/a.jpg    make mini
//     flowers/daisy/b.jpg    ./mini --data flowers/
//     flowers/rose/c.jpg     ./mini --data flowers/ --coord 10.0.0.1:29400 --world 2 --rank 0
//                            ./mini --data flowers/ --coord 10.0.0.1:29400 --world 2 --rank 1
// Each process is a rank. All ranks hold the same weights. In each step, a rank computes the
// gradient for its share of the batch, the ring adds the gradients of all ranks, and all make the
// same update. The nine chapters follow the data:
//     1 random numbers ─► 2 which photo when ─► 3 from JPEG to floats ─► 4 layers ─► 5 the network
//                                                                                        │
//     9 the training loop calls all others     8 the update, checkpoints ◄── 7 the ring ◄┘
//                                                                                ▲
//                                                                        6 the ranks meet
// All loops are plain. ./trainer computes the same numbers faster; README.md says what makes it so.
// Letters: N images, H rows, W columns, C channels of an input, K channels of an output; n h w c k
// count along them. dy is the gradient of the loss with respect to y.
#include <algorithm>
#include <asio.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iomanip>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <jerror.h>
#include <jpeglib.h>  // after <cstdio>
namespace mini {
using Floats = std::vector<float>;
std::string text(const auto&... parts) {
    std::ostringstream out;
    (out << ... << parts);
    return out.str();
}
// Every error ends the program with one sentence, which main() prints.
[[noreturn]] void fail(const auto&... parts) { throw std::runtime_error(text(parts...)); }

// ---- 1. Random numbers --------------------------------------------------------------------------
// Most generators have a state: the next number depends on all earlier calls. Philox 4x32-10 has
// none. It is a function that scrambles a counter with a key in ten rounds (Salmon et al. 2011):
//     (seed, epoch, index, purpose) ──► as many numbers as you like
// So photo 17 gets the same crop in epoch 3 on every rank, and no generator is sent or saved.
enum Purpose : uint32_t { kOrder = 1, kCrop = 2, kFlip = 3, kInitial = 4 };
struct Random {
    uint64_t key;
    uint32_t rest[3], four[4] = {}, drawn = 0;
    Random(uint64_t seed, uint32_t epoch, uint64_t index, Purpose purpose)
        : key(seed), rest{uint32_t(index), epoch, purpose} {}
    float uniform() { return float(bits() >> 8) * 0x1p-24f; }  // in [0, 1)
    uint64_t below(uint64_t n) { return uint64_t(__uint128_t(bits64()) * n >> 64); }
    uint64_t bits64() {
        const uint64_t low = bits();
        return low | uint64_t(bits()) << 32;
    }
    uint32_t bits() {
        auto& [a, b, c, d] = four;
        if (drawn % 4 == 0) {  // the next four numbers
            a = drawn / 4, b = rest[0], c = rest[1], d = rest[2];
            uint32_t low = uint32_t(key), high = uint32_t(key >> 32);
            for (int round = 0; round < 10; ++round, low += 0x9E3779B9u, high += 0xBB67AE85u) {
                const uint64_t ma = uint64_t(0xD2511F53u) * a, mc = uint64_t(0xCD9E8D57u) * c;
                a = uint32_t(mc >> 32) ^ b ^ low, b = uint32_t(mc);
                c = uint32_t(ma >> 32) ^ d ^ high, d = uint32_t(ma);
            }
        }
        return four[drawn++ % 4];
    }
};

uint64_t hash(const std::string& bytes, uint64_t value = 0xcbf29ce484222325ull) {  // FNV-1a
    for (unsigned char byte : bytes) value = (value ^ byte) * 0x100000001b3ull;
    return value;
}

// ---- 2. Which photo when ------------------------------------------------------------------------
// An epoch shows every photo once, in a new order. A step trains on the next `batch` photos of that
// order. Each rank takes its share of them:
//     order    7  2  9  4 | 0  5  8  1 | 3  6       10 photos in batches of 4: three steps
//     rank     0  0  1  1 | 0  0  1  1 | 0  1       two ranks
// All ranks compute the same order and the same shares, so no rank has to ask another one.
struct DataSet {
    std::vector<std::string> classes;
    std::vector<std::pair<std::string, int>> photos;  // path and label: the number of the class
    uint64_t names = hash("");                        // a hash of the names of classes and photos
};

// One folder per class. Names are sorted, so that a photo has the same number on every rank.
DataSet open_folder(const std::string& folder) {
    namespace fs = std::filesystem;
    const auto sorted = [](const fs::path& where) {
        std::set<fs::path> paths(fs::directory_iterator(where), fs::directory_iterator{});
        std::erase_if(paths, [](const fs::path& p) { return p.filename().string()[0] == '.'; });
        return paths;
    };
    if (folder.empty()) fail("usage: ./mini --data FOLDER, and options of main() in mini.cpp");
    DataSet data;
    for (const fs::path& of_class : sorted(folder)) {
        if (!fs::is_directory(of_class)) continue;
        for (const fs::path& file : sorted(of_class)) {
            const std::string type = file.extension();
            if (strcasecmp(type.c_str(), ".jpg") && strcasecmp(type.c_str(), ".jpeg")) continue;
            data.photos.emplace_back(file, data.classes.size());
            data.names = hash(file.filename().string() + "/", data.names);
        }
        data.classes.push_back(of_class.filename());
        data.names = hash(data.classes.back() + "//", data.names);  // even of an empty folder
    }
    if (data.classes.size() < 2 || data.photos.empty())
        fail("--data: '", folder, "' must have two or more folders of .jpg files, one per class");
    return data;
}

// The number of the photo at place i of an epoch. No list is shuffled. Instead, i is the number of
// a cell in a grid, and eight moves lead to another cell: row += random(column), column +=
// random(row), and so on. A move can be undone, because what it adds depends only on the other
// coordinate. So no two cells become the same. If the cell is past the last photo, it moves again.
uint64_t photo_at(uint64_t i, uint64_t n, uint64_t seed, uint32_t epoch) {
    const uint64_t key = Random(seed, epoch, 0, kOrder).bits64();
    const uint64_t rows = uint64_t(std::ceil(std::sqrt(double(n))));
    const uint64_t columns = (n + rows - 1) / rows;
    do {
        uint64_t row = i / columns, column = i % columns;
        for (uint32_t round = 0; round < 8; round += 2) {
            row = (row + Random(key, round, column, kOrder).below(rows)) % rows;
            column = (column + Random(key, round + 1, row, kOrder).below(columns)) % columns;
        }
        i = row * columns + column;
    } while (i >= n);
    return i;
}

// Where a rank's share of `count` photos begins, which is where that of the rank before it ends.
int64_t share_begin(int64_t count, int rank, int world) {
    return int64_t(std::floor(double(count) * rank / world + 0.5));
}

// ---- 3. From JPEG to floats ---------------------------------------------------------------------
//     file ──► pixels ──► a random part of them ──► 64 x 64 ──► mirrored or not ──► floats around 0
// A flower is the same flower wherever it is in the photo, however large, and mirrored as well. The
// random crop and flip teach that to the network, which never sees the same image twice.
constexpr int kSide = 64;  // rows and columns of the network's input
struct Tensor {            // N images of H x W pixels; the C channels of a pixel lie side by side
    int N = 0, H = 0, W = 0, C = 0;
    Floats floats = Floats(size_t(N) * H * W * C);
    size_t place(int n, int h, int w) const { return ((size_t(n) * H + h) * W + w) * C; }
    float* at(int n, int h, int w) { return &floats[place(n, h, w)]; }
    const float* at(int n, int h, int w) const { return &floats[place(n, h, w)]; }
    // Channel c of pixel i, counted over all images; or number c of image i, if it has one pixel.
    float& operator()(int i, int c) { return floats[size_t(i) * C + c]; }
    float operator()(int i, int c) const { return floats[size_t(i) * C + c]; }
};

Tensor decode(const std::string& path) {  // to red, green and blue, from 0 to 255
    std::FILE* file = std::fopen(path.c_str(), "rb");
    if (!file) fail(path, " cannot be opened");
    jpeg_decompress_struct jpeg;
    jpeg_error_mgr errors;
    jpeg.err = jpeg_std_error(&errors);
    jpeg.client_data = const_cast<char*>(path.c_str());
    errors.error_exit = [](j_common_ptr info) {
        std::fprintf(stderr, "error: %s is damaged: ", static_cast<char*>(info->client_data));
        info->err->output_message(info);
        std::exit(1);  // no exception, because the library is in C and could not pass it on
    };
    errors.emit_message = [](j_common_ptr info, int level) {  // -1: a warning, as for a cut file
        if (level < 0 && info->err->msg_code != JWRN_EXTRANEOUS_DATA) info->err->error_exit(info);
    };
    jpeg_create_decompress(&jpeg);
    jpeg_stdio_src(&jpeg, file);
    jpeg_read_header(&jpeg, TRUE);
    jpeg.out_color_space = JCS_RGB;
    jpeg_start_decompress(&jpeg);
    Tensor image{1, int(jpeg.output_height), int(jpeg.output_width), 3};
    std::vector<JSAMPLE> row(size_t(image.W) * 3);
    while (jpeg.output_scanline < jpeg.output_height) {
        JSAMPROW to = row.data();
        jpeg_read_scanlines(&jpeg, &to, 1);
        std::ranges::copy(row, image.at(0, int(jpeg.output_scanline) - 1, 0));
    }
    jpeg_destroy_decompress(&jpeg);
    std::fclose(file);
    return image;
}

// A part of 8 to 100 % of the area, with a width of 3/4 to 4/3 of its height. If ten such parts do
// not fit into the photo, it is a long strip, and its centre is taken.
Tensor random_crop(const Tensor& from, uint64_t seed, uint32_t epoch, uint64_t photo) {
    Random random(seed, epoch, photo, kCrop);
    const double narrow = 3.0 / 4, wide = 4.0 / 3, area = double(from.H) * from.W;
    const auto rounded = [](double x) { return int(std::nearbyint(x)); };
    int H = 0, W = 0, top = 0, left = 0;
    for (int attempt = 0; attempt < 10 && H == 0; ++attempt) {
        const double part = area * (0.08 + 0.92 * random.uniform());
        const double ratio = narrow * std::exp(std::log(wide / narrow) * random.uniform());
        const int w = rounded(std::sqrt(part * ratio)), h = rounded(std::sqrt(part / ratio));
        if (w < 1 || h < 1 || w > from.W || h > from.H) continue;
        H = h, top = int(random.below(uint64_t(from.H - h) + 1));
        W = w, left = int(random.below(uint64_t(from.W - w) + 1));
    }
    if (H == 0) {
        H = from.W < narrow * from.H ? rounded(from.W / narrow) : from.H;
        W = from.W > wide * from.H ? rounded(from.H * wide) : from.W;
        top = (from.H - H) / 2, left = (from.W - W) / 2;
    }
    Tensor part{1, H, W, 3};
    for (int h = 0; h < H; ++h) std::copy_n(from.at(0, top + h, left), W * 3, part.at(0, h, 0));
    return part;
}

// Resizes the width or the height to kSide pixels. An output pixel is a weighted mean of the input
// pixels around its centre. The weights form a triangle, so that each input pixel counts:
//     input      .   .   .   .   .   .   .        scale = input / output pixels = 3
//     weights        ▂   ▅   █   ▅   ▂            1 - distance / scale, divided by their sum
//     output                 .
// As in Pillow, weights are whole multiples of 2^-22, so every machine gets the same pixels.
enum Direction { kWidth, kHeight };
Tensor resized(const Tensor& from, Direction direction) {
    const bool rows = direction == kWidth;
    const int length = rows ? from.W : from.H, lines = rows ? from.H : from.W;
    const double scale = double(length) / kSide, reach = std::max(1.0, scale);
    Tensor to{1, rows ? lines : kSide, rows ? kSide : lines, 3};
    for (int place = 0; place < kSide; ++place) {
        const double centre = (place + 0.5) * scale;
        const int begin = std::max(int(centre - reach + 0.5), 0);
        const int end = std::min(int(centre + reach + 0.5), length);
        const auto triangle = [&](int i) {
            return std::max(0.0, 1 - std::abs((i - centre + 0.5) * (1 / reach)));
        };
        double sum = 0;
        for (int i = begin; i < end; ++i) sum += triangle(i);
        std::vector<uint32_t> weights;
        for (int i = begin; i < end; ++i)
            weights.push_back(uint32_t(0.5 + triangle(i) / sum * (1 << 22)));
        for (int line = 0; line < lines; ++line)
            for (int c = 0; c < 3; ++c) {
                uint32_t total = 1 << 21;  // one half, so that the shift below rounds
                for (int i = begin; i < end; ++i)
                    total += weights[i - begin] *
                             uint32_t(rows ? from.at(0, line, i)[c] : from.at(0, i, line)[c]);
                (rows ? to.at(0, line, place) : to.at(0, place, line))[c] =
                    float(std::min(total >> 22, 255u));
            }
    }
    return to;
}

// As in Pillow 13, the height is resized first if it loses more than twice as many pixels.
Tensor to_square(const Tensor& from) {
    const bool tall = from.H > kSide && from.H - kSide > 2 * (from.W - kSide);
    return tall ? resized(resized(from, kHeight), kWidth) : resized(resized(from, kWidth), kHeight);
}

// Each colour gets about mean 0 and deviation 1; the constants are those of ImageNet's photos.
void to_input(const Tensor& image, bool flip, float* x) {
    constexpr float kMean[] = {0.485f, 0.456f, 0.406f}, kDeviation[] = {0.229f, 0.224f, 0.225f};
    for (int h = 0; h < image.H; ++h)
        for (int w = 0; w < image.W; ++w)
            for (int c = 0; c < 3; ++c)
                *x++ = image.at(0, h, flip ? image.W - 1 - w : w)[c] * (1 / (255 * kDeviation[c])) -
                       kMean[c] / kDeviation[c];
}

// ---- 4. Layers and their gradients --------------------------------------------------------------
// A layer computes y from its input x and its weights w. In the backward pass it gets dy, and
// computes dx and dw by the chain rule. Each product that was added to y gives two products:
//     y += x · w      ──►      dx += dy · w       dw += dy · x
// So backward is twice the work of forward. dw is a sum over images; chapter 8 makes it a mean.

// Convolution with K filters of 3 x 3 pixels; beyond the edge of the image there are zeros:
//     y[n,h,w,k] = Σ_rsc x[n, h+r-1, w+s-1, c] · filters[k,r,s,c]            r, s = 0, 1, 2
// The pixels in row r of the window lie side by side, and so do their weights. So the innermost
// loop runs over all products of a row: `count` is 3·C, and less where the window leaves the image.
void for_each_row(const Tensor& x, const auto& f) {
    for (int n = 0; n < x.N; ++n)
        for (int h = 0; h < x.H; ++h)
            for (int w = 0; w < x.W; ++w)
                for (int r = h > 0 ? 0 : 1; r < (h + 1 < x.H ? 3 : 2); ++r) {
                    const int s = w > 0 ? 0 : 1, count = ((w + 1 < x.W ? 3 : 2) - s) * x.C;
                    f(n, h, w, r, s, count);
                }
}
Tensor conv2d(const Tensor& x, const float* filters, int K) {
    Tensor y{x.N, x.H, x.W, K};
    for_each_row(x, [&](int n, int h, int w, int r, int s, int count) {
        const float* in = x.at(n, h + r - 1, w + s - 1);
        for (int k = 0; k < K; ++k) {
            const float* filter = filters + ((k * 3 + r) * 3 + s) * x.C;
            float sum = 0;
            for (int i = 0; i < count; ++i) sum += in[i] * filter[i];
            y.at(n, h, w)[k] += sum;
        }
    });
    return y;
}
Tensor conv2d_grad(const Tensor& x, const float* filters, const Tensor& dy, float* dfilters) {
    Tensor dx{x.N, x.H, x.W, x.C};
    for_each_row(x, [&](int n, int h, int w, int r, int s, int count) {
        const float* in = x.at(n, h + r - 1, w + s - 1);
        float* din = dx.at(n, h + r - 1, w + s - 1);
        for (int k = 0; k < dy.C; ++k) {
            const int first = ((k * 3 + r) * 3 + s) * x.C;
            const float *filter = filters + first, dout = dy.at(n, h, w)[k];
            float* dfilter = dfilters + first;
            for (int i = 0; i < count; ++i) {
                din[i] += dout * filter[i];
                dfilter[i] += dout * in[i];
            }
        }
    });
    return dx;
}

// Batch norm gives each channel mean 0 and variance 1 over the M pixels of all images of a rank,
// and then a scale gamma and an offset beta, which are learned:
//     x̂ = (x - mean) · rstd        rstd = 1 / √(variance + 0.00001)        y = gamma · x̂ + beta
// Mean and rstd stay in `moments` for the gradient. A single photo that is classified later has no
// good mean of its own, so chapter 8 averages mean and variance over the steps, from these sums.
Tensor batch_norm(const Tensor& x, const float* gamma, const float* beta, Tensor& moments,
                  float* mean_sums, float* variance_sums) {
    Tensor y{x.N, x.H, x.W, x.C};
    moments = {2, 1, 1, x.C};
    const int pixels = x.N * x.H * x.W, M = std::max(pixels, 1);  // a share may be empty
    for (int c = 0; c < x.C; ++c) {
        double sum = 0, squares = 0;
        for (int i = 0; i < pixels; ++i) sum += x(i, c);
        for (int i = 0; i < pixels; ++i) squares += (x(i, c) - sum / M) * (x(i, c) - sum / M);
        const float mean = moments(0, c) = float(sum / M);
        const float rstd = moments(1, c) = float(1 / std::sqrt(squares / M + 1e-5));
        for (int i = 0; i < pixels; ++i) y(i, c) = gamma[c] * rstd * (x(i, c) - mean) + beta[c];
        mean_sums[c] += float(x.N * sum / M);
        variance_sums[c] += float(x.N * squares / std::max(M - 1, 1));
    }
    return y;
}

// Each x also moves the mean and the variance, and through them all y:
//     dx = gamma · rstd · (dy - dbeta / M - x̂ · dgamma / M)      dgamma = Σ dy · x̂    dbeta = Σ dy
Tensor batch_norm_grad(const Tensor& x, const float* gamma, const Tensor& moments, const Tensor& dy,
                       float* dgamma, float* dbeta) {
    Tensor dx{x.N, x.H, x.W, x.C};
    const int pixels = x.N * x.H * x.W;
    for (int c = 0; c < x.C; ++c) {
        const float mean = moments(0, c), rstd = moments(1, c);
        double sum = 0, product = 0;
        for (int i = 0; i < pixels; ++i) sum += dy(i, c);
        for (int i = 0; i < pixels; ++i) product += dy(i, c) * (x(i, c) - mean) * rstd;
        dbeta[c] += float(sum), dgamma[c] += float(product);
        const float shift = float(sum / pixels), slope = float(product / pixels);
        for (int i = 0; i < pixels; ++i)
            dx(i, c) = gamma[c] * rstd * (dy(i, c) - shift - (x(i, c) - mean) * rstd * slope);
    }
    return dx;
}

// y = max(0, x), in place. Where y is 0, the loss does not change with x.
void relu(Tensor& x) {
    for (float& value : x.floats) value = std::max(value, 0.0f);
}
void relu_grad(const Tensor& y, Tensor& dy) {
    for (size_t i = 0; i < y.floats.size(); ++i)
        if (y.floats[i] <= 0) dy.floats[i] = 0;
}

// The largest of each 2 x 2 pixels. Only this winner gets the gradient, so its place is kept.
Tensor max_pool(const Tensor& x, std::vector<size_t>& winners) {
    Tensor y{x.N, x.H / 2, x.W / 2, x.C};
    winners.clear();
    for (int row = 0; row < y.N * y.H; ++row)  // of all images, which lie one below the other
        for (int w = 0; w < y.W; ++w)
            for (int c = 0; c < x.C; ++c) {
                size_t best = x.place(0, 2 * row, 2 * w) + c;
                for (int i = 1; i < 4; ++i) {
                    const size_t other = x.place(0, 2 * row + i / 2, 2 * w + i % 2) + c;
                    if (x.floats[other] > x.floats[best]) best = other;
                }
                y.at(0, row, w)[c] = x.floats[best];
                winners.push_back(best);
            }
    return y;
}
Tensor max_pool_grad(const Tensor& x, const std::vector<size_t>& winners, const Tensor& dy) {
    Tensor dx{x.N, x.H, x.W, x.C};
    for (size_t i = 0; i < winners.size(); ++i) dx.floats[winners[i]] += dy.floats[i];
    return dx;
}

// The last layer gives each class a number, from the mean of each channel over an image's pixels:
//     y[n,k] = bias[k] + Σ_hwc x[n,h,w,c] · weights[k,c] / (H·W)
Tensor linear(const Tensor& x, const float* weights, const float* bias, int K) {
    Tensor y{x.N, 1, 1, K};
    const int pixels = x.H * x.W;
    for (int n = 0; n < x.N; ++n)
        for (int k = 0; k < K; ++k) {
            float sum = 0;
            for (int i = 0; i < pixels * x.C; ++i)
                sum += x.at(n, 0, 0)[i] * weights[k * x.C + i % x.C];
            y(n, k) = bias[k] + sum / float(pixels);
        }
    return y;
}
Tensor linear_grad(const Tensor& x, const float* weights, const Tensor& dy, float* dweights,
                   float* dbias) {
    Tensor dx{x.N, x.H, x.W, x.C};
    const int pixels = x.H * x.W;
    for (int n = 0; n < x.N; ++n)
        for (int k = 0; k < dy.C; ++k) {
            dbias[k] += dy(n, k);
            for (int i = 0; i < pixels * x.C; ++i) {
                dx.at(n, 0, 0)[i] += dy(n, k) * weights[k * x.C + i % x.C] / float(pixels);
                dweights[k * x.C + i % x.C] += dy(n, k) * x.at(n, 0, 0)[i] / float(pixels);
            }
        }
    return dx;
}

// Softmax turns these numbers into probabilities p; the loss is small if the label is probable:
//     p[k] = exp(x[k]) / Σ_j exp(x[j])       loss = -log p[label]       dx[k] = p[k] - (k == label)
// Subtracting the largest x first changes no p, and prevents an overflow of exp. Returns dx, and
// adds to three sums over images: the loss, the correct answers, and the images.
Tensor softmax_cross_entropy(const Tensor& x, const std::vector<int>& labels, float* sums) {
    Tensor dx{x.N, 1, 1, x.C};
    double loss = 0;
    for (int n = 0; n < x.N; ++n) {
        int best = 0;
        for (int k = 1; k < x.C; ++k) best = x(n, k) > x(n, best) ? k : best;
        double sum = 0;
        for (int k = 0; k < x.C; ++k) sum += std::exp(double(x(n, k)) - x(n, best));
        for (int k = 0; k < x.C; ++k)
            dx(n, k) = float(std::exp(double(x(n, k)) - x(n, best)) / sum - (k == labels[n]));
        loss += std::log(sum) + x(n, best) - x(n, labels[n]);
        sums[1] += best == labels[n];
    }
    sums[0] += float(loss), sums[2] += float(x.N);
    return dx;
}

// ---- 5. The network -----------------------------------------------------------------------------
// Five blocks and the last layer. Four blocks halve rows and columns, so filters see ever more:
//     64x64x3 ─► block 1 ─► 32x32x16 ─► 2 ─► 16x16x32 ─► 3 ─► 8x8x64 ─► 4 ─► 4x4x64 ─► 5 ─► 4x4x128
//     block:  convolution ─► batch norm ─► relu ─► max pool (not in block 5)
// All weights lie in one array, and all gradients in another, at the same places:
//     weights      conv1 bn1 | conv2 bn2 | … | conv5 bn5 | fc | averages of means and variances
//     gradients    conv1 bn1 | conv2 bn2 | … | conv5 bn5 | fc | their sums | loss, correct, images
//     bucket           6           5         …      2      1                0
// Bucket 0 is complete after the forward pass. The backward pass completes the other buckets, from
// the back to the front. So the ring can add each bucket while the next one is computed:
//     main thread       forward | fc       | block 5 | block 4 |   …   | block 1 | wait | update
//     other threads             | bucket 0 | 1       | 2       |   …   | 5       | 6    |
struct Param {
    std::string name;
    int K, taps, C;  // taps: 9 for a filter of 3 x 3, else 1. A vector has C = 1
    size_t at;       // in both arrays
    size_t size() const { return size_t(K) * taps * C; }
    bool is_vector() const { return taps * C == 1; }
};
struct Block {
    Param conv, gamma, beta, mean, variance;
    Tensor x, z, y, moments;  // for the backward pass: input, convolved, output of the relu
    std::vector<size_t> winners;
    bool pools;
};
enum Initial { kConstant, kUniform, kNormal };
// The initial weight i of a param: `value`, or between ±value, or normal with deviation `value`.
float initial_weight(Initial kind, double value, uint64_t key, size_t i) {
    Random random(key, 0, i / 4, kInitial);
    float u[4];
    for (float& one : u) one = random.uniform();
    if (kind == kConstant) return float(value);
    if (kind == kUniform) return float(value * (2 * u[i % 4] - 1));
    // Two uniform numbers give two normal ones: a point's coordinates (Box and Muller 1958).
    const size_t pair = i % 4 < 2 ? 0 : 2;
    const double distance = std::sqrt(-2 * std::log(1.0 - u[pair]));
    const double angle = 2 * M_PI * u[pair + 1];
    return float(value * distance * (i % 2 ? std::sin(angle) : std::cos(angle)));
}

struct Network {
    std::vector<Param> params;
    std::vector<Block> blocks;
    Param fc, fc_bias;
    Floats weights, gradients, velocities;  // chapter 8 has the velocities
    size_t trainable = 0;                   // weights that are learned; the averages follow
    Tensor last;                            // the output of block 5
    // The key of a param's initial weights is a hash of its name: all ranks begin with the same.
    Network(int classes, uint64_t seed) {
        const auto add = [&](std::string name, int K, int taps, int C, Initial kind, double value) {
            params.push_back({name, K, taps, C, weights.size()});
            const uint64_t key = hash(name, hash(text(seed, ":")));
            for (size_t i = 0; i < params.back().size(); ++i)
                weights.push_back(initial_weight(kind, value, key, i));
            return params.back();
        };
        int C = 3, block = 0;
        for (int K : {16, 32, 64, 64, 128}) {
            Block& b = blocks.emplace_back();
            b.pools = ++block < 5;
            // This deviation keeps the size of gradients from block to block (He et al. 2015).
            const double deviation = std::sqrt(2.0 / 9 / K);
            b.conv = add(text("conv", block, ".weight"), K, 9, C, kNormal, deviation);
            b.gamma = add(text("bn", block, ".weight"), K, 1, 1, kConstant, 1);
            b.beta = add(text("bn", block, ".bias"), K, 1, 1, kConstant, 0);
            C = K;
        }
        fc = add("fc.weight", classes, 1, C, kUniform, 1 / std::sqrt(C));
        fc_bias = add("fc.bias", classes, 1, 1, kUniform, 1 / std::sqrt(C));
        velocities.resize(trainable = weights.size());
        block = 0;
        for (Block& b : blocks) {
            b.mean = add(text("bn", ++block, ".running_mean"), b.conv.K, 1, 1, kConstant, 0);
            b.variance = add(text("bn", block, ".running_var"), b.conv.K, 1, 1, kConstant, 1);
        }
        gradients.resize(weights.size() + 3);
    }
    float* weight(const Param& param) { return weights.data() + param.at; }
    float* gradient(const Param& param) { return gradients.data() + param.at; }
    float* sums() { return gradients.data() + weights.size(); }  // loss, correct answers, images
    Tensor forward(Tensor x) {
        for (Block& b : blocks) {
            b.x = std::move(x);
            b.z = conv2d(b.x, weight(b.conv), b.conv.K);
            b.y = batch_norm(b.z, weight(b.gamma), weight(b.beta), b.moments, gradient(b.mean),
                             gradient(b.variance));
            relu(b.y);
            x = b.pools ? max_pool(b.y, b.winners) : b.y;
        }
        last = std::move(x);
        return linear(last, weight(fc), weight(fc_bias), fc.K);
    }
    void backward(Tensor dy, const auto& ready) {  // calls ready(bucket) when it is complete
        const std::span<float> all = gradients;
        ready(all.subspan(trainable));
        dy = linear_grad(last, weight(fc), dy, gradient(fc), gradient(fc_bias));
        ready(all.subspan(fc.at, fc.size() + fc_bias.size()));
        for (size_t i = blocks.size(); i-- > 0;) {
            Block& b = blocks[i];
            if (b.pools) dy = max_pool_grad(b.y, b.winners, dy);
            relu_grad(b.y, dy);
            dy = batch_norm_grad(b.z, weight(b.gamma), b.moments, dy, gradient(b.gamma),
                                 gradient(b.beta));
            dy = conv2d_grad(b.x, weight(b.conv), dy, gradient(b.conv));
            ready(all.subspan(b.conv.at, b.conv.size() + b.gamma.size() + b.beta.size()));
        }
    }
};

// ---- 6. The ranks meet --------------------------------------------------------------------------
// A rank knows one address: --coord, where rank 0 waits. Every other rank calls there and says at
// which port it listens itself. When all have called, rank 0 sends each rank the address of its
// right neighbour, and what to train. Then each rank calls its right neighbour:
//     rank 1 ─── "I listen at port 4001" ──► rank 0             0 ───► 1
//     rank 2 ─── "I listen at port 4002" ──► rank 0             ▲      │
//     rank 1 ◄── "call 10.0.0.3:4002" ────── rank 0             │      │
//     rank 2 ◄── "call 10.0.0.1:4000" ────── rank 0             └─ 2 ◄─┘
// A message is a struct, byte for byte, so all ranks need the same kind of processor. There is no
// password and no encryption: use this on a network that you trust.
using asio::ip::tcp;
struct Job {  // rank 0 decides
    int64_t batch, epochs;
    double lr;
    uint64_t seed;
};
struct Message {
    int rank, world;
    uint64_t names;  // of classes and photos, as a hash
    Job job;
    uint32_t address = 0, port = 0;  // where this rank listens
};

// Blocks until all that was begun on `io` has ended. A rank may be missing, stopped or unplugged,
// and then would never answer. So after --wait seconds, the error says what is missing.
void wait_for(asio::io_context& io, int limit, const auto&... what) {
    io.restart();
    io.run_for(std::chrono::seconds(limit));
    if (!io.stopped()) fail(what..., ": no answer in ", limit, " s (--wait)");
}
auto or_fail(const std::string& what) {  // for the end of an operation on `io`
    return [=](const asio::error_code& error, auto...) {
        if (error) fail(what, ": ", error.message());
    };
}

tcp::socket call(asio::io_context& io, const tcp::endpoint& where, int limit) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(limit);
    while (std::chrono::steady_clock::now() < end) {  // ranks start in any order
        tcp::socket socket(io);
        asio::error_code error;
        if (!socket.connect(where, error)) return socket;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    fail("nobody listens at ", where, "; does rank 0 run, and is --coord right?");
}

Job meet(asio::io_context& io, const std::string& coord, int limit, Message self, tcp::socket& left,
         tcp::socket& right) {  // returns the job of rank 0
    if (self.world == 1) return self.job;
    const size_t colon = coord.rfind(':');
    if (colon == std::string::npos) fail("--coord must be HOST:PORT, not '", coord, "'");
    const tcp::endpoint first =
        *tcp::resolver(io).resolve(tcp::v4(), coord.substr(0, colon), coord.substr(colon + 1));
    tcp::socket to_first = self.rank > 0 ? call(io, first, limit) : tcp::socket(io);
    // A rank listens at the address from which it reached rank 0. The system chooses the port.
    const tcp::endpoint own = self.rank > 0 ? to_first.local_endpoint() : first;
    tcp::acceptor listener(io, {own.address(), 0});
    self.address = own.address().to_v4().to_uint(), self.port = listener.local_endpoint().port();
    Message next;
    if (self.rank > 0) {
        asio::write(to_first, asio::buffer(&self, sizeof self));
        asio::async_read(to_first, asio::buffer(&next, sizeof next),
                         or_fail("rank 0 refused this rank or ended; its output says why"));
        wait_for(io, self.world * limit, "rank 0, which has this rank's call");
    } else {
        std::map<int, Message> messages = {{0, self}};
        std::map<int, tcp::socket> sockets;
        for (tcp::acceptor coordinator(io, first); int(messages.size()) < self.world;) {
            tcp::socket socket(io);
            coordinator.async_accept(socket, or_fail("--coord"));
            wait_for(io, limit, messages.size(), " of ", self.world, " ranks have called --coord");
            Message other;
            asio::async_read(socket, asio::buffer(&other, sizeof other), or_fail("a caller"));
            wait_for(io, limit, socket.remote_endpoint(), " has called --coord and is silent");
            if (other.world != self.world || other.names != self.names || other.rank < 1 ||
                other.rank >= self.world || messages.contains(other.rank))
                fail("rank ", other.rank, " has other photos, classes or --world, or called twice");
            other.job = self.job;
            messages[other.rank] = other;
            sockets.emplace(other.rank, std::move(socket));
        }
        for (auto& [rank, socket] : sockets)
            asio::write(socket, asio::buffer(&messages[(rank + 1) % self.world], sizeof(Message)));
        next = messages[1];
    }
    right = call(io, {asio::ip::address_v4(next.address), uint16_t(next.port)}, limit);
    right.set_option(tcp::no_delay(true));
    listener.async_accept(left, or_fail("the left neighbour"));
    wait_for(io, limit, "the left neighbour has not called");
    return next.job;
}

// ---- 7. The ring --------------------------------------------------------------------------------
// All ranks want the sum of their arrays. If all sent theirs to rank 0, its connection would carry
// everything. In a ring, each carries the same. An array is cut into a chunk per rank: A, B and C.
//               rank 0                rank 1                rank 2
//     round 1   A0   B0   C0  ─A──►   A1   B1   C1  ─B──►   A2   B2   C2  ─C──► to rank 0
//     round 2   A0   B0   C02 ─C──►   A01  B1   C1  ─A──►   A2   B12  C2  ─B──► to rank 0
//     round 3        B012     ─B──►             C012 ─C─►   A012          ─A──► to rank 0
//     round 4   A012 B012     ─A──►        B012 C012 ─B─►   A012      C012 ─C─► to rank 0
// C02 is C0 + C2. In rounds 1 and 2, what arrives is added; then each rank has the whole sum of one
// chunk. In rounds 3 and 4, sums arrive and are stored. No algorithm sends less (Patarasuk and Yuan
// 2009). A chunk is added up only once, so all ranks get the same bits, and keep the same weights.
struct Ring {
    const int rank, world, limit;
    asio::io_context& io;
    tcp::socket &left, &right;
    std::future<void> last = {};  // of the bucket that was handed over last

    // Adds the bucket of all ranks on another thread. Nobody may touch it before wait() returns.
    // The thread owns the future of the bucket before, and waits for it first. So buckets are added
    // one by one, in the same order on all ranks, while the caller computes the next one.
    void add_later(std::span<float> bucket) {
        last = std::async(std::launch::async, [this, bucket, before = std::move(last)]() mutable {
            if (before.valid()) before.get();
            add(bucket);
        });
    }
    // Blocks until all buckets are added. If add() has thrown, the error begins with `when`.
    void wait(const std::string& when) try {
        if (last.valid()) last.get();
    } catch (const std::exception& error) {
        fail(when, ": ", error.what());
    }
    // Chunk c - 1 arrives while chunk c is sent. In the next round, the chunk that arrived is sent
    // on: rank 0 first sends A, the chunk of its own number, then C, B and A.
    void add(std::span<float> bucket) {
        const auto chunk = [&](int c) {
            const size_t i = size_t(c + 2 * world) % world, n = bucket.size();
            return bucket.subspan(n * i / world, n * (i + 1) / world - n * i / world);
        };
        for (int round = 1, c = rank; round <= 2 * (world - 1); ++round, --c) {
            const std::span<float> mine = chunk(c - 1);
            Floats arrived(mine.size());
            exchange(chunk(c), arrived);
            for (size_t i = 0; i < mine.size(); ++i)
                mine[i] = round < world ? mine[i] + arrived[i] : arrived[i];
        }
    }
    // Sends and receives at the same time. If all ranks sent first and received later, a chunk
    // larger than the system's buffers would block all of them for ever.
    void exchange(std::span<const float> out, std::span<float> in) {
        const auto to = text("rank ", (rank + 1) % world, ", a neighbour, is lost"),
                   from = text("rank ", (rank + world - 1) % world, ", a neighbour, is lost");
        asio::async_write(right, asio::buffer(out.data(), out.size_bytes()), or_fail(to));
        asio::async_read(left, asio::buffer(in.data(), in.size_bytes()), or_fail(from));
        wait_for(io, limit, from, ", or waits itself");
    }
};

// ---- 8. The update and the checkpoint -----------------------------------------------------------
// Gradients push the velocity, and the velocity moves the weight, like a ball that rolls downhill:
//     g = (sum of gradients) / images + 0.0005 · w        v = 0.9 · v + g        w = w - lr · v
// Only filters and matrices decay by 0.0005·w. Batch norm's averages move a tenth of the way to g.
void update(Network& net, float lr) {
    const float images = net.sums()[2];
    for (const Param& param : net.params)
        for (size_t i = param.at; i < param.at + param.size(); ++i) {
            float &w = net.weights[i], g = net.gradients[i] / images;
            if (!param.is_vector()) g += 0.0005f * w;
            if (i < net.trainable)
                w -= lr * (net.velocities[i] = 0.9f * net.velocities[i] + g);
            else
                w = 0.9f * w + 0.1f * g;
        }
}

// A checkpoint is a folder step-00000020 with two files in the format safetensors:
//     8 bytes    length of the header
//     header     {"conv1.weight": {"dtype": "F32", "shape": […], "data_offsets": [0, 1728]}, …}
//     numbers    of all tensors
// model.safetensors has the weights, in PyTorch's order (filters K C r s; here they are K r s C),
// and what `trainer eval --from` needs; optim.safetensors has the velocities, in the order K r s C.
// The number of steps (num_batches_tracked) says where in which epoch a job goes on, but only for
// the same photos, seed and batch, which load() compares. The same bits need the same --world, too.
std::vector<std::string> origin(const DataSet& data, const Job& job) {
    std::string classes;
    for (const std::string& one : data.classes)
        classes += text(classes.empty() ? "[" : ",", std::quoted(one));
    return {text(R"("classes":)", std::quoted(classes + "]")),
            text(R"("job":"seed )", job.seed, " batch ", job.batch, " photos ", data.names, '"')};
}

// Calls f(name, type, data, bytes) for each tensor of a file. f may read or change the data.
void for_each_tensor(Network& net, int64_t& steps, const std::string& file, const auto& f) {
    for (const Param& p : net.params) {
        const std::string C = p.is_vector() ? "" : text(',', p.C), rs = p.taps == 9 ? ",3,3" : "";
        const std::string rest = file == "model" ? C + rs : rs + C;
        const std::string type = text(R"("dtype":"F32","shape":[)", p.K, rest, ']');
        if (file == "optim" && p.at < net.trainable)
            f("momentum/" + p.name, type, &net.velocities[p.at], p.size() * 4);
        if (file == "optim") continue;
        const auto place = [&](int i) {  // of weight i in the file
            return (i / (p.taps * p.C) * p.C + i % p.C) * p.taps + i / p.C % p.taps;
        };
        Floats in_file(p.size());
        for (int i = 0; i < int(p.size()); ++i) in_file[place(i)] = net.weight(p)[i];
        f(p.name, type, in_file.data(), p.size() * 4);
        for (int i = 0; i < int(p.size()); ++i) net.weight(p)[i] = in_file[place(i)];
    }
    for (int b = 1; file == "model" && b <= 5; ++b)
        f(text("bn", b, ".num_batches_tracked"), R"("dtype":"I64","shape":[])", &steps, 8);
}

void save(const std::string& run, Network& net, int64_t steps, const auto& origin) {
    std::string layers;
    for (size_t b = 1; b <= net.blocks.size(); ++b)
        layers += text("conv2d conv", b, " out ", net.blocks[b - 1].conv.K,
                       R"( size 3 pad 1 bias no\nbatchnorm bn)", b, R"(\nrelu\n)",
                       net.blocks[b - 1].pools ? R"(maxpool size 2\n)" : "");
    std::string card =
        text(R"({"__metadata__":{"model":"mini","model_text":"input 64\n)", layers,
             R"(avgpool 1\nlinear fc out classes\n","size":"64","mean":"[0.485,0.456,0.406]",)",
             R"("std":"[0.229,0.224,0.225]")");
    for (const std::string& member : origin) card += "," + member;
    const std::string folder = text(run, "/step-", std::setw(8), std::setfill('0'), steps);
    std::filesystem::create_directories(folder + ".writing");
    for (const std::string file : {"model", "optim"}) {
        std::string header = card + '}', numbers;
        for_each_tensor(net, steps, file, [&](auto name, auto type, void* data, size_t bytes) {
            numbers.append(static_cast<char*>(data), bytes);
            header += text(',', std::quoted(name), ":{", type, R"(,"data_offsets":[)",
                           numbers.size() - bytes, ',', numbers.size(), "]}");
        });
        header += '}';
        const uint64_t length = header.size();
        std::ofstream out(folder + ".writing/" + file + ".safetensors", std::ios::binary);
        out.write(reinterpret_cast<const char*>(&length), 8) << header << numbers;
        if (!out.flush()) fail(folder, " cannot be written");
    }
    std::filesystem::remove_all(folder), std::filesystem::rename(folder + ".writing", folder);
}

// Reads a checkpoint. A checkpoint of ./trainer has no "job" in its header. Searches the header for
// each name, and from there for the offsets of its numbers. Returns the number of steps.
int64_t load(const std::string& folder, Network& net, const auto& origin) {
    int64_t steps = 0;
    for (const std::string file : {"model", "optim"}) {
        const std::string path = folder + "/" + file + ".safetensors", key = R"("data_offsets":[)";
        std::ifstream in(path, std::ios::binary);
        const std::string all(std::istreambuf_iterator<char>(in), {});
        uint64_t length = 0, begin = 0, end = 0;
        if (all.size() > 8) std::memcpy(&length, all.data(), 8);
        for (const std::string& member : origin) {
            const size_t at = all.find(member.substr(0, member.find(':') + 1));
            if (at < all.size() && all.compare(at, member.size(), member) != 0)
                fail("--resume: ", path, " was not trained with ", member, ", as set here");
        }
        for_each_tensor(net, steps, file, [&](auto name, auto, void* data, size_t bytes) {
            const size_t at = all.find(key, all.find(text(std::quoted(name), ":{")));
            if (at < all.size()) std::sscanf(&all[at + key.size()], "%lu,%lu", &begin, &end);
            if (at > all.size() || end - begin != bytes || all.size() < 8 + length + end)
                fail("--resume: ", path, " has no ", name, " of ", bytes, " bytes");
            all.copy(static_cast<char*>(data), bytes, 8 + length + begin);
        });
    }
    return steps;
}

// ---- 9. The training loop -----------------------------------------------------------------------
void train(std::map<std::string, std::string>& options) {
    const auto number = [&](const char* name, double least, double most = 1e15) {
        char* end = nullptr;
        const double value = std::strtod(options[name].c_str(), &end);
        if (*end || !(value >= least && value <= most))
            fail(name, " ", options[name], ": must be a number from ", least, " to ", most);
        return value;
    };
    const int world = int(number("--world", 1, 1e6)), rank = int(number("--rank", 0, world - 1));
    const int wait = int(number("--wait", 1, 1e6));
    const DataSet data = open_folder(options["--data"]);
    const int64_t photos = int64_t(data.photos.size());
    const Job own{int64_t(number("--batch", 1)), int64_t(number("--epochs", 1)), number("--lr", 0),
                  uint64_t(number("--seed", 0))};
    asio::io_context io;
    tcp::socket left(io), right(io);
    const Job job = meet(io, options["--coord"], wait, {rank, world, data.names, own}, left, right);
    Network net(int(data.classes.size()), job.seed);
    float start = 0;                                // the number of steps of the checkpoint
    Ring ring{rank, world, wait, io, left, right};  // declared last, so its threads end first
    // Rank 0 reads the checkpoint. The others add zeros to its numbers, and so receive a copy.
    if (rank > 0) std::ranges::fill(net.weights, 0.0f);
    if (rank == 0 && !options["--resume"].empty())
        start = float(load(options["--resume"], net, origin(data, job)));
    ring.add_later({&start, 1});
    ring.add_later(net.weights);
    ring.add_later(net.velocities);
    ring.wait("before the first step");
    const int64_t per_epoch = (photos + job.batch - 1) / job.batch, steps = job.epochs * per_epoch;
    if (start >= float(steps)) fail("all ", steps, " steps are done: give more --epochs");
    for (int64_t step = int64_t(start); step < steps; ++step) {
        const uint32_t epoch = uint32_t(step / per_epoch);
        const int64_t before = step % per_epoch * job.batch;  // photos of this epoch
        const int64_t count = std::min(job.batch, photos - before);
        const int64_t begin = share_begin(count, rank, world);
        const int N = int(share_begin(count, rank + 1, world) - begin);
        Tensor x{N, kSide, kSide, 3};
        std::vector<int> labels;
        for (int n = 0; n < N; ++n) {
            const uint64_t photo = photo_at(before + begin + n, photos, job.seed, epoch);
            const auto& [path, label] = data.photos[photo];
            const Tensor part = random_crop(decode(path), job.seed, epoch, photo);
            const bool flip = Random(job.seed, epoch, photo, kFlip).uniform() < 0.5f;
            to_input(to_square(part), flip, x.at(n, 0, 0));
            labels.push_back(label);
        }
        std::ranges::fill(net.gradients, 0.0f);
        const Tensor y = net.forward(std::move(x));
        const Tensor dy = softmax_cross_entropy(y, labels, net.sums());
        net.backward(dy, [&](std::span<float> bucket) { ring.add_later(bucket); });
        const auto computed = std::chrono::steady_clock::now();
        ring.wait(text("step ", step + 1));
        const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - computed;
        update(net, float(job.lr));
        const float images = net.sums()[2], loss = net.sums()[0] / images;
        if (!std::isfinite(loss)) fail("step ", step + 1, ": the loss is not finite; lower --lr");
        if (rank > 0) continue;
        std::printf("epoch %u  step %ld/%ld  loss %.6f  correct %.0f %%  ring %.1f ms\n", epoch + 1,
                    step + 1, steps, loss, 100 * net.sums()[1] / images, 1e3 * waited.count());
        std::fflush(stdout);
        if ((step + 1) % per_epoch == 0) save(options["--out"], net, step + 1, origin(data, job));
    }
}

// If a rank ends, or is stopped for longer than --wait, its neighbours fail, then theirs; --resume
// starts the job again. In ./trainer the others go on (net/elastic.md), and it validates as well.
}  // namespace mini

int main(int argc, char** argv) try {
    std::map<std::string, std::string> options = {
        {"--data", ""},    {"--resume", ""},  {"--out", "runs/mini"}, {"--epochs", "10"},
        {"--batch", "64"}, {"--lr", "0.025"}, {"--seed", "1"},        {"--world", "1"},
        {"--rank", "0"},   {"--coord", ""},   {"--wait", "60"}};
    for (int i = 1; i < argc; i += 2) {
        if (!options.contains(argv[i]) || i + 1 == argc)
            mini::fail(argv[i], " is no option with a value: see main() in src/mini/mini.cpp");
        options[argv[i]] = argv[i + 1];
    }
    mini::train(options);
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
