// What kernels/add_norm.py, bias_act.py and qk_norm_rope.py compute, for the CPU: numbers that a layer of torch would
// read and write several times are read and written once. Sums are in float32.
//
// Each function computes the rows from `first` to `end`, so that threads can share them. A number is float or BFloat16;
// X is the type of the residual stream, T that of the layers.
#include <cmath>
#include <cstdint>
#include <cstring>

struct BFloat16 {
    uint16_t bits;
};

static inline float load(float x) { return x; }

static inline float load(BFloat16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void store(float &to, float x) { to = x; }

static inline void store(BFloat16 &to, float x) {    // the nearest number, of two the even one; NaN stays NaN
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    to.bits = x == x ? uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16) : 0x7fc0;
}

template <typename Function>
static void with_type(bool bfloat16, Function function) {
    if (bfloat16) function(BFloat16{});
    else function(float{});
}

// The sum x + delta and its RMSNorm; without delta the norm of x alone, and no sum is written.

template <typename X, typename T>
static void add_norm_rows(const X *x, const T *delta, const float *weight, X *total, T *out, float *rstds,
                          int64_t first, int64_t end, int64_t width, float epsilon) {
    for (int64_t row = first; row < end; row++) {
        const X *sum = x + row * width;
        T *normed = out + row * width;
        float squares = 0;
        if (delta) {
            const T *more = delta + row * width;
            X *to = total + row * width;
            #pragma omp simd
            for (int64_t i = 0; i < width; i++) store(to[i], load(sum[i]) + load(more[i]));
            sum = to;
        }
        #pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < width; i++) squares += load(sum[i]) * load(sum[i]);
        float rstd = rstds[row] = 1 / std::sqrt(squares / width + epsilon);
        #pragma omp simd
        for (int64_t i = 0; i < width; i++) store(normed[i], load(sum[i]) * rstd * (weight ? weight[i] : 1));
    }
}

// `sums`: where the gradient of the weight is added up, or none; `grad_delta`: none where X is T.
template <typename X, typename T>
static void add_norm_backward_rows(const X *grad_total, const T *grad_out, const X *total, const float *rstds,
                                   const float *weight, X *grad_x, T *grad_delta, float *sums, int64_t first,
                                   int64_t end, int64_t width) {
    for (int64_t row = first; row < end; row++) {
        const X *added = grad_total ? grad_total + row * width : nullptr, *sum = total + row * width;
        const T *grads = grad_out + row * width;
        X *to = grad_x + row * width;
        T *rounded = grad_delta ? grad_delta + row * width : nullptr;
        float rstd = rstds[row], along = 0;
        if (sums) {
            #pragma omp simd
            for (int64_t i = 0; i < width; i++) sums[i] += load(grads[i]) * load(sum[i]) * rstd;
        }
        #pragma omp simd reduction(+ : along)
        for (int64_t i = 0; i < width; i++) along += load(grads[i]) * (weight ? weight[i] : 1) * load(sum[i]);
        along *= rstd * rstd / width;
        #pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            float result = (load(grads[i]) * (weight ? weight[i] : 1) - load(sum[i]) * along) * rstd;
            if (added) result += load(added[i]);
            store(to[i], result);
            if (rounded) store(rounded[i], result);
        }
    }
}

// ReLU² of a product and its bias.

static inline float relu(float x) { return x < 0 ? 0 : x; }    // NaN stays NaN

template <typename T>
static void relu2_rows(const T *product, const float *bias, T *out, int64_t first, int64_t end, int64_t width) {
    for (int64_t row = first; row < end; row++) {
        const T *x = product + row * width;
        T *to = out + row * width;
        #pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            float value = relu(load(x[i]) + (bias ? bias[i] : 0));
            store(to[i], value * value);
        }
    }
}

template <typename T>
static void relu2_backward_rows(const T *grad_out, const T *product, const float *bias, T *grad_product, float *sums,
                                int64_t first, int64_t end, int64_t width) {
    for (int64_t row = first; row < end; row++) {
        const T *grads = grad_out + row * width, *x = product + row * width;
        T *to = grad_product + row * width;
        #pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            float grad = 2 * relu(load(x[i]) + (bias ? bias[i] : 0)) * load(grads[i]);
            store(to[i], grad);
            if (sums) sums[i] += grad;
        }
    }
}

