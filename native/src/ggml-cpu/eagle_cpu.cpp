#include "eagle_cpu.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <shared_mutex>

#include "eagle_exact_environment.h"
#include "eagle_flash_attn.h"
#include "eagle_gdn_cpu.h"
#include "eagle_mul_mat.h"
#include "eagle_wide.h"
#include "ggml-cpu-impl.h"
#include "vec.h"

// Same values as eagle_exact_mode, which libllama defines.
enum mode { OFF = 0, ON = 1, STRICT = 2 };

static std::atomic<int> & exact_mode() {
    static std::atomic<int> mode{eagle_exact_from_environment(ON)};
    return mode;
}

static std::atomic<bool> foreign_layouts_listed{false};

// Running graphs hold a shared lock, so that contexts do not wait for each other.
static std::shared_mutex & mode_mutex() {
    static std::shared_mutex mutex;
    return mutex;
}

void eagle_graph_begins(void) {
    mode_mutex().lock_shared();
}

void eagle_graph_ends(void) {
    mode_mutex().unlock_shared();
}

int eagle_cpu_exact_mode(void) {
    return exact_mode().load(std::memory_order_relaxed);
}

bool eagle_cpu_exact_set(int mode) {
    const std::unique_lock<std::shared_mutex> no_graph_runs(mode_mutex());
    if (mode == STRICT && exact_mode() != STRICT && foreign_layouts_listed) {
        return false;
    }
    exact_mode() = mode;
    return true;
}

// AMX kernels are inexact, and slower than ours for few rows. KleidiAI's are inexact too, but on ARM we have no
// alternative.
bool eagle_allows_foreign_layouts(void) {
#if defined(__x86_64__) || defined(_M_X64)
    const bool allowed = eagle_cpu_exact_mode() == OFF;
#else
    const bool allowed = eagle_cpu_exact_mode() != STRICT;
#endif
    foreign_layouts_listed = foreign_layouts_listed || allowed;
    return allowed;
}

bool eagle_one_row_at_a_time(int64_t n_rows) {
    return n_rows <= eagle::MAX_ROWS && eagle_cpu_exact_mode() != OFF;
}

bool eagle_cpu_exact_weights(const ggml_tensor * weights) {
    return eagle::exact_weights(weights);
}

const char * eagle_cpu_library(void) {
    return EAGLE_CPU_LIBRARY;
}

static const eagle::kernel * matrix_kernel(const ggml_tensor * node) {
    return node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID ? eagle::kernel_for(node) : nullptr;
}

// The mode may change between planning and computing, so the size does not depend on it.
size_t eagle_work_size(int n_threads, const ggml_tensor * node) {
    if (node->op == GGML_OP_FLASH_ATTN_EXT && eagle::takes_flash_attn(node)) {
        return eagle::flash_attn_work_size(n_threads, node);
    }
    if (node->op == GGML_OP_EAGLE_GDN) {
        return eagle_cpu_scan_work_size(n_threads);
    }
    const eagle::kernel * k = matrix_kernel(node);
    if (k == nullptr) {
        return 0;
    }
    return node->op == GGML_OP_MUL_MAT ? eagle::mul_mat_work_size(n_threads, node, *k)
                                       : eagle::mul_mat_id_work_size(n_threads, node, *k);
}

static bool attends(const ggml_tensor * node, bool off) {
    return !off && node->op == GGML_OP_FLASH_ATTN_EXT && eagle::takes_flash_attn(node);
}

static const eagle::kernel * multiplies(const ggml_tensor * node, bool off) {
    const eagle::kernel * k = matrix_kernel(node);
    return k != nullptr && off && k->group != eagle::WIDE ? nullptr : k;  // only our kernels read our repacked layout
}

static bool multiplies_rows(const ggml_tensor * node) {
    const ggml_tensor *x = node->src[0], *by = node->src[1];
    return node->op == GGML_OP_MUL && by->ne[0] == 1 && x->ne[0] > 1 && x->type == GGML_TYPE_F32 &&
           by->type == GGML_TYPE_F32 && node->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) &&
           node->nb[0] == sizeof(float);
}

