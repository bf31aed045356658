// Scan of Mamba 2 on the CPU, with replay and in place, and ggml's own SSM_SCAN by the same code.
//
// A head's state is one row of N floats for each channel of the head. A unit of rows stays in L1 for all tokens, so the
// state is read once and written once for any number of tokens. ggml's loop leaves the fusion of products and sums to
// the compiler; this file is compiled without it (native/cmake/EagleSources.cmake), so that a token leaves the same
// bits when it is new and when it is replayed, alone and in a batch.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "eagle_gdn.h"
#include "eagle_gdn_cpu.h"
#include "eagle_shares.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"

namespace {

constexpr int64_t LANES = 16;          // sums of a row that run side by side
constexpr int64_t UNIT_FLOATS = 4096;  // floats of the state per unit of work

struct ssm_token {
    const float * x;
    const float * B;
    const float * C;  // null for a replayed token
    float * y;
    float dt;
    float decay;
};

// Rows [row, row + n) of one head of one sequence.
struct ssm_unit {
    int64_t seq, head, row, n;
};

// Operands of a scan; eagle_gdn.h has those of the replaying one.
struct ssm_op {
    const ggml_tensor *x, *B, *C;
    const float *dt, *A;
    float * y;
    int64_t N, D, H, G, T, n_seqs, rows;
    float * records = nullptr;
    int64_t record_row = 0, slot_floats = 0;

    ssm_op(const ggml_tensor * x, const ggml_tensor * dt, const ggml_tensor * A, const ggml_tensor * B,
           const ggml_tensor * C, ggml_tensor * dst)
        : x(x), B(B), C(C), dt((const float *) dt->data), A((const float *) A->data), y((float *) dst->data) {
        N = B->ne[0];
        D = x->ne[0];
        H = x->ne[1];
        G = B->ne[1];
        T = x->ne[2];
        n_seqs = x->ne[3];
        rows = std::min(D, UNIT_FLOATS / N);
        GGML_ASSERT(N % LANES == 0 && N <= UNIT_FLOATS && H % G == 0 && ggml_is_contiguous(dt));
        GGML_ASSERT(x->nb[0] == sizeof(float) && x->nb[1] == D * sizeof(float));
        GGML_ASSERT(B->nb[0] == sizeof(float) && B->nb[1] == N * sizeof(float));
        GGML_ASSERT(C->nb[0] == sizeof(float) && C->nb[1] == N * sizeof(float));
    }

    // A replaying scan.
    explicit ssm_op(ggml_tensor * dst) : ssm_op(dst->src[2], dst->src[3], dst->src[4], dst->src[1], dst->src[0], dst) {
        if (dst->src[6]) {
            records = (float *) dst->src[6]->data + dst->op_params[EAGLE_GDN_PARAM_OFFSET];
            record_row = (int64_t) (dst->src[6]->nb[1] / sizeof(float));
        }
        slot_floats = N * G + D * H + H;
        GGML_ASSERT(ggml_is_contiguous(dst->src[5]));
    }

    int64_t per_head() const { return (D + rows - 1) / rows; }
    int64_t n_units() const { return n_seqs * H * per_head(); }

    ssm_unit unit(int64_t i) const {
        const int64_t head = i / per_head(), row = i % per_head() * rows;
        return {head / H, head % H, row, std::min(rows, D - row)};
    }

    // Offset of a unit in the states of all sequences.
    int64_t at(const ssm_unit & u) const { return ((u.seq * H + u.head) * D + u.row) * N; }

    float * record(int64_t seq, int64_t slot) const { return records + seq * record_row + slot * slot_floats; }

    static const float * row_of(const ggml_tensor * t, int64_t token, int64_t seq) {
        return (const float *) ((const char *) t->data + token * t->nb[2] + seq * t->nb[3]);
    }

    ssm_token token(const ssm_unit & u, float dt, const float * x, const float * B) const {
        const float rate = ggml_compute_softplus_f32(dt);
        return {x + u.head * D, B + u.head / (H / G) * N, nullptr, nullptr, rate, expf(rate * A[u.head])};
    }

    ssm_token replayed(const ssm_unit & u, int64_t slot) const {
        const float * rec = record(u.seq, slot);
        return token(u, rec[N * G + D * H + u.head], rec + N * G, rec);
    }

    ssm_token fresh(const ssm_unit & u, int64_t t) const {
        ssm_token now = token(u, dt[(u.seq * T + t) * H + u.head], row_of(x, t, u.seq), row_of(B, t, u.seq));
        now.C = row_of(C, t, u.seq) + u.head / (H / G) * N;
        now.y = y + ((u.seq * T + t) * H + u.head) * D;
        return now;
    }
};

void advance(float * GGML_RESTRICT s, const float * GGML_RESTRICT B, float decay, float x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        s[i] = s[i] * decay + B[i] * x;
    }
}

