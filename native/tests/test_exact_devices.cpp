// Tests exact mode on every device that has it: a token's results have the same bits alone and at any place of a batch,
// with any padding of the cache, and agree with the CPU's. Runs on the CPU, on every CUDA device (reports if there is
// none), and in part on the emulated device, which is the only one for test_exact_devices_64.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "eagle_exact.h"
#include "emulated_cuda.h"
#include "emulator.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "stand_in.h"

namespace {

using floats = std::vector<float>;

constexpr int TOKENS = EAGLE_EXACT_MAX_ROWS;
constexpr double MAX_NMSE = 5e-4;  // ggml's own bound for matrix multiplication and attention

int failures = 0;

void check(bool ok, const std::string & what) {
    if (!ok) {
        fprintf(stderr, "FAIL %s\n", what.c_str());
        ++failures;
    }
}

// Made once, so that every batch of an example has the same values.
const floats & random_floats(size_t n, uint32_t seed, float scale = 1.0f) {
    static std::map<std::tuple<size_t, uint32_t, float>, floats> made;
    floats & x = made[{n, seed, scale}];
    if (x.empty()) {
        std::mt19937 rng(seed);
        std::normal_distribution<float> normal(0.0f, scale);
        for (size_t i = 0; i < n; i++) {
            x.push_back(normal(rng));
        }
    }
    return x;
}

const std::vector<char> & random_weights(ggml_type type, int64_t columns, int64_t rows, uint32_t seed, float scale) {
    static std::map<std::tuple<ggml_type, int64_t, int64_t, uint32_t, float>, std::vector<char>> made;
    std::vector<char> & data = made[{type, columns, rows, seed, scale}];
    if (data.empty()) {
        const floats & values = random_floats(columns * rows, seed, scale);
        data.resize(ggml_row_size(type, columns) * rows);
        ggml_quantize_chunk(type, values.data(), data.data(), 0, rows, columns, nullptr);
    }
    return data;
}

constexpr int64_t HEADS = 4, KV_HEADS = 2;

// Returns [D, n_kv + padding, KV_HEADS] with empty padding.
const std::vector<char> & cells(ggml_type type, int64_t D, int64_t n_kv, int padding, uint32_t seed) {
    static std::map<std::tuple<ggml_type, int64_t, int64_t, int, uint32_t>, std::vector<char>> made;
    std::vector<char> & data = made[{type, D, n_kv, padding, seed}];
    if (data.empty()) {
        floats values;
        for (int64_t h = 0; h < KV_HEADS; h++) {
            const floats & head = random_floats(D * n_kv, seed + (uint32_t) h);
            values.insert(values.end(), head.begin(), head.end());
            values.resize(values.size() + D * padding, 0.0f);
        }
        const int64_t n_rows = (n_kv + padding) * KV_HEADS;
        data.resize(ggml_row_size(type, D) * n_rows);
        ggml_quantize_chunk(type, values.data(), data.data(), 0, n_rows, D, nullptr);
    }
    return data;
}

// One graph: declare inputs with their values, then call compute(). On CUDA it runs four times, so that the graph is
// captured and replayed; the last result counts.
struct graph {
    ggml_context_ptr ctx{ggml_init({ggml_tensor_overhead() * 64 + ggml_graph_overhead(), nullptr, true})};
    std::vector<std::pair<ggml_tensor *, std::vector<char>>> inputs;

    ggml_tensor * input(ggml_type type, std::vector<int64_t> ne, const floats & values) {
        ggml_tensor * t = ggml_new_tensor(ctx.get(), type, (int) ne.size(), ne.data());
        GGML_ASSERT(values.size() == (size_t) ggml_nelements(t));
        std::vector<char> data(ggml_nbytes(t));
        ggml_quantize_chunk(type, values.data(), data.data(), 0, ggml_nrows(t), t->ne[0], nullptr);
        inputs.emplace_back(t, std::move(data));
        return t;
    }

    ggml_tensor * weights(ggml_type type, std::vector<int64_t> ne, uint32_t seed, float scale = 1.0f) {
        ggml_tensor * t = ggml_new_tensor(ctx.get(), type, (int) ne.size(), ne.data());
        inputs.emplace_back(t, random_weights(type, t->ne[0], ggml_nrows(t), seed, scale));
        return t;
    }

