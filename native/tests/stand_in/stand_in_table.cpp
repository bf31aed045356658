#include "stand_in_table.h"

namespace stand_in {

namespace {

bool is_float(const ggml_tensor * t) {
    return t->type == GGML_TYPE_F32 || t->type == GGML_TYPE_F16;
}

bool is_matrix_type(ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || ggml_is_quantized(type);
}

bool computes_product(const ggml_tensor * op) {
    const ggml_tensor *a = op->src[0], *b = op->src[1];
    const bool rows = a->nb[0] == ggml_type_size(a->type) && b->nb[0] == ggml_type_size(b->type);
    return rows && is_matrix_type(a->type) && (b->type == GGML_TYPE_F32 || a->type == GGML_TYPE_F16);
}

bool computes_copy(ggml_type from, ggml_type to) {
    const auto plain = [](ggml_type t) {
        return t == GGML_TYPE_F32 || t == GGML_TYPE_F16 || t == GGML_TYPE_BF16 || t == GGML_TYPE_I32;
    };
    return from == to || (plain(from) && plain(to)) || (from == GGML_TYPE_F32 && ggml_is_quantized(to));
}

}  // namespace

bool computes(const ggml_tensor * op) {
    const ggml_tensor *a = op->src[0], *b = op->src[1];
    switch (op->op) {
    case GGML_OP_NONE:
    case GGML_OP_RESHAPE:
    case GGML_OP_VIEW:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
    case GGML_OP_CONT:
    case GGML_OP_DUP:
    case GGML_OP_CLAMP:
    case GGML_OP_SQR:
    case GGML_OP_ARGMAX:
    case GGML_OP_ARGSORT:
    case GGML_OP_SOFT_MAX:
    case GGML_OP_FLASH_ATTN_EXT:
    case GGML_OP_FILL:
    case GGML_OP_PAD:
    case GGML_OP_CUMSUM:
    case GGML_OP_TRI:
    case GGML_OP_DIAG:
    case GGML_OP_SOLVE_TRI:
    case GGML_OP_GATED_DELTA_NET:
        return true;
    case GGML_OP_UNARY:
        return ggml_is_contiguous(a);
    case GGML_OP_GLU:
        return ggml_is_contiguous_1(a);
    case GGML_OP_MUL_MAT:
    case GGML_OP_MUL_MAT_ID:
        return computes_product(op);
    case GGML_OP_GET_ROWS:
        return a->type == GGML_TYPE_I32 || is_matrix_type(a->type);
    case GGML_OP_SET_ROWS:
        return a->type == GGML_TYPE_F32 && computes_copy(GGML_TYPE_F32, op->type);
    case GGML_OP_CPY:
        return computes_copy(a->type, b->type);
    case GGML_OP_CONCAT:
        return a->type == b->type && !ggml_is_quantized(a->type);
    case GGML_OP_REPEAT:
        return is_float(a);
    case GGML_OP_NORM:
    case GGML_OP_RMS_NORM:
    case GGML_OP_L2_NORM:
    case GGML_OP_SUM_ROWS:
        return ggml_is_contiguous_rows(a);
    case GGML_OP_SCALE:
        return a->type == GGML_TYPE_F32;
    case GGML_OP_ADD:
    case GGML_OP_SUB:
    case GGML_OP_MUL:
    case GGML_OP_DIV:
        return is_float(a) && is_float(b);
    case GGML_OP_SSM_CONV:
        return a->ne[1] % 128 == 0;
    case GGML_OP_ROPE:
        return ggml_is_contiguous_2(a);
    case GGML_OP_EAGLE_GDN:
    case GGML_OP_EAGLE_CONV_WINDOW:
        return true;  // same as our CUDA kernels
    default:
        return false;
    }
}

int64_t batch_size(const ggml_tensor * op) {
    switch (op->op) {
    case GGML_OP_GET_ROWS:
        return 0;
    case GGML_OP_MUL_MAT:
        return op->ne[1];
    case GGML_OP_MUL_MAT_ID:
    case GGML_OP_ROPE:
        return op->ne[2];
    default:
        return ggml_nrows(op);
    }
}

}  // namespace stand_in
