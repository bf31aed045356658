// Tools that a conversation of Anthropic's API adds, removes or names only when they are needed. The beginning of the
// prompt stays as it was: definitions of tools are shown where they are added, and a grammar has those offered last.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "eagle_chat.h"
#include "json.h"

constexpr const char * EAGLE_TOOL_PLACES = "eagle_tool_places";  // key among a template's variables, for requests alone

// Tools of a request that are not in both the beginning of the prompt and the grammar of calls.
struct eagle_tool_places {
    std::set<std::string> not_at_beginning;
    std::set<std::string> not_offered;

    common_json to_json() const {
        return common_json{
            {"not_at_beginning", std::vector<std::string>(not_at_beginning.begin(), not_at_beginning.end())},
            {"not_offered", std::vector<std::string>(not_offered.begin(), not_offered.end())}};
    }

    // Reads and removes what to_json has written into the variables of a template.
    static eagle_tool_places take(std::map<std::string, std::string> & variables) {
        eagle_tool_places places;
        const auto found = variables.find(EAGLE_TOOL_PLACES);
        if (found == variables.end()) {
            return places;
        }
        const common_json given = common_json::parse(found->second);
        const auto read = [&](const char * key, std::set<std::string> & names) {
            for (size_t i = 0; eagle_has(given, key) && given.at(key).is_array() && i < given.at(key).size(); i++) {
                names.insert(given.at(key).at(i).get<std::string>());
            }
        };
        read("not_at_beginning", places.not_at_beginning);
        read("not_offered", places.not_offered);
        variables.erase(found);
        return places;
    }

    bool empty() const { return not_at_beginning.empty() && not_offered.empty(); }
};

// The tools of a request while its messages are read in their order.
class eagle_offered_tools {
  public:
    explicit eagle_offered_tools(const common_json & tools) {
        for (size_t i = 0; tools.is_array() && i < tools.size(); i++) {
            const std::string name = eagle_text_at(tools.at(i), "name");
            define(name, tools.at(i));
            if (!eagle_has(tools.at(i), "defer_loading") || tools.at(i).at("defer_loading") != true) {
                at_beginning_.insert(name);
                offered_.insert(name);
            }
        }
    }

    // Offers tools from here on. Returns the text that shows them.
    std::string add(const std::vector<std::string> & names) {
        std::string definitions, unknown;
        for (const std::string & name : names) {
            const auto found = tools_.find(name);
            if (found == tools_.end()) {
                unknown += "There is no tool " + name + ".\n";
                continue;
            }
            offered_.insert(name);
            common_json function = {{"description", eagle_text_at(found->second, "description")}, {"name", name}};
            function["parameters"] =
                eagle_has(found->second, "input_schema") ? found->second.at("input_schema") : common_json::object();
            definitions += "<function>" + function.dump() + "</function>\n";
        }
        return unknown + (definitions.empty() ? "" : "<functions>\n" + definitions + "</functions>");
    }

    // Returns the text of a block that adds or removes a tool.
    std::string change(const common_json & block) {
        const common_json tool = eagle_has(block, "tool") ? block.at("tool") : common_json::object();
        const common_json definition = eagle_has(tool, "definition") ? tool.at("definition") : common_json();
        const std::string name = eagle_text_at(definition.is_null() ? tool : definition, "name");
        if (eagle_text_at(block, "type") == "tool_removal") {
            offered_.erase(name);
            return "The tool " + name + " is no longer available.";
        }
        const std::string type = eagle_text_at(definition, "type");
        if (!definition.is_null() && (type.empty() || type == "custom")) {
            define(name, definition);
        }
        return "From here on, this tool is available:\n" + add({name});
    }

    // Sets the tools of a body, unless all of them are offered from its beginning to its end.
    void write(common_json & body) const {
        if (at_beginning_.size() == tools_.size() && offered_.size() == tools_.size()) {
            return;
        }
        eagle_tool_places places;
        common_json tools = common_json::array();
        for (const std::string & name : names_) {
            if (at_beginning_.count(name) == 0 && offered_.count(name) == 0) {
                continue;
            }
            tools.push_back(tools_.at(name));
            if (at_beginning_.count(name) == 0) {
                places.not_at_beginning.insert(name);
            } else if (offered_.count(name) == 0) {
                places.not_offered.insert(name);
            }
        }
        if (tools.size() == 0) {
            body.erase("tools");
        } else {
            body["tools"] = tools;
        }
        if (!places.empty()) {
            common_json & variables = body["chat_template_kwargs"];
            variables = variables.is_object() ? variables : common_json::object();
            variables[EAGLE_TOOL_PLACES] = places.to_json();
        }
    }

  private:
    void define(const std::string & name, const common_json & tool) {
        if (tools_.count(name) == 0) {
            names_.push_back(name);
        }
        tools_[name] = tool;
    }

    std::vector<std::string> names_;  // in their order
    std::map<std::string, common_json> tools_;
    std::set<std::string> at_beginning_;
    std::set<std::string> offered_;
};
