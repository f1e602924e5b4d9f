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

// Plain loops: of these the compiler makes wide loads of bytes, of conversions of vectors it does
// not.
void max_pool_gather(const PoolSource* sources, int count, int channels, const float* mask,
                     float* dx) {
    if (count == 0)
        for (int c = 0; c < channels; ++c) dx[c] = 0;
    for (int i = 0; i < count; ++i) {
        const float* dy = sources[i].dy;
        const unsigned char* argmax = sources[i].argmax;
        const unsigned char place = static_cast<unsigned char>(sources[i].place);
        if (i == 0) {
#pragma GCC ivdep
            for (int c = 0; c < channels; ++c) dx[c] = argmax[c] == place ? dy[c] : 0;
        } else {
#pragma GCC ivdep
            for (int c = 0; c < channels; ++c) dx[c] += argmax[c] == place ? dy[c] : 0;
        }
    }
    if (mask)
#pragma GCC ivdep
        for (int c = 0; c < channels; ++c) dx[c] = mask[c] <= 0 ? 0 : dx[c];
}

}  // namespace
}  // namespace convoy
