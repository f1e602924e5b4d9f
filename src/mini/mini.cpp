// mini.cpp — a distributed trainer of convolutional networks in one file. Read it from top to
// bottom.
//
// It learns to tell the classes of a folder of photos apart, alone or on several machines:
//
//     flowers/daisy/a.jpg    make mini
//     flowers/daisy/b.jpg    ./mini --data flowers/
//     flowers/rose/c.jpg     ./mini --data flowers/ --coord 10.0.0.1:29400 --world 2 --rank 0
//                            ./mini --data flowers/ --coord 10.0.0.1:29400 --world 2 --rank 1
//
// Each process is a rank. All ranks hold the same weights. In every step, each rank computes the
// gradient of its share of the batch. The ring adds these gradients, and every rank makes the same
// update. So the nine chapters follow the data:
//
//     1 random numbers ──► 2 which photo when ──► 3 from JPEG to floats ──► 4 layers
//                                                                              │
//     9 the training loop                                                      ▼
//       calls them all           8 update, checkpoint ◄── 7 the ring ◄── 5 the network
//                                                             ▲
//                                                      6 the ranks meet
//
// There are only plain loops here. ./trainer computes the same numbers faster: tests/test_mini.cpp
// compares the losses, and README.md in this folder says what each refinement gains.
//
// Letters, with one meaning everywhere: N images, H rows, W columns, C channels of an input, K
// channels of an output, and n h w c k an index along each. dy is the gradient of the loss with
// respect to y, and so on.
#include <algorithm>
#include <asio/connect.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/post.hpp>
#include <asio/read.hpp>
#include <asio/thread_pool.hpp>
#include <asio/use_future.hpp>
#include <asio/write.hpp>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <jpeglib.h>  // needs <cstdio> before it

namespace mini {

using Floats = std::vector<float>;

// Every error ends the program, with one sentence. main() prints it.
[[noreturn]] void fail(const std::string& sentence) { throw std::runtime_error(sentence); }

// ---- 1. Random numbers --------------------------------------------------------------------------
//
// Most generators have a state, so the next number depends on all earlier calls. Philox 4x32-10 has
// none. It is a function that scrambles a counter with a key, in ten rounds (Salmon et al. 2011):
//
//     (seed, epoch, index, purpose) ──► as many numbers as you like
//
// So photo 17 gets the same crop in epoch 3 on every rank, whoever decodes it and in which order.
// No state of a generator is sent to another rank or saved in a checkpoint.

enum Purpose : uint32_t { kOrder = 1, kCrop = 2, kFlip = 3, kInit = 4 };

class Random {
 public:
    Random(uint64_t seed, uint32_t epoch, uint64_t index, Purpose purpose)
        : key_(seed),
          counter_{0, uint32_t(index), epoch, uint32_t(purpose) | uint32_t(index >> 32) << 16} {}

    uint32_t bits() {
        if (used_ == 4) scramble();
        return numbers_[used_++];
    }
    uint64_t bits64() {
        const uint64_t low = bits();
        return low | uint64_t(bits()) << 32;
    }
    float uniform() { return float(bits() >> 8) * 0x1p-24f; }                           // [0, 1)
    uint64_t below(uint64_t n) { return uint64_t((__uint128_t(bits64()) * n) >> 64); }  // [0, n)

