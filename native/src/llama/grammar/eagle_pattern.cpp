#include "eagle_pattern.h"

#include <algorithm>
#include <cstring>

#include "eagle_characters.h"
#include "eagle_error.h"
#include "eagle_grammar.h"
#include "eagle_sampler.h"

namespace eagle {

namespace {

constexpr size_t MAX_PATTERN_BYTES = 10'000;
constexpr int MAX_PATTERN_DEPTH = 100;
const std::string NOTHING = "\"\"";

class Pattern {
  public:
    explicit Pattern(const std::string & text) : text_(text) {}

    std::string rule() {
        if (text_.size() > MAX_PATTERN_BYTES) {
            refuse(format("it is longer than %zu bytes", MAX_PATTERN_BYTES));
        }
        const std::string found = alternatives();
        if (at_ < text_.size()) {
            refuse("a parenthesis that closes nothing");
        }
        return "\"\\\"\" (" + found + ") \"\\\"\"";
    }

  private:
    const std::string & text_;
    size_t at_ = 0;
    int depth_ = 0;

    [[noreturn]] void refuse(const std::string & what) const {
        throw Error(EAGLE_ERR_ARGUMENT,
                    format("the pattern cannot be followed: %s, in %.100s", what.c_str(), text_.c_str()));
    }

    bool sees(const char * ahead) const { return text_.compare(at_, std::strlen(ahead), ahead) == 0; }

    bool take(const char * ahead) {
        const bool found = sees(ahead);
        at_ += found ? std::strlen(ahead) : 0;
        return found;
    }

    std::string alternatives() {
        std::string rule = branch();
        while (take("|")) {
            rule += " | " + branch();
        }
        return rule;
    }

    // Text may precede and follow a pattern that is not anchored, except inside groups.
    std::string branch() {
        const bool is_outermost = depth_ == 0;
        const std::string anything = json_rule(complement({})) + "*";
        std::string rule = is_outermost && !take("^") ? anything : "";
        bool is_ended = false;
        while (at_ < text_.size() && !sees("|") && !sees(")")) {
            if (is_outermost && take("$")) {
                is_ended = true;
                if (at_ < text_.size() && !sees("|") && !sees(")")) {
                    refuse("an anchor inside it");
                }
                break;
            }
            const std::string next = repeated(atom());
            rule += (rule.empty() ? "" : " ") + next;
        }
        if (is_outermost && !is_ended) {
            rule += (rule.empty() ? "" : " ") + anything;
        }
        return rule.empty() ? NOTHING : rule;
    }

    std::string atom() {
        if (sees("^") || sees("$")) {
            refuse("an anchor inside it");
        }
        if (sees("*") || sees("+") || sees("?") || is_counted()) {
            refuse("there is nothing to repeat");
        }
        if (take("(")) {
            return group();
        }
        if (take("[")) {
            return symbol(set());
        }
        if (take(".")) {
            return symbol(dot());
        }
        if (sees("\\") && at_ + 1 < text_.size() && std::strchr("dDwWsS", text_[at_ + 1])) {
            at_ += 2;
            return symbol(class_of(text_[at_ - 1]));
        }
        const uint32_t c = character(false);
        return symbol({{c, c}});
    }

    std::string symbol(const Characters & characters) {
        const std::string rule = json_rule(characters);
        if (rule.empty()) {
            refuse("a set of characters that holds none");
        }
        return rule;
    }

    std::string group() {
        if (take("?P<") || (sees("?<") && !sees("?<=") && !sees("?<!") && take("?<"))) {
            at_ = std::min(text_.find('>', at_), text_.size() - 1) + 1;
        } else if (sees("?=") || sees("?!")) {
            refuse("a look-ahead");
        } else if (sees("?<")) {
            refuse("a look-behind");
        } else if (sees("?P=") || sees("?(")) {
            refuse("a back-reference");
        } else if (sees("?") && !take("?:")) {
            refuse("flags or another extension of a group");
        }
        if (++depth_ > MAX_PATTERN_DEPTH) {
            refuse(format("groups deeper than %d", MAX_PATTERN_DEPTH));
        }
        const std::string rule = alternatives();
        depth_--;
        if (!take(")")) {
            refuse("a group without its end");
        }
        return "(" + rule + ")";
    }

    // Parses {n}, {n,} or {n,m}. Other braces are literal characters.
    bool is_counted() const {
        size_t i = at_;
        if (i >= text_.size() || text_[i++] != '{') {
            return false;
        }
        const size_t digits = i;
        i = std::min(text_.find_first_not_of("0123456789", i), text_.size());
        const bool has_least = i > digits;
        if (i < text_.size() && text_[i] == ',') {
            const size_t most = ++i;
            i = std::min(text_.find_first_not_of("0123456789", i), text_.size());
            if (!has_least && i < text_.size() && text_[i] == '}') {
                refuse(i > most ? "{,n}: write {0,n}" : "{,}: write *");
            }
        }
        return has_least && i < text_.size() && text_[i] == '}';
    }

    std::string repeated(const std::string & item) {
        std::string times;
        if (take("*") || take("+") || take("?")) {
            times = text_[at_ - 1];
        } else if (is_counted()) {
            times = counted();
        } else {
            return item;
        }
        if (sees("+")) {
            refuse("a possessive repetition");
        }
        take("?");  // a lazy quantifier matches the same set of strings
        if (sees("*") || sees("+") || sees("?") || is_counted()) {
            refuse("a repetition of a repetition");
        }
        return times == "{0,0}" ? NOTHING : item + times;
    }

