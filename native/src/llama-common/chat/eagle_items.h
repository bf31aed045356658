// Output items of recent responses. Clients of the Responses API name them by id (item_reference) instead of sending
// them again; they are kept in memory, up to a limit.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "eagle_chat.h"
#include "json.h"

constexpr size_t EAGLE_MAX_ITEMS = 4096;
constexpr size_t EAGLE_MAX_ITEM_BYTES = size_t(16) << 20;  // of all items

class eagle_items {
  public:
    static void keep(const common_json & item) {
        const std::string id = eagle_text_at(item, "id");
        State & state = get();
        const std::lock_guard<std::mutex> lock(state.mutex);
        const std::string text = item.dump_safe();
        if (!state.texts.emplace(id, text).second) {
            return;
        }
        state.ids.push_back(id);
        state.n_bytes += text.size();
        while (state.ids.size() > EAGLE_MAX_ITEMS || state.n_bytes > EAGLE_MAX_ITEM_BYTES) {
            const auto oldest = state.texts.find(state.ids.front());
            state.n_bytes -= oldest->second.size();
            state.texts.erase(oldest);
            state.ids.pop_front();
        }
    }

    // Replaces a reference by its item. Throws if the item is not in memory.
    static void resolve(common_json & item, size_t number) {
        const bool is_id_alone = item.is_object() && eagle_has(item, "id") && eagle_text_at(item, "type").empty() &&
                                 !eagle_has(item, "role") && !eagle_has(item, "content");
        if (eagle_text_at(item, "type") != "item_reference" && !is_id_alone) {
            return;
        }
        const std::string id = eagle_text_at(item, "id");
        State & state = get();
        const std::lock_guard<std::mutex> lock(state.mutex);
        const auto found = state.texts.find(id);
        eagle_require(found != state.texts.end(), "input item " + std::to_string(number) + " refers to '" + id +
                                                      "', which this server does not have: send the item itself");
        item = common_json::parse(found->second);
    }

  private:
    struct State {
        std::mutex mutex;
        std::map<std::string, std::string> texts;
        std::deque<std::string> ids;  // the oldest first
        size_t n_bytes = 0;
    };

    static State & get() {
        static State state;
        return state;
    }
};
