// Table of kernels, and the exact fallback for types without one: ggml's own dot product, one row at a time.
#include "eagle_kernels.h"

#include <array>

#include "eagle_simd.h"
#include "ggml-cpu.h"

namespace eagle {
namespace {

enum ggml_type dot_type(const kernel & k) {
    return ggml_get_type_traits_cpu(k.type)->vec_dot_type;
}

size_t act_size_any(const kernel & k, int64_t n) {
    return (ggml_row_size(dot_type(k), n) + 63) / 64 * 64;
}

void pack_any(const kernel & k, const float * x, void * act, int64_t, int64_t begin, int64_t end) {
    const int64_t block = k.pack_block;
    char * out = (char *) act + ggml_row_size(dot_type(k), begin * block);
    ggml_get_type_traits_cpu(dot_type(k))->from_float(x + begin * block, out, (end - begin) * block);
}

void dot_any(const dot_args & a) {
    const ggml_vec_dot_t vec_dot = ggml_get_type_traits_cpu(a.k->type)->vec_dot;
    for (int64_t i = 0; i < a.n_w; ++i) {
        for (int j = 0; j < a.n_act; ++j) {
            vec_dot((int) a.n, a.dst[j] + i, 0, a.w + i * a.w_stride, 0, a.act[j], 0, 1);
        }
    }
}

using table = std::array<kernel, GGML_TYPE_COUNT>;

// F32 activations are not packed; those of other float types are packed in blocks of one value.
table fallback_table() {
    table t = {};
    for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
        const ggml_type_traits_cpu * traits = ggml_get_type_traits_cpu((enum ggml_type) type);
        if (traits == nullptr || traits->vec_dot == nullptr) {
            continue;
        }
        const ggml_type_traits_cpu * act = ggml_get_type_traits_cpu(traits->vec_dot_type);
        t[type] = {(enum ggml_type) type, 1, 0, nullptr, nullptr, dot_any};
        if (traits->vec_dot_type != GGML_TYPE_F32 && act->from_float != nullptr) {
            t[type].pack_block = (int) ggml_blck_size(traits->vec_dot_type);
            t[type].act_size = act_size_any;
            t[type].pack = pack_any;
        } else if (traits->vec_dot_type != GGML_TYPE_F32) {
            t[type].dot = nullptr;
        }
    }
    return t;
}

const kernel * simd_kernel(enum ggml_type type) {
#ifdef EAGLE_SIMD
    switch (type) {
    case GGML_TYPE_F32:
        return &kernel_f32;
    case GGML_TYPE_F16:
        return &kernel_f16;
    case GGML_TYPE_BF16:
        return &kernel_bf16;
    case GGML_TYPE_Q8_0:
        return &kernel_q8_0;
    case GGML_TYPE_Q4_0:
        return &kernel_q4_0;
    case GGML_TYPE_Q4_K:
        return &kernel_q4_K;
    case GGML_TYPE_Q5_K:
        return &kernel_q5_K;
    case GGML_TYPE_Q6_K:
        return &kernel_q6_K;
    case GGML_TYPE_IQ3_XXS:
        return &kernel_iq3_xxs;
    case GGML_TYPE_IQ3_S:
        return &kernel_iq3_s;
    default:
        break;
    }
#endif
    (void) type;
    return nullptr;
}

const kernel * interleaved_kernel(enum ggml_type type) {
#ifdef EAGLE_SIMD
    switch (type) {
    case GGML_TYPE_Q4_0:
        return &kernel_q4_0_x8;
    case GGML_TYPE_Q4_K:
        return &kernel_q4_K_x8;
    default:
        break;
    }
#endif
    (void) type;
    return nullptr;
}

const kernel * wide_kernel(enum ggml_type type) {
#ifdef EAGLE_SIMD
    switch (type) {
    case GGML_TYPE_Q4_0:
        return &kernel_q4_0_wide;
    case GGML_TYPE_Q4_1:
        return &kernel_q4_1_wide;
    case GGML_TYPE_Q5_0:
        return &kernel_q5_0_wide;
    case GGML_TYPE_Q5_1:
        return &kernel_q5_1_wide;
    case GGML_TYPE_Q8_0:
        return &kernel_q8_0_wide;
    case GGML_TYPE_IQ4_NL:
        return &kernel_iq4_nl_wide;
    case GGML_TYPE_MXFP4:
        return &kernel_mxfp4_wide;
    case GGML_TYPE_Q2_K:
        return &kernel_q2_K_wide;
    case GGML_TYPE_Q3_K:
        return &kernel_q3_K_wide;
    case GGML_TYPE_Q4_K:
        return &kernel_q4_K_wide;
    case GGML_TYPE_Q5_K:
        return &kernel_q5_K_wide;
    case GGML_TYPE_Q6_K:
        return &kernel_q6_K_wide;
    case GGML_TYPE_IQ4_XS:
        return &kernel_iq4_xs_wide;
    default:
        break;
    }
#endif
    (void) type;
    return nullptr;
}

}  // namespace

const kernel * find_kernel(enum ggml_type type, layout l) {
    if (l != layout::plain) {
        return l == layout::interleaved ? interleaved_kernel(type) : l == layout::wide ? wide_kernel(type) : nullptr;
    }
    if (const kernel * k = simd_kernel(type)) {
        return k;
    }
    static const table fallback = fallback_table();
    return fallback[type].dot != nullptr ? &fallback[type] : nullptr;
}

}  // namespace eagle
