#include "data/whiten.h"

#include <opencv2/core.hpp>

#include "src/base/check.h"

namespace convoy {

std::vector<float> whitening_filters(const Source& source, const Preprocess& training, int R,
                                     int S) {
    const Preprocess how = training.for_validation();
    const auto [H, W, C] = how.size;
    const int n = R * S * C;
    ENSURE(R <= H && S <= W, "patches of ", R, "x", S, " in images of ", H, "x", W);
    cv::Mat products = cv::Mat::zeros(n, n, CV_64F);  // Σ p·pᵀ, its lower triangle
    std::vector<double> patch(static_cast<size_t>(n));
    std::vector<float> row(how.size.elems());
    ImageBuffers buffers(C);
    auto& [decoder, bytes, image, row_buffers] = buffers;
    double patches = 0;
    const double work = double(H - R + 1) * (W - S + 1) * n * n;  // per image
    const size_t images = std::min(source.size(), size_t(std::clamp(1e10 / work, 8.0, 5e3)));
    for (size_t i = 0; i < images; ++i) {
        const size_t sample = i * source.size() / images;
        const auto read = [&] {
            source.read(sample, bytes);
            decoder.open(bytes, "");
            decoder.read(image);
        };
        if (!image_fault(source, sample, read).empty()) continue;  // the loader names it
        input_row(image, how, 0, 0, row_buffers, row.data());
        for (int h = 0; h + R <= H; ++h)
            for (int w = 0; w + S <= W; ++w, ++patches) {
                for (int j = 0; j < n; ++j)  // j = (r·S + s)·C + c
                    patch[size_t(j)] = row[size_t(((h + j / (S * C)) * W + w) * C + j % (S * C))];
                for (int j = 0; j < n; ++j)
                    for (int k = 0; k <= j; ++k)
                        products.at<double>(j, k) += patch[size_t(j)] * patch[size_t(k)];
            }
    }
    if (patches == 0) fail("'init whiten': none of the first ", images, " training images decodes");
    for (int j = 0; j < n; ++j)
        for (int k = 0; k <= j; ++k)
            products.at<double>(k, j) = products.at<double>(j, k) /= patches;
    cv::Mat values, vectors;  // rows
    cv::eigen(products, values, vectors);
    std::vector<float> filters;
    for (const double sign : {1, -1})
        for (int j = 0; j < n; ++j)
            for (int k = 0; k < n; ++k)
                filters.push_back(float(sign * vectors.at<double>(j, k) /
                                        std::sqrt(std::max(values.at<double>(j), 0.0) + 5e-4)));
    return filters;
}

}  // namespace convoy
