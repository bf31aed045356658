// Grammar rules for numbers within the bounds of a JSON schema, digit by digit. Throws std::invalid_argument for bounds
// that are no numbers, that exclude each other, or that no number of a grammar reaches.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "json-schema.h"
#include "json.h"

constexpr int EAGLE_PLACES = 16;           // decimal places of a number with a bound
constexpr int EAGLE_LONGEST = 15;          // digits of an integer without a bound
constexpr size_t EAGLE_WIDEST_BOUND = 20;  // digits of the largest bound; 64-bit integers have fewer

__extension__ typedef __int128 eagle_wide;  // holds every bound

inline std::string eagle_digits(eagle_wide value) {
    std::string digits;
    do {
        digits.insert(0, 1, char('0' + int(value % 10)));
        value /= 10;
    } while (value);
    return digits;
}

inline eagle_wide eagle_read_digits(const std::string & digits) {
    eagle_wide value = 0;
    for (const char c : digits) {
        value = value * 10 + (c - '0');
    }
    return value;
}

// Returns a number of JSON with all digits if it is a large integer, which is a double beyond 64 bits.
inline std::string eagle_written(const common_json & number) {
    const double value = number.get<double>();
    if (number.is_number_integer() || std::abs(value) < 0x1p53) {
        return number.dump();
    }
    std::string text(400, '\0');
    text.resize(size_t(std::snprintf(text.data(), text.size(), "%.0f", value)));
    return text;
}

// A decimal number: exact, unlike a double.
struct eagle_decimal {
    bool is_negative = false;
    std::string whole = "0";
    std::string fraction;  // without zeros at its end

    explicit eagle_decimal(const common_json & number) {
        std::string text = eagle_written(number);
        is_negative = text[0] == '-';
        text.erase(0, is_negative);
        const size_t e = text.find_first_of("eE");
        const int exponent = e == std::string::npos ? 0 : std::atoi(text.c_str() + e + 1);
        text = text.substr(0, e);
        const size_t point = std::min(text.find('.'), text.size());
        std::string digits = text;
        digits.erase(point, 1);
        const int n_whole = int(point) + exponent;
        digits.insert(0, size_t(std::max(0, 1 - n_whole)), '0');
        digits.append(size_t(std::max(0, n_whole - int(digits.size()))), '0');
        const size_t split = size_t(std::max(1, n_whole));
        whole = digits.substr(0, split);
        whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size() - 1));
        fraction = digits.substr(split);
        fraction.erase(fraction.find_last_not_of('0') + 1);
        is_negative = is_negative && !(whole == "0" && fraction.empty());
    }

    // Compares the values without their signs.
    int compare_size(const eagle_decimal & other) const {
        if (whole.size() != other.whole.size()) {
            return whole.size() < other.whole.size() ? -1 : 1;
        }
        const int order = whole.compare(other.whole);
        return order ? order : fraction.compare(other.fraction);
    }

    int compare(const eagle_decimal & other) const {
        if (is_negative != other.is_negative) {
            return is_negative ? -1 : 1;
        }
        return is_negative ? other.compare_size(*this) : compare_size(other);
    }

    // Returns the next integer below (is_up: above) it, or itself.
    eagle_wide rounded(bool is_up) const {
        const eagle_wide size = eagle_read_digits(whole) + (!fraction.empty() && is_up != is_negative ? 1 : 0);
        return is_negative ? -size : size;
    }
};

struct eagle_bound {
    eagle_decimal value;
    bool is_excluded;
};

