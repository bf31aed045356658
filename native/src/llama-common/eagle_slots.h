// What the server's slots ask of the drafts, included by common/speculative.cpp behind common_speculative: the kind
// that drafted last, and a slot's files. Beside a slot's file lies one of the same name and ".draft".
#pragma once

#include <fstream>
#include <iterator>

static const std::string EAGLE_DRAFT_SUFFIX = ".draft";

static common_speculative_impl_eagle * eagle_impl_of(common_speculative * spec) {
    if (spec) {
        for (auto & impl : spec->impls) {
            if (auto * ours = dynamic_cast<common_speculative_impl_eagle *>(impl.get())) {
                return ours;
            }
        }
    }
    return nullptr;
}

static int32_t eagle_n_past(llama_context * ctx, llama_seq_id seq) {
    return llama_memory_seq_pos_max(llama_get_memory(ctx), seq) + 1;
}

std::string eagle_last_drafter(const common_speculative * spec, llama_seq_id seq) {
    return spec && spec->impl_last[seq] ? common_speculative_type_to_str(spec->impl_last[seq]->type) : "none";
}

void eagle_save_slot(common_speculative * spec, llama_seq_id seq, llama_context * ctx, const std::string & path) {
    auto * impl = eagle_impl_of(spec);
    const std::vector<char> data = impl ? impl->save(seq, eagle_n_past(ctx, seq)) : std::vector<char>();
    if (data.empty()) {
        std::remove((path + EAGLE_DRAFT_SUFFIX).c_str());  // of an older save
        return;
    }
    std::ofstream(path + EAGLE_DRAFT_SUFFIX, std::ios::binary).write(data.data(), (std::streamsize) data.size());
}

void eagle_load_slot(common_speculative * spec, llama_seq_id seq, llama_context * ctx, const std::string & path) {
    if (auto * impl = eagle_impl_of(spec)) {
        std::ifstream file(path + EAGLE_DRAFT_SUFFIX, std::ios::binary);
        impl->load(seq, eagle_n_past(ctx, seq), {std::istreambuf_iterator<char>(file), {}});
    }
}
