// Limits for chat templates, which are untrusted programs in llama.cpp's interpreter. Exceeding a limit throws an
// exception that names it.
#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>

constexpr std::chrono::seconds EAGLE_TEMPLATE_TIME(10);
constexpr int64_t EAGLE_TEMPLATE_BYTES = int64_t(1)
                                         << 30;  // total size of all texts and lists that a rendering creates
constexpr int64_t EAGLE_TEMPLATE_ITEM = 256;     // bytes counted per list item
constexpr int EAGLE_TEMPLATE_DEPTH = 1000;       // nested statements, macros and expressions

// Counts time and bytes of a rendering while the object exists. Nested objects belong to the outer rendering.
class eagle_template_rendering {
  public:
    eagle_template_rendering() : before_(counts()), is_part_(before_.is_counted) {
        if (!is_part_) {
            counts() = {true, 0, before_.depth, std::chrono::steady_clock::now() + EAGLE_TEMPLATE_TIME};
        }
    }
    ~eagle_template_rendering() {
        if (!is_part_) {
            counts() = before_;
        }
    }
    eagle_template_rendering(const eagle_template_rendering &) = delete;
    eagle_template_rendering & operator=(const eagle_template_rendering &) = delete;

    struct Counts {
        bool is_counted = false;
        int64_t n_bytes = 0;
        int depth = 0;
        std::chrono::steady_clock::time_point end;
    };

    static Counts & counts() {
        static thread_local Counts value;
        return value;
    }

  private:
    Counts before_;
    bool is_part_;
};

// Counts n_bytes more.
inline void eagle_template_takes(int64_t n_bytes) {
    auto & counts = eagle_template_rendering::counts();
    if (!counts.is_counted) {
        return;
    }
    counts.n_bytes += n_bytes;
    if (n_bytes > EAGLE_TEMPLATE_BYTES || counts.n_bytes > EAGLE_TEMPLATE_BYTES) {
        throw std::runtime_error("the chat template makes more than " + std::to_string(EAGLE_TEMPLATE_BYTES >> 20) +
                                 " MiB of text and lists");
    }
    if (std::chrono::steady_clock::now() > counts.end) {
        throw std::runtime_error("the chat template takes more than " + std::to_string(EAGLE_TEMPLATE_TIME.count()) +
                                 " s");
    }
}

// Counts n_times copies of a text or list.
inline void eagle_template_repeats(int64_t n_bytes, int64_t n_times) {
    const bool is_huge = n_times > EAGLE_TEMPLATE_BYTES || n_bytes > EAGLE_TEMPLATE_BYTES;
    eagle_template_takes(n_times <= 0 ? 0 : is_huge ? EAGLE_TEMPLATE_BYTES + 1 : (n_bytes + 1) * n_times);
}

// Counts one level of recursion while the object exists, and n_bytes.
class eagle_template_level {
  public:
    explicit eagle_template_level(int64_t n_bytes = 0) {
        if (eagle_template_rendering::counts().depth == EAGLE_TEMPLATE_DEPTH) {
            throw std::runtime_error("the chat template calls itself for ever, or is nested deeper than " +
                                     std::to_string(EAGLE_TEMPLATE_DEPTH) + " levels");
        }
        eagle_template_takes(n_bytes);
        eagle_template_rendering::counts().depth++;
    }
    ~eagle_template_level() { eagle_template_rendering::counts().depth--; }
    eagle_template_level(const eagle_template_level &) = delete;
    eagle_template_level & operator=(const eagle_template_level &) = delete;
};

// Returns the attributes of a value. Those of a method are undefined, as in Jinja2: templates read `items` of a schema
// without any, which is a method of every object.
template <typename Undefined, typename Value>
const auto & eagle_builtins(const Value & input) {
    static const Undefined undefined;
    return input->type() == "Function" ? undefined.get_builtins() : input->get_builtins();
}
