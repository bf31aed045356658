// In-place Gated DeltaNet on the CPU: the outer loop runs over strips of rows, the inner one over tokens.
//
// A head's state is S independent rows of S floats. A row stays in registers or L1 for all tokens, so the state is read
// once and written once for any number of tokens. The float operations of a row and their order are those of ggml's own
// kernel (scale, dot, multiply-add, dot), so results are bit-identical.

#include "eagle_gdn_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "eagle_gdn.h"
#include "eagle_shares.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "simd-mappings.h"
#include "vec.h"

namespace {

constexpr int TILE_TOKENS = 64;   // tokens whose pointers are prepared together
constexpr int STRIP_ROWS = 8;     // rows that are updated for a token before the next token
constexpr int UNIT_ROWS = 32;     // rows of a head per unit of work
constexpr int64_t MAX_ROW = 256;  // maximum length of a state row

struct gdn_token {
    const float * k;
    const float * v;
    const float * q;  // null for a replayed token
    float * out;      // null for a replayed token
    float decay;
    float beta;
};

struct gdn_tile {
    gdn_token tokens[TILE_TOKENS];
    int n;
    int commit;  // number of tokens after which the rows are stored to commit_dst; 0: not in this tile
};

// Rows [row, row + n_rows) of a tile. Null destinations are skipped.
struct gdn_rows {
    int64_t row;
    int64_t n_rows;
    const float * src;
    float * commit_dst;
    float * end_dst;
};

// vec_dot is different with SVE and RVV; the generic path below calls it.
#if defined(GGML_SIMD) && !defined(__ARM_FEATURE_SVE) && !defined(__riscv_v_intrinsic)
#define EAGLE_GDN_REGISTERS
#endif

#ifdef EAGLE_GDN_REGISTERS

// Prefetches the next rows while the current ones are computed.
inline void prefetch(const float * rows, int64_t n) {
#if defined(__GNUC__)
    for (int64_t i = 0; i < n; i += 16) {
        __builtin_prefetch(rows + i);
    }
#else
    (void) rows;
    (void) n;
#endif
}

template <int NV, int NR>
struct row_group {
    GGML_F32_VEC s[NR][NV];

    inline void load(const float * src) {
        for (int r = 0; r < NR; r++) {
            for (int i = 0; i < NV; i++) {
                s[r][i] = GGML_F32_VEC_LOAD(src + (r * NV + i) * GGML_F32_EPR);
            }
        }
    }

    inline void store(float * dst) const {
        for (int r = 0; r < NR; r++) {
            for (int i = 0; i < NV; i++) {
                GGML_F32_VEC_STORE(dst + (r * NV + i) * GGML_F32_EPR, s[r][i]);
            }
        }
    }

    // Decays the rows and returns their dot products with k.
    inline void decay_dot(const gdn_token & token, float * sums) {
        const GGML_F32_VEC decay = GGML_F32_VEC_SET1(token.decay);
        GGML_F32_VEC acc[NR][GGML_F32_ARR];
        for (int r = 0; r < NR; r++) {
            for (int j = 0; j < GGML_F32_ARR; j++) {
                acc[r][j] = GGML_F32_VEC_ZERO;
            }
        }
        for (int i = 0; i < NV; i++) {
            const GGML_F32_VEC k = GGML_F32_VEC_LOAD(token.k + i * GGML_F32_EPR);
            for (int r = 0; r < NR; r++) {
                s[r][i] = GGML_F32_VEC_MUL(s[r][i], decay);
                acc[r][i % GGML_F32_ARR] = GGML_F32_VEC_FMA(acc[r][i % GGML_F32_ARR], s[r][i], k);
            }
        }
        reduce(acc, sums);
    }

    inline void add(const gdn_token & token, const float * delta) {
        for (int i = 0; i < NV; i++) {
            const GGML_F32_VEC k = GGML_F32_VEC_LOAD(token.k + i * GGML_F32_EPR);
            for (int r = 0; r < NR; r++) {
                s[r][i] = GGML_F32_VEC_FMA(s[r][i], k, GGML_F32_VEC_SET1(delta[r]));
            }
        }
    }