    std::string counted() {
        at_++;
        const uint64_t minimum = number();
        if (take("}")) {
            return format("{%llu,%llu}", (unsigned long long) minimum, (unsigned long long) minimum);
        }
        at_++;
        if (take("}")) {
            return minimum == 0 ? "*" : format("{%llu,}", (unsigned long long) minimum);
        }
        const uint64_t maximum = number();
        at_++;
        require_repetition(minimum, maximum);
        return format("{%llu,%llu}", (unsigned long long) minimum, (unsigned long long) maximum);
    }

    uint64_t number() {
        uint64_t value = 0;
        while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
            value = value * 10 + (uint64_t) (text_[at_++] - '0');
            if (value > MAX_GRAMMAR_TIMES) {
                refuse(format("a repetition of more than %llu times", (unsigned long long) MAX_GRAMMAR_TIMES));
            }
        }
        return value;
    }

    Characters set() {
        const bool is_negated = take("^");
        if (sees("]")) {
            refuse("an empty set of characters");
        }
        Characters all;
        while (!take("]")) {
            if (at_ >= text_.size()) {
                refuse("a set of characters without its end");
            }
            const Characters part = part_of_set(is_negated);
            all.insert(all.end(), part.begin(), part.end());
        }
        return is_negated ? complement(all) : normalized(all);
    }

    Characters part_of_set(bool is_negated) {
        if (sees("\\") && at_ + 1 < text_.size() && std::strchr("dDwWsS", text_[at_ + 1])) {
            const char name = text_[at_ + 1];
            at_ += 2;
            if (sees("-") && !sees("-]")) {
                refuse("a range that begins with a class");
            }
            const bool is_lower = name >= 'a';
            const char other = (char) (is_lower ? name : name - 'A' + 'a');
            return !is_negated ? class_of(name) : is_lower ? wide_class_of(name) : complement(class_of(other));
        }
        const uint32_t first = character(true);
        if (!sees("-") || sees("-]")) {
            return {{first, first}};
        }
        at_++;
        if (sees("\\") && at_ + 1 < text_.size() && std::strchr("dDwWsS", text_[at_ + 1])) {
            refuse("a range that ends with a class");
        }
        const uint32_t last = character(true);
        if (last < first) {
            refuse("a range that ends before it begins");
        }
        return {{first, last}};
    }

    uint32_t character(bool in_set) {
        if (at_ >= text_.size()) {
            refuse("it ends too early");
        }
        return take("\\") ? escape(in_set) : code_point();
    }

    uint32_t code_point() {
        const unsigned char lead = (unsigned char) text_[at_++];
        const int n_more = lead < 0x80 ? 0 : lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
        uint32_t c = n_more == 0 ? lead : lead & (0x3F >> n_more);
        for (int i = 0; i < n_more; i++) {
            if (at_ >= text_.size()) {
                refuse("it is not UTF-8");
            }
            c = c << 6 | ((unsigned char) text_[at_++] & 0x3F);
        }
        return c;
    }

    uint32_t escape(bool in_set) {
        if (at_ >= text_.size()) {
            refuse("a backslash at its end");
        }
        const char c = text_[at_];
        const std::string name = std::string("\\") + c;
        static const char * letters = "tnrfv";
        static const char * meanings = "\t\n\r\f\v";
        if (const char * found = std::strchr(letters, c)) {
            at_++;
            return (unsigned char) meanings[found - letters];
        }
        if (c == 'b' && in_set) {
            at_++;
            return '\b';
        }
        if (c == 'x' || c == 'u') {
            at_++;
            return hexadecimal(c == 'x' ? 2 : 4);
        }
        if (c == '0' && (at_ + 1 == text_.size() || !std::strchr("0123456789", text_[at_ + 1]))) {
            at_++;
            return 0;
        }
        if (c == 'b' || c == 'B') {
            refuse(name + ", a word boundary");
        }
        if ((c >= '0' && c <= '9') || c == 'k') {
            refuse(name + ", a back-reference");
        }
        if (c == 'p' || c == 'P') {
            refuse(name + ", a Unicode property");
        }
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
            refuse(name);
        }
        return code_point();
    }

    uint32_t hexadecimal(size_t n_digits) {
        const std::string digits = text_.substr(at_, n_digits);
        if (digits.size() < n_digits || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
            refuse("an escape without its hexadecimal digits");
        }
        at_ += n_digits;
        const auto c = (uint32_t) std::stoul(digits, nullptr, 16);
        if (c >= 0xD800 && c <= 0xDFFF) {
            refuse("a surrogate");
        }
        return c;
    }
};

}  // namespace

std::string pattern_rule(const std::string & pattern) {
    return Pattern(pattern).rule();
}

}  // namespace eagle

int32_t eagle_pattern_rule(const char * pattern, char * rule, size_t size) {
    return eagle::guarded("eagle_pattern_rule", [&] {
        if (pattern == nullptr || rule == nullptr) {
            throw eagle::Error(EAGLE_ERR_ARGUMENT, "pattern or rule is null");
        }
        const std::string found = eagle::pattern_rule(pattern);
        if (found.size() >= size) {
            throw eagle::Error(EAGLE_ERR_ARGUMENT, "the pattern's grammar is too long");
        }
        std::memcpy(rule, found.c_str(), found.size() + 1);
    });
}