// Returns the bounds of a schema that are given by two keys, or the stricter one. Bounds that every number of a grammar
// meets are dropped.
inline std::optional<eagle_bound> eagle_bound_of(const common_json & schema, const char * included,
                                                 const char * excluded, bool is_lower) {
    std::optional<eagle_bound> found;
    for (const char * key : {included, excluded}) {
        if (!schema.contains(key)) {
            continue;
        }
        if (!schema.at(key).is_number()) {
            throw std::invalid_argument(std::string(key) + " must be a number");
        }
        const eagle_bound bound = {eagle_decimal(schema.at(key)), key == excluded};
        if (bound.value.whole.size() > EAGLE_WIDEST_BOUND) {
            if (bound.value.is_negative != is_lower) {
                throw std::invalid_argument(std::string(key) + " must be a number within 20 digits");
            }
            continue;
        }
        const int order = found ? bound.value.compare(found->value) : 0;
        if (!found || (is_lower ? order >= 0 : order <= 0)) {
            found = bound;
        }
    }
    return found;
}

// Returns a rule for the numbers between two of the same length.
inline std::string eagle_digits_between(const std::string & low, const std::string & high) {
    const size_t n_left = low.size() - 1;
    if (!n_left) {
        return "[" + low + "-" + high + "]";
    }
    const std::string zeros(n_left, '0'), nines(n_left, '9');
    if (low[0] == high[0]) {
        return "\"" + low.substr(0, 1) + "\" (" + eagle_digits_between(low.substr(1), high.substr(1)) + ")";
    }
    char first = low[0], last = high[0];
    std::string rule;
    const auto add = [&](const std::string & part) { rule += (rule.empty() ? "" : " | ") + part; };
    if (low.substr(1) != zeros) {
        add("\"" + std::string(1, first++) + "\" (" + eagle_digits_between(low.substr(1), nines) + ")");
    }
    if (high.substr(1) != nines) {
        add("\"" + std::string(1, last--) + "\" (" + eagle_digits_between(zeros, high.substr(1)) + ")");
    }
    if (first <= last) {
        add(std::string("[") + first + "-" + last + "] [0-9]{" + std::to_string(n_left) + "}");
    }
    return rule;
}

// Returns a rule for the numbers of each length from low, at least 0, to high.
inline std::string eagle_naturals(eagle_wide low, std::optional<eagle_wide> high) {
    const size_t n_low = eagle_digits(low).size();
    const size_t longest = high ? eagle_digits(*high).size() : std::max(size_t(EAGLE_LONGEST), n_low);
    std::string rule;
    for (size_t length = n_low; length <= longest; length++) {
        const eagle_wide least = length > 1 ? eagle_read_digits("1" + std::string(length - 1, '0')) : 0;
        const eagle_wide most = eagle_read_digits(std::string(length, '9'));
        rule += (rule.empty() ? "" : " | ") + eagle_digits_between(eagle_digits(std::max(low, least)),
                                                                   eagle_digits(high ? std::min(*high, most) : most));
    }
    return rule;
}

inline std::string eagle_integers(std::optional<eagle_wide> low, std::optional<eagle_wide> high) {
    const auto text = [](eagle_wide value) { return value < 0 ? "-" + eagle_digits(-value) : eagle_digits(value); };
    if (low && high && *low > *high) {
        throw std::invalid_argument("no integer is from " + text(*low) + " to " + text(*high));
    }
    std::string rule;
    if (!low || *low < 0) {
        const eagle_wide least = !high || *high >= 0 ? 1 : -*high;
        rule = "\"-\" (" + eagle_naturals(least, low ? std::optional<eagle_wide>(-*low) : std::nullopt) + ")";
    }
    if (!high || *high >= 0) {
        rule += (rule.empty() ? "" : " | ") + eagle_naturals(low ? std::max<eagle_wide>(*low, 0) : 0, high);
    }
    return rule;
}

// Decimal digits of a bound.
struct eagle_fraction {
    std::string digits;
    bool is_excluded = false;

    bool is_any() const { return digits.empty() && !is_excluded; }
    int first() const { return digits.empty() ? 0 : digits[0] - '0'; }
    eagle_fraction rest() const { return {digits.empty() ? "" : digits.substr(1), is_excluded}; }
};