    // Does add(), then computes the dot products with q.
    inline void add_dot(const gdn_token & token, const float * delta, float * sums) {
        GGML_F32_VEC acc[NR][GGML_F32_ARR];
        for (int r = 0; r < NR; r++) {
            for (int j = 0; j < GGML_F32_ARR; j++) {
                acc[r][j] = GGML_F32_VEC_ZERO;
            }
        }
        for (int i = 0; i < NV; i++) {
            const GGML_F32_VEC k = GGML_F32_VEC_LOAD(token.k + i * GGML_F32_EPR);
            const GGML_F32_VEC q = GGML_F32_VEC_LOAD(token.q + i * GGML_F32_EPR);
            for (int r = 0; r < NR; r++) {
                s[r][i] = GGML_F32_VEC_FMA(s[r][i], k, GGML_F32_VEC_SET1(delta[r]));
                acc[r][i % GGML_F32_ARR] = GGML_F32_VEC_FMA(acc[r][i % GGML_F32_ARR], s[r][i], q);
            }
        }
        reduce(acc, sums);
    }

    static inline void reduce(GGML_F32_VEC acc[NR][GGML_F32_ARR], float * sums) {
        for (int r = 0; r < NR; r++) {
            float sum = 0.0f;
            GGML_F32_VEC_REDUCE(sum, acc[r]);
            sums[r] = sum;
        }
    }
};

// Updates a group of rows for one token; `row` counts from the start of the head.
template <int NV, int NR>
inline void step(row_group<NV, NR> & group, const gdn_token & token, int64_t row, float scale) {
    float sums[NR];
    float delta[NR];
    group.decay_dot(token, sums);
    for (int r = 0; r < NR; r++) {
        delta[r] = (token.v[row + r] - sums[r]) * token.beta;
    }
    if (!token.q) {
        group.add(token, delta);
        return;
    }
    group.add_dot(token, delta, sums);
    for (int r = 0; r < NR; r++) {
        token.out[row + r] = sums[r] * scale;
    }
}

// The sums of one row are a chain of dependent additions, whose latency exceeds the arithmetic. So each token updates a
// strip of rows, whose chains the CPU executes in parallel; between tokens the strip is in L1.
template <int NV, int NR>
void run_rows(const gdn_tile & tile, const gdn_rows & rows, float scale) {
    constexpr int64_t S = (int64_t) NV * GGML_F32_EPR;
    alignas(64) float strip[STRIP_ROWS * S];
    for (int64_t j0 = 0; j0 < rows.n_rows; j0 += STRIP_ROWS) {
        const int64_t j1 = std::min<int64_t>(j0 + STRIP_ROWS, rows.n_rows);
        for (int t = 0; t < tile.n; t++) {
            for (int64_t j = j0; j < j1; j += NR) {
                float * kept = strip + (j - j0) * S;
                row_group<NV, NR> group;
                group.load(t == 0 ? rows.src + j * S : kept);
                if (t == 0) {
                    prefetch(rows.src + (j + STRIP_ROWS) * S, NR * S);
                }
                step(group, tile.tokens[t], rows.row + j, scale);
                if (t + 1 == tile.commit) {
                    group.store(rows.commit_dst + j * S);
                }
                if (t + 1 < tile.n) {
                    group.store(kept);
                } else if (rows.end_dst) {
                    group.store(rows.end_dst + j * S);
                }
            }
        }
    }
}

#endif  // EAGLE_GDN_REGISTERS

// Supports any row length, with ggml's vector functions on one row in L1.
void run_rows_generic(const gdn_tile & tile, const gdn_rows & rows, float scale, int64_t S) {
    float s[MAX_ROW];
    for (int64_t j = 0; j < rows.n_rows; j++) {
        memcpy(s, rows.src + j * S, S * sizeof(float));
        for (int t = 0; t < tile.n; t++) {
            const gdn_token & token = tile.tokens[t];
            float sum = 0.0f;
            ggml_vec_scale_f32(S, s, token.decay);
            ggml_vec_dot_f32(S, &sum, 0, s, 0, token.k, 0, 1);
            ggml_vec_mad_f32(S, s, token.k, (token.v[rows.row + j] - sum) * token.beta);
            if (token.q) {
                ggml_vec_dot_f32(S, &sum, 0, s, 0, token.q, 0, 1);
                token.out[rows.row + j] = sum * scale;
            }
            if (t + 1 == tile.commit) {
                memcpy(rows.commit_dst + j * S, s, S * sizeof(float));
            }
        }
        if (rows.end_dst) {
            memcpy(rows.end_dst + j * S, s, S * sizeof(float));
        }
    }
}

void run_tile(const gdn_tile & tile, const gdn_rows & rows, float scale, int64_t S) {
#ifdef EAGLE_GDN_REGISTERS
    if (S == 2 * GGML_F32_STEP && rows.n_rows % 2 == 0) {  // 128 with AVX-512
        return run_rows<2 * GGML_F32_ARR, 2>(tile, rows, scale);
    }
    if (S == 4 * GGML_F32_STEP) {  // 128 with AVX2
        return run_rows<4 * GGML_F32_ARR, 1>(tile, rows, scale);
    }
#endif
    run_rows_generic(tile, rows, scale, S);
}

// Operands of a Gated DeltaNet with replay (eagle_gdn.h).
struct gdn_op {
    const ggml_tensor * q;
    const ggml_tensor * k;
    const ggml_tensor * v;
    const ggml_tensor * g;
    const ggml_tensor * beta;
    ggml_tensor * state;
    ggml_tensor * records;
    const int32_t * n_replay;
    float * out;
    int64_t S, H, T, n_seqs, n_slots, n_tail, offset, k_floats, slot_floats;