 private:
    void scramble() {
        std::copy_n(counter_, 4, numbers_);
        auto& [a, b, c, d] = numbers_;
        uint32_t low = uint32_t(key_), high = uint32_t(key_ >> 32);
        for (int round = 0; round < 10; ++round, low += 0x9E3779B9u, high += 0xBB67AE85u) {
            const uint64_t left = uint64_t(0xD2511F53u) * a, right = uint64_t(0xCD9E8D57u) * c;
            a = uint32_t(right >> 32) ^ b ^ low, b = uint32_t(right);
            c = uint32_t(left >> 32) ^ d ^ high, d = uint32_t(left);
        }
        ++counter_[0], used_ = 0;
    }
    uint64_t key_;
    uint32_t counter_[4], numbers_[4] = {};
    int used_ = 4;
};

// FNV-1a, a hash of bytes: turns names into keys.
uint64_t hash(const std::string& bytes, uint64_t value = 0xcbf29ce484222325ull) {
    for (unsigned char byte : bytes) value = (value ^ byte) * 0x100000001b3ull;
    return value;
}

// ---- 2. Which photo when ------------------------------------------------------------------------
//
// An epoch shows every photo once, in a new order. A step trains on the next `batch` photos of that
// order, and each rank takes its share of them, side by side:
//
//     order   | 7  2  9  4 | 0  5  8  1 | 3  6 |        10 photos, batch 4: three steps
//     step          0            1         2
//     rank      0  0  1  1   0  0  1  1   0  1          two ranks
//
// No rank asks another one: all of them compute the same order and the same shares.

struct Photo {
    std::string path;
    int label;
};
struct DataSet {
    std::vector<std::string> classes;
    std::vector<Photo> photos;
};

// One folder per class. Sorted, so that each photo has the same number on every rank.
DataSet open_folder(const std::string& folder) {
    namespace fs = std::filesystem;
    if (!fs::is_directory(folder)) fail("--data: there is no folder '" + folder + "'");
    const auto sorted = [](const fs::path& where) {
        std::vector<fs::path> paths(fs::directory_iterator(where), fs::directory_iterator{});
        std::erase_if(paths, [](const fs::path& p) { return p.filename().string()[0] == '.'; });
        std::ranges::sort(paths);
        return paths;
    };
    DataSet data;
    for (const fs::path& of_class : sorted(folder)) {
        if (!fs::is_directory(of_class)) continue;
        for (const fs::path& file : sorted(of_class))
            if (file.extension() == ".jpg" || file.extension() == ".jpeg")
                data.photos.push_back({file.string(), int(data.classes.size())});
        data.classes.push_back(of_class.filename().string());
    }
    if (data.classes.size() < 2 || data.photos.empty())
        fail("--data: '" + folder + "' needs two or more folders with .jpg files, one per class");
    return data;
}

// The photo at place i of an epoch with n photos. A shuffled list would do as well; but this way
// no list of a billion numbers is needed. The places fill a grid of rows and columns:
//
//     i ─► (row, column);  row += random(column);  column += random(row);  …;  ─► photo
//
// Each addition (modulo the size) can be undone by a subtraction, because the number that it adds
// depends only on the other coordinate. So no two places end at the same photo, whatever the random
// numbers are. If the result is in the unused rest of the grid, the places move once more.
uint64_t photo_at(uint64_t i, uint64_t n, uint64_t seed, uint32_t epoch) {
    const uint64_t key = Random(seed, epoch, 0, kOrder).bits64();
    const uint64_t rows = uint64_t(std::ceil(std::sqrt(double(n)))),
                   columns = (n + rows - 1) / rows;
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

// The first photo of a rank's share of `count` photos. The share ends where the next rank's begins.
int64_t share_begin(int64_t count, int rank, int world) {
    return int64_t(std::floor(double(count) * rank / world + 0.5));
}

// Batch norm (chapter 4) computes its statistics over groups of at most 32 photos of the whole
// batch, not over all photos of a rank. So two ranks with 32 photos each get the same statistics as
// one rank with 64. Returns the bounds of the groups among this rank's photos [begin, end).
std::vector<int> group_bounds(int64_t begin, int64_t end, int64_t count) {
    const int64_t groups = (count + 31) / 32;
    std::vector<int> bounds = {0};
    for (int64_t i = begin + 1; i < end; ++i)
        if (i * groups / count != (i - 1) * groups / count) bounds.push_back(int(i - begin));
    bounds.push_back(int(end - begin));
    return bounds;
}

// ---- 3. From JPEG to floats ---------------------------------------------------------------------
//
//     file ──► pixels ──► random part of them ──► 64 x 64 ──► mirrored, or not ──► floats around 0
//
// A class does not depend on where in a photo its flower is, how large it is, or whether it is
// mirrored. The random crop and flip show that to the network: it never sees the same image twice.

constexpr int kSide = 64;  // pixels of the network's input, each way

struct Image {
    int H, W;
    std::vector<uint8_t> pixels;  // H x W x 3: red, green, blue
};

Image decode(const std::string& path) {
    std::FILE* file = std::fopen(path.c_str(), "rb");
    if (!file) fail(path + " cannot be opened");
    jpeg_decompress_struct jpeg;
    jpeg_error_mgr errors;
    jpeg.err = jpeg_std_error(&errors);
    jpeg.client_data = const_cast<std::string*>(&path);
    errors.error_exit = [](j_common_ptr info) {
        char why[JMSG_LENGTH_MAX];
        info->err->format_message(info, why);
        std::fprintf(stderr, "error: %s: %s\n",
                     static_cast<std::string*>(info->client_data)->c_str(), why);
        std::_Exit(1);  // no exception may pass through the library's C code
    };
    jpeg_create_decompress(&jpeg);
    jpeg_stdio_src(&jpeg, file);
    jpeg_read_header(&jpeg, TRUE);
    jpeg.out_color_space = JCS_RGB;
    jpeg_start_decompress(&jpeg);
    Image image{int(jpeg.output_height), int(jpeg.output_width), {}};
    image.pixels.resize(size_t(image.H) * image.W * 3);
    while (jpeg.output_scanline < jpeg.output_height) {
        JSAMPROW row = &image.pixels[size_t(jpeg.output_scanline) * image.W * 3];
        jpeg_read_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_decompress(&jpeg);
    jpeg_destroy_decompress(&jpeg);
    std::fclose(file);
    return image;
}

// A part of 8 to 100 % of the area, with sides in a ratio between 3:4 and 4:3. A part that does not
// fit is drawn again; after ten such draws the photo must be a strip, and its centre is taken.
Image random_crop(const Image& from, uint64_t seed, uint32_t epoch, uint64_t photo) {
    Random random(seed, epoch, photo, kCrop);
    const double narrow = 3.0 / 4, wide = 4.0 / 3, area = double(from.H) * from.W;
    int H = 0, W = 0, top = 0, left = 0;
    for (int attempt = 0; attempt < 10 && H == 0; ++attempt) {
        const double part = area * (0.08 + 0.92 * random.uniform());
        const double ratio = narrow * std::exp(std::log(wide / narrow) * random.uniform());
        const int w = int(std::nearbyint(std::sqrt(part * ratio)));
        const int h = int(std::nearbyint(std::sqrt(part / ratio)));
        if (w < 1 || h < 1 || w > from.W || h > from.H) continue;
        H = h, top = int(random.below(uint64_t(from.H - h) + 1));
        W = w, left = int(random.below(uint64_t(from.W - w) + 1));
    }
    if (H == 0) {
        H = from.W < narrow * from.H ? int(std::nearbyint(from.W / narrow)) : from.H;
        W = from.W > wide * from.H ? int(std::nearbyint(from.H * wide)) : from.W;
        top = (from.H - H) / 2, left = (from.W - W) / 2;
    }
    Image part{H, W, {}};
    for (int h = top; h < top + H; ++h) {
        const uint8_t* row = &from.pixels[(size_t(h) * from.W + left) * 3];
        part.pixels.insert(part.pixels.end(), row, row + W * 3);
    }
    return part;
}

// Resizes each row to W pixels. An output pixel is a weighted mean of the input pixels near it. The
// weights form a triangle over all input pixels that the output pixel covers, or over two of them
// if the image grows:
//
//     input    .   .   .   .   .   .   .        scale = from.W / W = 3
//     weight       ▁   ▄   █   ▄   ▁            1 - distance / scale, divided by the sum of all
//     output               .
//
// The weights are whole numbers of 1/2^22, as in Pillow, so every machine gets the same pixels.
Image resize_width(const Image& from, int W) {
    const double scale = double(from.W) / W, reach = std::max(1.0, scale);
    Image to{from.H, W, std::vector<uint8_t>(size_t(from.H) * W * 3)};
    for (int w = 0; w < W; ++w) {
        const double centre = (w + 0.5) * scale;
        const int begin = std::max(int(centre - reach + 0.5), 0);
        const int end = std::min(int(centre + reach + 0.5), from.W);
        std::vector<double> triangle;
        double sum = 0;
        for (int i = begin; i < end; ++i) {
            triangle.push_back(std::max(0.0, 1 - std::abs((i - centre + 0.5) * (1 / reach))));
            sum += triangle.back();
        }
        std::vector<uint32_t> weights;
        for (double weight : triangle) weights.push_back(uint32_t(0.5 + weight / sum * (1 << 22)));
        for (int h = 0; h < from.H; ++h)
            for (int c = 0; c < 3; ++c) {
                uint32_t total = 1 << 21;  // one half, so that the shift rounds
                for (int i = begin; i < end; ++i)
                    total += from.pixels[(size_t(h) * from.W + i) * 3 + c] * weights[i - begin];
                to.pixels[(size_t(h) * W + w) * 3 + c] = uint8_t(std::min(total >> 22, 255u));
            }
    }
    return to;
}

Image transposed(const Image& from) {
    Image to{from.W, from.H, std::vector<uint8_t>(from.pixels.size())};
    for (int h = 0; h < from.H; ++h)
        for (int w = 0; w < from.W; ++w)
            std::copy_n(&from.pixels[(size_t(h) * from.W + w) * 3], 3,
                        &to.pixels[(size_t(w) * from.H + h) * 3]);
    return to;
}

// The width first, then the height.
Image resize(const Image& from, int H, int W) {
    return transposed(resize_width(transposed(resize_width(from, W)), H));
}

// Each colour gets about mean 0 and deviation 1 (the values are those of ImageNet's photos).
void to_floats(const Image& image, bool flip, float* out) {
    constexpr float kMean[] = {0.485f, 0.456f, 0.406f}, kDeviation[] = {0.229f, 0.224f, 0.225f};
    for (int h = 0; h < image.H; ++h)
        for (int w = 0; w < image.W; ++w)
            for (int c = 0; c < 3; ++c) {
                const int from = flip ? image.W - 1 - w : w;
                const float pixel = image.pixels[(size_t(h) * image.W + from) * 3 + c];
                *out++ = pixel * (1 / (255 * kDeviation[c])) - kMean[c] / kDeviation[c];
            }
}

// ---- 4. Layers and their gradients --------------------------------------------------------------
//
// A layer is a function y = f(x, w). Backward, it gets dy, how the loss changes with each number of
// y, and owes dx and dw. The chain rule says how: each product in y sends two terms back.
//
//     y += x · w      ──►      dx += dy · w       dw += dy · x
//
// So backward is twice the work of forward, in the same loops. Weights' gradients are sums over all
// images; the update (chapter 8) divides them by the number of images of all ranks.

struct Tensor {  // N x H x W x C floats, the channels of a pixel side by side
    int N = 0, H = 0, W = 0, C = 0;
    Floats floats = Floats(size_t(N) * H * W * C);
    float* at(int n, int h = 0, int w = 0) {
        return floats.data() + ((size_t(n) * H + h) * W + w) * C;
    }
    const float* at(int n, int h = 0, int w = 0) const {
        return const_cast<Tensor*>(this)->at(n, h, w);
    }
};

// Convolution with K filters of 3 x 3 pixels; outside the image there are zeros. r and s are the
// row and the column within a filter:
//
//     y[n,h,w,k] = Σ_rsc x[n, h+r-1, w+s-1, c] · weights[k,r,s,c]
//
// The three pixels in a row of the window are 3·C floats side by side, and so are their weights:
// the innermost loop runs over all of them. At the left and right edge only two are inside.
Tensor conv2d(const Tensor& x, const float* weights, int K) {
    Tensor y{x.N, x.H, x.W, K};
    for (int n = 0; n < x.N; ++n)
        for (int h = 0; h < x.H; ++h)
            for (int w = 0; w < x.W; ++w)
                for (int r = 0; r < 3; ++r) {
                    if (h + r - 1 < 0 || h + r - 1 >= x.H) continue;
                    const int s = w == 0, end = w == x.W - 1 ? 2 : 3, count = (end - s) * x.C;
                    const float* in = x.at(n, h + r - 1, w + s - 1);
                    float* out = y.at(n, h, w);
                    for (int k = 0; k < K; ++k) {
                        const float* filter = weights + ((k * 3 + r) * 3 + s) * x.C;
                        float sum = 0;
                        for (int i = 0; i < count; ++i) sum += in[i] * filter[i];
                        out[k] += sum;
                    }
                }
    return y;
}

Tensor conv2d_backward(const Tensor& x, const float* weights, const Tensor& dy, float* dweights) {
    Tensor dx{x.N, x.H, x.W, x.C};
    for (int n = 0; n < x.N; ++n)
        for (int h = 0; h < x.H; ++h)
            for (int w = 0; w < x.W; ++w)
                for (int r = 0; r < 3; ++r) {
                    if (h + r - 1 < 0 || h + r - 1 >= x.H) continue;
                    const int s = w == 0, end = w == x.W - 1 ? 2 : 3, count = (end - s) * x.C;
                    const float* in = x.at(n, h + r - 1, w + s - 1);
                    const float* dout = dy.at(n, h, w);
                    float* din = dx.at(n, h + r - 1, w + s - 1);
                    for (int k = 0; k < dy.C; ++k) {
                        const int first = ((k * 3 + r) * 3 + s) * x.C;
                        const float *filter = weights + first, d = dout[k];
                        float* dfilter = dweights + first;
                        for (int i = 0; i < count; ++i) {
                            din[i] += d * filter[i];
                            dfilter[i] += d * in[i];
                        }
                    }
                }
    return dx;
}

// Batch norm gives each channel mean 0 and variance 1 over a group of images, and then a scale
// gamma and an offset beta that are learned:
//
//     x̂ = (x - mean) · rstd       rstd = 1/√(variance + 0.00001)       y = gamma · x̂ + beta
//
// The sums of means and variances over the images are kept: after training, running averages of
// them (chapter 8) take the place of the group's own, because a single photo is no group.
struct Moments {
    Tensor mean, rstd;  // groups x C
};
Tensor batch_norm(const Tensor& x, const std::vector<int>& bounds, const float* gamma,
                  const float* beta, Moments& moments, float* mean_sums, float* variance_sums) {
    Tensor y{x.N, x.H, x.W, x.C};
    const int groups = int(bounds.size()) - 1, pixels = x.H * x.W;
    moments = {{groups, 1, 1, x.C}, {groups, 1, 1, x.C}};
    for (int g = 0; g < groups; ++g)
        for (int c = 0; c < x.C; ++c) {
            const int begin = bounds[g] * pixels, end = bounds[g + 1] * pixels, M = end - begin;
            if (M == 0) continue;
            const float* in = x.floats.data() + c;
            double sum = 0, squares = 0;
            for (int i = begin; i < end; ++i) sum += in[i * x.C];
            const double mean = sum / M;
            for (int i = begin; i < end; ++i) squares += std::pow(in[i * x.C] - mean, 2);
            const float rstd = float(1 / std::sqrt(squares / M + 1e-5));
            for (int i = begin; i < end; ++i)
                y.floats[i * x.C + c] = gamma[c] * rstd * (in[i * x.C] - float(mean)) + beta[c];
            const double images = bounds[g + 1] - bounds[g];
            mean_sums[c] += float(images * mean);
            variance_sums[c] += float(images * squares / std::max(M - 1, 1));
            moments.mean.at(g)[c] = float(mean), moments.rstd.at(g)[c] = rstd;
        }
    return y;
}

// The mean and the variance depend on every x of the group, so each dx gets a share of all dy:
//
//     dx = gamma · rstd · (dy - mean(dy) - x̂ · mean(dy · x̂))     dgamma = Σ dy · x̂     dbeta = Σ dy
Tensor batch_norm_backward(const Tensor& x, const std::vector<int>& bounds, const float* gamma,
                           const Moments& moments, const Tensor& dy, float* dgamma, float* dbeta) {
    Tensor dx{x.N, x.H, x.W, x.C};
    const int groups = int(bounds.size()) - 1, pixels = x.H * x.W;
    for (int g = 0; g < groups; ++g)
        for (int c = 0; c < x.C; ++c) {
            const int begin = bounds[g] * pixels, end = bounds[g + 1] * pixels;
            const float mean = moments.mean.at(g)[c], rstd = moments.rstd.at(g)[c];
            const auto normal = [&](int i) { return (x.floats[i * x.C + c] - mean) * rstd; };
            double sum = 0, product = 0;
            for (int i = begin; i < end; ++i) {
                sum += dy.floats[i * x.C + c];
                product += dy.floats[i * x.C + c] * normal(i);
            }
            dbeta[c] += float(sum), dgamma[c] += float(product);
            const float of_sum = float(sum / (end - begin)), of_x = float(product / (end - begin));
            for (int i = begin; i < end; ++i)
                dx.floats[i * x.C + c] =
                    gamma[c] * rstd * (dy.floats[i * x.C + c] - of_sum - normal(i) * of_x);
        }
    return dx;
}

// y = max(0, x), in place. Where y is 0 the loss does not change with x.
void relu(Tensor& x) {
    for (float& value : x.floats) value = std::max(value, 0.0f);
}
void relu_backward(const Tensor& y, Tensor& dy) {
    for (size_t i = 0; i < y.floats.size(); ++i)
        if (y.floats[i] <= 0) dy.floats[i] = 0;
}

// The largest of each 2 x 2 pixels. Only this winner gets the gradient, so its place is kept.
Tensor max_pool(const Tensor& x, std::vector<size_t>& winners) {
    Tensor y{x.N, x.H / 2, x.W / 2, x.C};
    winners.clear();
    for (int n = 0; n < y.N; ++n)
        for (int h = 0; h < y.H; ++h)
            for (int w = 0; w < y.W; ++w)
                for (int c = 0; c < x.C; ++c) {
                    const float* best = x.at(n, 2 * h, 2 * w) + c;
                    for (int r = 0; r < 2; ++r)
                        for (int s = 0; s < 2; ++s) {
                            const float* pixel = x.at(n, 2 * h + r, 2 * w + s) + c;
                            if (*pixel > *best) best = pixel;
                        }
                    y.at(n, h, w)[c] = *best;
                    winners.push_back(size_t(best - x.floats.data()));
                }
    return y;
}
Tensor max_pool_backward(const Tensor& x, const std::vector<size_t>& winners, const Tensor& dy) {
    Tensor dx{x.N, x.H, x.W, x.C};
    for (size_t i = 0; i < winners.size(); ++i) dx.floats[winners[i]] += dy.floats[i];
    return dx;
}

// The mean of each channel over all pixels of an image.
Tensor mean_pool(const Tensor& x) {
    Tensor y{x.N, 1, 1, x.C};
    for (int n = 0; n < x.N; ++n)
        for (int i = 0; i < x.H * x.W; ++i)
            for (int c = 0; c < x.C; ++c) y.at(n)[c] += x.at(n)[i * x.C + c] / (x.H * x.W);
    return y;
}
Tensor mean_pool_backward(const Tensor& x, const Tensor& dy) {
    Tensor dx{x.N, x.H, x.W, x.C};
    for (int n = 0; n < x.N; ++n)
        for (int i = 0; i < x.H * x.W; ++i)
            for (int c = 0; c < x.C; ++c) dx.at(n)[i * x.C + c] = dy.at(n)[c] / (x.H * x.W);
    return dx;
}

// y[n,k] = bias[k] + Σ_c x[n,c] · weights[k,c]
Tensor linear(const Tensor& x, const float* weights, const float* bias, int K) {
    Tensor y{x.N, 1, 1, K};
    for (int n = 0; n < x.N; ++n)
        for (int k = 0; k < K; ++k) {
            y.at(n)[k] = bias[k];
            for (int c = 0; c < x.C; ++c) y.at(n)[k] += x.at(n)[c] * weights[k * x.C + c];
        }
    return y;
}
Tensor linear_backward(const Tensor& x, const float* weights, const Tensor& dy, float* dweights,
                       float* dbias) {
    Tensor dx{x.N, 1, 1, x.C};
    for (int n = 0; n < x.N; ++n)
        for (int k = 0; k < dy.C; ++k) {
            const float d = dy.at(n)[k];
            dbias[k] += d;
            for (int c = 0; c < x.C; ++c) {
                dx.at(n)[c] += d * weights[k * x.C + c];
                dweights[k * x.C + c] += d * x.at(n)[c];
            }
        }
    return dx;
}

// Softmax turns the last layer's numbers into probabilities. The loss of an image is the surprise
// about its label, and its gradient is strikingly simple:
//
//     p[k] = exp(x[k]) / Σ_j exp(x[j])       loss = -log p[label]       dx[k] = p[k] - (k == label)
//
// The largest x is subtracted first, so that no exp overflows; p stays the same. Returns dx, and
// adds to the sums over images: sums[0] the loss, [1] the images with the right answer, [2] images.
Tensor softmax_cross_entropy(const Tensor& x, const std::vector<int>& labels, float* sums) {
    Tensor dx{x.N, 1, 1, x.C};
    double loss = 0;
    for (int n = 0; n < x.N; ++n) {
        const float *in = x.at(n), *best = std::max_element(in, in + x.C);
        double sum = 0;
        for (int k = 0; k < x.C; ++k) sum += std::exp(double(in[k]) - *best);
        for (int k = 0; k < x.C; ++k)
            dx.at(n)[k] = float(std::exp(double(in[k]) - *best) / sum - (k == labels[n]));
        loss += std::log(sum) + *best - in[labels[n]];
        sums[1] += best - in == labels[n];
    }
    sums[0] += float(loss), sums[2] += float(x.N);
    return dx;
}

// ---- 5. The network -----------------------------------------------------------------------------
//
// Five blocks. Each sees half as many pixels each way as the block before, so a 3 x 3 filter covers
// twice as much of the photo. Then the mean over the pixels, and a linear layer with the answer:
//
//     64x64x3 ─► block 1 ─► 32x32x16 ─► 2 ─► 16x16x32 ─► 3 ─► 8x8x64 ─► 4 ─► 4x4x64 ─► 5 ─► 4x4x128
//     a block: convolution ─► batch norm ─► relu ─► max pool (not in block 5)          mean ─►
//     linear
//
// All weights lie in one array, and all gradients in another, at the same places. So the update is
// one loop, and the ring adds stretches of an array, the buckets, without knowing what they hold:
//
//     weights     conv1 bn1 | conv2 bn2 | … | conv5 bn5 | fc | running means, variances
//     gradients   conv1 bn1 | conv2 bn2 | … | conv5 bn5 | fc | their sums of this batch, loss, …
//     bucket          6           5               2       1                  0
//
// The sums of bucket 0 are complete after the forward pass. The backward pass then completes the
// gradients from the back to the front. So the ring adds a bucket while the next one is computed:
//
//     this thread      forward | backward: fc | block 5 | block 4 | … | block 1 | wait | update
//     network thread                 bucket 0 | 1       | 2       | …     5     | 6

constexpr int kChannels[] = {16, 32, 64, 64, 128};  // that the blocks give

struct Param {
    std::string name;
    std::vector<int> shape;
    size_t at, size;       // place in both arrays
    bool decays, is_mean;  // weight decay applies; it is a running mean or variance
};

struct Block {
    int K;
    bool pools;
    Param conv, gamma, beta, mean, variance;
    Tensor x, z, y;  // the input, after the convolution, after the relu; backward needs all three
    Moments moments;
    std::vector<size_t> winners;
};

struct Network {
    std::vector<Param> params;
    std::vector<Block> blocks;
    Param fc, fc_bias;
    Floats weights, gradients, velocity;  // velocity: chapter 8
    Tensor last, features;                // what block 5 gives, and its mean over the pixels
    int classes;

    Network(int classes_, uint64_t seed) : classes(classes_) {
        enum Start { kConstant, kNormal, kUniform };
        // Weights start as random numbers from a hash of their name, so all ranks agree on them.
        const auto add = [&](const std::string& name, std::vector<int> shape, Start start,
                             double value) {
            size_t size = 1;
            for (int length : shape) size *= size_t(length);
            params.push_back({name, shape, weights.size(), size, shape.size() > 1,
                              name.find("running") != std::string::npos});
            const uint64_t key = hash(name, hash(std::to_string(seed) + ":"));
            for (size_t i = 0; i < size; i += 4) {
                Random random(key, 0, i / 4, kInit);
                float four[4];
                for (float& one : four) one = random.uniform();
                for (int j = 0; j < 4; j += 2) {
                    // Two uniform numbers give two normal ones: a radius and an angle (Box,
                    // Muller).
                    const double radius = value * std::sqrt(-2 * std::log(1.0 - four[j]));
                    const double angle = 2 * M_PI * four[j + 1];
                    const double normal[] = {radius * std::cos(angle), radius * std::sin(angle)};
                    for (int one : {0, 1})
                        if (i + j + one < size)
                            weights.push_back(float(start == kNormal ? normal[one]
                                                    : start == kUniform
                                                        ? value * (2 * four[j + one] - 1)
                                                        : value));
                }
            }
            return params.back();
        };
        int C = 3, number = 1;
        for (int K : kChannels) {
            const std::string conv = "conv" + std::to_string(number) + ".weight";
            const std::string norm = "bn" + std::to_string(number) + ".";
            // He et al. 2015: with this deviation gradients keep their size from layer to layer.
            Block& block = blocks.emplace_back();
            block.K = K, block.pools = number < 5;
            block.conv = add(conv, {K, 3, 3, C}, kNormal, std::sqrt(2.0 / (K * 9)));
            block.gamma = add(norm + "weight", {K}, kConstant, 1);
            block.beta = add(norm + "bias", {K}, kConstant, 0);
            C = K, ++number;
        }
        fc = add("fc.weight", {classes, C}, kUniform, 1 / std::sqrt(C));
        fc_bias = add("fc.bias", {classes}, kUniform, 1 / std::sqrt(C));
        velocity.resize(weights.size());
        for (size_t b = 0; b < blocks.size(); ++b) {
            const std::string norm = "bn" + std::to_string(b + 1) + ".running_";
            blocks[b].mean = add(norm + "mean", {blocks[b].K}, kConstant, 0);
            blocks[b].variance = add(norm + "var", {blocks[b].K}, kConstant, 1);
        }
        gradients.resize(weights.size() + 3);
    }

    float* weight(const Param& param) { return weights.data() + param.at; }
    float* gradient(const Param& param) { return gradients.data() + param.at; }
    float* sums() { return gradients.data() + weights.size(); }  // loss, right answers, images

    Tensor forward(Tensor x, const std::vector<int>& bounds) {
        for (Block& b : blocks) {
            b.x = std::move(x);
            b.z = conv2d(b.x, weight(b.conv), b.K);
            b.y = batch_norm(b.z, bounds, weight(b.gamma), weight(b.beta), b.moments,
                             gradient(b.mean), gradient(b.variance));
            relu(b.y);
            x = b.pools ? max_pool(b.y, b.winners) : b.y;
        }
        last = std::move(x);
        features = mean_pool(last);
        return linear(features, weight(fc), weight(fc_bias), classes);
    }

    // Calls ready(bucket) for each bucket of gradients that is complete.
    void backward(Tensor dy, const std::vector<int>& bounds,
                  const std::function<void(std::span<float>)>& ready) {
        const std::span<float> all = gradients;
        ready(all.subspan(blocks[0].mean.at));
        dy = linear_backward(features, weight(fc), dy, gradient(fc), gradient(fc_bias));
        ready(all.subspan(fc.at, fc.size + fc_bias.size));
        dy = mean_pool_backward(last, dy);
        for (size_t i = blocks.size(); i-- > 0;) {
            Block& b = blocks[i];
            if (b.pools) dy = max_pool_backward(b.y, b.winners, dy);
            relu_backward(b.y, dy);
            dy = batch_norm_backward(b.z, bounds, weight(b.gamma), b.moments, dy, gradient(b.gamma),
                                     gradient(b.beta));
            dy = conv2d_backward(b.x, weight(b.conv), dy, gradient(b.conv));
            ready(all.subspan(b.conv.at, b.conv.size + b.gamma.size + b.beta.size));
        }
    }
};

// ---- 6. The ranks meet --------------------------------------------------------------------------
//
// A rank knows one address, --coord. There, rank 0 is the coordinator: it waits until every other
// rank has called and said at which port it listens. Then it tells each one where its right
// neighbour listens, and what to train. After that, the ranks call their neighbours:
//
//     rank 1 ──── "rank 1 of 3, port 4001" ────► rank 0        rank 0 ──► rank 1
//     rank 2 ──── "rank 2 of 3, port 4002" ────► rank 0            ▲        │
//     rank 1 ◄─── "right is 10.0.0.3:4002" ───── rank 0            │        ▼
//     rank 2 ◄─── "right is 10.0.0.1:4000" ───── rank 0            └───── rank 2
//
// The messages are structs, byte for byte, so all ranks need the same kind of processor. There is
// no password and no encryption: use a network that you trust.

using asio::ip::tcp;

struct Job {  // what all ranks must agree on: rank 0 decides
    int64_t batch, epochs;
    double lr;
    uint64_t seed;
};
struct Call {
    int32_t rank, world;
    uint64_t photos;  // a hash of all names: do the ranks have the same photos?
    uint16_t port;
};
struct Answer {
    Job job;
    uint32_t address;
    uint16_t port;
};
struct Neighbours {
    tcp::socket left, right;
};

tcp::socket call(asio::io_context& io, const tcp::endpoint& where) {
    tcp::socket socket(io);
    for (int attempt = 0; attempt < 600; ++attempt) {  // ranks start in any order
        asio::error_code error;
        socket.connect(where, error);
        if (!error) return socket;
        socket.close();
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    fail("nobody listens at --coord for a minute; is rank 0 running?");
}

Neighbours meet(asio::io_context& io, const std::string& coord, int rank, int world,
                uint64_t photos, Job& job) {
    const size_t colon = coord.rfind(':');
    if (colon == std::string::npos) fail("--coord must be HOST:PORT, such as 10.0.0.1:29400");
    const tcp::endpoint where =
        *tcp::resolver(io)
             .resolve(tcp::v4(), coord.substr(0, colon), coord.substr(colon + 1))
             .begin();
    Answer answer{job, 0, 0};
    tcp::socket to_coordinator(io);
    tcp::endpoint self(where.address(), 0);
    if (rank > 0) {
        to_coordinator = call(io, where);
        self.address(to_coordinator.local_endpoint().address());
    }
    tcp::acceptor listener(io, self);  // at a port that the system chooses
    const Call mine{rank, world, photos, listener.local_endpoint().port()};
    if (rank > 0) {
        asio::write(to_coordinator, asio::buffer(&mine, sizeof mine));
        asio::read(to_coordinator, asio::buffer(&answer, sizeof answer));
    } else {
        std::vector<tcp::socket> sockets;
        std::vector<tcp::endpoint> listens(world, listener.local_endpoint());
        std::vector<int> caller(world, -1);
        for (tcp::acceptor door(io, where); int(sockets.size()) < world - 1;) {
            sockets.push_back(door.accept());
            Call theirs;
            asio::read(sockets.back(), asio::buffer(&theirs, sizeof theirs));
            const std::string who = "rank " + std::to_string(theirs.rank);
            if (theirs.world != world) fail(who + " was started with another --world");
            if (theirs.rank < 1 || theirs.rank >= world || caller[theirs.rank] >= 0)
                fail(who + " called, but each of 0 to world-1 must call once");
            if (theirs.photos != photos) fail(who + " has other photos in --data than rank 0");
            caller[theirs.rank] = int(sockets.size()) - 1;
            listens[theirs.rank] = {sockets.back().remote_endpoint().address(), theirs.port};
        }
        for (int r = 1; r < world; ++r) {
            const tcp::endpoint right = listens[(r + 1) % world];
            answer.address = right.address().to_v4().to_uint(), answer.port = right.port();
            asio::write(sockets[caller[r]], asio::buffer(&answer, sizeof answer));
        }
        answer.address = listens[1].address().to_v4().to_uint(), answer.port = listens[1].port();
    }
    job = answer.job;
    tcp::socket right = call(io, {asio::ip::address_v4(answer.address), answer.port});
    right.set_option(tcp::no_delay(true));
    return {listener.accept(), std::move(right)};
}

// ---- 7. The ring --------------------------------------------------------------------------------
//
// All ranks have an array of n floats, and all want the sum. If rank 0 collected and returned them,
// its wire would carry n floats per rank, in and out. In a ring all wires work at once. The array
// is cut into as many chunks as there are ranks, and each chunk travels around on its own:
//
//     step      rank 0             rank 1             rank 2          (three ranks, chunks A B C)
//     start     A0  B0  C0         A1  B1  C1         A2  B2  C2
//       1       sends A0 ─►        sends B1 ─►        sends C2 ─► rank 0
//               A0  B0  C02        A01 B1  C1         A2  B12 C2
//       2       sends C02 ─►       sends A01 ─►       sends B12 ─►
//               A0  B012 C02       A01 B1  C012       A012 B12 C2      each rank has one full sum
//      3, 4     the full sums travel around in the same way, and are stored instead of added
//
// Each rank sends 2·(world-1)/world · n floats, less than 2·n however many ranks there are, which
// is the least possible (Patarasuk, Yuan 2009). Each chunk is summed on one path only, so all ranks
// end with the same bits and their weights stay the same for ever.

class Ring {
 public:
    Ring(int rank, int world, const std::string& coord, uint64_t photos, Job& job)
        : rank_(rank), world_(world) {
        if (world > 1) neighbours_.push_back(meet(io_, coord, rank, world, photos, job));
    }

    // Adds a bucket on the network thread, one bucket after the other. All ranks must add the same
    // buckets in the same order. The bucket must not be touched until wait() has returned.
    void start_sum(std::span<float> bucket) {
        if (world_ == 1) return;
        sums_.push_back(asio::post(thread_, asio::use_future([this, bucket] { sum(bucket); })));
    }
    void wait() {
        for (std::future<void>& sum : sums_) sum.get();  // throws what sum() threw
        sums_.clear();
    }

 private:
    void sum(std::span<float> data) {
        const auto chunk = [&](int number) {
            const size_t c = size_t(number + world_) % size_t(world_), n = data.size();
            return data.subspan(n * c / world_, n * (c + 1) / world_ - n * c / world_);
        };
        for (int step = 0; step < world_ - 1; ++step) {
            const std::span<float> own = chunk(rank_ - step - 1);
            Floats arrived(own.size());
            exchange(chunk(rank_ - step), arrived);
            for (size_t i = 0; i < own.size(); ++i) own[i] += arrived[i];
        }
        for (int step = 0; step < world_ - 1; ++step)
            exchange(chunk(rank_ + 1 - step), chunk(rank_ - step));
    }

    // Sends and receives at the same time. If all ranks first sent and then received, a chunk too
    // large for the buffers of the system would block all of them, for ever.
    void exchange(std::span<const float> out, std::span<float> in) {
        const auto check = [](const asio::error_code& error, size_t) {
            if (error)
                fail("a neighbour in the ring is lost (" + error.message() +
                     "); start all ranks again, with --resume");
        };
        asio::async_write(neighbours_[0].right, asio::buffer(out.data(), out.size_bytes()), check);
        asio::async_read(neighbours_[0].left, asio::buffer(in.data(), in.size_bytes()), check);
        io_.restart();
        io_.run();  // until both are done
    }

    const int rank_, world_;
    asio::io_context io_;
    std::vector<Neighbours> neighbours_;  // none, or one pair
    std::vector<std::future<void>> sums_;
    asio::thread_pool thread_{1};
};

// ---- 8. The update and the checkpoint -----------------------------------------------------------
//
// A ball that rolls downhill. The gradient g changes its velocity, the velocity changes the
// weights:
//
//     g = (sum of gradients) / images + decay · w        v = 0.9 · v + g        w = w - lr · v
//
// Weight decay pulls the large weights of convolutions and of the linear layer towards 0. For a
// running mean, the "gradient" is the sum of the means, and a tenth of it enters the average.
void update(Network& net, float lr) {
    const float images = net.sums()[2];
    for (const Param& param : net.params)
        for (size_t i = param.at; i < param.at + param.size; ++i) {
            float& w = net.weights[i];
            const float g = net.gradients[i] / images;
            if (param.is_mean) {
                w = 0.9f * w + 0.1f * g;
                continue;
            }
            float& v = net.velocity[i];
            v = 0.9f * v + g + (param.decays ? 5e-4f * w : 0);
            w -= lr * v;
        }
}

// The learning rate rises for half an epoch, because large steps from random weights lead astray.
// Then it falls along half a cosine, so that the last steps are small.
double learning_rate(double base, int64_t step, int64_t per_epoch, int64_t total) {
    const double warmup = 0.5 * double(per_epoch), at = double(step);
    if (at < warmup) return base * std::min((at + 1) / warmup, 1.0);
    const double part = (at - warmup) / std::max(double(total) - warmup, 1.0);
    return base * 0.5 * (1 + std::cos(M_PI * std::min(part, 1.0)));
}

// A checkpoint is a folder step-00000020 with two files in the safetensors format:
//
//     8 bytes     length of the header
//     header      JSON: {"conv1.weight": {"dtype":"F32", "shape":[…], "data_offsets":[0, 1728]}, …}
//     numbers     of all tensors, one after the other
//
// model.safetensors holds the weights, in the order of PyTorch's convolutions (K C R S, here K R S
// C), and in its metadata all that is needed to use them. `trainer eval --from` reads it.
// optim.safetensors holds the velocities. The number of steps done is in bn1.num_batches_tracked.
// Where the job is in the data follows from it, as do all random numbers (chapters 1 and 2).

struct Stored {
    std::string name, type;
    std::vector<int> shape;
    std::string bytes;
};

std::string bytes_of(const void* data, size_t size) {
    return {static_cast<const char*>(data), size};
}

// K x 3 x 3 x C to K x C x 3 x 3, or back.
Floats reordered(const float* from, const Param& param, bool to_file) {
    Floats to(from, from + param.size);
    if (param.shape.size() < 4) return to;
    const int K = param.shape[0], C = param.shape[3];
    for (int k = 0; k < K; ++k)
        for (int rs = 0; rs < 9; ++rs)
            for (int c = 0; c < C; ++c) {
                const int ours = (k * 9 + rs) * C + c, theirs = (k * C + c) * 9 + rs;
                to_file ? to[theirs] = from[ours] : to[ours] = from[theirs];
            }
    return to;
}

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (char c : text)
        out += c == '\n'               ? "\\n"
               : c == '"' || c == '\\' ? std::string("\\") + c
                                       : std::string(1, c);
    return out + "\"";
}

void write_tensors(const std::string& path, const std::vector<Stored>& tensors,
                   const std::string& metadata) {
    std::string header = "{\"__metadata__\":" + metadata, numbers;
    for (const Stored& tensor : tensors) {
        std::string shape;
        for (int length : tensor.shape)
            shape += (shape.empty() ? "" : ",") + std::to_string(length);
        header += "," + quoted(tensor.name) + ":{\"dtype\":\"" + tensor.type + "\",\"shape\":[" +
                  shape + "],\"data_offsets\":[" + std::to_string(numbers.size()) + "," +
                  std::to_string(numbers.size() + tensor.bytes.size()) + "]}";
        numbers += tensor.bytes;
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t length = header.size();
    std::ofstream file(path, std::ios::binary);
    file << bytes_of(&length, 8) << header << numbers;
    if (!file.flush()) fail(path + " cannot be written");
}

void save(const std::string& run, Network& net, const DataSet& data, int64_t step) {
    char name[32];
    std::snprintf(name, sizeof name, "/step-%08d", int(step));
    std::vector<Stored> model, velocities;
    for (size_t b = 1; b <= net.blocks.size(); ++b)
        model.push_back(
            {"bn" + std::to_string(b) + ".num_batches_tracked", "I64", {}, bytes_of(&step, 8)});
    for (const Param& param : net.params) {
        std::vector<int> shape = param.shape;
        if (shape.size() == 4) shape = {shape[0], shape[3], 3, 3};
        const Floats values = reordered(net.weight(param), param, true);
        model.push_back({param.name, "F32", shape, bytes_of(values.data(), param.size * 4)});
        if (!param.is_mean)
            velocities.push_back({"momentum/" + param.name, "F32", param.shape,
                                  bytes_of(&net.velocity[param.at], param.size * 4)});
    }
    std::string layers = "input 64\n", classes;
    for (const Block& block : net.blocks) {
        const std::string number = block.conv.name.substr(4, 1);
        layers += "conv2d conv" + number + " out " + std::to_string(block.K) +
                  " size 3 pad 1 bias no\nbatchnorm bn" + number + "\nrelu\n" +
                  (block.pools ? "maxpool size 2\n" : "");
    }
    for (const std::string& one : data.classes)
        classes += (classes.empty() ? "" : ",") + quoted(one);
    const std::string metadata =
        "{\"format\":\"convoy\",\"model\":\"mini\",\"size\":\"64\",\"view\":\"centre\"," +
        ("\"model_text\":" + quoted(layers + "avgpool 1\nlinear fc out classes\n")) +
        ",\"classes\":" + quoted("[" + classes + "]") +
        ",\"mean\":\"[0.485,0.456,0.406]\",\"std\":\"[0.229,0.224,0.225]\"}";
    // Under another name until it is complete: a crash leaves no half checkpoint.
    const std::string folder = run + name, unfinished = folder + ".writing";
    std::filesystem::create_directories(unfinished);
    write_tensors(unfinished + "/model.safetensors", model, metadata);
    write_tensors(unfinished + "/optim.safetensors", velocities, "{}");
    std::filesystem::remove_all(folder);
    std::filesystem::rename(unfinished, folder);
}

// The bytes of a tensor. This is no parser of JSON: it looks for the name and for the offsets.
std::string read_tensor(const std::string& path, const std::string& name) {
    std::ifstream file(path, std::ios::binary);
    uint64_t length = 0;
    file.read(reinterpret_cast<char*>(&length), 8);
    std::string header(file ? length : 0, ' ');
    file.read(header.data(), std::streamsize(length));
    const size_t entry = header.find(quoted(name) + ":{");
    const size_t offsets = header.find("\"data_offsets\":[", entry);
    if (!file || entry == std::string::npos || offsets == std::string::npos)
        fail("--resume: " + path + " holds no " + name);
    char* comma;
    const uint64_t begin = std::strtoull(&header[offsets + 16], &comma, 10);
    const uint64_t end = std::strtoull(comma + 1, nullptr, 10);
    std::string bytes(end - begin, ' ');
    if (!file.seekg(std::streamoff(8 + length + begin))
             .read(bytes.data(), std::streamsize(bytes.size())))
        fail("--resume: " + path + " is cut short");
    return bytes;
}

// Reads a checkpoint of this program or of ./trainer; returns the number of steps done.
int64_t load(const std::string& folder, Network& net) {
    const std::string model = folder + "/model.safetensors", optim = folder + "/optim.safetensors";
    for (const Param& param : net.params) {
        const auto read = [&](const std::string& path, const std::string& name) {
            const std::string bytes = read_tensor(path, name);
            if (bytes.size() != param.size * 4)
                fail("--resume: " + name + " has another size: is it the same data set?");
            Floats floats(param.size);
            std::memcpy(floats.data(), bytes.data(), bytes.size());
            return floats;
        };
        std::ranges::copy(reordered(read(model, param.name).data(), param, false),
                          net.weight(param));
        if (!param.is_mean)
            std::ranges::copy(read(optim, "momentum/" + param.name), &net.velocity[param.at]);
    }
    int64_t step;
    std::memcpy(&step, read_tensor(model, "bn1.num_batches_tracked").data(), 8);
    return step;
}

// ---- 9. The training loop -----------------------------------------------------------------------

int train(std::map<std::string, std::string> options) {
    const int rank = std::stoi(options["rank"]), world = std::stoi(options["world"]);
    if (rank < 0 || rank >= world) fail("--rank must be 0 to --world minus 1");
    if (world > 1 && options["coord"].empty())
        fail("with --world, give --coord HOST:PORT of rank 0");
    const DataSet data = open_folder(options["data"]);
    const int64_t photos = int64_t(data.photos.size());
    std::string names;
    for (const Photo& photo : data.photos) names += std::filesystem::path(photo.path).filename();
    for (const std::string& one : data.classes) names += "/" + one;

    Job job{std::stoll(options["batch"]), std::stoll(options["epochs"]), std::stod(options["lr"]),
            std::stoull(options["seed"])};
    Ring ring(rank, world, options["coord"], hash(names), job);
    if (job.batch < 1 || job.epochs < 1) fail("--batch and --epochs must be 1 or more");
    if (job.lr == 0) job.lr = 0.1 * double(job.batch) / 256;
    Network net(int(data.classes.size()), job.seed);
    const int64_t per_epoch = (photos + job.batch - 1) / job.batch, total = job.epochs * per_epoch;

    // Rank 0 alone reads the checkpoint. The others add zeros to what it read: so a sum is a copy.
    float first_step = 0;  // exact up to 2^24
    if (!options["resume"].empty() && rank == 0) first_step = float(load(options["resume"], net));
    if (rank > 0) std::ranges::fill(net.weights, 0.0f);
    for (std::span<float> all :
         {std::span(&first_step, 1), std::span(net.weights), std::span(net.velocity)})
        ring.start_sum(all);
    ring.wait();

    for (int64_t step = int64_t(first_step); step < total; ++step) {
        const auto begin = std::chrono::steady_clock::now();
        const uint32_t epoch = uint32_t(step / per_epoch);
        const int64_t consumed = step % per_epoch * job.batch;
        const int64_t count = std::min(job.batch, photos - consumed);
        const int64_t first = share_begin(count, rank, world),
                      end = share_begin(count, rank + 1, world);
        const std::vector<int> bounds = group_bounds(first, end, count);

        Tensor x{int(end - first), kSide, kSide, 3};
        std::vector<int> labels;
        for (int64_t i = first; i < end; ++i) {
            const uint64_t number =
                photo_at(uint64_t(consumed + i), uint64_t(photos), job.seed, epoch);
            const Photo& photo = data.photos[number];
            const Image part = random_crop(decode(photo.path), job.seed, epoch, number);
            const bool flip = Random(job.seed, epoch, number, kFlip).uniform() < 0.5f;
            to_floats(resize(part, kSide, kSide), flip, x.at(int(i - first)));
            labels.push_back(photo.label);
        }

        std::ranges::fill(net.gradients, 0.0f);
        const Tensor answers = net.forward(std::move(x), bounds);
        const Tensor dy = softmax_cross_entropy(answers, labels, net.sums());
        net.backward(dy, bounds, [&](std::span<float> bucket) { ring.start_sum(bucket); });

        const auto waits = std::chrono::steady_clock::now();
        ring.wait();  // the gradients are now sums over all ranks
        const auto summed = std::chrono::steady_clock::now();
        const float* sums = net.sums();
        if (!std::isfinite(sums[0])) fail("the loss is not finite; use a smaller --lr");
        update(net, float(learning_rate(job.lr, step, per_epoch, total)));

        const auto ms = [](auto from, auto to) {
            return std::chrono::duration<double, std::milli>(to - from).count();
        };
        if (rank == 0) {
            std::printf(
                "epoch %d/%d  step %d/%d  loss %.6f  right %.1f %%  %.0f ms, waits for the network "
                "%.1f ms\n",
                int(epoch + 1), int(job.epochs), int(step + 1), int(total), sums[0] / sums[2],
                100 * sums[1] / sums[2], ms(begin, std::chrono::steady_clock::now()),
                ms(waits, summed));
            std::fflush(stdout);
            if ((step + 1) % per_epoch == 0) save(options["out"], net, data, step + 1);
        }
    }
    return 0;
}

// What ./trainer does instead. A lost rank ends this job, and it starts again from the checkpoint:
// there, the others form a new ring and go on ...

}  // namespace mini

int main(int argc, char** argv) try {
    // Each option with its default.
    std::map<std::string, std::string> options = {
        {"data", ""},   {"out", "runs/mini"}, {"resume", ""},   {"coord", ""}, {"rank", "0"},
        {"world", "1"}, {"batch", "64"},      {"epochs", "10"}, {"lr", "0"},   {"seed", "1"}};
    for (int i = 1; i < argc; i += 2) {
        const std::string name =
            std::string(argv[i]).substr(std::min<size_t>(2, std::strlen(argv[i])));
        if (!options.contains(name) || i + 1 == argc) {
            std::string usage = "usage: mini --data FOLDER";
            for (const auto& [option, value] : options)
                usage += " [--" + option + " " + value + "]";
            mini::fail(usage);
        }
        options[name] = argv[i + 1];
    }
    return mini::train(options);
} catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    std::_Exit(1);  // the network thread may still be waiting for a neighbour
}
