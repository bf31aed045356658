// File of a slot's checkpoints of the recurrent state, next to the slot's file with the suffix ".checkpoints". A file
// that is damaged or belongs to other tokens is ignored; then a changed prompt is evaluated from its beginning.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <list>
#include <string>
#include <vector>

#include "common.h"
#include "eagle_file_bytes.h"

static const char * const EAGLE_CHECKPOINTS_SUFFIX = ".checkpoints";
constexpr uint64_t EAGLE_CHECKPOINTS_VERSION = 0x31544b4345474145;  // "EAGECKT1"

// Returns the distance of the checkpoints inside a prompt in tokens, a multiple of the micro-batch. A prompt that
// differs from the last one, as agents' prompts do in a date or a path, is evaluated from the checkpoint before the
// difference.
inline int64_t eagle_checkpoint_step(int64_t n_prompt, int64_t n_ubatch, int64_t n_most) {
    const int64_t n_places = std::max<int64_t>(1, n_most * 3 / 4);  // the others are for the turns of a conversation
    const int64_t step = std::max<int64_t>(1024, (n_prompt + n_places - 1) / n_places);
    return (step + n_ubatch - 1) / n_ubatch * n_ubatch;
}

// Returns true if a checkpoint of the slot's prompt is made after its first n_tokens tokens.
template <typename Slot>
bool eagle_is_step(const Slot & slot, int64_t n_tokens, int64_t n_ubatch, const common_params & params) {
    return n_tokens % eagle_checkpoint_step(slot.task->n_tokens(), n_ubatch, params.n_ctx_checkpoints) == 0;
}

// Returns the checkpoint with the smallest distance between its neighbours; the first of up to two.
inline std::list<common_prompt_checkpoint>::iterator eagle_least_useful(std::list<common_prompt_checkpoint> & all) {
    auto found = all.begin();
    int64_t least = INT64_MAX;
    for (auto it = all.begin(); it != all.end(); ++it) {
        const bool is_inside = it != all.begin() && std::next(it) != all.end();
        const int64_t distance = is_inside ? std::next(it)->n_tokens - std::prev(it)->n_tokens : INT64_MAX;
        if (distance < least) {
            least = distance;
            found = it;
        }
    }
    return found;
}

// Drops the checkpoints of other texts. A checkpoint is one of the new prompt if the slot's text and the prompt share
// its tokens; positions do not show that. Rows after the start of an aLoRA's invocation depend on the adapter, too.
template <typename Slot, typename Tokens>
void eagle_drop_checkpoints(Slot & slot, const Tokens & prompt) {
    int64_t n_shared = (int64_t) slot.prompt.tokens.get_common_prefix(prompt);
    if (slot.alora_invocation_start > 0) {
        n_shared = std::min<int64_t>(n_shared, slot.alora_invocation_start - 1);
    }
    slot.prompt.checkpoints.remove_if([&](const auto & one) { return one.n_tokens > n_shared; });
}

// FNV-1a.
inline uint64_t eagle_checksum(const char * data, size_t size) {
    uint64_t sum = 0xcbf29ce484222325;
    for (size_t i = 0; i < size; i++) {
        sum = (sum ^ (unsigned char) data[i]) * 0x100000001b3;
    }
    return sum;
}

class eagle_checkpoint_writer {
  public:
    void add(const void * data, size_t size) { bytes_.append((const char *) data, size); }
    void add(int64_t number) { add(&number, sizeof(number)); }
    void add(const std::vector<uint8_t> & data) {
        add((int64_t) data.size());
        add(data.data(), data.size());
    }
    void add(const common_prompt_checkpoint & one) {
        for (int64_t number : {one.n_tokens, (int64_t) one.pos_min, (int64_t) one.pos_max}) {
            add(number);
        }
        for (const auto * data : {&one.data_tgt, &one.data_dft, &one.data_spec}) {
            add(*data);
        }
    }
    const std::string & bytes() const { return bytes_; }

  private:
    std::string bytes_;
};

class eagle_checkpoint_reader {
  public:
    eagle_checkpoint_reader(const char * data, size_t size) : data_(data), left_(size) {}

    bool read(int64_t & number) { return read(&number, sizeof(number)); }
    bool read(std::vector<uint8_t> & found) {
        int64_t size = 0;
        if (!read(size) || size < 0 || (uint64_t) size > left_) {
            return false;
        }
        found.resize((size_t) size);
        return read(found.data(), found.size());
    }
    bool read(common_prompt_checkpoint & one) {
        int64_t pos_min = 0, pos_max = 0;
        const bool is_read = read(one.n_tokens) && read(pos_min) && read(pos_max) && read(one.data_tgt) &&
                             read(one.data_dft) && read(one.data_spec);
        one.pos_min = (llama_pos) pos_min;
        one.pos_max = (llama_pos) pos_max;
        return is_read;
    }

  private:
    const char * data_;
    size_t left_;

    bool read(void * found, size_t size) {
        if (size > left_) {
            return false;
        }
        if (size > 0) {
            std::memcpy(found, data_, size);
        }
        data_ += size;
        left_ -= size;
        return true;
    }
};

// `packed`: the slot's tokens in the format of its own file.
template <typename Packed>
void eagle_save_checkpoints(const std::list<common_prompt_checkpoint> & checkpoints, const Packed & packed,
                            const std::string & path) {
    eagle_checkpoint_writer body;
    body.add((int64_t) eagle_checksum((const char *) packed.data(), packed.size() * sizeof(packed[0])));
    body.add((int64_t) checkpoints.size());
    for (const auto & one : checkpoints) {
        body.add(one);
    }
    eagle_checkpoint_writer head;
    head.add((int64_t) EAGLE_CHECKPOINTS_VERSION);
    head.add((int64_t) eagle_checksum(body.bytes().data(), body.bytes().size()));
    const std::string name = path + EAGLE_CHECKPOINTS_SUFFIX;
    std::remove(name.c_str());  // left by an earlier save
    if (!checkpoints.empty()) {
        std::ofstream file(name, std::ios::binary);
        file << head.bytes() << body.bytes();
    }
}

template <typename Packed>
std::list<common_prompt_checkpoint> eagle_load_checkpoints(const Packed & packed, int64_t n_tokens,
                                                           const std::string & path) {
    const std::vector<char> data = eagle_file_bytes(path + EAGLE_CHECKPOINTS_SUFFIX);
    constexpr size_t HEAD = 2 * sizeof(int64_t);
    eagle_checkpoint_reader reader(data.data(), data.size());
    const int64_t of_tokens = (int64_t) eagle_checksum((const char *) packed.data(), packed.size() * sizeof(packed[0]));
    int64_t version = 0, sum = 0, tokens = 0, n = 0;
    if (!reader.read(version) || !reader.read(sum) || (uint64_t) version != EAGLE_CHECKPOINTS_VERSION ||
        (uint64_t) sum != eagle_checksum(data.data() + HEAD, data.size() - HEAD) || !reader.read(tokens) ||
        tokens != of_tokens || !reader.read(n)) {
        return {};
    }
    std::list<common_prompt_checkpoint> found;
    for (int64_t i = 0; i < n; i++) {
        common_prompt_checkpoint one;
        if (!reader.read(one) || one.n_tokens < 0 || one.n_tokens > n_tokens) {
            return {};
        }
        found.push_back(std::move(one));
    }
    return found;
}