    ggml_tensor * cache(ggml_type type, int64_t D, int64_t n_kv, int padding, uint32_t seed) {
        ggml_tensor * t = ggml_new_tensor_3d(ctx.get(), type, D, n_kv + padding, KV_HEADS);
        inputs.emplace_back(t, cells(type, D, n_kv, padding, seed));
        return t;
    }

    ggml_tensor * ids(std::vector<int64_t> ne, const std::vector<int32_t> & values) {
        ggml_tensor * t = ggml_new_tensor(ctx.get(), GGML_TYPE_I32, (int) ne.size(), ne.data());
        const char * bytes = (const char *) values.data();
        inputs.emplace_back(t, std::vector<char>(bytes, bytes + values.size() * sizeof(int32_t)));
        return t;
    }

    floats compute(ggml_backend_t backend, ggml_tensor * out) {
        ggml_cgraph * g = ggml_new_graph(ctx.get());
        ggml_build_forward_expand(g, out);
        ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(ctx.get(), backend));
        ggml_backend_dev_t dev = ggml_backend_get_device(backend);
        const bool captures = ggml_backend_dev_type(dev) != GGML_BACKEND_DEVICE_TYPE_CPU && !is_emulated(dev);
        for (int i = 0; i < (captures ? 4 : 1); i++) {
            for (const auto & [t, data] : inputs) {
                ggml_backend_tensor_set(t, data.data(), 0, data.size());
            }
            GGML_ASSERT(ggml_backend_supports_op(backend, out));
            GGML_ASSERT(ggml_backend_graph_compute(backend, g) == GGML_STATUS_SUCCESS);
        }
        floats y(ggml_nelements(out));
        ggml_backend_tensor_get(out, y.data(), 0, ggml_nbytes(out));
        return y;
    }
};

// Returns the part of [width, TOKENS, heads] for tokens [from, from + n).
floats part(const floats & all, int64_t width, int64_t heads, int from, int n) {
    floats out;
    for (int64_t h = 0; h < heads; h++) {
        const auto at = all.begin() + (h * TOKENS + from) * width;
        out.insert(out.end(), at, at + n * width);
    }
    return out;
}

// Converts [width, n, heads] to [width, heads, n], so that the values of a token are contiguous.
floats by_token(const floats & x, int64_t width, int64_t heads, int n) {
    floats out;
    for (int t = 0; t < n; t++) {
        for (int64_t h = 0; h < heads; h++) {
            const auto at = x.begin() + (h * n + t) * width;
            out.insert(out.end(), at, at + width);
        }
    }
    return out;
}

// Returns the results of tokens [from, from + n) with `padding` masked cells at the end of the cache.
struct example {
    std::string name;
    std::function<floats(ggml_backend_t, int from, int n, int padding)> run;
};

example multiply(ggml_type type, int64_t k, int64_t m) {
    return {std::string("mul_mat ") + ggml_type_name(type) + " " + std::to_string(k) + "x" + std::to_string(m),
            [=](ggml_backend_t backend, int from, int n, int) {
                graph g;
                ggml_tensor * w = g.weights(type, {k, m, 2}, 1);
                ggml_tensor * x =
                    g.input(GGML_TYPE_F32, {k, n, 4}, part(random_floats(k * TOKENS * 4, 2), k, 4, from, n));
                return by_token(g.compute(backend, ggml_mul_mat(g.ctx.get(), w, x)), m, 4, n);
            }};
}

// Uses two of eight experts for each token, with one activation row for both, or one each.
example experts(ggml_type type, int64_t rows) {
    constexpr int64_t K = 512, M = 36, USED = 2, ALL = 8;  // other M: docs/upstream.md
    return {std::string("mul_mat_id ") + ggml_type_name(type) + " " + std::to_string(rows),
            [=](ggml_backend_t backend, int from, int n, int) {
                graph g;
                std::vector<int32_t> chosen;
                for (int t = from; t < from + n; t++) {
                    chosen.insert(chosen.end(), {t * 5 % 8, (t * 5 + 1 + t % 3) % 8});
                }
                ggml_tensor * w = g.weights(type, {K, M, ALL}, 1);
                ggml_tensor * x = g.input(GGML_TYPE_F32, {K, rows, n},
                                          part(random_floats(K * rows * TOKENS, 2), K * rows, 1, from, n));
                return g.compute(backend, ggml_mul_mat_id(g.ctx.get(), w, x, g.ids({USED, n}, chosen)));
            }};
}

