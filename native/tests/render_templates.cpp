// Renders chat templates by llama.cpp's interpreter with our changes. Each line of the input is an object with
// "template" and "variables", each line of the output one with "text" or "error".

#include <exception>
#include <iostream>
#include <string>

#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"
#include "jinja/value.h"
#include "json.h"

namespace {

std::string rendered(const common_json & request) {
    const std::string source = request.at("template").get<std::string>();
    jinja::lexer lexer;
    auto program = jinja::parse_from_tokens(lexer.tokenize(source));
    jinja::context context(source);
    jinja::global_from_json(context, request.at("variables"), true);
    jinja::runtime runtime(context);
    const jinja::value results = runtime.execute(program);
    return jinja::runtime::gather_string_parts(results)->as_string().str();
}

}  // namespace

int main() {
    for (std::string line; std::getline(std::cin, line);) {
        common_json answer;
        try {
            answer = common_json{{"text", rendered(common_json::parse(line))}};
        } catch (const std::exception & error) {
            answer = common_json{{"error", std::string(error.what())}};
        }
        std::cout << answer.dump() << std::endl;
    }
}
