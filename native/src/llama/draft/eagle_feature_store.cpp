#include "eagle_feature_store.h"

#include <algorithm>
#include <cstring>

#include "eagle_error.h"
#include "ggml-backend.h"

namespace eagle {

namespace {

ggml_context_ptr context_for(size_t n_tensors) {
    ggml_init_params params = {};
    params.mem_size = n_tensors * ggml_tensor_overhead();
    params.no_alloc = true;
    return ggml_context_ptr(ggml_init(params));
}

}  // namespace

// stage() moves the rows to the front if they would exceed the end. A capacity of twice the pending rows guarantees
// that source and destination of that move do not overlap.
FeatureStore::FeatureStore(ggml_backend_t backend, const FeatureShape & shape)
    : ctx_(context_for(1)), shape_(shape), capacity_(2 * shape.n_pending + shape.n_staged) {
    table_ = ggml_new_tensor_2d(ctx_.get(), GGML_TYPE_F32, shape.n_embd_tgt, shape.n_aux * capacity_);
    buffer_.reset(ggml_backend_alloc_ctx_tensors(ctx_.get(), backend));
    if (!buffer_) {
        throw Error(EAGLE_ERR_MEMORY, format("no memory for %zu MiB of features", ggml_nbytes(table_) >> 20));
    }
}

ggml_tensor * FeatureStore::view(ggml_context * ctx, int64_t feature, int64_t row, int64_t n) const {
    ggml_tensor * rows = ggml_view_2d(ctx, table_, table_->ne[0], n, table_->nb[1], offset(feature, row));
    ggml_backend_view_init(rows);
    return rows;
}

// Copies whole tensors if possible, because some buffers do not support views of their tensors.
void FeatureStore::stage(const std::vector<ggml_tensor *> & features, int64_t first, int64_t n) {
    if (first_ + n_ + n > capacity_) {
        move_to_front();
    }
    const ggml_context_ptr ctx = context_for(2 * shape_.n_aux);
    for (int64_t a = 0; a < shape_.n_aux; a++) {
        ggml_tensor * rows = features[a];
        if (n < rows->ne[1]) {
            rows = ggml_view_2d(ctx.get(), rows, rows->ne[0], n, rows->nb[1], first * rows->nb[1]);
            ggml_backend_view_init(rows);
        }
        ggml_backend_tensor_copy(rows, view(ctx.get(), a, first_ + n_, n));
    }
}

void FeatureStore::move_to_front() {
    GGML_ASSERT(first_ >= n_);
    const ggml_context_ptr ctx = context_for(2 * shape_.n_aux);
    for (int64_t a = 0; n_ > 0 && a < shape_.n_aux; a++) {
        ggml_backend_tensor_copy(view(ctx.get(), a, first_, n_), view(ctx.get(), a, 0, n_));
    }
    first_ = 0;
}

void FeatureStore::pop_front(int32_t n) {
    first_ += n;
    n_ -= n;
}

void FeatureStore::truncate(int32_t n) {
    n_ = std::min(n_, n);
}

void FeatureStore::fill_with_zeros(int32_t n) {
    const std::vector<char> zeros(n * shape_.n_aux * shape_.n_embd_tgt * sizeof(float));
    write(zeros.data(), n);
}

void FeatureStore::read(char * rows) const {
    const int64_t width = shape_.n_embd_tgt, n_bytes = width * (int64_t) sizeof(float);
    std::vector<float> feature(n_ * width);
    for (int64_t a = 0; a < shape_.n_aux; a++) {
        ggml_backend_tensor_get(table_, feature.data(), offset(a, first_), feature.size() * sizeof(float));
        for (int64_t i = 0; i < n_; i++) {
            std::memcpy(rows + (i * shape_.n_aux + a) * n_bytes, &feature[i * width], n_bytes);
        }
    }
}

void FeatureStore::write(const char * rows, int32_t n) {
    const int64_t width = shape_.n_embd_tgt, n_bytes = width * (int64_t) sizeof(float);
    first_ = 0;
    n_ = n;
    std::vector<float> feature(n_ * width);
    for (int64_t a = 0; a < shape_.n_aux; a++) {
        for (int64_t i = 0; i < n_; i++) {
            std::memcpy(&feature[i * width], rows + (i * shape_.n_aux + a) * n_bytes, n_bytes);
        }
        ggml_backend_tensor_set(table_, feature.data(), offset(a, first_), feature.size() * sizeof(float));
    }
}

void FeatureStore::lines(int32_t first, int32_t n, std::vector<int32_t> & lines) const {
    lines.clear();
    for (int64_t row = first_ + first; row < first_ + first + n; row++) {
        for (int64_t a = 0; a < shape_.n_aux; a++) {
            lines.push_back((int32_t) line(a, row));
        }
    }
}

}  // namespace eagle
