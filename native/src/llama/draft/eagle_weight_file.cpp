#include "eagle_weight_file.h"

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

#include "eagle_error.h"
#include "ggml-cpp.h"
#include "gguf.h"
#include "llama-mmap.h"
#include "llama.h"

namespace eagle {

namespace {

constexpr size_t MAX_PATH_BYTES = 4096;
constexpr const char * WIDE_BUFFER = "CPU_EAGLE";
constexpr int64_t WIDE_ROWS = 16;  // eagle::WIDE in ggml-cpu

// Header of a GGUF file; the tensors of `meta` have no data.
struct Header {
    explicit Header(const std::string & path) : path(path) {
        ggml_context * tensors = nullptr;
        gguf.reset(gguf_init_from_file(path.c_str(), {true, &tensors}));
        meta.reset(tensors);
        if (!gguf) {
            throw std::runtime_error(format("%s cannot be read", path.c_str()));
        }
    }

    int32_t n_splits() const {
        const int64_t key = gguf_find_key(gguf.get(), "split.count");
        return key >= 0 && gguf_get_kv_type(gguf.get(), key) == GGUF_TYPE_UINT16 ? gguf_get_val_u16(gguf.get(), key)
                                                                                 : 1;
    }

    const ggml_tensor * find(const char * name) const { return ggml_get_tensor(meta.get(), name); }

    size_t offset(const ggml_tensor & weight) const {
        const int64_t id = gguf_find_tensor(gguf.get(), weight.name);
        return gguf_get_data_offset(gguf.get()) + gguf_get_tensor_offset(gguf.get(), id);
    }

    const std::string path;
    gguf_context_ptr gguf;
    ggml_context_ptr meta;
};

std::string split_path(const std::string & first, int32_t number, int32_t count) {
    char prefix[MAX_PATH_BYTES], path[MAX_PATH_BYTES];
    if (llama_split_prefix(prefix, sizeof prefix, first.c_str(), 0, count) <= 0) {
        throw std::runtime_error(format("%s is not the first of %d splits", first.c_str(), count));
    }
    llama_split_path(path, sizeof path, prefix, number, count);
    return path;
}

struct Place {
    std::string path;
    size_t offset;
};

Place place_of(const Header & header, const ggml_tensor & found, const ggml_tensor & loaded) {
    if (found.type != loaded.type || !ggml_are_same_shape(&found, &loaded)) {
        throw std::runtime_error(
            format("%s has %s in another type or shape than the loaded model: it is not the file that was "
                   "loaded",
                   header.path.c_str(), loaded.name));
    }
    return {header.path, header.offset(loaded)};
}

Place find_weight(const char * path, const ggml_tensor & loaded) {
    if (!path) {
        throw std::runtime_error("its path was not given");
    }
    const Header first{path};
    const int32_t n_splits = first.n_splits();
    if (const ggml_tensor * found = first.find(loaded.name)) {
        return place_of(first, *found, loaded);
    }
    for (int32_t i = 1; i < n_splits; i++) {
        const Header split(split_path(path, i, n_splits));
        if (const ggml_tensor * found = split.find(loaded.name)) {
            return place_of(split, *found, loaded);
        }
    }
    throw std::runtime_error(format("%s has no weight %s", path, loaded.name));
}

// Weights that the CPU holds repacked (also for AMX) cannot be read back, except from our own layout.
bool is_readable(const ggml_tensor & weight) {
    ggml_backend_buffer_type_t type = ggml_backend_buffer_get_type(weight.buffer);
    ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
    return ggml_backend_buft_is_host(type) || !device ||
           ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU || is_wide(type);
}

}  // namespace

bool is_wide(ggml_backend_buffer_type_t type) {
    return std::strcmp(ggml_backend_buft_name(type), WIDE_BUFFER) == 0;
}

int64_t rows_together(const ggml_tensor & weight) {
    return weight.extra && is_wide(ggml_backend_buffer_get_type(weight.buffer)) ? WIDE_ROWS : 1;
}

WeightRows::WeightRows(const ggml_tensor & weight, const char * path)
    : weight_(weight), n_together_(rows_together(weight)) {
    if (!is_readable(weight)) {
        const Place place = find_weight(path, weight);
        file_ = std::make_unique<llama_file>(place.path.c_str(), "rb");
        offset_ = place.offset;
    }
    group_.resize(n_together_ * row_size());
}

WeightRows::WeightRows(WeightRows && other) = default;
WeightRows::~WeightRows() = default;

size_t WeightRows::row_size() const {
    return weight_.nb[1];
}

void WeightRows::read_bytes(size_t offset, size_t size, char * data) {
    if (file_) {
        file_->seek(offset_ + offset, SEEK_SET);
        file_->read_raw(data, size);
    } else {
        ggml_backend_tensor_get(&weight_, data, offset, size);
    }
}

void WeightRows::read(int64_t i, char * row) {
    const int64_t first = i - i % n_together_;
    if (first != first_) {
        read_bytes(first * row_size(), group_.size(), group_.data());
        first_ = first;
    }
    std::memcpy(row, group_.data() + (i - first) * row_size(), row_size());
}

std::vector<char> WeightRows::read_all() {
    std::vector<char> data(ggml_nbytes(&weight_));
    read_bytes(0, data.size(), data.data());
    return data;
}

}  // namespace eagle
