// Multiplication by experts: groups rows by expert, so that each expert's matrix is read once for all its rows.
#include <algorithm>
#include <cstring>

#include "eagle_mul_mat.h"
#include "eagle_shares.h"
#include "eagle_tuning.h"
#include "ggml-cpu-impl.h"

namespace eagle {

static size_t packed_size(const ggml_tensor * x, const kernel & k) {
    return k.pack_block == 0 ? 0 : k.act_size(k, x->ne[0]) * ggml_nrows(x);
}

// The work buffer has n_experts + 1 offsets after the packed rows, then the (slot, token) rows sorted by expert.
struct routed {
    int32_t slot;
    int32_t token;
};

size_t mul_mat_id_work_size(int n_threads, const ggml_tensor * node, const kernel & k) {
    const int64_t experts = node->src[0]->ne[2], rows = ggml_nelements(node->src[2]);
    return shares::work_size(n_threads) + packed_size(node->src[1], k) + (size_t) (2 * experts + 1) * sizeof(int32_t) +
           (size_t) rows * sizeof(routed) + 192;
}

// Sorts rows by expert with a counting sort, which keeps the order of tokens within an expert.
static void route(const ggml_tensor * ids, int64_t experts, int32_t * offset, int32_t * next, routed * rows) {
    const auto expert = [&](int64_t slot, int64_t token) {
        const int32_t e = *(const int32_t *) ((const char *) ids->data + slot * ids->nb[0] + token * ids->nb[1]);
        GGML_ASSERT(e >= 0 && e < experts);
        return e;
    };
    memset(offset, 0, (size_t) (experts + 1) * sizeof(int32_t));
    for (int64_t t = 0; t < ids->ne[1]; ++t) {
        for (int64_t s = 0; s < ids->ne[0]; ++s) {
            ++offset[expert(s, t) + 1];
        }
    }
    for (int64_t e = 0; e < experts; ++e) {
        offset[e + 1] += offset[e];
        next[e] = offset[e];
    }
    for (int64_t t = 0; t < ids->ne[1]; ++t) {
        for (int64_t s = 0; s < ids->ne[0]; ++s) {
            rows[next[expert(s, t)]++] = {(int32_t) s, (int32_t) t};
        }
    }
}

static void multiply(const ggml_tensor * node, const kernel & k, const char * packed, int64_t expert,
                     const routed * rows, int64_t n, int64_t begin, int64_t end) {
    const ggml_tensor * w = node->src[0];
    const ggml_tensor * x = node->src[1];
    const int64_t most = k.dot_many != nullptr ? row_set::MAX : CALL_ROWS;
    for (int64_t first = 0; first < n; first += most) {
        row_set set;
        set.n = (int) std::min(most, n - first);
        for (int j = 0; j < set.n; ++j) {
            const routed r = rows[first + j];
            const int64_t i1 = r.slot % x->ne[1];
            set.act[j] = k.pack_block == 0 ? (const char *) x->data + i1 * x->nb[1] + r.token * x->nb[2]
                                           : packed + (i1 + r.token * x->ne[1]) * k.act_size(k, x->ne[0]);
            set.dst[j] = (float *) ((char *) node->data + r.slot * node->nb[1] + r.token * node->nb[2]);
        }
        dot_rows(k, {w, (const char *) w->data + expert * w->nb[2], begin, end}, default_tuning(set.n), set);
    }
}

void mul_mat_id(const ggml_compute_params * params, ggml_tensor * node, const kernel & k) {
    const ggml_tensor * w = node->src[0];
    const int64_t experts = w->ne[2];
    char * counters = align64(params->wdata);
    char * packed = counters + shares::work_size(params->nth);
    int32_t * offset = (int32_t *) align64(packed + packed_size(node->src[1], k));
    int32_t * next = offset + experts + 1;
    routed * rows = (routed *) align64(next + experts);
    const int64_t step = std::clamp<int64_t>((w->ne[1] / (2 * params->nth) + 15) / 16 * 16, 16, 256);
    const int64_t chunks = (w->ne[1] + step - 1) / step;
    if (params->phase == 0) {
        if (k.pack_block != 0) {
            pack_rows(params, node->src[1], k, packed);
        }
        shares::share_out(params, counters, chunks * experts);
        if (params->ith == 0) {
            route(node->src[2], experts, offset, next, rows);
        }
        return;
    }
    shares units(params, counters, chunks * experts);
    for (int64_t c = units.next(); c >= 0; c = units.next()) {
        const int64_t e = c / chunks, begin = c % chunks * step;
        if (offset[e + 1] > offset[e]) {
            multiply(node, k, packed, e, rows + offset[e], offset[e + 1] - offset[e], begin,
                     std::min(begin + step, w->ne[1]));
        }
    }
}

}  // namespace eagle
