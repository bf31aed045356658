// Profile of a decode of 1 to 9 tokens by kind of operation, as a Markdown table.
//
//     profile_eagle_decode MODEL.gguf [N_PROMPT [THREADS [RUNS]]]
//
// The scheduler stops whenever the kind of operation changes (llama_context_params.cb_eval), so that each run of
// operations is timed separately; "all, undivided" is the same decode without stops. Times are the minimum of several
// runs. The floor is the time to read the weights at the bandwidth of one thread; GMAC are multiply-adds of one token.
// LLAMA_EAGLE_EXACT=0 shows ggml's kernels.
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "decode_case.h"

static const int SIZES[] = {1, 2, 3, 5, 9};

static bool computes_nothing(const ggml_tensor * t) {
    return t->op == GGML_OP_NONE || t->op == GGML_OP_VIEW || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_PERMUTE ||
           t->op == GGML_OP_TRANSPOSE;
}

static bool multiplies_weights(const ggml_tensor * t) {
    return (t->op == GGML_OP_MUL_MAT || t->op == GGML_OP_MUL_MAT_ID) && t->src[0]->op == GGML_OP_NONE;
}

static std::string kind_of(const ggml_tensor * t) {
    if (multiplies_weights(t)) {
        const std::string weights = t->src[0]->name;
        const bool head = weights == "output.weight" || weights == "token_embd.weight";
        return std::string(head ? "head, " : "products, ") + ggml_type_name(t->src[0]->type);
    }
    switch (t->op) {
    case GGML_OP_GATED_DELTA_NET:
    case GGML_OP_EAGLE_GDN:
        return "Gated DeltaNet";
    case GGML_OP_SSM_CONV:
    case GGML_OP_EAGLE_CONV_WINDOW:
        return "convolution";
    case GGML_OP_RMS_NORM:
    case GGML_OP_NORM:
    case GGML_OP_L2_NORM:
        return "norms";
    case GGML_OP_FLASH_ATTN_EXT:
    case GGML_OP_MUL_MAT:
    case GGML_OP_SOFT_MAX:
        return "attention";
    default:
        return "all others";
    }
}

struct cost {
    double bytes = 0, macs = 0;                      // bytes of weights; multiply-adds of one token
    double minimum[std::size(SIZES)] = {}, now = 0;  // seconds
};

struct profile {
    decoder * d = nullptr;
    bool stopping = false;
    size_t at = 0;                   // nodes of this decode so far
    std::vector<std::string> kinds;  // kind of every node
    std::map<std::string, cost> costs;
    double since = 0;

    void learn(const ggml_tensor * t) {
        kinds.push_back(computes_nothing(t) && !kinds.empty() ? kinds.back() : kind_of(t));
        if (multiplies_weights(t)) {
            cost & c = costs[kinds.back()];
            c.bytes += (double) ggml_nbytes(t->src[0]);
            c.macs += (double) ggml_nelements(t->src[0]);
        }
    }

    // Returns true if the scheduler must stop after this node.
    bool ask(const ggml_tensor * t) {
        if (!stopping) {
            learn(t);
            return false;
        }
        if (at == 0) {
            since = d->now();
        }
        ++at;
        return at == kinds.size() || kinds[at] != kinds[at - 1];
    }

    void stopped() {
        const double now = d->now();
        costs[kinds[at - 1]].now += now - since;
        since = now;
    }

    static bool on_node(ggml_tensor * t, bool is_query, void * user) {
        profile & p = *(profile *) user;
        if (is_query) {
            return p.ask(t);
        }
        p.stopped();
        return true;
    }

    double undivided(int n) {
        stopping = false;
        kinds.clear();
        for (auto & [kind, c] : costs) {
            c.bytes = c.macs = 0;
        }
        return d->decode(n);
    }

    // Requires an undivided decode of the same size just before.
    void by_kind(int n, size_t size) {
        stopping = true;
        at = 0;
        for (auto & [kind, c] : costs) {
            c.now = 0;
        }
        d->decode(n);
        for (auto & [kind, c] : costs) {
            c.minimum[size] = c.minimum[size] == 0 ? c.now : std::min(c.minimum[size], c.now);
        }
    }
};

// Returns the memory bandwidth of one thread in bytes per second.
static double bandwidth(const decoder & d) {
    const std::vector<uint64_t> data((size_t) 32 << 20, 1);
    double minimum = 1e9;
    for (int run = 0; run < 5; ++run) {
        const double start = d.now();
        uint64_t sum[8] = {};
        for (size_t i = 0; i < data.size(); i += 8) {
            for (int k = 0; k < 8; ++k) {
                sum[k] += data[i + k];
            }
        }
        volatile uint64_t kept = sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
        (void) kept;
        minimum = std::min(minimum, d.now() - start);
    }
    return (double) (data.size() * sizeof(data[0])) / minimum;
}

static void print_row(const std::string & name, const cost & c, double bytes_per_second) {
    printf("| %s |", name.c_str());
    if (c.bytes > 0) {
        printf(" %.0f | %.2f | %.1f |", 1e-6 * c.bytes, 1e-9 * c.macs, 1e3 * c.bytes / bytes_per_second);
    } else {
        printf(" | | |");
    }
    for (double seconds : c.minimum) {
        printf(" %.2f |", 1e3 * seconds);
    }
    printf("\n");
}

int main(int argc, char ** argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL.gguf [N_PROMPT [THREADS [RUNS]]]\n", argv[0]);
        return 2;
    }
    profile p;
    llama_context_params params = llama_context_default_params();
    params.n_threads = argc > 3 ? atoi(argv[3]) : 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.cb_eval = profile::on_node;
    params.cb_eval_user_data = &p;
    decoder d = decoder::load(argv[1], argc > 2 ? atoi(argv[2]) : 64, params);
    p.d = &d;
    const int runs = argc > 4 ? atoi(argv[4]) : 12;
    cost whole;
    std::fill(std::begin(whole.minimum), std::end(whole.minimum), 1e9);
    for (int run = 0; run < runs; ++run) {
        for (size_t k = 0; k < std::size(SIZES); ++k) {
            p.undivided(SIZES[k]);  // builds the graph of this size
            whole.minimum[k] = std::min(whole.minimum[k], p.undivided(SIZES[k]));
            p.by_kind(SIZES[k], k);
        }
    }
    const double bytes_per_second = bandwidth(d);
    printf("%.1f GB/s; times in ms\n\n| operation | MB | GMAC | floor |", 1e-9 * bytes_per_second);
    for (int n : SIZES) {
        printf(" %d |", n);
    }
    printf("\n|---|---|---|---|---|---|---|---|---|\n");
    for (const auto & [kind, c] : p.costs) {
        whole.bytes += c.bytes;
        whole.macs += c.macs;
        print_row(kind, c, bytes_per_second);
    }
    print_row("all, undivided", whole, bytes_per_second);
    d.free();
    return 0;
}