struct eagle_fractions {
    bool may_end;      // the fraction may have no digits at all
    std::string more;  // rule of its digits; empty: there are none

    // Returns the rule of the fraction behind a number; empty if there is none.
    std::string behind(const std::string & whole) const {
        return more.empty() ? (may_end ? whole : "")
                            : whole + (may_end ? " (\".\" (" + more + "))?" : " \".\" (" + more + ")");
    }
};

inline eagle_fractions eagle_fractions_between(const eagle_fraction & low, const std::optional<eagle_fraction> & high,
                                               int n_left) {
    const bool may_end = low.is_any() && !(high && high->digits.empty() && high->is_excluded);
    if (!n_left) {
        return {may_end, ""};
    }
    const int first = low.first(), last = high ? high->first() : 9;
    int free_from = -1, free_to = -1;
    std::string rule;
    const auto add = [&](const std::string & part) { rule += (rule.empty() ? "" : " | ") + part; };
    for (int digit = first; digit <= last; digit++) {
        const eagle_fraction rest_low = digit == first ? low.rest() : eagle_fraction();
        const auto rest_high = high && digit == last ? std::optional<eagle_fraction>(high->rest()) : std::nullopt;
        if (rest_low.is_any() && !rest_high) {
            free_from = free_from < 0 ? digit : free_from;
            free_to = digit;
            continue;
        }
        const eagle_fractions rest = eagle_fractions_between(rest_low, rest_high, n_left - 1);
        if (rest.may_end || !rest.more.empty()) {
            add("\"" + std::to_string(digit) + "\"" +
                (rest.more.empty() ? ""
                 : rest.may_end    ? " (" + rest.more + ")?"
                                   : " (" + rest.more + ")"));
        }
    }
    if (free_from >= 0) {
        add("[" + std::to_string(free_from) + "-" + std::to_string(free_to) + "]" +
            (n_left > 1 ? " [0-9]{0," + std::to_string(n_left - 1) + "}" : ""));
    }
    return {may_end, rule};
}

// Returns a rule for the numbers between two bounds that are at least 0; empty if there is none.
inline std::string eagle_magnitudes(const eagle_bound & low, const std::optional<eagle_bound> & high, int n_places) {
    const eagle_wide first = eagle_read_digits(low.value.whole);
    const eagle_wide last = high ? eagle_read_digits(high->value.whole) : first + 1;
    if (first > last) {
        return "";
    }
    const auto digits_of = [](const eagle_bound & bound) {
        return eagle_fraction{bound.value.fraction, bound.is_excluded};
    };
    const auto quoted = [](eagle_wide whole) { return "\"" + eagle_digits(whole) + "\""; };
    std::string rule;
    const auto add = [&](const std::string & part) { rule += (rule.empty() || part.empty() ? "" : " | ") + part; };
    const auto end = high && first == last ? std::optional<eagle_fraction>(digits_of(*high)) : std::nullopt;
    add(eagle_fractions_between(digits_of(low), end, n_places).behind(quoted(first)));
    if (!high || last - first > 1) {
        const std::string between =
            eagle_naturals(first + 1, high ? std::optional<eagle_wide>(last - 1) : std::nullopt);
        add(eagle_fractions_between({}, std::nullopt, n_places).behind("(" + between + ")"));
    }
    if (high && last > first) {
        add(eagle_fractions_between({}, digits_of(*high), n_places).behind(quoted(last)));
    }
    return rule;
}

// Returns the decimal places that multipleOf allows: 0 for 1, 1 for 0.1.
inline int eagle_places_of(const common_json & schema) {
    if (!schema.contains("multipleOf")) {
        return EAGLE_PLACES;
    }
    const common_json & unit = schema.at("multipleOf");
    if (unit.is_number()) {
        const eagle_decimal value(unit);
        const std::string zeros(value.fraction.size() - !value.fraction.empty(), '0');
        if (!value.is_negative &&
            (value.fraction.empty() ? value.whole == "1" : value.whole == "0" && value.fraction == zeros + "1")) {
            return int(value.fraction.size());
        }
    }
    throw std::invalid_argument("multipleOf " + unit.dump() +
                                " is not supported: use 1, or 0.1, 0.01, ... for numbers");
}

