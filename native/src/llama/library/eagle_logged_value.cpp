// Texts of a file's values in the loader's log, which shows the beginning of each.

#include <string>

#include "gguf.h"
#include "llama-impl.h"

// In llama-model-loader.cpp every call of gguf_kv_to_str is one of this function (Includes.cmake). The loader shows at
// most 40 characters, but llama.cpp's function formats each token, score and type of a vocabulary: up to 0.1 s of a
// start.
std::string eagle_logged_value(const gguf_context * file, int key) {
    constexpr size_t SHOWN = 40;
    if (gguf_get_kv_type(file, key) != GGUF_TYPE_ARRAY || gguf_get_arr_n(file, key) <= SHOWN) {
        return gguf_kv_to_str(file, key);
    }
    const gguf_type type = gguf_get_arr_type(file, key);
    const void * data = type == GGUF_TYPE_STRING ? nullptr : gguf_get_arr_data(file, key);
    std::string text = "[";
    for (size_t i = 0; text.size() <= SHOWN; i++) {
        if (type == GGUF_TYPE_STRING) {
            std::string value = gguf_get_arr_str(file, key, i);
            replace_all(value, "\\", "\\\\");
            replace_all(value, "\"", "\\\"");
            text += '"' + value + '"';
        } else if (type == GGUF_TYPE_INT32) {
            text += std::to_string(((const int32_t *) data)[i]);
        } else if (type == GGUF_TYPE_FLOAT32) {
            text += std::to_string(((const float *) data)[i]);
        } else {
            return gguf_kv_to_str(file, key);
        }
        text += ", ";
    }
    return text;
}
