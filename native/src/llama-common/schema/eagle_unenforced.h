// What a schema states and its grammar does not enforce: noted by name, never dropped in silence.
#pragma once

#include <algorithm>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "log.h"

// Collects what the grammars of this thread do not enforce while the object exists, instead of logging it.
class eagle_unenforced_keys {
  public:
    eagle_unenforced_keys() : before_(current()) { current() = &names_; }
    ~eagle_unenforced_keys() { current() = before_; }
    eagle_unenforced_keys(const eagle_unenforced_keys &) = delete;
    eagle_unenforced_keys & operator=(const eagle_unenforced_keys &) = delete;

    std::vector<std::string> names() const { return {names_.begin(), names_.end()}; }

    static std::set<std::string> *& current() {
        static thread_local std::set<std::string> * value = nullptr;
        return value;
    }

  private:
    std::set<std::string> names_;
    std::set<std::string> * before_;
};

// Logs a line once per process. key: of the line.
inline void eagle_log_once(const std::string & key, const std::string & line) {
    static std::mutex mutex;
    static std::set<std::string> logged;
    const std::lock_guard<std::mutex> lock(mutex);
    if (logged.insert(key).second) {
        LOG_WRN("%s\n", line.c_str());
    }
}

// Notes, or logs once per process, that a grammar does not enforce something. why: the first line is logged.
inline void eagle_note_unenforced(const std::string & what, const std::string & why = "") {
    if (auto * noted = eagle_unenforced_keys::current()) {
        noted->insert(what);
        return;
    }
    const std::string reason = why.empty() ? "" : " (" + why.substr(0, std::min<size_t>(why.find('\n'), 200)) + ")";
    eagle_log_once(what, "schema: the grammar does not enforce " + what + reason);
}
