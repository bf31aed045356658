#include "eagle_flash_attn.h"

#include "eagle_kernels.h"
#include "eagle_simd.h"

#ifdef EAGLE_SIMD

#include <algorithm>
#include <cmath>

#include "ggml-cpu-impl.h"
#include "vec.h"

namespace eagle {
namespace {

constexpr int64_t SEGMENT = 512;  // cache positions that are summed together
constexpr int TILE = 16;          // query rows (heads of a group times tokens) that share one pass over a segment

bool in_floats(const ggml_tensor * t) {
    return t->type == GGML_TYPE_F32 || t->type == GGML_TYPE_F16 || t->type == GGML_TYPE_BF16;
}

struct shape {
    const ggml_tensor *q, *k, *v, *mask, *sinks;
    int64_t dk, dv, n_kv, tokens, heads, group, segments, tiles;

    explicit shape(const ggml_tensor * node)
        : q(node->src[0]), k(node->src[1]), v(node->src[2]), mask(node->src[3]), sinks(node->src[4]) {
        dk = k->ne[0];
        dv = v->ne[0];
        n_kv = k->ne[1];
        tokens = q->ne[1];
        heads = q->ne[2];
        group = heads / k->ne[2];
        segments = (n_kv + SEGMENT - 1) / SEGMENT;
        tiles = (group * tokens + TILE - 1) / TILE;
    }
    int64_t rows() const { return tokens * heads * q->ne[3]; }
    // Floats of one thread: scores, then a segment's keys and values where they are quantized.
    int64_t scratch() const {
        return TILE * SEGMENT + SEGMENT * (in_floats(k) ? 0 : dk) + SEGMENT * (in_floats(v) ? 0 : dv);
    }
    int64_t partial() const { return dv + LANES; }  // floats: dv sums, the maximum, the sum of weights, padding
};

// Positions of a segment, of one key head: as they lie in the cache, or turned into floats once for all rows.
struct cells {
    ggml_type type;
    const char * data;  // at position 0 of the segment
    size_t stride;

    cells(const ggml_tensor * t, const char * at, int64_t begin, int64_t end, float * scratch)
        : type(t->type), data(at), stride(t->nb[1]) {
        if (in_floats(t)) {
            return;
        }
        const ggml_to_float_t to_float = ggml_get_type_traits(t->type)->to_float;
        for (int64_t i = begin; i < end; ++i) {
            to_float(at + i * stride, scratch + i * t->ne[0], t->ne[0]);
        }
        type = GGML_TYPE_F32;
        data = (const char *) scratch;
        stride = (size_t) t->ne[0] * sizeof(float);
    }
};

// What the scores go through after the product.
struct score_rule {
    float scale, softcap, max_bias;

