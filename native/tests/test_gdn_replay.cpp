// Tests the operations of eagle_gdn.h on every device that supports them: against a float64 reference, and on the CPU
// bit for bit against ggml's gated_delta_net, concat and ssm_conv on the replayed and the new tokens. Our own
// convolution is compared bit for bit with itself, token by token. test_gdn_replay_64 runs on the emulator only.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "eagle_gdn.h"
#include "emulated_cuda.h"
#include "emulator.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "recurrent_graph.h"

namespace {

using namespace recurrent;

struct shape {
    int64_t S, Hk, H, T, R;
    std::vector<int32_t> replay;  // per sequence
    bool at_once = false;         // no tokens are recorded

    int64_t n_seqs() const { return (int64_t) replay.size(); }
    int64_t slot() const { return S * (Hk + H) + 2 * H; }
    int64_t n_recorded() const { return at_once ? 0 : R; }
    int64_t tail() const { return std::min(T, n_recorded()); }
};

struct token {
    floats k, q, v, g, beta;
};

token random_token(std::mt19937 & rng, const shape & s) {
    return {random_floats(rng, s.S * s.Hk, -0.2f, 0.2f), random_floats(rng, s.S * s.Hk, -0.2f, 0.2f),
            random_floats(rng, s.S * s.H, -1, 1), random_floats(rng, s.H, -2, -0.01f),
            random_floats(rng, s.H, 0.05f, 0.95f)};
}

struct result {
    floats out, state, records;
};

// One input for the tokens of all sequences: [width, T] per sequence.
floats gather(const std::vector<std::vector<token>> & tokens, floats token::* field) {
    floats out;
    for (const auto & sequence : tokens) {
        for (const token & t : sequence) {
            out.insert(out.end(), (t.*field).begin(), (t.*field).end());
        }
    }
    return out;
}

floats as_record(const token & t) {
    floats out = t.k;
    for (const floats * part : {&t.v, &t.g, &t.beta}) {
        out.insert(out.end(), part->begin(), part->end());
    }
    return out;
}

constexpr int64_t OFFSET = 24;  // floats before the Gated DeltaNet part of a record row

result run_replay(ggml_backend_t backend, const shape & s, const floats & state, const floats & records,
                  const std::vector<std::vector<token>> & tokens) {
    graph g(backend);
    ggml_tensor * in[] = {g.f32(s.S, s.Hk, s.T, s.n_seqs()),
                          g.f32(s.S, s.Hk, s.T, s.n_seqs()),
                          g.f32(s.S, s.H, s.T, s.n_seqs()),
                          g.f32(1, s.H, s.T, s.n_seqs()),
                          g.f32(1, s.H, s.T, s.n_seqs()),
                          g.f32(s.S, s.S, s.H, s.n_seqs()),
                          s.R ? g.f32(OFFSET + s.R * s.slot(), s.n_seqs()) : nullptr};
    ggml_tensor * counts = ggml_new_tensor_1d(g.ctx.get(), GGML_TYPE_I32, s.n_seqs());
    ggml_tensor * op = g.f32(s.S * s.H, s.T * s.n_seqs());
    std::copy(std::begin(in), std::end(in), op->src);
    op->src[7] = counts;
    set_operation(op, GGML_OP_EAGLE_GDN, s.n_recorded(), OFFSET);
    g.allocate(op);
    const floats inputs[] = {gather(tokens, &token::q), gather(tokens, &token::k),    gather(tokens, &token::v),
                             gather(tokens, &token::g), gather(tokens, &token::beta), state};
    for (int i = 0; i < 6; i++) {
        graph::set(in[i], inputs[i]);
    }
    if (s.R) {
        graph::set(in[6], records);
    }
    ggml_backend_tensor_set(counts, s.replay.data(), 0, ggml_nbytes(counts));
    g.compute();
    return {graph::get(op), graph::get(in[5]), s.R ? graph::get(in[6]) : floats()};
}

// Computes one sequence with ggml's own operation: {output, state after all tokens}.
result run_upstream(ggml_backend_t backend, const shape & s, const floats & state, const std::vector<token> & tokens) {
    const int64_t T = (int64_t) tokens.size();
    if (T == 0) {
        return {{}, state, {}};
    }
    graph g(backend);
    ggml_tensor * in[] = {g.f32(s.S, s.Hk, T), g.f32(s.S, s.Hk, T), g.f32(s.S, s.H, T),
                          g.f32(1, s.H, T),    g.f32(1, s.H, T),    g.f32(s.S, s.S, s.H)};
    ggml_tensor * op = ggml_gated_delta_net(g.ctx.get(), in[0], in[1], in[2], in[3], in[4], in[5], 1);
    g.allocate(op);
    const std::vector<std::vector<token>> one = {tokens};
    const floats inputs[] = {gather(one, &token::q), gather(one, &token::k),    gather(one, &token::v),
                             gather(one, &token::g), gather(one, &token::beta), state};
    for (int i = 0; i < 6; i++) {
        graph::set(in[i], inputs[i]);
    }
    g.compute();
    const floats all = graph::get(op);
    const size_t split = s.S * s.H * T;
    return {floats(all.begin(), all.begin() + split), floats(all.begin() + split, all.end()), {}};
}

// Computes one sequence by the definition in float64.
result run_reference(const shape & s, const floats & state, const std::vector<token> & tokens) {
    std::vector<double> S(state.begin(), state.end());
    floats out;
    for (const token & t : tokens) {
        for (int64_t h = 0; h < s.H; h++) {
            const float * k = t.k.data() + h % s.Hk * s.S;
            const float * q = t.q.data() + h % s.Hk * s.S;
            const double decay = std::exp((double) t.g[h]);
            for (int64_t j = 0; j < s.S; j++) {
                double * row = S.data() + (h * s.S + j) * s.S;
                double dot = 0;
                for (int64_t i = 0; i < s.S; i++) {
                    row[i] *= decay;
                    dot += row[i] * k[i];
                }
                const double delta = (t.v[h * s.S + j] - dot) * t.beta[h];
                double o = 0;
                for (int64_t i = 0; i < s.S; i++) {
                    row[i] += delta * k[i];
                    o += row[i] * q[i];
                }
                out.push_back((float) (o / std::sqrt((double) s.S)));
            }
        }
    }
    return {out, floats(S.begin(), S.end()), {}};
}

int failures = 0;

void check(bool ok, const char * device, const shape & s, const char * what) {
    if (!ok) {
        failures++;
        fprintf(stderr, "FAIL %s: %s at S=%d Hk=%d H=%d T=%d R=%d replay=%d n_seqs=%d at_once=%d\n", device, what,
                (int) s.S, (int) s.Hk, (int) s.H, (int) s.T, (int) s.R, s.replay[0], (int) s.n_seqs(), s.at_once);
    }
}

void test_gdn(ggml_backend_t backend, const shape & s, unsigned seed) {
    const char * device = ggml_backend_name(backend);
    const bool is_cpu = ggml_backend_is_cpu(backend);
    std::mt19937 rng(seed);
    const auto state = random_floats(rng, s.S * s.S * s.H * s.n_seqs(), -1, 1);
    const auto before = random_floats(rng, (OFFSET + s.R * s.slot()) * s.n_seqs(), -1, 1);
    floats records = before;
    std::vector<std::vector<token>> recorded(s.n_seqs()), fresh(s.n_seqs());
    for (int64_t n = 0; n < s.n_seqs(); n++) {
        for (int64_t i = 0; i < s.replay[n]; i++) {
            recorded[n].push_back(random_token(rng, s));
            const floats rec = as_record(recorded[n].back());
            std::copy(rec.begin(), rec.end(), records.begin() + n * (OFFSET + s.R * s.slot()) + OFFSET + i * s.slot());
        }
        for (int64_t t = 0; t < s.T; t++) {
            fresh[n].push_back(random_token(rng, s));
        }
    }
    const result got = run_replay(backend, s, state, records, fresh);
    for (int64_t n = 0; n < s.n_seqs(); n++) {
        const size_t size = s.S * s.S * s.H;
        const floats start(state.begin() + n * size, state.begin() + (n + 1) * size);
        std::vector<token> all = recorded[n];
        all.insert(all.end(), fresh[n].begin(), fresh[n].end());
        const std::vector<token> committed(all.begin(), all.end() - s.tail());

        const auto exact = run_reference(s, start, all);
        const auto kept = run_reference(s, start, committed);
        const float * out = got.out.data() + n * s.T * s.S * s.H;
        const float * after = got.state.data() + n * size;
        const size_t skipped = s.replay[n] * s.S * s.H;
        check(close(out, floats(exact.out.begin() + skipped, exact.out.end())), device, s, "output, float64");
        check(close(after, kept.state), device, s, "state, float64");
        const auto up = run_upstream(backend, s, start, all);
        const auto up_kept = run_upstream(backend, s, start, committed);
        const auto up_out = floats(up.out.begin() + skipped, up.out.end());
        check(is_cpu ? equal(out, up_out) : close(out, up_out), device, s, "output, ggml");
        check(is_cpu ? equal(after, up_kept.state) : close(after, up_kept.state), device, s, "state, ggml");
        for (int64_t i = 0; i < s.tail(); i++) {
            const float * rec = got.records.data() + n * (OFFSET + s.R * s.slot()) + OFFSET + i * s.slot();
            check(equal(rec, as_record(fresh[n][s.T - s.tail() + i])), device, s, "records");
        }
    }
}

// Computes the convolution of columns [total, C], ordered by channel; the result [total - W, C] is ordered by token.
floats convolve(ggml_backend_t backend, const floats & columns, const floats & kernel, int64_t C, bool token_major) {
    const int64_t total = (int64_t) columns.size() / C;
    graph g(backend);
    ggml_tensor *in = g.f32(total, C), *weights = g.f32((int64_t) kernel.size() / C, C);
    floats x = columns;
    if (token_major) {
        in->nb[0] = C * sizeof(float);
        in->nb[1] = sizeof(float);
        for (int64_t i = 0; i < total * C; i++) {
            x[i] = columns[i % C * total + i / C];
        }
    }
    ggml_tensor * conv = ggml_ssm_conv(g.ctx.get(), in, weights);
    g.allocate(conv);
    graph::set(in, x);
    graph::set(weights, kernel);
    g.compute();
    return graph::get(conv);
}

floats convolve_one_by_one(ggml_backend_t backend, const floats & columns, const floats & kernel, int64_t C) {
    const int64_t total = (int64_t) columns.size() / C, width = (int64_t) kernel.size() / C;
    floats out;
    for (int64_t t = 0; t + width <= total; t++) {
        floats now;
        for (int64_t c = 0; c < C; c++) {
            now.insert(now.end(), columns.begin() + c * total + t, columns.begin() + c * total + t + width);
        }
        const floats one = convolve(backend, now, kernel, C, true);
        out.insert(out.end(), one.begin(), one.end());
    }
    return out;
}

// Tests window, replay and convolution of a set of sequences with W = 3 and C channels.
void test_conv(ggml_backend_t backend, const shape & s, int64_t C, bool token_major, unsigned seed) {
    constexpr int64_t W = 3;
    const char * device = ggml_backend_name(backend);
    std::mt19937 rng(seed);
    const int64_t n_seqs = s.n_seqs();
    const auto window = random_floats(rng, W * C * n_seqs, -1, 1);
    const auto x = random_floats(rng, C * s.T * n_seqs, -1, 1);
    const auto records = random_floats(rng, (s.R * C + 5) * n_seqs, -1, 1);
    const auto kernel = random_floats(rng, (W + 1) * C, -1, 1);

    graph g(backend);
    ggml_tensor * in[] = {g.f32(W, C, n_seqs), g.f32(C, s.T, n_seqs), s.R ? g.f32(s.R * C + 5, n_seqs) : nullptr};
    ggml_tensor * counts = ggml_new_tensor_1d(g.ctx.get(), GGML_TYPE_I32, n_seqs);
    ggml_tensor * weights = g.f32(W + 1, C);
    ggml_tensor * op = g.f32(W + s.T, C, n_seqs);
    std::copy(std::begin(in), std::end(in), op->src);
    op->src[3] = counts;
    set_operation(op, GGML_OP_EAGLE_CONV_WINDOW, s.n_recorded(), 0);
    if (token_major) {
        op->nb[0] = C * sizeof(float);
        op->nb[1] = sizeof(float);
    }
    ggml_tensor * conv = ggml_ssm_conv(g.ctx.get(), op, weights);
    g.allocate(conv);
    graph::set(in[0], window);
    graph::set(in[1], x);
    if (s.R) {
        graph::set(in[2], records);
    }
    graph::set(weights, kernel);
    ggml_backend_tensor_set(counts, s.replay.data(), 0, ggml_nbytes(counts));
    g.compute();
    const auto got_conv = graph::get(conv), got_window = graph::get(in[0]);
    const auto got_rec = s.R ? graph::get(in[2]) : floats();

    for (int64_t n = 0; n < n_seqs; n++) {
        const int64_t r = s.replay[n], total = W + r + s.T;
        floats columns(total * C);  // [total, C] ordered by channel, as ggml's ssm_conv expects
        for (int64_t c = 0; c < C; c++) {
            for (int64_t w = 0; w < total; w++) {
                columns[c * total + w] = w < W       ? window[(n * C + c) * W + w]
                                         : w < W + r ? records[n * (s.R * C + 5) + (w - W) * C + c]
                                                     : x[(n * s.T + w - W - r) * C + c];
            }
        }
        const float * ours = got_conv.data() + n * s.T * C;
        const floats up = convolve(backend, columns, kernel, C, false);
        const floats up_conv(up.begin() + r * C, up.end());
        // The compiler chooses whether to fuse products and sums, in ggml's scalar loop and in our vectors.
        check(token_major ? close(ours, up_conv) : equal(ours, up_conv), device, s, "convolution");
        if (token_major) {
            const floats one_by_one = convolve_one_by_one(backend, columns, kernel, C);
            check(equal(ours, floats(one_by_one.begin() + r * C, one_by_one.end())), device, s, "single convolutions");
        }
        const int64_t committed = r + s.T - s.tail();
        bool ok = true;
        for (int64_t c = 0; c < C; c++) {
            for (int64_t w = 0; w < W; w++) {
                ok = ok && got_window[(n * C + c) * W + w] == columns[c * total + committed + w];
            }
        }
        check(ok, device, s, "window");
        for (int64_t i = 0; i < s.tail(); i++) {
            const auto from = x.begin() + (n * s.T + s.T - s.tail() + i) * C;
            check(equal(got_rec.data() + n * (s.R * C + 5) + i * C, floats(from, from + C)), device, s, "conv records");
        }
    }
}

std::vector<shape> shapes() {
    std::vector<shape> out;
    for (const int64_t S : {16, 32, 64, 128}) {
        for (const int64_t T : {1, 2, 5, 70}) {
            out.push_back({S, 2, 4, T, 0, {0}});
            for (const int64_t R : {2, 5, 66}) {
                out.push_back({S, 1, 2, T, R, {0}});
                out.push_back({S, 2, 4, T, R, {(int32_t) R, 1}});
                out.push_back({S, 2, 4, T, R, {1, (int32_t) R}, true});
                out.push_back({S, 3, 3, T, R, {2, 0, 1}});
            }
        }
    }
    return out;
}

// The emulator is slow, so it runs long batches of the smallest heads only, and more than two tokens of two sizes.
bool emulator_runs(const shape & s) {
    return s.R != 66 && (s.T <= 2 || (s.T == 5 && s.S <= 32) || (s.S == 16 && s.R == 5));
}

void test_device(ggml_backend_dev_t dev) {
    const bool is_cpu = ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU;
    ggml_backend_ptr backend(ggml_backend_dev_init(dev, nullptr));
    printf("%s\n", ggml_backend_name(backend.get()));
    for (const int n_threads : is_cpu ? std::vector<int>{1, 3} : std::vector<int>{1}) {
        if (is_cpu) {
            ggml_backend_cpu_set_n_threads(backend.get(), n_threads);
        }
        unsigned seed = 1;
        for (const shape & s : shapes()) {
            if (is_emulated(dev) && !emulator_runs(s)) {
                continue;
            }
            test_gdn(backend.get(), s, seed++);
            test_conv(backend.get(), s, 384, false, seed++);
            if (is_cpu) {
                test_conv(backend.get(), s, 300, true, seed++);
            }
        }
    }
}

}  // namespace

int main() {
    ggml_backend_load_all();
    emulated_cuda_register();
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        const std::string name = ggml_backend_reg_name(ggml_backend_dev_backend_reg(dev));
        if (emulator::WARP_SIZE == 32 ? name == "CPU" || name == "CUDA" : is_emulated(dev)) {
            test_device(dev);
        }
    }
    printf("%s\n", failures ? "FAILED" : "ok");
    return failures ? 1 : 0;
}
