#include "eagle_flash_attn.h"

#include "eagle_cells.h"
#include "eagle_kernels.h"
#include "eagle_lane_scores.h"
#include "eagle_shares.h"
#include "eagle_simd.h"

#ifdef EAGLE_SIMD

#include <algorithm>
#include <cmath>

#include "ggml-cpu-impl.h"
#include "vec.h"

namespace eagle {
namespace {

constexpr int64_t BLOCK = 8;                    // positions that are converted to floats at a time
constexpr int64_t HALF_BLOCK = 32;              // positions that are read at a time as half floats
constexpr int64_t PREFETCH_BLOCKS = 3;          // prefetch distance
constexpr int MIX_ROWS = LANES == 16 ? 12 : 6;  // rows whose sums of values, two vectors each, fit the registers

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
    // Tiles are numbered consecutively over the key heads of all streams.
    int64_t all_tiles() const { return tiles * k->ne[2] * q->ne[3]; }
    int64_t key_head(int64_t tile) const { return tile / tiles % k->ne[2]; }
    int64_t stream(int64_t tile) const { return tile / tiles / k->ne[2]; }
    // Returns the tile's first query row, numbered over all tiles. The rows of a key head are the tokens of its query
    // heads.
    int64_t first(int64_t tile) const {
        const int64_t rows = group * tokens;
        return tile / tiles * rows + rows * (tile % tiles) / tiles;
    }
    // Scratch floats of one thread: scores, query rows, and a block of keys or values.
    int64_t scratch() const { return TILE * SEGMENT + 2 * TILE * padded(dk) + 2 * BLOCK * std::max(padded(dk), dv); }
    int64_t partial() const {
        return dv + LANES;
    }  // floats of a partial result: dv sums, the maximum, the sum of weights, padding
};

// Transformation of the scores: the query is scaled before the product; softcap and slope apply after it.
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

// One pass: the rows of a tile with one segment.
struct pass {
    int n;
    const char * query[TILE];
    const uint16_t * mask[TILE];  // at position 0 of the segment, or null
    float slope[TILE];
    float * out[TILE];   // partial results
    int64_t begin, end;  // positions of the segment that any row attends to; begin is a multiple of LANES
};

inline vf exp_v(vf x) {
#if !defined(EAGLE_SIMD_512) && defined(__AVX512F__) && defined(__AVX512DQ__)
    // In this build ggml_v_expf takes vectors of 512 bits, and ours have 256.
    return _mm512_castps512_ps256(ggml_v_expf(_mm512_zextps256_ps512(x)));
#else
    return ggml_v_expf(x);
#endif
}
inline float top_of(vf a) {
    float t[LANES];
    v_storef(t, a);
    return *std::max_element(t, t + LANES);
}

// Load a vector of half floats or floats from element d of a row.
constexpr auto load_half = [](const char * row, int64_t d) { return v_load_f16(row + 2 * d); };
constexpr auto load_float = [](const char * row, int64_t d) { return v_loadf((const float *) row + d); };

// Computes scores[j][0 .. 4): products of four keys, `stride` bytes apart and loaded by `load`, with LANES / 4 query
// rows of `width` floats.
template <typename Load>
void score_some(const char * key, size_t stride, const float * query, int64_t width, float * const * scores, int rows,
                Load load) {
    constexpr int QUERIES = LANES / 4;
    vf acc[4 * QUERIES];
    for (vf & sum : acc) {
        sum = v_zerof();
    }
    for (int64_t d = 0; d < width; d += LANES) {
        vf k[4];
        for (int c = 0; c < 4; ++c) {
            k[c] = load(key + c * stride, d);
            v_keep(k[c]);
        }
        for (int j = 0; j < QUERIES; ++j) {
            vf q = v_loadf(query + j * width + d);
            v_keep(q);
            for (int c = 0; c < 4; ++c) {
                acc[QUERIES * c + j] = v_fma(k[c], q, acc[QUERIES * c + j]);
            }
        }
    }
    float sums[LANES];
    v_storef(sums, v_sums(acc));
    for (int j = 0; j < rows; ++j) {
        memcpy(scores[j], sums + 4 * j, 4 * sizeof(float));
    }
}

// Computes scores[j * SEGMENT + i] = key i times query j for n keys; entries up to the next multiple of LANES are
// overwritten. If there is only one group of queries, half floats are read without a conversion to a block of floats.
void score(const cells & k, int64_t begin, int64_t n, const float * queries, int rows, float * block, float * scores,
           const cells & next, const uint16_t * const * mask) {
    constexpr int QUERIES = LANES / 4;
    const int64_t width = padded(k.width);
#ifdef EAGLE_SIMD_512
    if (has_lane_scores(width, rows)) {
        float * columns = block + LANE_KEYS * width;
        to_columns(queries, rows, width, columns);
        for (int64_t i = 0; i < n; i += LANE_KEYS) {
            for (int j = 0; j < rows && mask[j] != nullptr; ++j) {  // weigh() reads each part only once
                _mm_prefetch((const char *) (mask[j] + begin + i), _MM_HINT_T1);
            }
            const bool last = i + LANE_KEYS >= n;
            const int64_t some = std::min<int64_t>(LANE_KEYS, n - i);
            prefetcher prefetch(last ? next : k, begin + i + LANE_KEYS - (last ? n : 0), LANE_KEYS, lane_leaves(width));
            k.to_floats(block, begin + i, some);
            score_lanes(block, width, some, columns, rows, scores + i, prefetch);
        }
        return;
    }
#endif
    const int steps = (rows + QUERIES - 1) / QUERIES * (int) (BLOCK / 4);
    for (int64_t i = 0; i < n; i += BLOCK) {
        const bool last = i + PREFETCH_BLOCKS * BLOCK >= n;
        const int64_t some = std::min(BLOCK, n - i);
        prefetcher prefetch(last ? next : k, begin + i + PREFETCH_BLOCKS * BLOCK - (last ? n : 0), BLOCK, steps);
        const bool is_direct = rows <= QUERIES && some % 4 == 0 && k.are_half_vectors();
        if (!is_direct) {
            k.to_floats(block, begin + i, some);
        }
        for (int j = 0; j < rows; j += QUERIES) {
            for (int64_t c = 0; c < some; c += 4) {
                prefetch.step();
                float * out[QUERIES];
                for (int q = 0; q < QUERIES; ++q) {
                    out[q] = scores + (j + q) * SEGMENT + i + c;
                }
                const int some_rows = std::min(QUERIES, rows - j);
                if (is_direct) {
                    score_some(k.data + (begin + i + c) * k.stride, k.stride, queries + j * width, width, out,
                               some_rows, load_half);
                } else {
                    score_some((const char *) (block + c * width), width * sizeof(float), queries + j * width, width,
                               out, some_rows, load_float);
                }
            }
        }
    }
}

// Converts the scores of one row to softmax weights in place. Returns false if the row attends to no position of the
// segment.
bool weigh(float * s, int64_t n, const uint16_t * mask, float slope, float softcap, float & top, float & sum) {
    for (int64_t i = 0; i < n && softcap != 0.0f; ++i) {
        s[i] = softcap * tanhf(s[i]);
    }
    std::fill(s + n, s + padded(n), -INFINITY);
    vf most = v_set1f(-INFINITY);
    for (int64_t i = 0; i < n; i += LANES) {
        vf x = v_loadf(s + i);
        if (mask != nullptr) {
            uint16_t end[LANES] = {};
            if (n - i < LANES) {
                memcpy(end, mask + i, (size_t) (n - i) * sizeof(uint16_t));
            }
            x = v_fma(v_set1f(slope), v_load_f16(n - i < LANES ? end : mask + i), x);
            v_storef(s + i, x);
        }
        most = v_maxf(most, x);
    }
    top = top_of(most);
    sum = 0.0f;
    if (top == -INFINITY) {
        return false;
    }
    vf total = v_zerof();
    for (int64_t i = 0; i < n; i += LANES) {
        const vf p = exp_v(v_subf(v_loadf(s + i), v_set1f(top)));
        v_storef(s + i, p);
        total = v_addf(total, p);
    }
    sum = v_sum(total);
    return true;
}

// Adds the sum over n positions of weight times value to out[j][d .. d + WIDTH vectors).
template <int WIDTH, int NR, typename Load>
void mix(const char * v, size_t stride, int64_t n, const float * w, float * const * out, int64_t d, Load load) {
    vf acc[NR][WIDTH];
    for (int j = 0; j < NR; ++j) {
        for (int c = 0; c < WIDTH; ++c) {
            acc[j][c] = v_loadf(out[j] + d + c * LANES);
        }
    }
    for (int64_t i = 0; i < n; ++i, v += stride) {
        vf x[WIDTH];
        for (int c = 0; c < WIDTH; ++c) {
            x[c] = load(v, d + c * LANES);
        }
        for (int j = 0; j < NR; ++j) {
            vf p = v_set1f(w[j * SEGMENT + i]);
            v_keep(p);
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

// Values of n positions, `stride` bytes apart and loaded by `load`.
template <typename Load>
struct values {
    const char * data;
    size_t stride;
    int64_t width, n;
    Load load;

    template <int NR = MIX_ROWS>
    void mix_rows(const float * w, float * const * out, int rows, prefetcher & prefetch) const {
        if constexpr (NR > 1) {
            if (rows < NR) {
                return mix_rows<NR - 1>(w, out, rows, prefetch);
            }
        }
        int64_t d = 0;
        for (; d + 2 * LANES <= width; d += 2 * LANES) {
            prefetch.step();
            mix<2, NR>(data, stride, n, w, out, d, load);
        }
        if (d < width) {
            mix<1, NR>(data, stride, n, w, out, d, load);
        }
    }

    // Adds the sum of w[j * SEGMENT + ..] times values to out[j].
    void mix_all(const float * w, float * const * out, int rows, int passes, prefetcher & prefetch) const {
        for (int p = 0; p < passes; ++p) {
            const int first = rows * p / passes;
            mix_rows(w + first * SEGMENT, out + first, rows * (p + 1) / passes - first, prefetch);
        }
    }
};

// Computes out[j] = the sum over positions [begin, begin + n) of w[j * SEGMENT + ..] times their values. Half floats
// are read directly, so that the sums stay in registers for more positions.
void mix_all(const cells & v, int64_t begin, int64_t n, const float * w, int rows, float * block, float * const * out) {
    for (int j = 0; j < rows; ++j) {
        std::fill(out[j], out[j] + v.width, 0.0f);
    }
    const int passes = (rows + MIX_ROWS - 1) / MIX_ROWS;
    const bool is_direct = v.are_half_vectors();
    const int64_t step = is_direct ? HALF_BLOCK : BLOCK;
    for (int64_t i = 0; i < n; i += step) {
        const int64_t some = std::min(step, n - i);
        prefetcher prefetch(v, begin + i + std::max(step, PREFETCH_BLOCKS * BLOCK), step,
                            std::max(1, passes * (int) (v.width / (2 * LANES))));
        if (is_direct) {
            values<decltype(load_half)>{v.data + (begin + i) * v.stride, v.stride, v.width, some, load_half}.mix_all(
                w + i, out, rows, passes, prefetch);
        } else {
            v.to_floats(block, begin + i, some);
            values<decltype(load_float)>{(const char *) block, v.width * sizeof(float), v.width, some, load_float}
                .mix_all(w + i, out, rows, passes, prefetch);
        }
    }
}

// Sets the range of positions that any row of the pass may attend to.
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
    const int64_t n = p.end - p.begin, width = padded(s.dk);
    float *queries = scores + TILE * SEGMENT, *block = queries + TILE * width;
    std::fill(queries + p.n * width, block, 0.0f);
    for (int j = 0; j < p.n; ++j) {
        const float * from = (const float *) p.query[j];
        float * query = queries + j * width;
        std::transform(from, from + s.dk, query, [&](float x) { return x * rule.scale; });
        std::fill(query + s.dk, query + width, 0.0f);
    }
    score(k, p.begin, n, queries, p.n, block, scores, v, p.mask);
    int n_attending = 0;  // rows that attend to a position of the segment; their scores are moved to the front
    float * out[TILE];
    for (int j = 0; j < p.n; ++j) {
        const uint16_t * mask = p.mask[j] == nullptr ? nullptr : p.mask[j] + p.begin;
        float *row = scores + j * SEGMENT, *ends = p.out[j] + s.dv;
        if (weigh(row, n, mask, p.slope[j], rule.softcap, ends[0], ends[1])) {
            if (n_attending < j) {
                memcpy(scores + n_attending * SEGMENT, row, (size_t) n * sizeof(float));
            }
            out[n_attending++] = p.out[j];
        }
    }
    mix_all(v, p.begin, n, scores, n_attending, block, out);
}

// Computes one segment for one tile. The partial results are stored by row, with the segments of a row together.
void run_unit(const shape & s, const score_rule & rule, int64_t tile, int64_t seg, float * partials, float * scores) {
    const int64_t h = s.key_head(tile), stream = s.stream(tile), start = seg * SEGMENT;
    pass p;
    p.n = 0;
    for (int64_t r = s.first(tile); r < s.first(tile + 1); ++r, ++p.n) {
        const int64_t head = r / s.tokens % s.heads, token = r % s.tokens;
        p.query[p.n] = (const char *) s.q->data + token * s.q->nb[1] + head * s.q->nb[2] + stream * s.q->nb[3];
        p.out[p.n] = partials + (p.n * s.segments + seg) * s.partial();
        p.slope[p.n] = rule.slope(head, s.heads);
        p.mask[p.n] = s.mask == nullptr ? nullptr
                                        : (const uint16_t *) ((const char *) s.mask->data + token * s.mask->nb[1] +
                                                              head % s.mask->ne[2] * s.mask->nb[2] +
                                                              stream % s.mask->ne[3] * s.mask->nb[3]) +
                                              start;
    }
    trim(p, std::min(SEGMENT, s.n_kv - start));
    run_pass(s, p, rule, cells(s.k, start, h, stream / (s.q->ne[3] / s.k->ne[3])),
             cells(s.v, start, h * s.v->ne[2] / s.k->ne[2], stream / (s.q->ne[3] / s.k->ne[3])), scores);
}

// Combines the segments of one row, in order.
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
    return t->nb[0] == ggml_type_size(t->type) &&
           (t->type == GGML_TYPE_F32 || ggml_get_type_traits(t->type)->to_float != nullptr);
}

}  // namespace

bool takes_flash_attn(const ggml_tensor * node) {
    const ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2];
    return q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) && readable(k) && readable(v) &&
           v->ne[0] % LANES == 0 && q->ne[2] % k->ne[2] == 0 && k->ne[2] % v->ne[2] == 0 && k->ne[3] == v->ne[3] &&
           q->ne[3] % k->ne[3] == 0;
}