// Multiplies each row by one number, as mixtures do with the rows of their experts. ggml calls a function for each
// value.
static void multiply_rows(const ggml_compute_params * params, ggml_tensor * node) {
    const ggml_tensor *x = node->src[0], *by = node->src[1];
    const auto at = [](const ggml_tensor * t, int64_t i1, int64_t i2, int64_t i3) {
        return (float *) ((char *) t->data + i1 * t->nb[1] + i2 * t->nb[2] + i3 * t->nb[3]);
    };
    const int64_t rows = ggml_nrows(x);
    for (int64_t row = rows * params->ith / params->nth; row < rows * (params->ith + 1) / params->nth; ++row) {
        const int64_t i1 = row % x->ne[1], i2 = row / x->ne[1] % x->ne[2], i3 = row / x->ne[1] / x->ne[2];
        const float factor = *at(by, i1 % by->ne[1], i2 % by->ne[2], i3 % by->ne[3]);
        const float * from = at(x, i1, i2, i3);
        float * to = at(node, i1, i2, i3);
        if (to != from) {
            memcpy(to, from, x->ne[0] * sizeof(float));
        }
        ggml_vec_scale_f32((int) x->ne[0], to, factor);
    }
}

int eagle_phases(const ggml_tensor * node, bool use_ref) {
    if (node->op == GGML_OP_EAGLE_GDN) {
        return eagle_cpu_scan_phases(node);
    }
    const bool off = use_ref || eagle_cpu_exact_mode() == OFF;
    if (attends(node, off)) {
        return eagle::flash_attn_phases(node);
    }
    return multiplies(node, off) != nullptr ? eagle::MUL_MAT_PHASES : 0;
}

int64_t eagle_phase_values(const ggml_tensor * node, int phase) {
    if (node->op == GGML_OP_EAGLE_GDN) {
        return eagle_cpu_scan_values(node, phase);
    }
    if (node->op == GGML_OP_FLASH_ATTN_EXT) {
        return eagle::flash_attn_values(node, phase);
    }
    constexpr int64_t AT_ONCE = 4;  // vector products of small integers cost a quarter
    return phase == 0 ? ggml_nelements(node->src[1]) : ggml_nelements(node) * node->src[0]->ne[0] / AT_ONCE;
}

bool eagle_compute_forward(const ggml_compute_params * params, ggml_tensor * node) {
    if (eagle_cpu_recurrent(params, node)) {
        return true;
    }
    if (multiplies_rows(node)) {
        multiply_rows(params, node);
        return true;
    }
    const bool off = params->use_ref || eagle_cpu_exact_mode() == OFF;
    if (attends(node, off)) {
        eagle::flash_attn(params, node);
        return true;
    }
    const eagle::kernel * k = multiplies(node, off);
    if (k == nullptr) {
        return false;
    }
    if (node->op == GGML_OP_MUL_MAT) {
        eagle::mul_mat(params, node, *k);
    } else {
        eagle::mul_mat_id(params, node, *k);
    }
    return true;
}

void * eagle_cpu_proc_address(const char * name) {
    if (strcmp(name, "eagle_cpu_exact_set") == 0) {
        return (void *) eagle_cpu_exact_set;
    }
    if (strcmp(name, "eagle_cpu_exact_mode") == 0) {
        return (void *) eagle_cpu_exact_mode;
    }
    if (strcmp(name, "eagle_cpu_exact_weights") == 0) {
        return (void *) eagle_cpu_exact_weights;
    }
    if (strcmp(name, "eagle_cpu_library") == 0) {
        return (void *) eagle_cpu_library;
    }
    if (strcmp(name, "eagle_allows_foreign_layouts") == 0) {
        return (void *) eagle_allows_foreign_layouts;
    }
    return nullptr;
}
