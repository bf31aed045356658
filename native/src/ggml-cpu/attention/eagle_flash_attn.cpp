#include "eagle_flash_attn.h"

#include "eagle_kernels.h"
#include "eagle_shares.h"
#include "eagle_simd.h"

#ifdef EAGLE_SIMD

#include <algorithm>
#include <cmath>

#include "ggml-cpu-impl.h"
#include "vec.h"

namespace eagle {
namespace {

constexpr int64_t SEGMENT = 512;        // cache positions that are summed together
constexpr int64_t BLOCK = 8;            // positions that are converted to floats at a time
constexpr int64_t HALF_BLOCK = 32;      // positions that are read at a time as half floats
constexpr int64_t PREFETCH_BLOCKS = 3;  // prefetch distance
constexpr int TILE = 32;                // query rows (heads of a group times tokens) that share one pass over a segment
constexpr int MIX_ROWS = LANES == 16 ? 12 : 6;  // rows whose sums of values, two vectors each, fit the registers

int64_t padded(int64_t n) {
    return (n + LANES - 1) / LANES * LANES;
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

// Keys or values of one head at the positions of a segment.
struct cells {
    ggml_type type;
    const char * data;  // at position 0 of the segment
    size_t stride, row_size;
    int64_t width;

    cells(const ggml_tensor * t, int64_t start, int64_t head, int64_t stream)
        : type(t->type),
          data((const char *) t->data + start * t->nb[1] + head * t->nb[2] + stream * t->nb[3]),
          stride(t->nb[1]),
          row_size(ggml_row_size(t->type, t->ne[0])),
          width(t->ne[0]) {}

    bool are_half_vectors() const { return type == GGML_TYPE_F16 && width % LANES == 0; }

    template <typename Load>
    void load_all(float * out, int64_t first, int64_t n, size_t size, Load load) const {
        for (int64_t i = 0; i < n; ++i) {
            const char * row = data + (first + i) * stride;
            for (int64_t d = 0; d < width; d += LANES) {
                v_storef(out + i * padded(width) + d, load(row + d * size));
            }
        }
    }

    // Converts n rows to floats and pads each with zeros to whole vectors.
    void to_floats(float * out, int64_t first, int64_t n) const {
        const bool whole = width % LANES == 0;
        if (are_half_vectors()) {
            load_all(out, first, n, 2, [](const char * p) { return v_load_f16(p); });
        } else if (type == GGML_TYPE_BF16 && whole) {
            load_all(out, first, n, 2, [](const char * p) { return v_load_bf16(p); });
        } else {
            for (int64_t i = 0; i < n; ++i) {
                float * row = out + i * padded(width);
                const char * from = data + (first + i) * stride;
                if (type == GGML_TYPE_F32) {
                    memcpy(row, from, (size_t) width * sizeof(float));
                } else {
                    ggml_get_type_traits(type)->to_float(from, row, width);
                }
                std::fill(row + width, row + padded(width), 0.0f);
            }
        }
    }
};

// Spreads prefetches of a later block of keys or values over the multiplication steps, because bursts stall when the
// line-fill buffers are full.
struct prefetcher {
    const char * row;
    size_t stride, row_size;
    int rows, steps, due = 0;

    prefetcher(const cells & from, int64_t first, int64_t n, int steps_)
        : row(from.data + first * from.stride),
          stride(from.stride),
          row_size(from.row_size),
          rows((int) n),
          steps(steps_) {}

    void step() {
        for (due += rows; due >= steps; due -= steps, row += stride) {
            for (size_t at = 0; at < row_size; at += 64) {
                _mm_prefetch(row + at, _MM_HINT_T1);
            }
        }
    }
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

// Load a vector of half floats or floats from element d of a row.
constexpr auto load_half = [](const char * row, int64_t d) { return v_load_f16(row + 2 * d); };
constexpr auto load_float = [](const char * row, int64_t d) { return v_loadf((const float *) row + d); };

// Keeps x in a register: the compiler would load it again at each use.
inline void keep(vf & x) {
#if !defined(__GNUC__)
    (void) x;
#elif defined(EAGLE_SIMD_512)
    asm("" : "+v"(x));
#else
    asm("" : "+x"(x));
#endif
}

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
            keep(k[c]);
        }
        for (int j = 0; j < QUERIES; ++j) {
            vf q = v_loadf(query + j * width + d);
            keep(q);
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

// --- scores of many query rows ---------------------------------------------------------------------------------------
//
// Lanes are query rows here, so that no sum crosses lanes. The additions and their order are those of score_some and
// v_sums: the products of columns d, d + LANES, ... are summed first, then the sums of columns that are LANES / 2
// apart, then LANES / 4, and so on.

#ifdef EAGLE_SIMD_512

constexpr int LANE_ROWS = 2 * LANES;  // query rows of a pass
constexpr int LANE_KEYS = 16;         // keys of a pass
static_assert(TILE <= LANE_ROWS, "a tile has too many rows");

// Transposes LANES vectors.
inline void transpose(vf * x) {
    vf y[LANES];
    for (int i = 0; i < LANES; i += 4) {
        vf z[4];
        for (int k = 0; k < 4; k += 2) {
            z[k] = _mm512_unpacklo_ps(x[i + k], x[i + k + 1]);
            z[k + 1] = _mm512_unpackhi_ps(x[i + k], x[i + k + 1]);
        }
        for (int k = 0; k < 2; ++k) {
            y[i + 2 * k] = _mm512_shuffle_ps(z[k], z[k + 2], 0x44);
            y[i + 2 * k + 1] = _mm512_shuffle_ps(z[k], z[k + 2], 0xee);
        }
    }
    for (int k = 0; k < 4; ++k) {
        const vf a = _mm512_shuffle_f32x4(y[k], y[4 + k], 0x44), b = _mm512_shuffle_f32x4(y[k], y[4 + k], 0xee);
        const vf c = _mm512_shuffle_f32x4(y[8 + k], y[12 + k], 0x44),
                 d = _mm512_shuffle_f32x4(y[8 + k], y[12 + k], 0xee);
        x[k] = _mm512_shuffle_f32x4(a, c, 0x88);
        x[4 + k] = _mm512_shuffle_f32x4(a, c, 0xdd);
        x[8 + k] = _mm512_shuffle_f32x4(b, d, 0x88);
        x[12 + k] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}

// Sums of LANE_KEYS keys with LANE_ROWS rows.
using lane_sums = vf[LANE_KEYS][2];

// For each of n keys: adds the products of column d and COLUMNS - 1 more, LANES apart, to those in `sums` (if not
// FIRST). LEAVES = 2: the same from column d + LANES / 2, and adds both. Then adds the last FOLDS sums before `sums`,
// the last one first, and stores where the first of them was.
template <int COLUMNS, int LEAVES, bool FIRST>
void add_columns(const float * keys, int64_t width, int64_t n, const float * query, int64_t d, lane_sums * sums,
                 int folds) {
    vf q[LEAVES][COLUMNS][2];
    for (int l = 0; l < LEAVES; ++l) {
        for (int c = 0; c < COLUMNS; ++c) {
            const int64_t column = d + l * LANES / 2 + c * LANES;
            for (int v = 0; v < 2; ++v) {
                q[l][c][v] = v_loadf(query + column * LANE_ROWS + v * LANES);
                keep(q[l][c][v]);
            }
        }
    }
    for (int64_t i = 0; i < n; ++i, keys += width) {
        vf acc[LEAVES][2];
        for (int l = 0; l < LEAVES; ++l) {
            for (int v = 0; v < 2; ++v) {
                acc[l][v] = FIRST ? v_zerof() : sums[0][i][v];
            }
            for (int c = 0; c < COLUMNS; ++c) {
                vf k = v_set1f(keys[d + l * LANES / 2 + c * LANES]);
                keep(k);
                for (int v = 0; v < 2; ++v) {
                    acc[l][v] = v_fma(k, q[l][c][v], acc[l][v]);
                }
            }
        }
        for (int v = 0; v < 2; ++v) {
            vf sum = LEAVES == 2 ? add_v(acc[0][v], acc[LEAVES - 1][v]) : acc[0][v];
            for (int f = 1; f <= folds; ++f) {
                sum = add_v(sums[-f][i][v], sum);
            }
            sums[-folds][i][v] = sum;
        }
    }
}

bool has_lane_scores(int64_t width, int rows) {
    return rows > 7 * LANES / 4 && (width == 4 * LANES || width % (8 * LANES) == 0);
}

// Returns the number of passes over the columns of 16 keys.
int lane_leaves(int64_t width) {
    return width == 4 * LANES ? LANES / 2 : LANES;
}

// Transposes the queries to columns of LANE_ROWS; rows from `rows` on are zero.
void to_columns(const float * queries, int rows, int64_t width, float * columns) {
    for (int64_t d = 0; d < width; d += LANES) {
        for (int v = 0; v < 2; ++v) {
            vf x[LANES];
            for (int j = 0; j < LANES; ++j) {
                x[j] = v * LANES + j < rows ? v_loadf(queries + (v * LANES + j) * width + d) : v_zerof();
            }
            transpose(x);
            for (int j = 0; j < LANES; ++j) {
                v_storef(columns + (d + j) * LANE_ROWS + v * LANES, x[j]);
            }
        }
    }
}

// Computes scores[j * SEGMENT + i] for n <= LANE_KEYS keys, which are floats; LANE_KEYS entries are overwritten.
void score_lanes(const float * keys, int64_t width, int64_t n, const float * columns, int rows, float * scores,
                 prefetcher & prefetch) {
    lane_sums sums[5];  // at most one of each level of the tree waits, as the digits of a binary counter
    const int leaves = lane_leaves(width), bits = leaves == LANES ? 4 : 3;
    for (int i = 0; i < leaves; ++i) {
        prefetch.step();
        int64_t d = 0;  // the bits of i in reverse order
        for (int b = 0; b < bits; ++b) {
            d |= (i >> b & 1) << (bits - 1 - b);
        }
        const int waiting = __builtin_popcount(i), folds = __builtin_ctz(~i);
        lane_sums * top = sums + waiting;
        if (leaves < LANES) {
            add_columns<4, 2, true>(keys, width, n, columns, d, top, folds);
            continue;
        }
        const int64_t last = width - 8 * LANES;
        add_columns<8, 1, true>(keys, width, n, columns, d, top, last == 0 ? folds : 0);
        for (int64_t c = 8 * LANES; c <= last; c += 8 * LANES) {
            add_columns<8, 1, false>(keys, width, n, columns, d + c, top, c == last ? folds : 0);
        }
    }
    for (int v = 0; v < 2; ++v) {
        vf x[LANES];
        for (int i = 0; i < LANES; ++i) {
            x[i] = sums[0][i][v];
        }
        transpose(x);
        for (int j = 0; j < LANES && v * LANES + j < rows; ++j) {
            v_storef(scores + (v * LANES + j) * SEGMENT, x[j]);
        }
    }
}

#endif

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
        most = max_v(most, x);
    }
    top = top_of(most);
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
            keep(p);
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
