// Response formats with every chat template: next to tools, and where a template's parser has no formats.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "chat-auto-parser.h"
#include "chat.h"
#include "eagle_chat.h"
#include "json-schema-to-grammar.h"
#include "peg-parser.h"

// Returns the messages that a generation prompt may depend on: the system's, and those from the last user's on.
// Rendering a whole conversation to find out what the template adds at its end would take as long as the prompt itself.
inline common_json eagle_last_turn(const common_json & messages) {
    size_t begin = messages.size();
    while (begin > 0 && eagle_text_at(messages.at(begin - 1), "role") != "user") {
        begin--;
    }
    if (begin < 3) {
        return messages;
    }
    common_json found = common_json::array();
    if (eagle_text_at(messages.at(size_t(0)), "role") == "system") {
        found.push_back(messages.at(size_t(0)));
    }
    for (size_t i = begin - 1; i < messages.size(); i++) {
        found.push_back(messages.at(i));
    }
    return found;
}

// Returns llama.cpp's analysis of a template, which renders many trials.
inline std::shared_ptr<const autoparser::autoparser> eagle_analyzed(const common_chat_template & chat_template) {
    using Analysis = std::shared_ptr<const autoparser::autoparser>;
    return eagle_once_for<Analysis>(chat_template.source() + chat_template.bos_token() + chat_template.eos_token(),
                                    [&] {
                                        auto analysis = std::make_shared<autoparser::autoparser>();
                                        analysis->analyze_template(chat_template);
                                        return Analysis(analysis);
                                    });
}

// Returns a grammar with a prefix before the name of each rule. Texts, character classes, tokens, repetition counts and
// comments are kept.
inline std::string eagle_prefixed_grammar(const std::string & grammar, const std::string & prefix) {
    const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_'; };
    const std::string opening = "\"[<{#";
    const std::string closing = "\"]>}\n";
    std::string result;
    for (size_t i = 0; i < grammar.size(); i++) {
        const size_t kind = opening.find(grammar[i]);
        if (kind != std::string::npos) {
            const size_t begin = i++;
            while (i < grammar.size() && grammar[i] != closing[kind]) {
                i += grammar[i] == '\\' ? 2 : 1;
            }
            result += grammar.substr(begin, i + 1 - begin);
        } else if (is_word(grammar[i])) {
            const size_t begin = i;
            while (i + 1 < grammar.size() && is_word(grammar[i + 1])) {
                i++;
            }
            result += prefix + grammar.substr(begin, i + 1 - begin);
        } else {
            result += grammar[i];
        }
    }
    return result;
}

// Appends the parsers of `other` to `all`, with a prefix before the names of its rules. Returns the id of its root.
inline size_t eagle_append_parsers(common_json & all, const common_json & other, const std::string & prefix) {
    const size_t n_before = all.at("parsers").size();
    for (size_t i = 0; i < other.at("parsers").size(); i++) {
        common_json parser = other.at("parsers").at(i);
        const std::string type = eagle_text_at(parser, "type");
        if (parser.contains("child")) {
            parser["child"] = parser.at("child").get<size_t>() + n_before;
        }
        for (size_t j = 0; parser.contains("children") && j < parser.at("children").size(); j++) {
            parser["children"][j] = parser.at("children").at(j).get<size_t>() + n_before;
        }
        if (type == "rule" || type == "ref") {
            parser["name"] = prefix + eagle_text_at(parser, "name");
        }
        all["parsers"].push_back(parser);
    }
    for (const auto & rule : other.at("rules").items()) {
        all["rules"][prefix + rule.key()] = rule.value().get<size_t>() + n_before;
    }
    return other.at("root").get<size_t>() + n_before;
}

// Returns the parameters of an answer that is either what `first` or what `second` accepts. The prompt is second's.
inline common_chat_params eagle_either(const common_chat_params & first, const common_chat_params & second) {
    common_chat_params both = second;
    common_json parsers = common_json::parse(first.parser);
    const size_t first_root = parsers.at("root").get<size_t>();
    const size_t second_root = eagle_append_parsers(parsers, common_json::parse(second.parser), "format-");
    common_json choice = common_json{{"type", "choice"}};
    choice["children"] = common_json::array();
    choice["children"].push_back(first_root);
    choice["children"].push_back(second_root);
    parsers["root"] = parsers.at("parsers").size();
    parsers["parsers"].push_back(choice);
    both.parser = parsers.dump();
    both.grammar = "root ::= call-root | format-root\n" + eagle_prefixed_grammar(first.grammar, "call-") + "\n" +
                   eagle_prefixed_grammar(second.grammar, "format-");
    both.grammar_lazy = false;
    both.grammar_triggers.clear();
    both.thinking_end_tags = first.thinking_end_tags;
    for (const auto & token : first.preserved_tokens) {
        both.preserved_tokens.push_back(token);
    }
    return both;
}

// Restricts the text of an answer to a format where the template's parser has none.
template <typename Apply>
common_chat_params eagle_with_text_format(common_chat_templates_inputs inputs, const Apply & apply) {
    const auto document = common_chat_schema_from_json(common_json::parse(inputs.json_schema));
    inputs.json_schema.clear();
    const eagle_content_rule rule(eagle_content::format, inputs.enable_thinking);
    common_chat_params params = apply(inputs);
    common_peg_arena parser;
    parser.load(params.parser);
    params.grammar = build_grammar([&](const common_grammar_builder & builder) {
        builder.add_rule(EAGLE_FORMAT_RULE, builder.add_schema("response-format-schema", *document.root));
        parser.build_grammar(builder);
    });
    const std::string optional = std::string(EAGLE_FORMAT_RULE) + "?";  // some parsers allow an empty answer
    for (size_t at; (at = params.grammar.find(optional)) != std::string::npos;) {
        params.grammar.erase(at + optional.size() - 1, 1);
    }
    params.grammar_lazy = false;
    params.grammar_triggers.clear();
    return params;
}

