// What a schema states and its grammar does not enforce: noted by name, never dropped in silence.
#pragma once

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

// Notes, or logs once per process, that a grammar does not enforce something.
inline void eagle_note_unenforced(const std::string & what) {
    if (auto * noted = eagle_unenforced_keys::current()) {
        noted->insert(what);
        return;
    }
    static std::mutex mutex;
    static std::set<std::string> noted;
    const std::lock_guard<std::mutex> lock(mutex);
    if (noted.insert(what).second) {
        LOG_WRN("schema: the grammar does not enforce %s\n", what.c_str());
    }
}
