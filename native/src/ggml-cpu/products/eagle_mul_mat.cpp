#include "eagle_mul_mat.h"

#include "eagle_shares.h"
#include "eagle_tuning.h"
#include "eagle_wide.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu-impl.h"
#ifdef GGML_USE_CPU_REPACK
#include "repack.h"
#endif

#include <algorithm>
#include <atomic>
#include <new>

namespace eagle {

static layout layout_of(const ggml_tensor * w) {
    if (w->extra == nullptr) {
        return layout::plain;
    }
    if (w->buffer != nullptr && w->buffer->buft == eagle_wide_buffer_type()) {
        return layout::wide;
    }
#ifdef GGML_USE_CPU_REPACK
    if (w->buffer != nullptr && w->buffer->buft == ggml_backend_cpu_repack_buffer_type()) {
        return layout::interleaved;
    }
#endif
    return layout::foreign;
}

static const kernel * kernel_for_weights(const ggml_tensor * w) {
    const kernel * k = find_kernel(w->type, layout_of(w));
    return k != nullptr && w->ne[1] % k->group == 0 && (k->pack_block == 0 || w->ne[0] % k->pack_block == 0) ? k
                                                                                                             : nullptr;
}

bool takes_wide(const ggml_tensor * w) {
    const kernel * k = find_kernel(w->type, layout::wide);
    return k != nullptr && w->ne[1] % WIDE == 0 && w->ne[0] % k->pack_block == 0 && ggml_is_contiguous(w);
}

const kernel * kernel_for(const ggml_tensor * node) {
    const ggml_tensor * w = node->src[0];
    const ggml_tensor * x = node->src[1];
    const bool by_id = node->op == GGML_OP_MUL_MAT_ID;
    const int64_t rows = by_id ? x->ne[2] : x->ne[1];
    if ((rows > MAX_ROWS && layout_of(w) != layout::wide) || x->type != GGML_TYPE_F32 || node->type != GGML_TYPE_F32) {
        return nullptr;
    }
    if (!by_id && ggml_get_op_params_i32(node, 1) == GGML_HINT_SRC0_IS_HADAMARD) {
        return nullptr;
    }
    if (w->nb[0] != ggml_type_size(w->type) || x->nb[0] != sizeof(float)) {
        return nullptr;
    }
    return kernel_for_weights(w);
}

bool exact_weights(const ggml_tensor * w) {
    if (w->buffer == nullptr || (layout_of(w) == layout::plain && !ggml_backend_buffer_is_host(w->buffer))) {
        return false;
    }
    return layout_of(w) == layout::interleaved || kernel_for_weights(w) != nullptr;
}

// State that the tickets of a product share.
struct alignas(64) product {
    trial run;
    std::atomic<int> finished{0};
};

size_t mul_mat_work_size(int n_threads, const ggml_tensor * node, const kernel & k) {
    const size_t packed = k.pack_block == 0 ? 0 : k.act_size(k, node->src[1]->ne[0]) * ggml_nrows(node->src[1]);
    return shares::work_size(n_threads) + sizeof(product) + packed + 64;
}

static const char * row_of(const ggml_tensor * x, int64_t row) {
    const int64_t i1 = row % x->ne[1], i2 = row / x->ne[1] % x->ne[2], i3 = row / x->ne[1] / x->ne[2];
    return (const char *) x->data + i1 * x->nb[1] + i2 * x->nb[2] + i3 * x->nb[3];
}

void pack_rows(const ggml_compute_params * params, const ggml_tensor * x, const kernel & k, char * work) {
    const int64_t blocks = x->ne[0] / k.pack_block;
    const int64_t total = blocks * ggml_nrows(x);
    const size_t size = k.act_size(k, x->ne[0]);
    const int64_t end = total * (params->ith + 1) / params->nth;
    for (int64_t at = total * params->ith / params->nth; at < end;) {
        const int64_t row = at / blocks;
        const int64_t stop = std::min(end, (row + 1) * blocks);
        k.pack(k, (const float *) row_of(x, row), work + row * size, x->ne[0], at - row * blocks, stop - row * blocks);
        at = stop;
    }
}

// Of kernels without dot_many. In a prompt the weights are in L2 after the first pass, so several passes of a few rows
// are faster than turns at each block.
constexpr int PROMPT_ROWS = 8;

void dot_rows(const kernel & k, const weight_rows & w, tuning tune, const row_set & rows) {
    const bool are_many = rows.n >= k.many_rows && k.dot_many != nullptr;
    const int most = are_many ? rows.n : rows.n > CALL_ROWS ? CALL_ROWS - 1 : CALL_ROWS;  // a multiple of a pass's rows
    if (rows.n > MAX_ROWS && tune.rows == 0) {
        tune.rows = PROMPT_ROWS;
    }
    const size_t row = w.tensor->nb[1];
    for (int first = 0; first < rows.n; first += most) {
        const int n = std::min(most, rows.n - first);
        float * out[row_set::MAX];
        for (int j = 0; j < n; ++j) {
            out[j] = rows.dst[first + j] + w.begin;
        }
        (are_many ? k.dot_many : k.dot)({&k, w.tensor->ne[0], w.matrix + w.begin * row, row * k.group, w.end - w.begin,
                                         rows.act + first, n, out, tune});
    }
}

static void gather(const ggml_tensor * node, const kernel & k, const char * work, int64_t i02, int64_t i03,
                   int64_t first, row_set & rows) {
    const ggml_tensor * x = node->src[1];
    const int64_t r2 = x->ne[2] / node->src[0]->ne[2], r3 = x->ne[3] / node->src[0]->ne[3];
    const int64_t all = x->ne[1] * r2 * r3;
    const size_t size = k.pack_block == 0 ? 0 : k.act_size(k, x->ne[0]);
    for (rows.n = 0; rows.n < row_set::MAX && first + rows.n < all; ++rows.n) {
        const int64_t at = first + rows.n;
        const int64_t i1 = at % x->ne[1], i2 = i02 * r2 + at / x->ne[1] % r2, i3 = i03 * r3 + at / x->ne[1] / r2;
        const int64_t row = i1 + x->ne[1] * (i2 + x->ne[2] * i3);
        rows.act[rows.n] = size == 0 ? row_of(x, row) : work + row * size;
        rows.dst[rows.n] = (float *) ((char *) node->data + i1 * node->nb[1] + i2 * node->nb[2] + i3 * node->nb[3]);
    }
}

void mul_mat(const ggml_compute_params * params, ggml_tensor * node, const kernel & k) {
    const ggml_tensor * w = node->src[0];
    const ggml_tensor * x = node->src[1];
    char * counters = align64(params->wdata);
    product * all = (product *) (counters + shares::work_size(params->nth));
    char * work = (char *) (all + 1);

    const int64_t matrices = w->ne[2] * w->ne[3];
    const int64_t share = (w->ne[1] * matrices + 8 * params->nth - 1) / (8 * params->nth);
    const int64_t step = std::clamp<int64_t>((share + 15) / 16 * 16, 16, 256);
    const int64_t chunks = (w->ne[1] + step - 1) / step;
    const int64_t per_set = x->ne[1] * (x->ne[2] / w->ne[2]) * (x->ne[3] / w->ne[3]);
    if (params->phase == 0) {
        if (k.pack_block != 0) {
            pack_rows(params, x, k, work);
        }
        shares::share_out(params, counters, chunks * matrices);
        if (params->ith == 0) {
            new (all) product{trial(k, w->ne[0], (int64_t) ggml_nbytes(w), per_set)};
        }
        return;
    }
    shares units(params, counters, chunks * matrices);
    for (int64_t c = units.next(); c >= 0; c = units.next()) {
        const int64_t i02 = c / chunks % w->ne[2], i03 = c / chunks / w->ne[2];
        const char * matrix = (const char *) w->data + i02 * w->nb[2] + i03 * w->nb[3];
        const int64_t begin = c % chunks * step;
        for (int64_t first = 0; first < per_set; first += row_set::MAX) {
            row_set rows;
            gather(node, k, work, i02, i03, first, rows);
            dot_rows(k, {w, matrix, begin, std::min(begin + step, w->ne[1])}, all->run.tune, rows);
        }
    }
    if (!all->run.is_over() && !units.was_left() && all->finished.fetch_add(1) + 1 == params->nth) {
        all->run.end();
    }
}

}  // namespace eagle