// QK norm (RMSNorm) and RoPE of the heads of a packed product. Numbers i and i + half of a head are a point in a plane
// that is rotated: (a, b) → (a cos - b sin, b cos + a sin).

struct Heads {
    int64_t queries, keys, half, tokens;    // heads of queries and of keys; half a head; tokens in the tables
    float epsilon;
    bool norm;
    const float *cos, *sin;                 // (tokens, 2 half) or none: no RoPE
};

struct Angle {
    const float *cos, *sin;    // of the numbers of half a head

    Angle(const Heads &how, int64_t row) {
        int64_t at = row % how.tokens * 2 * how.half + how.half;
        cos = how.cos ? how.cos + at : nullptr;
        sin = how.sin ? how.sin + at : nullptr;
    }
};

template <typename T>
static float rstd_of(const T *x, const Heads &how) {
    if (!how.norm) return 1;
    float squares = 0;
    #pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < 2 * how.half; i++) squares += load(x[i]) * load(x[i]);
    return 1 / std::sqrt(squares / (2 * how.half) + how.epsilon);
}

template <typename T>
static void place_head(const T *x, T *to, const Heads &how, Angle angle) {
    int64_t half = how.half;
    float rstd = rstd_of(x, how);
    #pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        float a = load(x[i]) * rstd, b = load(x[i + half]) * rstd;
        float cos = angle.cos ? angle.cos[i] : 1, sin = angle.sin ? angle.sin[i] : 0;
        store(to[i], a * cos - b * sin);
        store(to[i + half], b * cos + a * sin);
    }
}

// The normed values are computed again.
template <typename T>
static void place_head_backward(const T *grads, const T *x, T *to, const Heads &how, Angle angle) {
    int64_t half = how.half;
    float rstd = rstd_of(x, how), along = 0;
    auto rotated_back = [&](int64_t i, float &a, float &b) {
        float cos = angle.cos ? angle.cos[i] : 1, sin = angle.sin ? angle.sin[i] : 0;
        a = load(grads[i]) * cos + load(grads[i + half]) * sin;
        b = load(grads[i + half]) * cos - load(grads[i]) * sin;
    };
    if (how.norm) {
        #pragma omp simd reduction(+ : along)
        for (int64_t i = 0; i < half; i++) {
            float a, b;
            rotated_back(i, a, b);
            along += a * load(x[i]) + b * load(x[i + half]);
        }
        along *= rstd * rstd / (2 * half);
    }
    #pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        float a, b;
        rotated_back(i, a, b);
        store(to[i], (a - load(x[i]) * along) * rstd);
        store(to[i + half], (b - load(x[i + half]) * along) * rstd);
    }
}

template <typename T>
static void place_rows(const T *packed, T *queries, T *keys, T *values, int64_t first, int64_t end, const Heads &how) {
    int64_t size = 2 * how.half;
    for (int64_t row = first; row < end; row++) {
        const T *x = packed + row * (how.queries + 2 * how.keys) * size;
        T *query = queries + row * how.queries * size, *key = keys + row * how.keys * size;
        Angle angle(how, row);
        for (int64_t head = 0; head < how.queries; head++, x += size) place_head(x, query + head * size, how, angle);
        for (int64_t head = 0; head < how.keys; head++, x += size) place_head(x, key + head * size, how, angle);
        memcpy(values + row * how.keys * size, x, how.keys * size * sizeof(T));
    }
}

template <typename T>
static void place_backward_rows(const T *grad_queries, const T *grad_keys, const T *grad_values, const T *packed,
                                T *grad_packed, int64_t first, int64_t end, const Heads &how) {
    int64_t size = 2 * how.half;
    for (int64_t row = first; row < end; row++) {
        int64_t at = row * (how.queries + 2 * how.keys) * size;
        const T *query = grad_queries + row * how.queries * size, *key = grad_keys + row * how.keys * size;
        Angle angle(how, row);
        for (int64_t head = 0; head < how.queries; head++, at += size)
            place_head_backward(query + head * size, packed + at, grad_packed + at, how, angle);
        for (int64_t head = 0; head < how.keys; head++, at += size)
            place_head_backward(key + head * size, packed + at, grad_packed + at, how, angle);
        memcpy(grad_packed + at, grad_values + row * how.keys * size, how.keys * size * sizeof(T));
    }
}

