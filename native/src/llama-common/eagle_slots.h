// Draft functions of the server's slots: last drafter, counters, copies and files. The draft of a slot is saved next to
// the slot's file with the suffix ".draft". Included by common/speculative.cpp after common_speculative.
#pragma once

#include <fstream>
#include <sstream>

#include "eagle_file_bytes.h"

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

// Returns the position of the sequence's next row.
static llama_pos eagle_end(llama_context * ctx, llama_seq_id seq) {
    return llama_memory_seq_pos_max(llama_get_memory(ctx), seq) + 1;
}

std::string eagle_last_drafter(const common_speculative * spec, llama_seq_id seq) {
    return spec && spec->impl_last[seq] ? common_speculative_type_to_str(spec->impl_last[seq]->type) : "none";
}

size_t eagle_count_drafted(common_speculative * spec, llama_seq_id seq, size_t n_drafted, size_t n_within) {
    if (spec && spec->impl_last[seq]) {
        spec->impl_last[seq]->n_gen_tokens -= n_drafted - n_within;
    }
    return n_within;
}

void eagle_add_drafter(const common_speculative * spec, llama_seq_id seq, size_t n_drafted, std::string & names) {
    if (n_drafted == 0) {
        return;
    }
    std::string joined;
    for (const auto & impl : spec->impls) {
        const std::string name = common_speculative_type_to_str(impl->type);
        const bool is_known = (" " + names + " ").find(" " + name + " ") != std::string::npos;
        if (is_known || impl.get() == spec->impl_last[seq]) {
            joined += (joined.empty() ? "" : " and ") + name;
        }
    }
    names = joined;
}

std::string eagle_metrics(const common_speculative * spec) {
    struct counter {
        const char * name;
        const char * meaning;
        double (*value)(const common_speculative_impl & impl);
    };
    static const counter COUNTERS[] = {
        {"drafted_tokens_total", "Tokens drafted", [](const auto & impl) { return (double) impl.n_gen_tokens; }},
        {"accepted_tokens_total", "Drafted tokens accepted",
         [](const auto & impl) { return (double) impl.n_acc_tokens; }},
        {"rounds_total", "Rounds with a draft", [](const auto & impl) { return (double) impl.n_call_accept; }},
        {"tokens_per_round", "Mean tokens per round with a draft",
         [](const auto & impl) { return 1.0 + (double) impl.n_acc_tokens / std::max<size_t>(impl.n_call_accept, 1); }},
    };
    std::ostringstream text;
    for (const counter & c : COUNTERS) {
        const std::string name = std::string("llamacpp:drafter_") + c.name;
        const bool is_total = name.find("_total") != std::string::npos;
        text << "# HELP " << name << " " << c.meaning << ", by drafter\n"
             << "# TYPE " << name << (is_total ? " counter\n" : " gauge\n");
        for (size_t i = 0; spec && i < spec->impls.size(); i++) {
            const common_speculative_impl & impl = *spec->impls[i];
            text << name << "{drafter=\"" << common_speculative_type_to_str(impl.type) << "\"} " << c.value(impl)
                 << "\n";
        }
    }
    return text.str();
}

void eagle_copy_slot(common_speculative * spec, llama_seq_id from, llama_seq_id to, llama_context * ctx) {
    if (auto * impl = eagle_impl_of(spec)) {
        impl->load(to, eagle_end(ctx, to), impl->save(from, eagle_end(ctx, from)));
    }
}

void eagle_keep_draft(common_speculative * spec, llama_seq_id seq, llama_context * ctx,
                      std::list<common_prompt_checkpoint> & checkpoints) {
    auto * impl = eagle_impl_of(spec);
    const std::vector<char> data = impl ? impl->save(seq, eagle_end(ctx, seq)) : std::vector<char>();
    if (!data.empty()) {
        common_prompt_checkpoint & kept = checkpoints.emplace_back();
        kept.clear();
        kept.data_spec.assign(data.begin(), data.end());
    }
}

void eagle_load_draft(common_speculative * spec, llama_seq_id seq, llama_context * ctx,
                      std::list<common_prompt_checkpoint> & checkpoints) {
    auto * impl = eagle_impl_of(spec);
    if (impl && !checkpoints.empty() && checkpoints.back().empty()) {
        const auto & data = checkpoints.back().data_spec;
        impl->load(seq, eagle_end(ctx, seq), {data.begin(), data.end()});
        checkpoints.pop_back();
    }
}

void eagle_save_slot(common_speculative * spec, llama_seq_id seq, llama_context * ctx, const std::string & path) {
    auto * impl = eagle_impl_of(spec);
    const std::vector<char> data = impl ? impl->save(seq, eagle_end(ctx, seq)) : std::vector<char>();
    if (data.empty()) {
        std::remove((path + EAGLE_DRAFT_SUFFIX).c_str());  // left by an earlier save
        return;
    }
    std::ofstream(path + EAGLE_DRAFT_SUFFIX, std::ios::binary).write(data.data(), (std::streamsize) data.size());
}

void eagle_load_slot(common_speculative * spec, llama_seq_id seq, llama_context * ctx, const std::string & path) {
    if (auto * impl = eagle_impl_of(spec)) {
        impl->load(seq, eagle_end(ctx, seq), eagle_file_bytes(path + EAGLE_DRAFT_SUFFIX));
    }
}
