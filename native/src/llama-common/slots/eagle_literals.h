// Control tokens in the texts of messages as text, with `serve --no-parse-special`. They are replaced by placeholders
// while the template is rendered. In the prompt, a part between two control tokens of the template is tokenized as
// plain text if it contains a placeholder.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "common.h"
#include "json.h"
#include "llama.h"

class eagle_literals {
  public:
    struct part {
        std::string text;
        bool is_literal;
    };

    static bool is_on() {
        const char * given = std::getenv("LLAMA_EAGLE_PARSE_SPECIAL");
        return given && std::string(given) == "0";
    }

    // Reads the control tokens of a vocabulary. Called when a model is loaded. A server that wakes up loads the same
    // model again, while other threads render prompts: their placeholders stay valid.
    static void load(const llama_vocab * vocab) {
        State & state = get();
        state.vocab = vocab;
        if (!state.mark.empty()) {
            return;
        }
        for (llama_token token = 0; is_on() && token < llama_vocab_n_tokens(vocab); token++) {
            const std::string text = llama_vocab_get_text(vocab, token);
            if (!text.empty() &&
                llama_vocab_get_attr(vocab, token) & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) {
                state.by_first[text[0]].push_back(text);
            }
        }
        for (auto & texts : state.by_first) {  // the longest first, as llama.cpp finds them
            std::stable_sort(texts.second.begin(), texts.second.end(),
                             [](const std::string & a, const std::string & b) { return a.size() > b.size(); });
        }
        const char * given = std::getenv("LLAMA_EAGLE_LITERAL_MARK");  // of the front
        std::random_device random;
        state.mark = given ? given : "eagle" + std::to_string(random()) + std::to_string(random()) + "_";
    }

    static const llama_vocab * vocab() { return get().vocab; }

    // Returns a text with the control tokens in place of their placeholders.
    static std::string restored(const std::string & text) {
        const std::string & mark = get().mark;
        std::string found;
        size_t at = 0;
        for (size_t next; is_on() && (next = text.find(mark, at)) != std::string::npos;) {
            found += text.substr(at, next - at);
            const size_t colon = text.find(':', next);
            const size_t size = colon == std::string::npos ? 0 : (size_t) std::atol(text.c_str() + next + mark.size());
            at = std::min(colon == std::string::npos ? next + mark.size() : colon + 1, text.size());
            found += decoded(text.substr(at, 2 * size));
            at = std::min(at + 2 * size, text.size());
        }
        return found + text.substr(at);
    }

    // Returns the parts of a prompt; empty if it contains no placeholder.
    static std::vector<part> parts(const std::string & prompt) {
        std::vector<part> found;
        if (!is_on() || prompt.find(get().mark) == std::string::npos) {
            return found;
        }
        size_t begin = 0, at = 0;  // of what has no part yet, and of the text behind the last control token
        const auto end_text = [&](size_t end) {
            const std::string text = prompt.substr(at, end - at);
            if (text.find(get().mark) == std::string::npos) {
                return;
            }
            if (at > begin) {
                found.push_back({prompt.substr(begin, at - begin), false});
            }
            found.push_back({restored(text), true});
            begin = end;
        };
        for (size_t i = 0; i < prompt.size();) {
            const size_t size = control_at(prompt, i);
            if (size > 0) {
                end_text(i);
                at = i + size;
            }
            i += std::max<size_t>(size, 1);
        }
        end_text(prompt.size());
        if (begin < prompt.size()) {
            found.push_back({prompt.substr(begin), false});
        }
        return found;
    }

    // Returns true unless with_media tokenizes a part behind the first one: special tokens begin a prompt.
    static bool & is_first() {
        static thread_local bool value = true;
        return value;
    }

    // Tokenizes a prompt with media. tokenize(text, files): of a part. marker: text in place of a file.
    template <typename Tokens, typename File, typename Tokenize>
    static Tokens with_media(const std::vector<part> & parts, const std::vector<File> & files,
                             const std::string & marker, const Tokenize & tokenize) {
        Tokens result({}, true);
        size_t n_files = 0;
        const struct Reset {
            ~Reset() { is_first() = true; }
        } reset;
        const auto add = [&](const std::string & text, bool is_literal) {
            std::vector<File> own;
            for (size_t at = 0; (at = text.find(marker, at)) != std::string::npos && n_files < files.size();) {
                own.push_back(files[n_files++]);
                at += marker.size();
            }
            Tokens tokens =
                is_literal ? Tokens(common_tokenize(vocab(), text, is_first(), false), false) : tokenize(text, own);
            result.push_back(tokens);
            is_first() = false;
        };
        for (const auto & part : parts) {
            size_t at = 0;
            for (size_t next; part.is_literal && (next = part.text.find(marker, at)) != std::string::npos;) {
                if (next > at) {
                    add(part.text.substr(at, next - at), true);
                }
                add(marker, false);
                at = next + marker.size();
            }
            if (at < part.text.size()) {
                add(part.text.substr(at), part.is_literal);
            }
        }
        return result;
    }

  private:
    struct State {
        std::atomic<const llama_vocab *> vocab{nullptr};
        std::map<char, std::vector<std::string>> by_first;
        std::string mark;
    };

    static State & get() {
        static State state;
        return state;
    }

    // Returns the size of the control token at a place of a text; 0 if there is none.
    static size_t control_at(const std::string & text, size_t at) {
        const auto found = get().by_first.find(text[at]);
        if (found == get().by_first.end()) {
            return 0;
        }
        for (const std::string & control : found->second) {
            if (text.compare(at, control.size(), control) == 0) {
                return control.size();
            }
        }
        return 0;
    }

    static std::string decoded(const std::string & letters) {
        std::string text;
        for (size_t i = 0; i + 1 < letters.size(); i += 2) {
            text += (char) ((letters[i] - 'a') * 16 + (letters[i + 1] - 'a'));
        }
        return text;
    }
};