struct attention {
    ggml_type type;
    int64_t D, n_kv;
    bool sinks;
    float softcap, max_bias;
};

// Returns a mask [n_kv + padding, n]: token t attends to the positions before n_kv - 80 + t.
floats causal(int64_t n_kv, int from, int n, int padding) {
    floats mask((n_kv + padding) * n, -INFINITY);
    for (int t = 0; t < n; t++) {
        std::fill_n(mask.begin() + t * (n_kv + padding), n_kv - 80 + from + t, 0.0f);
    }
    return mask;
}

example attend(attention a) {
    return {std::string("flash_attn ") + ggml_type_name(a.type) + " " + std::to_string(a.D) + " cache " +
                std::to_string(a.n_kv) + (a.sinks ? " sinks" : "") + (a.softcap != 0 ? " softcap" : "") +
                (a.max_bias != 0 ? " alibi" : ""),
            [=](ggml_backend_t backend, int from, int n, int padding) {
                graph g;
                const int64_t n_kv = a.n_kv + padding;
                ggml_tensor * q = g.input(GGML_TYPE_F32, {a.D, n, HEADS},
                                          part(random_floats(a.D * TOKENS * HEADS, 1), a.D, HEADS, from, n));
                ggml_tensor * k = g.cache(a.type, a.D, a.n_kv, padding, 10);
                ggml_tensor * v = g.cache(a.type, a.D, a.n_kv, padding, 20);
                ggml_tensor * mask = g.input(GGML_TYPE_F16, {n_kv, n}, causal(a.n_kv, from, n, padding));
                ggml_tensor * out =
                    ggml_flash_attn_ext(g.ctx.get(), q, k, v, mask, 1.0f / sqrtf((float) a.D), a.max_bias, a.softcap);
                if (a.sinks) {
                    ggml_flash_attn_ext_add_sinks(out, g.input(GGML_TYPE_F32, {HEADS}, random_floats(HEADS, 3)));
                }
                return g.compute(backend, out);
            }};
}

// Computes attention without flash attention: two products and a softmax over the padded cache.
example attend_by_products(int64_t n_kv) {
    constexpr int64_t D = 64;
    return {"products and soft_max, cache " + std::to_string(n_kv),
            [=](ggml_backend_t backend, int from, int n, int padding) {
                graph g;
                const int64_t all = n_kv + padding;
                ggml_tensor * q = g.input(GGML_TYPE_F32, {D, n, HEADS},
                                          part(random_floats(D * TOKENS * HEADS, 1), D, HEADS, from, n));
                ggml_tensor * k = g.cache(GGML_TYPE_F16, D, n_kv, padding, 10);
                ggml_tensor * v = g.cache(GGML_TYPE_F16, D, n_kv, padding, 20);
                ggml_tensor * mask = g.input(GGML_TYPE_F16, {all, n}, causal(n_kv, from, n, padding));
                ggml_tensor * kq = ggml_soft_max_ext(g.ctx.get(), ggml_mul_mat(g.ctx.get(), k, q), mask, 0.125f, 0.0f);
                ggml_tensor * vt = ggml_cont(g.ctx.get(), ggml_transpose(g.ctx.get(), v));
                return by_token(g.compute(backend, ggml_mul_mat(g.ctx.get(), vt, kq)), D, HEADS, n);
            }};
}

// Computes norm, gate, up, down and the residual, which llama.cpp fuses for a single token.
example block(ggml_type type) {
    constexpr int64_t E = 256, F = 512;
    return {
        std::string("feed-forward block ") + ggml_type_name(type), [=](ggml_backend_t backend, int from, int n, int) {
            graph g;
            ggml_context * ctx = g.ctx.get();
            ggml_tensor * x = g.input(GGML_TYPE_F32, {E, n}, part(random_floats(E * TOKENS, 1), E, 1, from, n));
            ggml_tensor * scale = g.input(GGML_TYPE_F32, {E}, random_floats(E, 2));
            ggml_tensor * gate = g.weights(type, {E, F}, 3, 0.05f);
            ggml_tensor * up = g.weights(type, {E, F}, 4, 0.05f);
            ggml_tensor * down = g.weights(type, {F, E}, 5, 0.05f);
            ggml_tensor * normed = ggml_mul(ctx, ggml_rms_norm(ctx, x, 1e-6f), scale);
            ggml_tensor * h = ggml_swiglu_split(ctx, ggml_mul_mat(ctx, gate, normed), ggml_mul_mat(ctx, up, normed));
            return g.compute(backend, ggml_add(ctx, ggml_mul_mat(ctx, down, h), x));
        }};
}