// For few rows threads share the segments, and partial results of all rows are kept until the last segment. For a
// prompt they share the tiles, and each thread keeps partial results of its own tile only.
static int64_t kept_rows(const shape & s, int n_threads) {
    return s.tokens > MAX_ROWS ? (int64_t) n_threads * TILE : s.first(s.all_tiles());
}

size_t flash_attn_work_size(int n_threads, const ggml_tensor * node) {
    const shape s(node);
    return (size_t) (n_threads * s.scratch() + kept_rows(s, n_threads) * s.segments * s.partial()) * sizeof(float) +
           shares::work_size(n_threads) + 64;
}

void flash_attn(const ggml_compute_params * params, ggml_tensor * node) {
    const shape s(node);
    const score_rule rule(node);
    char * counters = align64(params->wdata);
    float * work = (float *) (counters + shares::work_size(params->nth));
    float * scores = work + params->ith * s.scratch();
    float * partials = work + params->nth * s.scratch();
    const int64_t kept = s.segments * s.partial();
    const auto join_row = [&](int64_t r, const float * partial) {
        const int64_t token = r % s.tokens, head = r / s.tokens % s.heads, stream = r / s.tokens / s.heads;
        float * out = (float *) ((char *) node->data + head * node->nb[1] + token * node->nb[2] + stream * node->nb[3]);
        join(s, partial, out, s.sinks != nullptr ? (const float *) s.sinks->data + head : nullptr);
    };
    const bool is_prompt = s.tokens > MAX_ROWS;
    const int64_t n_units = is_prompt ? s.all_tiles() : s.segments * s.all_tiles();
    if (params->phase == 0) {
        return shares::share_out(params, counters, n_units);
    }
    if (params->phase == 2) {
        for (int64_t r = params->ith; r < s.first(s.all_tiles()); r += params->nth) {
            join_row(r, partials + r * kept);
        }
        return;
    }
    shares units(params, counters, n_units);
    if (is_prompt) {
        float * own = partials + params->ith * TILE * kept;
        for (int64_t tile = units.next(); tile >= 0; tile = units.next()) {
            for (int64_t seg = 0; seg < s.segments; ++seg) {
                run_unit(s, rule, tile, seg, own, scores);
            }
            for (int64_t r = s.first(tile); r < s.first(tile + 1); ++r) {
                join_row(r, own + (r - s.first(tile)) * kept);
            }
        }
        return;
    }
    for (int64_t u = units.next(); u >= 0; u = units.next()) {
        const int64_t tile = u % s.tiles + u / s.tiles / s.segments * s.tiles, seg = u / s.tiles % s.segments;
        run_unit(s, rule, tile, seg, partials + s.first(tile) * kept, scores);
    }
}

int flash_attn_phases(const ggml_tensor * node) {
    return shape(node).tokens > MAX_ROWS ? 2 : 3;
}

int64_t flash_attn_values(const ggml_tensor * node, int phase) {
    const shape s(node);
    return phase == 0 ? 0 : ggml_nelements(node) * (phase == 1 ? s.n_kv / 8 : s.segments);
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
int flash_attn_phases(const ggml_tensor *) {
    return 0;
}
int64_t flash_attn_values(const ggml_tensor *, int) {
    return 0;
}

}  // namespace eagle

#endif  // EAGLE_SIMD
