// Conversion of JSON numbers to C++ numbers; values that do not fit are refused.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

// Returns true for a JSON integer that fits into T.
template <typename T, typename Json>
bool eagle_fits(const Json & number) {
    using limits = std::numeric_limits<T>;
    if (number.is_number_float()) {
        const auto value = number.template get<double>();
        const bool is_whole = std::floor(value) == value;
        return is_whole && value >= (double) limits::min() && value < std::ldexp(1.0, limits::digits);
    }
    if (number.is_number_unsigned()) {
        return number.template get<uint64_t>() <= (uint64_t) limits::max();
    }
    const auto value = number.template get<int64_t>();
    return value >= (int64_t) limits::min();
}

template <typename T>
struct eagle_is_list : std::false_type {};

template <typename T>
struct eagle_is_list<std::vector<T>> : std::is_integral<T> {};

// Returns a JSON value as T, a number or a list of numbers. Throws std::invalid_argument for a number that does not
// fit; `get` itself refuses null and other types.
template <typename T, typename Json>
T eagle_get(const Json & value) {
    if constexpr (eagle_is_list<T>::value) {
        if (value.is_array()) {
            T out;
            for (const Json & entry : value) {
                out.push_back(eagle_get<typename T::value_type>(entry));
            }
            return out;
        }
    }
    if constexpr (std::is_integral<T>::value && !std::is_same<T, bool>::value) {
        if (value.is_number() && !eagle_fits<T>(value)) {
            throw std::invalid_argument(value.dump() + " is no integer of " + std::to_string(8 * sizeof(T)) + " bits");
        }
    }
    return value.template get<T>();
}
