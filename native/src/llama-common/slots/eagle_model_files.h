// The model's files on disk. The weights are mapped from them, so a file that is overwritten in place changes the text.
// A server that sleeps while it is idle reads its files again, but not the chat template, and drafts are not checked
// again: it needs the files that it has started with.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "common.h"
#include "llama.h"
#include "log.h"

class eagle_model_files {
  public:
    // Remembers the state of the files that must not change.
    static void remember(const common_params & params, const llama_model * model) {
        State & state = get();
        const std::lock_guard<std::mutex> lock(state.mutex);
        const llama_load_mode mode = params.load_mode;
        const bool is_copy =
            mode == LLAMA_LOAD_MODE_NONE || mode == LLAMA_LOAD_MODE_MLOCK || mode == LLAMA_LOAD_MODE_DIRECT_IO;
        state.files.clear();
        state.is_read_again = params.sleep_idle_seconds >= 0;
        std::vector<std::string> found;
        if (!is_copy || state.is_read_again) {
            found = names(params.model.path, model);
        }
        if (state.is_read_again) {
            add_others(params, found);
        }
        for (const std::string & name : found) {
            state.files.push_back({name, status_of(name), sample_of(name)});
        }
    }

    // Returns true if this server sleeps while it is idle.
    static bool is_read_again() {
        State & state = get();
        const std::lock_guard<std::mutex> lock(state.mutex);
        return state.is_read_again;
    }

    // Returns the reason why the files are no longer those that were loaded; empty if they are. Logs it once.
    static std::string change() {
        State & state = get();
        const std::lock_guard<std::mutex> lock(state.mutex);
        for (File & file : state.files) {
            const Status status = status_of(file.name);
            if (status == file.status || (status.inode != file.status.inode && !state.is_read_again)) {
                continue;  // a file in its place leaves the mapped one unchanged
            }
            if (status.size != file.status.size || sample_of(file.name) != file.sample) {
                const std::string how = state.is_read_again ? "replaced or overwritten" : "overwritten";
                const std::string reason =
                    "the model file " + file.name + " was " + how + " while this server ran: start the server again";
                if (reason != state.logged) {
                    state.logged = reason;
                    LOG_WRN("%s (requests get 503)\n", reason.c_str());
                }
                return reason;
            }
            file.status = status;
        }
        state.logged.clear();
        return "";
    }

  private:
    struct Status {
        uint64_t inode = 0;
        int64_t size = 0, seconds = 0, nanoseconds = 0;
        bool operator==(const Status & other) const {
            return inode == other.inode && size == other.size && seconds == other.seconds &&
                   nanoseconds == other.nanoseconds;
        }
    };

    struct File {
        std::string name;
        Status status;
        std::string sample;
    };

    struct State {
        std::mutex mutex;
        std::vector<File> files;
        bool is_read_again = false;
        std::string logged;
    };

    static State & get() {
        static State state;
        return state;
    }

    static void add_others(const common_params & params, std::vector<std::string> & found) {
        if (!params.mmproj.path.empty()) {
            found.push_back(params.mmproj.path);
        }
        for (const auto & adapter : params.lora_adapters) {
            found.push_back(adapter.path);
        }
        for (const auto & vector : params.control_vectors) {
            found.push_back(vector.fname);
        }
    }

    static std::vector<std::string> names(const std::string & path, const llama_model * model) {
        char text[4096];
        const int n_read = llama_model_meta_val_str(model, "split.count", text, sizeof(text));
        const int n_files = n_read > 0 ? std::atoi(text) : 1;
        if (n_files < 2 || llama_split_prefix(text, sizeof(text), path.c_str(), 0, n_files) == 0) {
            return {path};
        }
        const std::string prefix = text;
        std::vector<std::string> found;
        for (int i = 0; i < n_files; i++) {
            llama_split_path(text, sizeof(text), prefix.c_str(), i, n_files);
            found.push_back(text);
        }
        return found;
    }

    // Returns the state of a file; inode 0 if it is gone, or where mapped files cannot be overwritten.
    static Status status_of(const std::string & name) {
        Status found;
#if !defined(_WIN32)
        struct stat status;
        if (stat(name.c_str(), &status) == 0) {
            found = {(uint64_t) status.st_ino, (int64_t) status.st_size, (int64_t) status.st_mtime, 0};
#if defined(__linux__)
            found.nanoseconds = status.st_mtim.tv_nsec;
#endif
        }
#else
        (void) name;
#endif
        return found;
    }

    // Returns bytes from 64 places of a file: a copy over the same contents, or another time of change, is no change.
    static std::string sample_of(const std::string & name) {
        constexpr int64_t N_PLACES = 64, N_BYTES = 256;
        std::string found;
        std::ifstream file(name, std::ios::binary | std::ios::ate);
        const int64_t size = file.tellg();
        for (int64_t i = 0; i < N_PLACES && file; i++) {
            char bytes[N_BYTES];
            file.seekg(size / N_PLACES * i);
            file.read(bytes, std::min(N_BYTES, size / N_PLACES));
            found.append(bytes, (size_t) file.gcount());
        }
        return found;
    }
};
