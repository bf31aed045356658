// Limits for chat templates, which are untrusted programs in llama.cpp's interpreter. Exceeding a limit throws an
// exception that names it. And numbers and texts as Python writes them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <typeinfo>

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

// A copy of a value, made when it is first used. llama.cpp copies all variables for each item of a loop, but only a
// loop with a condition reads the copy.
template <typename Value>
class eagle_lazy_copy {
  public:
    explicit eagle_lazy_copy(const Value & value) : value_(value) {}
    operator Value &() { return copy_ ? *copy_ : copy_.emplace(value_); }

  private:
    const Value & value_;
    std::optional<Value> copy_;
};

// Returns true if two texts of templates are equal. Their parts are what templates and what messages wrote; most texts
// have one part, which is not copied as str() does: names of variables are compared all the time.
template <typename Text>
bool eagle_same_text(const Text & a, const Text & b) {
    const bool is_whole = a.parts.size() == 1 && b.parts.size() == 1;
    return is_whole ? a.parts[0].val == b.parts[0].val : a.str() == b.str();
}

// Returns true for a list or an object of a template that is not empty.
template <typename Value>
bool eagle_has_items(const Value & value) {
    return !value.val_arr.empty() || !value.val_obj.empty();
}

// Returns true if two lists or objects are equal. llama.cpp compares those without lists and objects in them only, and
// templates compare messages.
template <typename Value>
bool eagle_same_items(const Value & a, const Value & b) {
    const eagle_template_level level;
    const auto is_same = [](const auto & x, const auto & y) { return *x == *y; };
    const auto is_in_b = [&](const auto & item) {
        return std::any_of(b.val_obj.begin(), b.val_obj.end(), [&](const auto & other) {
            return is_same(item.first, other.first) && is_same(item.second, other.second);
        });
    };
    return typeid(a) == typeid(b) && a.val_obj.size() == b.val_obj.size() &&
           std::equal(a.val_arr.begin(), a.val_arr.end(), b.val_arr.begin(), b.val_arr.end(), is_same) &&
           std::all_of(a.val_obj.begin(), a.val_obj.end(), is_in_b);
}

// Returns the attributes of a value. Those of a method are undefined, as in Jinja2: templates read `items` of a schema
// without any, which is a method of every object.
template <typename Undefined, typename Value>
const auto & eagle_builtins(const Value & input) {
    static const Undefined undefined;
    return input->type() == "Function" ? undefined.get_builtins() : input->get_builtins();
}

// Returns a number as Python writes it: the fewest digits that identify it, "1.0" with its decimal.
inline std::string eagle_python_float(double value) {
    if (!std::isfinite(value)) {
        return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
    }
    char text[64];
    int precision = -1;
    do {
        precision++;
        snprintf(text, sizeof(text), "%.*e", precision, value);
    } while (precision < 17 && std::strtod(text, nullptr) != value);
    const int exponent = std::atoi(std::strchr(text, 'e') + 1);
    if (exponent >= -4 && exponent < 16) {
        snprintf(text, sizeof(text), "%.*f", std::max(1, precision - exponent), value);
    }
    return text;
}

// Returns true if Python prints a character (a code point above ASCII) as it is in a list.
inline bool eagle_is_printable(uint32_t c) {
    static constexpr uint32_t OTHERS[][2] = {
        {0x80, 0xa0},       {0xad, 0xad},       {0x600, 0x605},     {0x61c, 0x61c},      {0x6dd, 0x6dd},
        {0x70f, 0x70f},     {0x890, 0x891},     {0x8e2, 0x8e2},     {0x1680, 0x1680},    {0x180e, 0x180e},
        {0x2000, 0x200f},   {0x2028, 0x202f},   {0x205f, 0x206f},   {0x3000, 0x3000},    {0xd800, 0xf8ff},
        {0xfeff, 0xfeff},   {0xfff9, 0xfffb},   {0x110bd, 0x110bd}, {0x110cd, 0x110cd},  {0x13430, 0x13438},
        {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0001, 0xe007f}, {0xf0000, 0x10fffd},
    };
    return std::none_of(std::begin(OTHERS), std::end(OTHERS),
                        [&](const uint32_t (&range)[2]) { return range[0] <= c && c <= range[1]; });
}

// Returns a text as Python prints it in a list: quoted, with escapes.
inline std::string eagle_python_text(const std::string & text) {
    const bool is_double = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
    const char quote = is_double ? '"' : '\'';
    eagle_template_takes(text.size());
    std::string result(1, quote);
    for (size_t i = 0; i < text.size();) {
        const unsigned char first = text[i];
        const size_t n = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
        uint32_t c = n == 1 ? first : first & (0x7f >> n);
        for (size_t j = 1; j < n && i + j < text.size(); j++) {
            c = c << 6 | (text[i + j] & 0x3f);
        }
        const size_t named = std::string("\t\n\r\\").find(text[i]);
        if (named != std::string::npos || text[i] == quote) {
            result += {'\\', named == std::string::npos ? quote : "tnr\\"[named]};
        } else if (n == 1 ? first >= 0x20 && first != 0x7f : eagle_is_printable(c)) {
            result += text.substr(i, n);
        } else {
            char code[16];
            snprintf(code, sizeof(code), c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
            result += code;
        }
        i += n;
    }
    return result + quote;
}