// Applies a template (apply(inputs)). The answer to a request with a response format is in this format, or a call if
// the request has tools; a required call has no format.
template <typename Apply>
common_chat_params eagle_apply_formats(const common_chat_templates_inputs & inputs, const Apply & apply) {
    common_chat_templates_inputs calls = inputs;
    calls.json_schema.clear();
    const bool may_call = !inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
    const auto apply_required = [&] {
        calls.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
        const eagle_content_rule rule(eagle_content::none);
        return apply(calls);
    };
    if (may_call && inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED) {
        return apply_required();
    }
    if (inputs.json_schema.empty()) {
        return apply(inputs);
    }
    common_chat_templates_inputs answer = inputs;
    answer.tool_choice = COMMON_CHAT_TOOL_CHOICE_NONE;
    common_chat_params format = apply(answer);
    if (format.grammar.empty()) {
        format = eagle_with_text_format(answer, apply);
    }
    const common_chat_params call = may_call ? apply_required() : common_chat_params();
    return call.grammar.empty() || call.grammar_lazy ? format : eagle_either(call, format);
}

// Applies a template with the requested effort of reasoning, or with the nearest that the template does not refuse.
template <typename Apply>
common_chat_params eagle_apply_effort(common_chat_templates_inputs inputs, const Apply & apply) {
    static const std::vector<std::string> efforts = {"minimal", "low", "medium", "high", "xhigh", "max"};
    const auto given = inputs.chat_template_kwargs.find("reasoning_effort");
    const auto quoted = [](const std::string & effort) { return "\"" + effort + "\""; };
    const auto place = std::find_if(efforts.begin(), efforts.end(), [&](const std::string & effort) {
        return given != inputs.chat_template_kwargs.end() && given->second == quoted(effort);
    });
    if (place == efforts.end()) {
        return apply(inputs);
    }
    common_chat_templates_inputs trial = inputs;
    trial.messages.assign(1, common_chat_msg());
    trial.messages[0].role = "user";
    trial.messages[0].content = "Question";
    trial.tools.clear();
    trial.json_schema.clear();
    trial.continue_final_message = COMMON_CHAT_CONTINUATION_NONE;
    const auto is_taken = [&](const std::string & effort) {
        trial.chat_template_kwargs["reasoning_effort"] = quoted(effort);
        try {
            return !apply(trial).prompt.empty();
        } catch (const std::exception &) {
            return false;
        }
    };
    try {
        return apply(inputs);
    } catch (const std::exception &) {
        std::vector<std::string> nearest = efforts;
        const auto distance = [&](const std::string & effort) {
            return std::abs(std::find(efforts.begin(), efforts.end(), effort) - place);
        };
        std::reverse(nearest.begin(), nearest.end());  // of two, the higher one is better than less was asked for
        std::stable_sort(nearest.begin(), nearest.end(),
                         [&](const std::string & a, const std::string & b) { return distance(a) < distance(b); });
        const auto found = std::find_if(nearest.begin(), nearest.end(), is_taken);
        if (found == nearest.end() || *found == *place) {
            throw;
        }
        inputs.chat_template_kwargs["reasoning_effort"] = quoted(*found);
    }
    return apply(inputs);
}

// Returns true for a tag that begins a call.
inline bool eagle_begins_call(const std::string & tag) {
    const auto is_within = [&](const char * name) { return tag.find(name) != std::string::npos; };
    return is_within("tool_call") || is_within("function_calls") || is_within("START_ACTION");
}

// Applies a template. Without tools, the tag of a call is text: parsers of upstream end thoughts there. With tools, the
// one of Ling 3 takes any text behind thoughts or a call for content, also further calls.
template <typename Apply>
common_chat_params eagle_apply_calls(const common_chat_templates_inputs & inputs, const Apply & apply) {
    common_chat_params params = apply(inputs);
    const bool may_call = !inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
    common_json all = common_json::parse(params.parser);
    const auto remove_calls = [&](std::vector<std::string> & tags) {
        tags.erase(std::remove_if(tags.begin(), tags.end(), eagle_begins_call), tags.end());
    };
    for (auto & parser : all.at("parsers")) {
        if (eagle_text_at(parser, "type") != "until") {
            continue;
        }
        auto ends = parser.at("delimiters").get<std::vector<std::string>>();
        if (may_call && ends == std::vector<std::string>{"<|role_end|>"}) {
            parser = common_json{{"type", "space"}};
        } else if (!may_call) {
            remove_calls(ends);
            parser["delimiters"] = ends;
        }
    }
    if (!may_call) {
        remove_calls(params.thinking_end_tags);
    }
    params.parser = all.dump();
    return params;
}

// Applies a template to a request.
template <typename Apply>
common_chat_params eagle_apply_template(const common_chat_templates_inputs & inputs, const Apply & apply_once) {
    const auto apply_calls = [&](const auto & part) { return eagle_apply_calls(part, apply_once); };
    return eagle_apply_formats(inputs, [&](const auto & part) { return eagle_apply_effort(part, apply_calls); });
}