// Computes Gated DeltaNet: the tokens before `from` one by one, then n together.
example delta_net() {
    constexpr int64_t S = 64, H = 2;
    return {"gated_delta_net", [=](ggml_backend_t backend, int from, int n, int) {
                floats state = random_floats(S * S * H, 6), result;
                for (int t = 0; t < from + n; t += t < from ? 1 : n) {
                    const int now = t < from ? 1 : n;
                    const auto in = [&](int64_t width, uint32_t seed, float scale) {
                        return part(random_floats(width * H * TOKENS, seed, scale), width * H, 1, t, now);
                    };
                    floats g = in(1, 4, 0.5f), beta = in(1, 5, 0.3f);
                    for (float & x : g) {
                        x = -fabsf(x);
                    }
                    graph gr;
                    ggml_tensor * q = gr.input(GGML_TYPE_F32, {S, H, now, 1}, in(S, 1, 0.1f));
                    ggml_tensor * k = gr.input(GGML_TYPE_F32, {S, H, now, 1}, in(S, 2, 0.1f));
                    ggml_tensor * v = gr.input(GGML_TYPE_F32, {S, H, now, 1}, in(S, 3, 1.0f));
                    const floats both = gr.compute(
                        backend, ggml_gated_delta_net(gr.ctx.get(), q, k, v, gr.input(GGML_TYPE_F32, {1, H, now, 1}, g),
                                                      gr.input(GGML_TYPE_F32, {1, H, now, 1}, beta),
                                                      gr.input(GGML_TYPE_F32, {S, S, H, 1}, state), 1));
                    result.assign(both.begin(), both.begin() + S * H * now);
                    state.assign(both.begin() + S * H * now, both.end());
                }
                return result;
            }};
}

std::vector<example> examples() {
    std::vector<example> out;
    for (ggml_type type :
         {GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_F16, GGML_TYPE_BF16,
          GGML_TYPE_F32, GGML_TYPE_Q5_0, GGML_TYPE_Q3_K, GGML_TYPE_IQ4_XS}) {
        out.push_back(multiply(type, 768, 35));
        out.push_back(multiply(type, 2048, 16));
    }
    out.push_back(multiply(GGML_TYPE_F16, 75, 9));
    for (ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_F16, GGML_TYPE_IQ4_XS}) {
        out.push_back(experts(type, 1));
        out.push_back(experts(type, 2));
        out.push_back(block(type));
    }
    for (ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
        out.push_back(attend({type, 128, 256, false, 0, 0}));
        out.push_back(attend({type, 256, 1024, false, 0, 0}));
    }
    out.push_back(attend({GGML_TYPE_F16, 64, 768, true, 0, 0}));
    out.push_back(attend({GGML_TYPE_F16, 128, 768, false, 30, 0}));
    out.push_back(attend({GGML_TYPE_F16, 80, 256, false, 0, 8}));
    out.push_back(attend({GGML_TYPE_F16, 112, 256, false, 0, 0}));
    out.push_back(attend_by_products(256));
    out.push_back(attend_by_products(1024));
    out.push_back(delta_net());
    return out;
}

// The emulator is slow, so it runs each of our kernels once, in the smallest shapes that cover all of it.
std::vector<example> examples_of_our_kernels() {
    std::vector<example> out;
    for (ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K,
                           GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32}) {
        out.push_back(multiply(type, 768, 9));
    }
    out.push_back(multiply(GGML_TYPE_F16, 75, 9));
    out.push_back(experts(GGML_TYPE_Q8_0, 1));
    out.push_back(experts(GGML_TYPE_F16, 2));
    for (ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
        out.push_back(attend({type, 128, 256, false, 0, 0}));
    }
    out.push_back(attend({GGML_TYPE_F16, 64, 512, true, 0, 0}));
    out.push_back(attend({GGML_TYPE_F16, 80, 256, false, 30, 8}));
    out.push_back(attend_by_products(256));
    out.push_back(delta_net());
    return out;
}

struct batch {
    int from, n, padding;
};

// Computes tokens 0 to n_tokens alone and in batches.
struct scope {
    int n_tokens;
    std::vector<batch> batches;
};