    explicit gdn_op(ggml_tensor * dst)
        : q(dst->src[0]),
          k(dst->src[1]),
          v(dst->src[2]),
          g(dst->src[3]),
          beta(dst->src[4]),
          state(dst->src[5]),
          records(dst->src[6]),
          n_replay((const int32_t *) dst->src[7]->data),
          out((float *) dst->data) {
        S = v->ne[0];
        H = v->ne[1];
        T = v->ne[2];
        n_seqs = v->ne[3];
        n_slots = dst->op_params[EAGLE_GDN_PARAM_N_RECORDED];
        offset = dst->op_params[EAGLE_GDN_PARAM_OFFSET];
        n_tail = std::min(T, n_slots);
        k_floats = S * k->ne[1];
        slot_floats = k_floats + S * H + 2 * H;
        GGML_ASSERT(S <= MAX_ROW && (S < UNIT_ROWS || S % UNIT_ROWS == 0) && ggml_is_contiguous(state));
        GGML_ASSERT(q->nb[0] == sizeof(float) && k->nb[0] == sizeof(float) && v->nb[0] == sizeof(float));
        GGML_ASSERT(ggml_is_contiguous(g) && ggml_is_contiguous(beta));
    }

    float * record(int64_t seq, int64_t slot) const {
        return (float *) ((char *) records->data + seq * records->nb[1]) + offset + slot * slot_floats;
    }

    static const float * at(const ggml_tensor * t, int64_t head, int64_t token, int64_t seq) {
        return (const float *) ((const char *) t->data + head * t->nb[1] + token * t->nb[2] + seq * t->nb[3]);
    }

    gdn_token replayed(int64_t seq, int64_t head, int64_t slot) const {
        const float * rec = record(seq, slot);
        const float * gates = rec + k_floats + S * H;
        return {rec + (head % k->ne[1]) * S,
                rec + k_floats + head * S,
                nullptr,
                nullptr,
                expf(gates[head]),
                gates[H + head]};
    }