    explicit score_rule(const ggml_tensor * node) {
        memcpy(&scale, (const float *) node->op_params + 0, sizeof(float));
        memcpy(&max_bias, (const float *) node->op_params + 1, sizeof(float));
        memcpy(&softcap, (const float *) node->op_params + 2, sizeof(float));
        if (softcap != 0.0f) {
            scale /= softcap;
        }
    }
    float slope(int64_t head, int64_t heads) const {
        if (max_bias <= 0.0f) {
            return 1.0f;
        }
        const int64_t n = (int64_t) 1 << (int) floor(log2((double) heads));
        const float m0 = powf(2.0f, -max_bias / n), m1 = powf(2.0f, -max_bias / 2.0f / n);
        return head < n ? powf(m0, (float) (head + 1)) : powf(m1, (float) (2 * (head - n) + 1));
    }
};

// One pass: the rows of a tile against one segment.
struct pass {
    int n;
    const char * query[TILE];
    const uint16_t * mask[TILE];  // at position 0 of the segment, or null
    float slope[TILE];
    float * out[TILE];   // partial results
    int64_t begin, end;  // positions of the segment that some row attends to, begin a multiple of LANES
};

inline vf exp_v(vf x) {
#if !defined(EAGLE_SIMD_512) && defined(__AVX512F__) && defined(__AVX512DQ__)  // ggml's is wider there than ours
    return _mm512_castps512_ps256(ggml_v_expf(_mm512_zextps256_ps512(x)));
#else
    return ggml_v_expf(x);
#endif
}
#ifdef EAGLE_SIMD_512
inline vf sub_v(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}
inline vf add_v(vf a, vf b) {
    return _mm512_add_ps(a, b);
}
inline vf max_v(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
#else
inline vf sub_v(vf a, vf b) {
    return _mm256_sub_ps(a, b);
}
inline vf add_v(vf a, vf b) {
    return _mm256_add_ps(a, b);
}
inline vf max_v(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
#endif

inline float top_of(vf a) {
    float t[LANES];
    v_storef(t, a);
    return *std::max_element(t, t + LANES);
}

// Scores -> softmax weights in place; returns false if the row attends to nothing here. `n` is padded to LANES with
// -inf.
bool weigh(float * s, int64_t n, float & top, float & sum) {
    vf m = v_set1f(-INFINITY);
    for (int64_t i = 0; i < n; i += LANES) {
        m = max_v(m, v_loadf(s + i));
    }
    top = top_of(m);
    sum = 0.0f;
    if (top == -INFINITY) {
        return false;
    }
    vf total = v_zerof();
    for (int64_t i = 0; i < n; i += LANES) {
        const vf p = exp_v(sub_v(v_loadf(s + i), v_set1f(top)));
        v_storef(s + i, p);
        total = add_v(total, p);
    }
    sum = v_sum(total);
    return true;
}

// The scores of one row, from the products to what the softmax takes.
void apply_rule(float * s, const pass & p, int row, const score_rule & rule) {
    const int64_t n = p.end - p.begin;
    for (int64_t i = 0; i < n; i += LANES) {
        v_storef(s + i, v_mul(v_loadf(s + i), v_set1f(rule.scale)));
    }
    for (int64_t i = 0; i < n && rule.softcap != 0.0f; ++i) {
        s[i] = rule.softcap * tanhf(s[i]);
    }
    if (p.mask[row] != nullptr) {
        const uint16_t * mask = p.mask[row] + p.begin;
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) {
            v_storef(s + i, v_fma(v_set1f(p.slope[row]), v_load_f16(mask + i), v_loadf(s + i)));
        }
        for (; i < n; ++i) {
            s[i] = std::fma(p.slope[row], f16_to_float(mask[i]), s[i]);
        }
    }
    std::fill(s + n, s + (n + LANES - 1) / LANES * LANES, -INFINITY);
}

template <ggml_type T>
struct value;
template <>
struct value<GGML_TYPE_F32> {
    static inline vf load(const char * p, int64_t i) { return v_loadf((const float *) p + i); }
};
template <>
struct value<GGML_TYPE_F16> {
    static inline vf load(const char * p, int64_t i) { return v_load_f16((const uint16_t *) p + i); }
};
template <>
struct value<GGML_TYPE_BF16> {
    static inline vf load(const char * p, int64_t i) { return v_load_bf16((const uint16_t *) p + i); }
};

// out[j][d .. d + WIDTH vectors) = sum over positions of weight * value.
template <ggml_type T, int NR, int WIDTH>
void mix(const char * v, size_t stride, int64_t n, const float * w, int64_t w_stride, float * const * out, int64_t d) {
    vf acc[NR][WIDTH];
    for (int j = 0; j < NR; ++j) {
        for (int c = 0; c < WIDTH; ++c) {
            acc[j][c] = v_zerof();
        }
    }
    for (int64_t i = 0; i < n; ++i) {
        vf x[WIDTH];
        for (int c = 0; c < WIDTH; ++c) {
            x[c] = value<T>::load(v + i * stride, d + c * LANES);
        }
        for (int j = 0; j < NR; ++j) {
            const vf p = v_set1f(w[j * w_stride + i]);
            for (int c = 0; c < WIDTH; ++c) {
                acc[j][c] = v_fma(p, x[c], acc[j][c]);
            }
        }
    }
    for (int j = 0; j < NR; ++j) {
        for (int c = 0; c < WIDTH; ++c) {
            v_storef(out[j] + d + c * LANES, acc[j][c]);
        }
    }
}

template <ggml_type T, int WIDTH>
void mix_rows(const char * v, size_t stride, int64_t n, const float * w, float * const * out, int rows, int64_t d) {
    for (int j = 0; j < rows;) {
        const float * wj = w + j * SEGMENT;
        if (rows - j >= 4) {
            mix<T, 4, WIDTH>(v, stride, n, wj, SEGMENT, out + j, d);
            j += 4;
        } else if (rows - j >= 2) {
            mix<T, 2, WIDTH>(v, stride, n, wj, SEGMENT, out + j, d);
            j += 2;
        } else {
            mix<T, 1, WIDTH>(v, stride, n, wj, SEGMENT, out + j, d);
            j += 1;
        }
    }
}

template <ggml_type T>
void mix_all(const char * v, size_t stride, int64_t n, int64_t dv, const float * w, float * const * out, int rows) {
    int64_t d = 0;
    for (; d + 4 * LANES <= dv; d += 4 * LANES) {
        mix_rows<T, 4>(v, stride, n, w, out, rows, d);
    }
    for (; d < dv; d += LANES) {
        mix_rows<T, 1>(v, stride, n, w, out, rows, d);
    }
}

void mix_type(const cells & v, int64_t begin, int64_t n, int64_t dv, const float * w, float * const * out, int rows) {
    const char * at = v.data + begin * v.stride;
    switch (v.type) {
    case GGML_TYPE_F32:
        return mix_all<GGML_TYPE_F32>(at, v.stride, n, dv, w, out, rows);
    case GGML_TYPE_F16:
        return mix_all<GGML_TYPE_F16>(at, v.stride, n, dv, w, out, rows);
    default:
        return mix_all<GGML_TYPE_BF16>(at, v.stride, n, dv, w, out, rows);
    }
}

// The positions of a segment that any row of the pass may attend to.
void trim(pass & p, int64_t n) {
    p.begin = 0;
    p.end = n;
    if (p.mask[0] == nullptr) {
        return;
    }
    constexpr uint16_t HIDDEN = 0xfc00;  // -inf
    const auto hidden = [&](int64_t i) {
        return std::all_of(p.mask, p.mask + p.n, [i](const uint16_t * m) { return m[i] == HIDDEN; });
    };
    while (p.end > 0 && hidden(p.end - 1)) {
        --p.end;
    }
    while (p.begin < p.end && hidden(p.begin)) {
        ++p.begin;
    }
    p.begin = p.begin / LANES * LANES;
}

void run_pass(const shape & s, const pass & p, const score_rule & rule, const cells & k, const cells & v,
              float * scores) {
    if (p.begin < p.end) {
        float * rows[TILE];
        for (int j = 0; j < p.n; ++j) {
            rows[j] = scores + j * SEGMENT;
        }
        const kernel & dot = *find_kernel(k.type, layout::plain);
        dot.dot({&dot, s.dk, k.data + p.begin * k.stride, k.stride, p.end - p.begin, p.query, p.n, rows});
    }
    int n = 0;
    float * out[TILE];
    for (int j = 0; j < p.n; ++j) {
        float * row = scores + j * SEGMENT;
        const int64_t len = p.end - p.begin;
        if (len > 0) {
            apply_rule(row, p, j, rule);
        }
        p.out[j][s.dv] = -INFINITY;
        p.out[j][s.dv + 1] = 0.0f;
        if (len > 0 && weigh(row, (len + LANES - 1) / LANES * LANES, p.out[j][s.dv], p.out[j][s.dv + 1])) {
            memmove(scores + n * SEGMENT, row, (size_t) len * sizeof(float));  // rows without weights drop out
            out[n++] = p.out[j];
        }
    }
    if (n > 0) {
        mix_type(v, p.begin, p.end - p.begin, s.dv, scores, out, n);
    }
}

// Unit u of work: a segment of one key head of one stream, for one tile of its query rows.
void run_unit(const shape & s, const score_rule & rule, int64_t u, float * partials, float * scores) {
    const int64_t tile = u % s.tiles, seg = u / s.tiles % s.segments, h = u / s.tiles / s.segments % s.k->ne[2],
                  stream = u / s.tiles / s.segments / s.k->ne[2];
    const int64_t i3 = stream / (s.q->ne[3] / s.k->ne[3]), hv = h * s.v->ne[2] / s.k->ne[2];
    const int64_t start = seg * SEGMENT;
    pass p;
    p.n = 0;
    for (int64_t r = tile * TILE; r < std::min((tile + 1) * TILE, s.group * s.tokens); ++r, ++p.n) {
        const int64_t head = h * s.group + r / s.tokens, token = r % s.tokens;
        const int64_t row = token + s.tokens * (head + s.heads * stream);
        p.query[p.n] = (const char *) s.q->data + token * s.q->nb[1] + head * s.q->nb[2] + stream * s.q->nb[3];
        p.out[p.n] = partials + (row * s.segments + seg) * s.partial();
        p.slope[p.n] = rule.slope(head, s.heads);
        p.mask[p.n] = s.mask == nullptr ? nullptr
                                        : (const uint16_t *) ((const char *) s.mask->data + token * s.mask->nb[1] +
                                                              head % s.mask->ne[2] * s.mask->nb[2] +
                                                              stream % s.mask->ne[3] * s.mask->nb[3]) +
                                              start;
    }
    trim(p, std::min(SEGMENT, s.n_kv - start));
    float *floats = scores + TILE * SEGMENT, *values = floats + (in_floats(s.k) ? 0 : SEGMENT * s.dk);
    const cells k(s.k, (const char *) s.k->data + start * s.k->nb[1] + h * s.k->nb[2] + i3 * s.k->nb[3], p.begin, p.end,
                  floats);
    const cells v(s.v, (const char *) s.v->data + start * s.v->nb[1] + hv * s.v->nb[2] + i3 * s.v->nb[3], p.begin,
                  p.end, values);
    run_pass(s, p, rule, k, v, scores);
}

// Joins the segments of one row, in order.
void join(const shape & s, const float * partial, float * out, const float * sink) {
    float top = sink != nullptr ? *sink : -INFINITY;
    for (int64_t i = 0; i < s.segments; ++i) {
        top = std::max(top, partial[i * s.partial() + s.dv]);
    }
    float sum = sink != nullptr ? expf(*sink - top) : 0.0f;
    std::fill(out, out + s.dv, 0.0f);
    for (int64_t i = 0; i < s.segments; ++i) {
        const float * x = partial + i * s.partial();
        if (x[s.dv] == -INFINITY) {
            continue;
        }
        const float w = expf(x[s.dv] - top);
        sum = std::fma(x[s.dv + 1], w, sum);
        for (int64_t d = 0; d < s.dv; d += LANES) {
            v_storef(out + d, v_fma(v_set1f(w), v_loadf(x + d), v_loadf(out + d)));
        }
    }
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int64_t d = 0; d < s.dv; ++d) {
        out[d] *= inverse;
    }
}

bool readable(const ggml_tensor * t) {
    return t->nb[0] == ggml_type_size(t->type) && (in_floats(t) || ggml_get_type_traits(t->type)->to_float != nullptr);
}

}  // namespace

bool takes_flash_attn(const ggml_tensor * node) {
    const ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2];
    return q->ne[1] <= MAX_ROWS && q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) && readable(k) &&
           readable(v) && v->ne[0] % LANES == 0 && q->ne[2] % k->ne[2] == 0 && k->ne[2] % v->ne[2] == 0 &&
           k->ne[3] == v->ne[3] && q->ne[3] % k->ne[3] == 0;
}