const scope WHOLE = {
    TOKENS, {{0, 17, 0}, {0, 9, 256}, {3, 5, 0}, {1, 2, 512}, {4, 8, 256}, {8, 6, 0}, {16, 1, 256}, {0, TOKENS, 0}}};
const scope SMALL = {9, {{0, 9, 256}, {3, 5, 0}, {1, 2, 512}, {8, 1, 256}}};

floats alone(ggml_backend_t backend, const example & e, const scope & s) {
    floats out;
    for (int t = 0; t < s.n_tokens; t++) {
        const floats one = e.run(backend, t, 1, 0);
        out.insert(out.end(), one.begin(), one.end());
    }
    return out;
}

// Returns the first batch in which a token's bits differ from those alone; null if there is none.
const batch * first_difference(ggml_backend_t backend, const example & e, const floats & single, const scope & s) {
    const size_t width = single.size() / s.n_tokens;
    for (const batch & b : s.batches) {
        const floats together = e.run(backend, b.from, b.n, b.padding);
        if (memcmp(together.data(), &single[b.from * width], together.size() * sizeof(float)) != 0) {
            return &b;
        }
    }
    return nullptr;
}

double nmse(const floats & x, const floats & reference) {
    double error = 0, power = 0;
    for (size_t i = 0; i < x.size(); i++) {
        error += (x[i] - reference[i]) * (x[i] - reference[i]);
        power += reference[i] * reference[i];
    }
    return error / power;
}

void test_device(ggml_backend_t backend, ggml_backend_t cpu, const std::vector<example> & examples, const scope & s) {
    const std::string device = ggml_backend_name(backend);
    for (const example & e : examples) {
        const floats single = alone(backend, e, s);
        if (const batch * b = first_difference(backend, e, single, s)) {
            check(false, device + " " + e.name + ": tokens " + std::to_string(b->from) + ".." +
                             std::to_string(b->from + b->n - 1) + ", padding " + std::to_string(b->padding));
        }
        check(nmse(single, alone(cpu, e, s)) < MAX_NMSE, device + " " + e.name + ": far from the CPU");
    }
}

// Checks that the test can fail: one of ggml's kernels must differ. (ggml-cuda aborts in some of these products, so the
// examples after the first difference are not run.)
void test_switched_off(ggml_backend_t backend) {
    check(eagle_exact_set(EAGLE_EXACT_OFF) == EAGLE_OK, "switching off");
    const std::vector<example> all = examples();
    const bool differs = std::any_of(all.begin(), all.end(), [&](const example & e) {
        return first_difference(backend, e, alone(backend, e, WHOLE), WHOLE) != nullptr;
    });
    check(eagle_exact_set(EAGLE_EXACT_ON) == EAGLE_OK, "switching on");
    check(differs, std::string(ggml_backend_name(backend)) + ": exact even when switched off");
}

}  // namespace

int main() {
    ggml_backend_load_all();
    emulated_cuda_register();
    check(eagle_exact_set(EAGLE_EXACT_ON) == EAGLE_OK, "switching on");
    ggml_backend_ptr cpu(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    ggml_backend_cpu_set_n_threads(cpu.get(), 2);  // more would wait for each other on a small machine
    constexpr bool emulated_only = emulator::WARP_SIZE != 32;
    if (!emulated_only) {
        test_device(cpu.get(), cpu.get(), examples(), WHOLE);
        test_switched_off(cpu.get());
    }
    int n_cuda = emulated_only;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        const std::string name = ggml_backend_reg_name(ggml_backend_dev_backend_reg(device));
        if (name != "CUDA" || (emulated_only && !is_emulated(device))) {
            continue;
        }
        ggml_backend_ptr backend(ggml_backend_dev_init(device, nullptr));
        if (is_emulated(device)) {
            for (const example & e : examples_of_our_kernels()) {
                const int64_t n_before = stand_in_count("own kernels");
                test_device(backend.get(), cpu.get(), {e}, SMALL);
                check(stand_in_count("own kernels") > n_before, e.name + ": the CPU computed it");
            }
            continue;
        }
        test_device(backend.get(), cpu.get(), examples(), WHOLE);
        test_switched_off(backend.get());
        n_cuda++;
    }
    if (n_cuda == 0) {
        printf("not run: CUDA kernels, for no CUDA device is present\n");
    }
    printf("%s\n", failures ? "FAILED" : "ok");
    return failures ? 1 : 0;
}
