// Renders chat templates by llama.cpp's interpreter with our changes. Each line of the input is an object with
// "template" and "variables", each line of the output one with "text" or "error". "left": how many "bytes", "levels"
// and "seconds" of the limits a template finds, so that a small one reaches them.

#include <chrono>
#include <exception>
#include <iostream>
#include <string>

#include "eagle_template.h"
#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"
#include "jinja/value.h"
#include "json.h"

namespace {

void leave(const common_json & left) {
    auto & counts = eagle_template_rendering::counts();
    counts.n_bytes = EAGLE_TEMPLATE_BYTES - left.value("bytes", EAGLE_TEMPLATE_BYTES);
    counts.depth = EAGLE_TEMPLATE_DEPTH - left.value("levels", EAGLE_TEMPLATE_DEPTH);
    if (left.contains("seconds")) {
        counts.end = std::chrono::steady_clock::now() + std::chrono::seconds(left.at("seconds").get<int64_t>());
    }
}

std::string rendered(const common_json & request) {
    const std::string source = request.at("template").get<std::string>();
    const eagle_template_rendering limits;
    leave(request.value("left", common_json::object()));
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
