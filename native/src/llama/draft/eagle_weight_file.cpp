#include "eagle_weight_file.h"

#include <cstdio>
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

// One GGUF's header; the tensors of `meta` have no data.
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

    std::vector<char> read(const ggml_tensor & weight) const {
        const int64_t id = gguf_find_tensor(gguf.get(), weight.name);
        std::vector<char> data(ggml_nbytes(&weight));
        llama_file file(path.c_str(), "rb");
        file.seek(gguf_get_data_offset(gguf.get()) + gguf_get_tensor_offset(gguf.get(), id), SEEK_SET);
        file.read_raw(data.data(), data.size());
        return data;
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

std::vector<char> read_matching(const Header & header, const ggml_tensor & found, const ggml_tensor & loaded) {
    if (found.type != loaded.type || !ggml_are_same_shape(&found, &loaded)) {
        throw std::runtime_error(
            format("%s has %s in another type or shape than the loaded model: it is not the file that was "
                   "loaded",
                   header.path.c_str(), loaded.name));
    }
    return header.read(found);
}

}  // namespace

std::vector<char> read_weight(const char * path, const ggml_tensor & loaded) {
    if (!path) {
        throw std::runtime_error("its path was not given");
    }
    const Header first{path};
    const int32_t n_splits = first.n_splits();
    if (const ggml_tensor * found = first.find(loaded.name)) {
        return read_matching(first, *found, loaded);
    }
    for (int32_t i = 1; i < n_splits; i++) {
        const Header split(split_path(path, i, n_splits));
        if (const ggml_tensor * found = split.find(loaded.name)) {
            return read_matching(split, *found, loaded);
        }
    }
    throw std::runtime_error(format("%s has no weight %s", path, loaded.name));
}

}  // namespace eagle
