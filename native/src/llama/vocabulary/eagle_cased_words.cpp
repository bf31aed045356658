#include "eagle_cased_words.h"

#include <cstdint>

#include "eagle_letter_case.h"
#include "unicode.h"

namespace eagle {

namespace {

// What distinguishes the expressions of this kind.
struct Rules {
    bool contractions;  // a word includes 's, 't, 're, 've, 'm, 'll or 'd after it
    size_t digits;      // the longest run of digits
};

constexpr size_t NONE = 0;

bool is_line_end(uint32_t character) {
    return character == '\r' || character == '\n';
}

// One piece of a text. Positions count characters; those outside of the piece match nothing.
class Piece {
  public:
    Piece(const uint32_t * begin, size_t size, Rules rules) : begin_(begin), size_(size), rules_(rules) {}

    // Returns the end of the word that begins at a position: the first alternative of the expression that matches.
    size_t word(size_t at) const {
        for (const auto alternative : {&Piece::cased, &Piece::capitals, &Piece::number, &Piece::symbols}) {
            if (const size_t end = (this->*alternative)(at)) {
                return end;
            }
        }
        return white_space(at);
    }

  private:
    uint32_t character(size_t at) const { return at < size_ ? begin_[at] : 0; }

    unicode_cpt_flags flags(size_t at) const {
        return at < size_ ? unicode_cpt_flags_from_cpt(begin_[at]) : unicode_cpt_flags{};
    }

    bool is_letter_or_mark(size_t at) const {
        const auto found = flags(at);
        return found.is_letter || found.is_accent_mark;
    }

    // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and [\p{Ll}\p{Lm}\p{Lo}\p{M}]
    bool is_upper(size_t at) const { return is_letter_or_mark(at) && letter_case(begin_[at]) != LetterCase::lower; }
    bool is_lower(size_t at) const { return is_letter_or_mark(at) && letter_case(begin_[at]) != LetterCase::upper; }

    // [^\s\p{L}\p{N}]
    bool is_symbol(size_t at) const {
        const auto found = flags(at);
        return at < size_ && !found.is_whitespace && !found.is_letter && !found.is_number;
    }

    size_t after_upper(size_t at) const {
        while (is_upper(at)) {
            at++;
        }
        return at;
    }

    size_t after_lower(size_t at) const {
        while (is_lower(at)) {
            at++;
        }
        return at;
    }

    // [^\r\n\p{L}\p{N}]? before `rest`, which is tried with and without that character.
    size_t with_prefix(size_t at, size_t (Piece::*rest)(size_t) const) const {
        const auto found = flags(at);
        const bool fits = at < size_ && !is_line_end(begin_[at]) && !found.is_letter && !found.is_number;
        const size_t end = fits ? (this->*rest)(at + 1) : NONE;
        return end ? end : (this->*rest)(at);
    }

    size_t cased(size_t at) const { return with_prefix(at, &Piece::cased_letters); }
    size_t capitals(size_t at) const { return with_prefix(at, &Piece::capital_letters); }

    // [upper]*[lower]+, where [upper]* gives characters back until [lower]+ has one.
    size_t cased_letters(size_t at) const {
        const size_t end = after_upper(at);
        if (is_lower(end)) {
            return contraction(after_lower(end));
        }
        for (size_t last = end; last > at; last--) {
            if (is_lower(last - 1)) {
                return contraction(last);
            }
        }
        return NONE;
    }

    // [upper]+[lower]*
    size_t capital_letters(size_t at) const { return is_upper(at) ? contraction(after_lower(after_upper(at))) : NONE; }

    // (?i:'s|'t|'re|'ve|'m|'ll|'d)?
    size_t contraction(size_t at) const {
        if (!rules_.contractions || character(at) != '\'') {
            return at;
        }
        const uint32_t first = unicode_tolower(character(at + 1)), second = unicode_tolower(character(at + 2));
        if (first == 's' || first == 0x17f || first == 't' || first == 'm' || first == 'd') {  // long s, too
            return at + 2;
        }
        const bool two = (first == 'r' && second == 'e') || (first == 'v' && second == 'e');
        return two || (first == 'l' && second == 'l') ? at + 3 : at;
    }

    // \p{N}{1,digits}
    size_t number(size_t at) const {
        size_t end = at;
        while (end < at + rules_.digits && flags(end).is_number) {
            end++;
        }
        return end == at ? NONE : end;
    }

    //  ?[^\s\p{L}\p{N}]+[\r\n/]*
    size_t symbols(size_t at) const {
        size_t end = character(at) == ' ' && is_symbol(at + 1) ? at + 1 : at;
        if (!is_symbol(end)) {
            return NONE;
        }
        while (is_symbol(end)) {
            end++;
        }
        while (is_line_end(character(end)) || character(end) == '/') {
            end++;
        }
        return end;
    }

    // \s*[\r\n]+|\s+(?!\S)|\s+
    size_t white_space(size_t at) const {
        size_t end = at, line = NONE;
        while (flags(end).is_whitespace) {
            if (is_line_end(begin_[end++])) {
                line = end;
            }
        }
        if (line) {
            return line;
        }
        return end < size_ && end > at + 1 ? end - 1 : end;
    }

    const uint32_t * begin_;
    size_t size_;
    Rules rules_;
};

bool contains(const std::string & text, const char * part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

std::vector<size_t> split_cased_words(const std::string & text, const std::string & expression,
                                      const std::vector<size_t> & pieces) {
    std::vector<size_t> words;
    if (!contains(expression, "([^A-Z]))+") && !contains(expression, "[\\p{Ll}")) {
        return words;
    }
    const Rules rules = {contains(expression, "'[sS]"), contains(expression, "\\p{N}{1,3}") ? size_t(3) : size_t(1)};
    const auto characters = unicode_cpts_from_utf8(text);
    size_t start = 0;
    for (const size_t size : pieces) {
        const Piece piece(characters.data() + start, size, rules);
        for (size_t at = 0; at < size;) {
            const size_t end = piece.word(at);
            words.push_back(end - at);
            at = end;
        }
        start += size;
    }
    return words;
}

}  // namespace eagle