inline std::string eagle_numbers_between(std::optional<eagle_bound> low, std::optional<eagle_bound> high,
                                         int n_places) {
    for (const auto & bound : {low, high}) {
        if (bound && bound->value.fraction.size() > EAGLE_PLACES) {
            throw std::invalid_argument("a bound has more than " + std::to_string(EAGLE_PLACES) + " decimal places");
        }
    }
    const eagle_bound zero = {eagle_decimal(common_json(0)), false};
    std::string rule;
    if (!low || low->value.is_negative) {
        eagle_bound least = {zero.value, true};
        if (high && high->value.is_negative) {
            least = *high;
        }
        const std::string negative = eagle_magnitudes(least, low, n_places);
        rule = negative.empty() ? "" : "\"-\" (" + negative + ")";
    }
    if (!high || !high->value.is_negative) {
        const std::string positive = eagle_magnitudes(!low || low->value.is_negative ? zero : *low, high, n_places);
        rule += (rule.empty() || positive.empty() ? "" : " | ") + positive;
    }
    if (rule.empty()) {
        throw std::invalid_argument("no number is within its bounds");
    }
    return rule;
}

// Returns the rule of a schema of type integer or number, without exponents; empty if it has no bounds.
inline std::string eagle_number_rule(const common_json & schema) {
    bool is_bounded = false;
    for (const char * key : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
        is_bounded = is_bounded || schema.contains(key);
    }
    if (!is_bounded) {
        return "";
    }
    const int n_places = eagle_places_of(schema);
    const bool is_integer = schema.at("type") == "integer";
    if (is_integer && schema.contains("multipleOf") && n_places) {
        throw std::invalid_argument("multipleOf " + schema.at("multipleOf").dump() +
                                    " is not supported for integers: use 1");
    }
    const auto low = eagle_bound_of(schema, "minimum", "exclusiveMinimum", true);
    const auto high = eagle_bound_of(schema, "maximum", "exclusiveMaximum", false);
    if (!is_integer && n_places) {
        return "(" + eagle_numbers_between(low, high, n_places) + ")";
    }
    std::optional<eagle_wide> least, most;
    if (low) {
        least = low->is_excluded ? low->value.rounded(false) + 1 : low->value.rounded(true);
    }
    if (high) {
        most = high->is_excluded ? high->value.rounded(true) - 1 : high->value.rounded(false);
    }
    return "(" + eagle_integers(least, most) + ")";
}

// A number within bounds, or a multiple: a node of a schema with a rule of its own.
struct eagle_bounded {
    std::string eagle_rule;
    virtual ~eagle_bounded() = default;
};

template <typename Node>
struct eagle_bounded_node : Node, eagle_bounded {};

// Returns the node of a number with bounds; null for other schemas.
inline common_chat_schema_ptr eagle_bounded_number(const common_json & schema) {
    for (const char * key : {"$ref", "oneOf", "anyOf", "const", "enum"}) {
        if (!schema.is_object() || schema.contains(key)) {
            return nullptr;
        }
    }
    const common_json type = schema.contains("type") ? schema.at("type") : common_json();
    const std::string rule = type == "integer" || type == "number" ? eagle_number_rule(schema) : "";
    if (rule.empty()) {
        return nullptr;
    }
    const auto with_rule = [&](auto node) -> common_chat_schema_ptr {
        node->eagle_rule = rule;
        return node;
    };
    return type == "integer" ? with_rule(std::make_unique<eagle_bounded_node<common_chat_schema_integer>>())
                             : with_rule(std::make_unique<eagle_bounded_node<common_chat_schema_number>>());
}