// Dropout: 16 random bits for each number, as in dropout.py. Bits that a key and a place determine need not be stored:
// the backward pass draws them again, and threads draw theirs in any order.

static const int64_t SHARED = 4;    // numbers that share 64 random bits

static inline uint64_t random_bits(uint64_t x) {    // SplitMix64 (Steele, Lea & Flood 2014)
    x *= 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

template <typename T>
static void dropout_numbers(const T *x, T *to, int64_t first, int64_t end, uint64_t key, int32_t lowest, float scale) {
    const int64_t words = 16, block = SHARED * words;
    uint64_t bits[words];
    uint16_t levels[block];
    for (int64_t at = first / block * block; at < end; at += block) {
        for (int64_t i = 0; i < words; i++) bits[i] = random_bits(key + at / SHARED + i);
        memcpy(levels, bits, sizeof bits);
        int64_t from = at < first ? first : at, until = at + block < end ? at + block : end;
        for (int64_t i = from; i < until; i++)    // a product, so that NaN stays NaN
            store(to[i], load(x[i]) * (levels[i - at] < lowest ? 0 : scale));
    }
}

// As layers.py calls them: the first arguments say which numbers are BFloat16.

extern "C" void add_norm(bool stream, bool bfloat16, int64_t first, int64_t end, const void *x, const void *delta,
                         const float *weight, void *total, void *out, float *rstds, int64_t width, float epsilon) {
    with_type(stream, [=](auto one) {
        with_type(bfloat16, [=](auto other) {
            using X = decltype(one);
            using T = decltype(other);
            add_norm_rows((const X *)x, (const T *)delta, weight, (X *)total, (T *)out, rstds, first, end, width,
                          epsilon);
        });
    });
}

extern "C" void add_norm_backward(bool stream, bool bfloat16, int64_t first, int64_t end, float *sums,
                                  const void *grad_total, const void *grad_out, const void *total, const float *rstds,
                                  const float *weight, void *grad_x, void *grad_delta, int64_t width) {
    with_type(stream, [=](auto one) {
        with_type(bfloat16, [=](auto other) {
            using X = decltype(one);
            using T = decltype(other);
            add_norm_backward_rows((const X *)grad_total, (const T *)grad_out, (const X *)total, rstds, weight,
                                   (X *)grad_x, (T *)grad_delta, sums, first, end, width);
        });
    });
}

extern "C" void relu2(bool bfloat16, int64_t first, int64_t end, const void *product, const float *bias, void *out,
                      int64_t width) {
    with_type(bfloat16, [=](auto one) {
        using T = decltype(one);
        relu2_rows((const T *)product, bias, (T *)out, first, end, width);
    });
}

extern "C" void relu2_backward(bool bfloat16, int64_t first, int64_t end, float *sums, const void *grad_out,
                               const void *product, const float *bias, void *grad_product, int64_t width) {
    with_type(bfloat16, [=](auto one) {
        using T = decltype(one);
        relu2_backward_rows((const T *)grad_out, (const T *)product, bias, (T *)grad_product, sums, first, end, width);
    });
}

extern "C" void qk_norm_rope(bool bfloat16, int64_t first, int64_t end, const void *packed, void *queries, void *keys,
                             void *values, const Heads *how) {
    with_type(bfloat16, [=](auto one) {
        using T = decltype(one);
        place_rows((const T *)packed, (T *)queries, (T *)keys, (T *)values, first, end, *how);
    });
}

extern "C" void qk_norm_rope_backward(bool bfloat16, int64_t first, int64_t end, const void *grad_queries,
                                      const void *grad_keys, const void *grad_values, const void *packed,
                                      void *grad_packed, const Heads *how) {
    with_type(bfloat16, [=](auto one) {
        using T = decltype(one);
        place_backward_rows((const T *)grad_queries, (const T *)grad_keys, (const T *)grad_values, (const T *)packed,
                            (T *)grad_packed, first, end, *how);
    });
}

extern "C" void dropout(bool bfloat16, int64_t first, int64_t end, const void *x, void *to, uint64_t key,
                        int32_t lowest, float scale) {
    with_type(bfloat16, [=](auto one) {
        using T = decltype(one);
        dropout_numbers((const T *)x, (T *)to, first, end, key, lowest, scale);
    });
}