// Does advance(), then returns the dot product with C, in an order that does not depend on the CPU.
float advance_dot(float * GGML_RESTRICT s, const float * GGML_RESTRICT B, const float * GGML_RESTRICT C, float decay,
                  float x, int64_t n) {
    float sums[LANES] = {};
    for (int64_t i = 0; i < n; i += LANES) {
        for (int64_t l = 0; l < LANES; l++) {
            const float now = s[i + l] * decay + B[i + l] * x;
            s[i + l] = now;
            sums[l] += now * C[i + l];
        }
    }
    for (int64_t width = LANES / 2; width > 0; width /= 2) {
        for (int64_t l = 0; l < width; l++) {
            sums[l] += sums[l + width];
        }
    }
    return sums[0];
}

// Computes a unit for `n_replay` recorded and the new tokens. Calls store(n, rows) after each token with the number of
// tokens so far.
template <typename Store>
void run_unit(const ssm_op & op, const ssm_unit & u, const float * from, int64_t n_replay, Store && store) {
    alignas(64) float s[UNIT_FLOATS];
    memcpy(s, from, u.n * op.N * sizeof(float));
    for (int64_t i = 0; i < n_replay + op.T; i++) {
        const ssm_token t = i < n_replay ? op.replayed(u, i) : op.fresh(u, i - n_replay);
        for (int64_t r = 0; r < u.n; r++) {
            const float x = t.x[u.row + r] * t.dt;
            if (t.C) {
                t.y[u.row + r] = advance_dot(s + r * op.N, t.B, t.C, t.decay, x, op.N);
            } else {
                advance(s + r * op.N, t.B, t.decay, x, op.N);
            }
        }
        store(i + 1, s);
    }
}

// Records the tail of the new tokens, after all units have replayed the old records.
void write_records(const ssm_op & op, int64_t n_tail, int ith, int nth) {
    for (int64_t i = ith; i < op.n_seqs * n_tail; i += nth) {
        const int64_t seq = i / n_tail, t = op.T - n_tail + i % n_tail;
        float * rec = op.record(seq, i % n_tail);
        memcpy(rec, ssm_op::row_of(op.B, t, seq), op.N * op.G * sizeof(float));
        memcpy(rec + op.N * op.G, ssm_op::row_of(op.x, t, seq), op.D * op.H * sizeof(float));
        memcpy(rec + op.N * op.G + op.D * op.H, op.dt + (seq * op.T + t) * op.H, op.H * sizeof(float));
    }
}

}  // namespace

void eagle_cpu_ssm_replay(const ggml_compute_params * params, ggml_tensor * dst) {
    const ssm_op op(dst);
    const int64_t n_tail = std::min<int64_t>(op.T, dst->op_params[EAGLE_GDN_PARAM_N_RECORDED]);
    char * counters = eagle::align64(params->wdata);
    if (params->phase == 0) {
        return eagle::shares::share_out(params, counters, op.n_units());
    }
    if (params->phase == 2) {
        return write_records(op, n_tail, params->ith, params->nth);
    }
    eagle::shares units(params, counters, op.n_units());
    for (int64_t i = units.next(); i >= 0; i = units.next()) {
        const ssm_unit u = op.unit(i);
        const int64_t n_replay = ((const int32_t *) dst->src[7]->data)[u.seq];
        const int64_t commit = n_replay + op.T - n_tail;
        float * cache = (float *) dst->src[5]->data + op.at(u);
        run_unit(op, u, cache, n_replay, [&](int64_t n, const float * s) {
            if (n == commit) {
                memcpy(cache, s, u.n * op.N * sizeof(float));
            }
        });
    }
}

bool eagle_cpu_ssm_scan(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor *states = dst->src[0], *A = dst->src[3];
    const bool one_decay_per_head = A->ne[0] == 1;
    if (!one_decay_per_head || states->ne[0] % LANES != 0 || states->ne[0] > UNIT_FLOATS) {
        return false;
    }
    const ssm_op op(dst->src[1], dst->src[2], A, dst->src[4], dst->src[5], dst);
    const int64_t n_states = dst->op_params[0];  // after all tokens, after all but one, and so on
    const int64_t state_floats = op.H * op.D * op.N;
    float * out = (float *) dst->data + ggml_nelements(op.x);
    for (int64_t i = params->ith; i < op.n_units(); i += params->nth) {
        const ssm_unit u = op.unit(i);
        const int64_t id = ((const int32_t *) dst->src[6]->data)[u.seq];
        const int64_t in_state = op.at({0, u.head, u.row, u.n});
        const float * from = (const float *) ((const char *) states->data + id * states->nb[3]) + in_state;
        run_unit(op, u, from, 0, [&](int64_t n, const float * s) {
            if (op.T - n < n_states) {
                float * to = out + ((op.T - n) * op.n_seqs + u.seq) * state_floats + in_state;
                memcpy(to, s, u.n * op.N * sizeof(float));
            }
        });
    }
    return true;
}
