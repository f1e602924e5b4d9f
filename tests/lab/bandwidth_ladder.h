// bandwidth_ladder.h — six ways to compute the gradient of batch norm, each faster than the one
// before, and the formula in double.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/base/random.h"
#include "tests/reference.h"

namespace convoy {

// The gradient of batch norm over all images as one group (Backend::batch_norm_grad, without a
// residual), of random numbers. bf16 holds x and dy exactly, so all rungs get the same numbers.
struct NormGradient {
    Shape shape;
    Activation act;
    std::vector<float> x, dy, gamma, beta, mean_rstd;  // N×H×W×C; C; C; C means, then C rstd

    NormGradient(Shape shape, Activation act)
        : shape(shape), act(act), x(shape.elems()), dy(x.size()) {
        Random random(1, 0, 0, kTest);
        const auto add = [&](std::vector<float>& to, float low, float high) {
            for (int c = 0; c < shape.C; ++c) to.push_back(random.uniform(low, high));
        };
        add(gamma, -1, 1), add(beta, -1, 1), add(mean_rstd, -0.5f, 0.5f), add(mean_rstd, 1, 2);
        for (size_t i = 0; i < x.size(); ++i) {
            x[i] = std::round(random.uniform(-128, 128)) / 128;
            dy[i] = std::round(random.uniform(-128, 128)) / 128;
            // Near a bend of the activation rounding would decide on which side z is.
            for (const double bend : {-3.0, 0.0, 3.0, 6.0})
                if (std::abs(z(i) - bend) < 1e-3) dy[i] = 0;
        }
    }
    double xhat(size_t i) const {
        const size_t c = i % shape.C;
        return (double(x[i]) - mean_rstd[c]) * mean_rstd[shape.C + c];
    }
    double z(size_t i) const { return gamma[i % shape.C] * xhat(i) + beta[i % shape.C]; }

    // The formula for channel c.
    struct Channel {
        std::vector<double> dx;  // of each row
        double dgamma = 0, dbeta = 0;
    };
    Channel in_double(int c) const {
        Channel to;
        for (size_t i = size_t(c); i < x.size(); i += shape.C) {
            to.dx.push_back(dy[i] * reference::activation_slope(z(i), act));  // dz
            to.dbeta += to.dx.back(), to.dgamma += to.dx.back() * xhat(i);
        }
        const double rows = double(to.dx.size()), scale = double(gamma[c]) * mean_rstd[shape.C + c];
        for (size_t row = 0; row < to.dx.size(); ++row)
            to.dx[row] =
                scale * (to.dx[row] - to.dbeta / rows - xhat(row * shape.C + c) * to.dgamma / rows);
        return to;
    }
};

struct BandwidthRung {
    std::string name;
    Type type;              // of x, dy and dx
    std::vector<float> dx;  // starts as NaN; of the rung "copy" it is x
    std::vector<float> dgamma, dbeta;
    double bytes;    // that are read and written at least
    double seconds;  // of one gradient; 0 if it was not timed
};
using BandwidthVisitor = std::function<void(const BandwidthRung&)>;

// Runs each rung once for floats and once for bf16, and hands its results over. On GPU 0 rungs are
// timed as well. "copy" copies x to dx, to compare with. If C is not a multiple of the channels in
// 16 bytes, only "scalar" and "production" remain. If the activation is not relu, they and "packs".
namespace simt {
void climb_bandwidth_ladder(const NormGradient& problem, const BandwidthVisitor& visit);
}  // namespace simt
namespace cuda {  // null in a build without nvcc
[[gnu::weak]] void climb_bandwidth_ladder(const NormGradient& problem,
                                          const BandwidthVisitor& visit);
}  // namespace cuda

}  // namespace convoy