    gdn_token fresh(int64_t seq, int64_t head, int64_t t) const {
        return {at(k, head % k->ne[1], t, seq),       at(v, head, t, seq),        at(q, head % q->ne[1], t, seq),
                out + ((seq * T + t) * H + head) * S, expf(*at(g, head, t, seq)), *at(beta, head, t, seq)};
    }
};

// Computes a unit of work: rows [row, row + n_rows) of one head of one sequence, for replayed and new tokens.
void run_unit(const gdn_op & op, int64_t seq, int64_t head, int64_t row, int64_t n_rows) {
    const int64_t S = op.S;
    const int64_t replay = op.n_replay[seq];
    const int64_t total = replay + op.T;
    const int64_t commit = total - op.n_tail;
    const float scale = 1.0f / sqrtf((float) S);
    float * cache = (float *) op.state->data + ((seq * op.H + head) * S + row) * S;
    float beyond[UNIT_ROWS * MAX_ROW];  // rows after the commit point between tiles (with more than 64 slots)
    gdn_tile tile;

    for (int64_t i0 = 0; i0 < total; i0 += tile.n) {
        tile.n = (int) std::min<int64_t>(TILE_TOKENS, total - i0);
        tile.commit = commit > i0 && commit <= i0 + tile.n ? (int) (commit - i0) : 0;
        for (int i = 0; i < tile.n; i++) {
            const int64_t t = i0 + i - replay;
            tile.tokens[i] = t < 0 ? op.replayed(seq, head, t + replay) : op.fresh(seq, head, t);
        }
        const int64_t i1 = i0 + tile.n;
        gdn_rows rows;
        rows.row = row;
        rows.n_rows = n_rows;
        rows.src = i0 <= commit ? cache : beyond;
        rows.commit_dst = cache;
        rows.end_dst = i1 == total || i1 == commit ? nullptr : i1 < commit ? cache : beyond;
        run_tile(tile, rows, scale, S);
    }
}

// Records the tail of the new tokens, after all units have replayed the old records.
void write_records(const gdn_op & op, int ith, int nth) {
    for (int64_t i = ith; i < op.n_seqs * op.n_tail; i += nth) {
        const int64_t seq = i / op.n_tail;
        const int64_t slot = i % op.n_tail;
        const int64_t t = op.T - op.n_tail + slot;
        float * rec = op.record(seq, slot);
        for (int64_t h = 0; h < op.k->ne[1]; h++) {
            memcpy(rec + h * op.S, gdn_op::at(op.k, h, t, seq), op.S * sizeof(float));
        }
        rec += op.k_floats;
        for (int64_t h = 0; h < op.H; h++) {
            memcpy(rec + h * op.S, gdn_op::at(op.v, h, t, seq), op.S * sizeof(float));
        }
        rec += op.S * op.H;
        memcpy(rec, gdn_op::at(op.g, 0, t, seq), op.H * sizeof(float));
        memcpy(rec + op.H, gdn_op::at(op.beta, 0, t, seq), op.H * sizeof(float));
    }
}

}  // namespace

size_t eagle_cpu_scan_work_size(int n_threads) {
    return eagle::shares::work_size(n_threads) + 64;
}

void eagle_cpu_gdn_replay(const ggml_compute_params * params, ggml_tensor * dst) {
    const gdn_op op(dst);
    const int64_t unit_rows = std::min<int64_t>(UNIT_ROWS, op.S);
    const int64_t per_head = op.S / unit_rows;
    const int64_t n_units = op.n_seqs * op.H * per_head;

    char * counters = eagle::align64(params->wdata);
    if (params->phase == 0) {
        return eagle::shares::share_out(params, counters, n_units);
    }
    if (params->phase == 2) {
        return write_records(op, params->ith, params->nth);
    }
    eagle::shares units(params, counters, n_units);
    for (int64_t u = units.next(); u >= 0; u = units.next()) {
        const int64_t head = u / per_head;
        run_unit(op, head / op.H, head % op.H, u % per_head * unit_rows, unit_rows);
    }
}

int eagle_cpu_scan_phases(const ggml_tensor * node) {
    return std::min<int64_t>(node->src[2]->ne[2], node->op_params[EAGLE_GDN_PARAM_N_RECORDED]) > 0 ? 3 : 2;
}

int64_t eagle_cpu_scan_values(const ggml_tensor * node, int phase) {
    constexpr int64_t COPIED = 4;  // copying is cheaper than computing
    const int64_t tail = std::min<int64_t>(node->src[2]->ne[2], node->op_params[EAGLE_GDN_PARAM_N_RECORDED]);
    const int64_t values = ggml_nelements(node->src[1]) + ggml_nelements(node->src[2]);
    return phase == 0 ? 0 : phase == 1 ? ggml_nelements(node->src[5]) : values / node->src[2]->ne[2] * tail / COPIED;
}

bool eagle_cpu_recurrent(const ggml_compute_params * params, ggml_tensor * dst) {
    switch (dst->op) {
    case GGML_OP_EAGLE_GDN:
        (eagle_gdn_is_mamba2(dst) ? eagle_cpu_ssm_replay : eagle_cpu_gdn_replay)(params, dst);
        return true;
    case GGML_OP_EAGLE_CONV_WINDOW:
        eagle_cpu_conv_window(params, dst);
        return true;
    case GGML_OP_SSM_CONV:
        return eagle_cpu_conv(params, dst);
    case GGML_OP_SSM_SCAN:
        return eagle_cpu_ssm_scan(params, dst);
    default:
        return false;
    }
}
