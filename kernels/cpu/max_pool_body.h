// max_pool_body.h — one pixel of max pooling, vectors running along the channels. Included by
// micro_body.h, so compiled for each width of vectors. See pool.cpp.
namespace convoy {
namespace {

typedef unsigned char Bytes __attribute__((vector_size(kWidth)));
typedef unsigned char BytesAnywhere __attribute__((vector_size(kWidth), aligned(1), may_alias));

inline float max_of_channel(const float* x, const PoolWindow& w, int* where) {
    float best = x[w.row_begin * w.line + w.col_begin * w.pixel];
    *where = w.row_begin * w.size_w + w.col_begin;
    for (int r = w.row_begin; r < w.row_end; ++r)
        for (int s = w.col_begin; s < w.col_end; ++s) {
            const float v = x[r * w.line + s * w.pixel];
            if (v > best || v != v) best = v, *where = r * w.size_w + s;
        }
    return best;
}

void max_pool_window(const float* x, const PoolWindow& w, int channels, float* y,
                     unsigned char* argmax) {
    int c = 0;
    for (; c + kWidth <= channels; c += kWidth) {
        Vec best = load(x + w.row_begin * w.line + w.col_begin * w.pixel + c);
        Ints where = Ints{} + (w.row_begin * w.size_w + w.col_begin);
        for (int r = w.row_begin; r < w.row_end; ++r)
            for (int s = w.col_begin; s < w.col_end; ++s) {
                const Vec v = load(x + r * w.line + s * w.pixel + c);
                const Ints better = (v > best) | (v != v);  // a NaN wins, and stays
                best = better ? v : best;
                where = better ? Ints{} + (r * w.size_w + s) : where;
            }
        store(y + c, best);
        *reinterpret_cast<BytesAnywhere*>(argmax + c) = __builtin_convertvector(where, Bytes);
    }
    for (; c < channels; ++c) {
        int where;
        y[c] = max_of_channel(x + c, w, &where);
        argmax[c] = static_cast<unsigned char>(where);
    }
}

void max_pool_gather(const PoolSource* sources, int count, int channels, const float* mask,
                     float* dx) {
    int c = 0;
    for (; c + kWidth <= channels; c += kWidth) {
        Vec sum = {};
        for (int i = 0; i < count; ++i) {
            const Bytes bytes = *reinterpret_cast<const BytesAnywhere*>(sources[i].argmax + c);
            const Ints where = __builtin_convertvector(bytes, Ints);
            sum += where == Ints{} + sources[i].place ? load(sources[i].dy + c) : Vec{};
        }
        if (mask) sum = load(mask + c) <= 0 ? Vec{} : sum;
        store(dx + c, sum);
    }
    for (; c < channels; ++c) {
        float sum = 0;
        for (int i = 0; i < count; ++i)
            if (sources[i].argmax[c] == sources[i].place) sum += sources[i].dy[c];
        dx[c] = mask && mask[c] <= 0 ? 0.0f : sum;
    }
}

}  // namespace
}  // namespace convoy
