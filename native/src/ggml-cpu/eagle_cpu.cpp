#include "eagle_cpu.h"

#include "eagle_flash_attn.h"
#include "eagle_mul_mat.h"
#include "ggml-cpu-impl.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

static bool exact_by_default() {
    const char * env = getenv("EAGLE_EXACT");
    return env == nullptr || strcmp(env, "0") != 0;
}

static std::atomic<bool> & exact_flag() {
    static std::atomic<bool> flag{exact_by_default()};
    return flag;
}

void eagle_cpu_exact_set(bool on) { exact_flag().store(on); }
bool eagle_cpu_exact(void) { return exact_flag().load(std::memory_order_relaxed); }

bool eagle_one_row_at_a_time(int64_t n_rows) { return n_rows <= eagle::MAX_ROWS && eagle_cpu_exact(); }

static const eagle::kernel * matrix_kernel(const ggml_tensor * node) {
    return node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID ? eagle::kernel_for(node) : nullptr;
}

// The switch may be thrown between planning and computing, so the size does not look at it.
size_t eagle_work_size(int n_threads, const ggml_tensor * node) {
    if (node->op == GGML_OP_FLASH_ATTN_EXT && eagle::takes_flash_attn(node)) {
        return eagle::flash_attn_work_size(n_threads, node);
    }
    const eagle::kernel * k = matrix_kernel(node);
    if (k == nullptr) {
        return 0;
    }
    return node->op == GGML_OP_MUL_MAT ? eagle::mul_mat_work_size(node, *k) : eagle::mul_mat_id_work_size(node, *k);
}

bool eagle_compute_forward(const ggml_compute_params * params, ggml_tensor * node) {
    if (params->use_ref || !eagle_cpu_exact()) {
        return false;
    }
    if (node->op == GGML_OP_FLASH_ATTN_EXT && eagle::takes_flash_attn(node)) {
        eagle::flash_attn(params, node);
        return true;
    }
    const eagle::kernel * k = matrix_kernel(node);
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
    if (strcmp(name, "eagle_cpu_exact") == 0) {
        return (void *) eagle_cpu_exact;
    }
    return nullptr;
}
