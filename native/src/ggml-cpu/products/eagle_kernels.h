// Exact kernels for the product of a matrix with a few activation rows, and their table.
//
// Contract of every kernel: the float operations that compute dst[j][i], and their order, depend only on weight row i,
// activation row j and n. They do not depend on the number of rows, their places, or the thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ggml.h"

namespace eagle {

constexpr int MAX_ROWS = 72;   // EAGLE_EXACT_MAX_ROWS; ggml computes larger batches, which are prompts
constexpr int FEW_ROWS = 4;    // up to this number memory bandwidth is the limit
constexpr int CALL_ROWS = 17;  // activation rows that one call of a kernel multiplies

// Memory layout of weights: plain, interleaved by ggml's repacking, our repacked layout (eagle_wide.h), or another one,
// which our kernels cannot read.
enum class layout { plain, interleaved, wide, foreign };

struct kernel;

// Variant of a kernel; all variants have the same bits (eagle_tuning.h). 0: the kernel's own choice.
struct tuning {
    int rows = 0;            // maximum number of activation rows in a pass over the weights
    int prefetch_bytes = 0;  // prefetch distance in bytes
    int groups = 0;          // groups of weight rows that a pass computes together, in our repacked layout: 1 or 2
    int prefetch_level = 0;  // prefetch target: L1 or L2
};

struct dot_args {
    const struct kernel * k;
    int64_t n;                 // values per row
    const char * w;            // first weight row (or first group of interleaved rows)
    size_t w_stride;           // bytes from one row or group to the next
    int64_t n_w;               // weight rows; a multiple of the kernel's group
    const char * const * act;  // [n_act] packed activation rows
    int n_act;                 // 1 .. CALL_ROWS; any number for dot_many
    float * const * dst;       // [n_act] outputs, n_w floats each
    tuning tune = {};
};

struct kernel {
    enum ggml_type type;
    int group;       // weight rows interleaved in memory, 1 for plain layouts
    int pack_block;  // values per activation block; 0: activations stay F32, and act_size and pack are null
    size_t (*act_size)(const kernel & k, int64_t n);  // bytes of a packed activation row
    // Packs blocks [begin, end) of a row of n values.
    void (*pack)(const kernel & k, const float * x, void * act, int64_t n, int64_t begin, int64_t end);
    void (*dot)(const dot_args & args);
    bool tunable = false;                               // it uses dot_args::tune
    void (*dot_many)(const dot_args & args) = nullptr;  // null: there is none; the fastest one from many_rows on
    int many_rows = CALL_ROWS + 1;
};

// Returns the kernel for weights of this type and layout, or null. Every plain type that ggml can multiply has one.
const kernel * find_kernel(enum ggml_type type, layout l);

extern const kernel kernel_f32, kernel_f16, kernel_bf16, kernel_q8_0, kernel_q4_0_x8, kernel_q4_0, kernel_q4_K_x8,
    kernel_q4_K, kernel_q5_K, kernel_q6_K, kernel_iq3_xxs, kernel_iq3_s;
extern const kernel kernel_q4_0_wide, kernel_q4_1_wide, kernel_q5_0_wide, kernel_q5_1_wide, kernel_q8_0_wide,
    kernel_iq4_nl_wide, kernel_mxfp4_wide;
extern const kernel kernel_q2_K_wide, kernel_q3_K_wide, kernel_q4_K_wide, kernel_q5_K_wide, kernel_q6_K_wide,
    kernel_iq4_xs_wide;

}  // namespace eagle
