// Tests the replaying scan of Mamba 2 (eagle_gdn.h) on every device that supports it: against a float64 reference, and
// bit for bit against the same tokens decoded one at a time. The CPU's is also compared with ggml's SSM_SCAN.
// test_ssm_replay_64 runs on the emulator only.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "emulated_cuda.h"
#include "emulator.h"
#include "ggml-cpu.h"
#include "recurrent_graph.h"

namespace {

using namespace recurrent;

struct shape {
    int64_t N, D, G, H, T, R;
    std::vector<int32_t> replay;  // per sequence
    bool at_once = false;         // no tokens are recorded

    int64_t n_seqs() const { return (int64_t) replay.size(); }
    int64_t state() const { return N * D * H; }
    int64_t slot() const { return N * G + D * H + H; }
    int64_t row() const { return OFFSET + R * slot(); }
    int64_t n_recorded() const { return at_once ? 0 : R; }
    int64_t tail() const { return std::min(T, n_recorded()); }

    static constexpr int64_t OFFSET = 24;  // floats before the scan's part of a record row
};

struct token {
    floats B, x, dt, C;

    floats record() const {
        floats out = B;
        out.insert(out.end(), x.begin(), x.end());
        out.insert(out.end(), dt.begin(), dt.end());
        return out;
    }
};

using sequence = std::vector<token>;

token random_token(std::mt19937 & rng, const shape & s) {
    return {random_floats(rng, s.N * s.G, -1, 1), random_floats(rng, s.D * s.H, -1, 1), random_floats(rng, s.H, -3, 25),
            random_floats(rng, s.N * s.G, -1, 1)};
}

sequence random_tokens(std::mt19937 & rng, const shape & s, int64_t n) {
    sequence out;
    for (int64_t i = 0; i < n; i++) {
        out.push_back(random_token(rng, s));
    }
    return out;
}

floats gather(const std::vector<sequence> & tokens, floats token::* field) {
    floats out;
    for (const auto & sequence : tokens) {
        for (const token & t : sequence) {
            out.insert(out.end(), (t.*field).begin(), (t.*field).end());
        }
    }
    return out;
}

struct result {
    floats out, state, records;
};

result run_replay(ggml_backend_t backend, const shape & s, const floats & A, const floats & state,
                  const floats & records, const std::vector<sequence> & tokens) {
    graph g(backend);
    ggml_tensor * in[] = {g.f32(s.N, s.G, s.T, s.n_seqs()),
                          g.f32(s.N, s.G, s.T, s.n_seqs()),
                          g.f32(s.D, s.H, s.T, s.n_seqs()),
                          g.f32(1, s.H, s.T, s.n_seqs()),
                          g.f32(1, s.H),
                          g.f32(s.N, s.D, s.H, s.n_seqs()),
                          s.R ? g.f32(s.row(), s.n_seqs()) : nullptr};
    ggml_tensor * counts = ggml_new_tensor_1d(g.ctx.get(), GGML_TYPE_I32, s.n_seqs());
    ggml_tensor * op = g.f32(s.D * s.H, s.T * s.n_seqs());
    std::copy(std::begin(in), std::end(in), op->src);
    op->src[7] = counts;
    set_operation(op, GGML_OP_EAGLE_GDN, s.n_recorded(), shape::OFFSET);
    op->op_params[EAGLE_GDN_PARAM_KIND] = EAGLE_GDN_MAMBA2;
    g.allocate(op);
    const floats inputs[] = {gather(tokens, &token::C),
                             gather(tokens, &token::B),
                             gather(tokens, &token::x),
                             gather(tokens, &token::dt),
                             A,
                             state};
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

// Computes one sequence one token at a time, without records.
result run_one_by_one(ggml_backend_t backend, const shape & s, const floats & A, floats state,
                      const sequence & tokens) {
    floats out;
    for (const token & t : tokens) {
        const result r = run_replay(backend, {s.N, s.D, s.G, s.H, 1, 0, {0}}, A, state, {}, {{t}});
        out.insert(out.end(), r.out.begin(), r.out.end());
        state = r.state;
    }
    return {out, state, {}};
}

// Computes one sequence with ggml's operation, which also returns the states after all but the last 0, 1, .. tokens.
floats run_ggml(ggml_backend_t backend, const shape & s, const floats & A, const floats & state,
                const sequence & tokens, int64_t n_states) {
    const int64_t T = (int64_t) tokens.size();
    graph g(backend);
    ggml_tensor * ids = ggml_new_tensor_1d(g.ctx.get(), GGML_TYPE_I32, 1);
    ggml_tensor * in[] = {g.f32(s.N, s.D, s.H), g.f32(s.D, s.H, T), g.f32(s.H, T),
                          g.f32(1, s.H),        g.f32(s.N, s.G, T), g.f32(s.N, s.G, T)};
    ggml_tensor * op = ggml_ssm_scan(g.ctx.get(), in[0], in[1], in[2], in[3], in[4], in[5], ids, n_states);
    g.allocate(op);
    const std::vector<sequence> one = {tokens};
    const floats inputs[] = {state, gather(one, &token::x), gather(one, &token::dt),
                             A,     gather(one, &token::B), gather(one, &token::C)};
    for (int i = 0; i < 6; i++) {
        graph::set(in[i], inputs[i]);
    }
    const int32_t first = 0;
    ggml_backend_tensor_set(ids, &first, 0, sizeof(first));
    g.compute();
    return graph::get(op);
}

// Computes one sequence by the definition in float64.
result run_reference(const shape & s, const floats & A, const floats & state, const sequence & tokens) {
    std::vector<double> S(state.begin(), state.end());
    floats out;
    for (const token & t : tokens) {
        for (int64_t row = 0; row < s.H * s.D; row++) {
            const int64_t h = row / s.D, group = h / (s.H / s.G) * s.N;
            const double rate = std::log1p(std::exp((double) t.dt[h]));
            double y = 0;
            for (int64_t i = 0; i < s.N; i++) {
                double & value = S[row * s.N + i];
                value = value * std::exp(rate * A[h]) + t.B[group + i] * rate * t.x[row];
                y += value * t.C[group + i];
            }
            out.push_back((float) y);
        }
    }
    return {out, floats(S.begin(), S.end()), {}};
}

int failures = 0;

void check(bool ok, const char * device, const shape & s, const char * what) {
    if (!ok) {
        failures++;
        fprintf(stderr, "FAIL %s: %s at N=%d D=%d G=%d H=%d T=%d R=%d replay=%d n_seqs=%d at_once=%d\n", device, what,
                (int) s.N, (int) s.D, (int) s.G, (int) s.H, (int) s.T, (int) s.R, s.replay[0], (int) s.n_seqs(),
                s.at_once);
    }
}

floats part(const floats & all, int64_t first, int64_t n) {
    return floats(all.begin() + first, all.begin() + first + n);
}

void check_ggml(ggml_backend_t backend, const shape & s, const floats & A, const floats & state, const sequence & all,
                const result & expected) {
    const int64_t n_out = (int64_t) expected.out.size(), before = std::min<int64_t>(2, (int64_t) all.size());
    const floats got = run_ggml(backend, s, A, state, all, before);
    check(equal(got.data(), expected.out), "CPU", s, "output of SSM_SCAN");
    check(equal(got.data() + n_out, expected.state), "CPU", s, "state of SSM_SCAN");
    if (before == 2) {
        const result shorter = run_one_by_one(backend, s, A, state, sequence(all.begin(), all.end() - 1));
        check(equal(got.data() + n_out + s.state(), shorter.state), "CPU", s, "earlier state of SSM_SCAN");
    }
}

void test_scan(ggml_backend_t backend, const shape & s, unsigned seed) {
    const char * device = ggml_backend_name(backend);
    std::mt19937 rng(seed);
    const floats A = random_floats(rng, s.H, -1, -0.01f);
    const floats state = random_floats(rng, s.state() * s.n_seqs(), -1, 1);
    floats records = random_floats(rng, s.row() * s.n_seqs(), -1, 1);
    std::vector<sequence> recorded, fresh;
    for (int64_t n = 0; n < s.n_seqs(); n++) {
        recorded.push_back(random_tokens(rng, s, s.replay[n]));
        fresh.push_back(random_tokens(rng, s, s.T));
        for (int64_t i = 0; i < s.replay[n]; i++) {
            const floats rec = recorded[n][i].record();
            std::copy(rec.begin(), rec.end(), records.begin() + n * s.row() + shape::OFFSET + i * s.slot());
        }
    }
    const result got = run_replay(backend, s, A, state, records, fresh);
    for (int64_t n = 0; n < s.n_seqs(); n++) {
        const floats start = part(state, n * s.state(), s.state());
        sequence all = recorded[n];
        all.insert(all.end(), fresh[n].begin(), fresh[n].end());
        const sequence kept(all.begin(), all.end() - s.tail());
        const int64_t n_out = s.T * s.D * s.H, skipped = s.replay[n] * s.D * s.H;
        const float * out = got.out.data() + n * n_out;
        const float * after = got.state.data() + n * s.state();

        check(close(out, part(run_reference(s, A, start, all).out, skipped, n_out)), device, s, "output, float64");
        check(close(after, run_reference(s, A, start, kept).state), device, s, "state, float64");
        const result one_by_one = run_one_by_one(backend, s, A, start, all);
        check(equal(out, part(one_by_one.out, skipped, n_out)), device, s, "output, token by token");
        check(equal(after, run_one_by_one(backend, s, A, start, kept).state), device, s, "state, token by token");
        if (ggml_backend_is_cpu(backend)) {
            check_ggml(backend, s, A, start, all, one_by_one);
        }
        for (int64_t i = 0; i < s.tail(); i++) {
            const float * rec = got.records.data() + n * s.row() + shape::OFFSET + i * s.slot();
            check(equal(rec, fresh[n][s.T - s.tail() + i].record()), device, s, "records");
        }
    }
}

std::vector<shape> shapes() {
    std::vector<shape> out;
    for (const int64_t N : {16, 64, 128, 256}) {
        const int64_t D = N == 64 ? 10 : 40;  // 40 rows of 128 values are more than one unit of the CPU
        for (const int64_t T : {1, 2, 5, 20}) {
            out.push_back({N, D, 1, 2, T, 0, {0}});
            for (const int64_t R : {2, 5}) {
                out.push_back({N, D, 1, 2, T, R, {0}});
                out.push_back({N, D, 2, 4, T, R, {(int32_t) R, 1}});
                out.push_back({N, D, 2, 4, T, R, {1, (int32_t) R}, true});
                out.push_back({N, D, 3, 3, T, R, {2, 0, 1}});
            }
        }
    }
    return out;
}

// The emulator is slow.
bool emulator_runs(const shape & s) {
    return s.T <= 2 || (s.T == 5 && s.N <= 64 && s.R == 5);
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
            if (!is_emulated(dev) || emulator_runs(s)) {
                test_scan(backend.get(), s, seed++);
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