size_t flash_attn_work_size(int n_threads, const ggml_tensor * node) {
    const shape s(node);
    return (size_t) (n_threads * s.scratch() + s.rows() * s.segments * s.partial()) * sizeof(float) + 64;
}

void flash_attn(const ggml_compute_params * params, ggml_tensor * node) {
    const shape s(node);
    const score_rule rule(node);
    float * work = (float *) align64(params->wdata);
    float * scores = work + params->ith * s.scratch();
    float * partials = work + params->nth * s.scratch();
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);
    const int64_t units = s.tiles * s.segments * s.k->ne[2] * s.q->ne[3];
    for (int64_t u = params->ith; u < units; u = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        run_unit(s, rule, u, partials, scores);
    }
    ggml_barrier(params->threadpool);
    for (int64_t row = params->ith; row < s.rows(); row += params->nth) {
        const int64_t token = row % s.tokens, head = row / s.tokens % s.heads, stream = row / s.tokens / s.heads;
        float * out = (float *) ((char *) node->data + head * node->nb[1] + token * node->nb[2] + stream * node->nb[3]);
        join(s, partials + row * s.segments * s.partial(), out,
             s.sinks != nullptr ? (const float *) s.sinks->data + head : nullptr);
    }
}

}  // namespace eagle

#else

namespace eagle {

bool takes_flash_attn(const ggml_tensor *) {
    return false;
}
size_t flash_attn_work_size(int, const ggml_tensor *) {
    return 0;
}
void flash_attn(const ggml_compute_params *, ggml_tensor *) {}

}  // namespace eagle

#endif  // EAGLE_SIMD
