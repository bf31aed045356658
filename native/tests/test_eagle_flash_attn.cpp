// Tests exact flash attention: each token has the same bits alone and in any batch, with any number of threads and any
// padding of the cache, and is close to attention in float64.
#include <cstring>

#include "eagle_exact.h"
#include "mul_mat_case.h"

static int failures = 0;
static bool our_kernel = false;  // computed the last attention; ggml's kernel sums F16 values in F16

static void check(bool ok, const std::string & what) {
    if (!ok) {
        fprintf(stderr, "FAIL %s\n", what.c_str());
        ++failures;
    }
}

struct attention {
    int64_t dk, dv, heads, kv_heads, n_kv;
    ggml_type type;
    bool sinks;
    float softcap, max_bias;

    std::string name() const {
        return std::string(ggml_type_name(type)) + " " + std::to_string(dk) + "/" + std::to_string(dv) + " heads " +
               std::to_string(heads) + "/" + std::to_string(kv_heads) + " cache " + std::to_string(n_kv) +
               (sinks ? " sinks" : "") + (softcap != 0 ? " softcap" : "") + (max_bias != 0 ? " alibi" : "");
    }
};

struct inputs {
    std::vector<float> q, k, v, sinks;      // q: TOKENS tokens
    static constexpr int64_t TOKENS = 100;  // above EAGLE_EXACT_MAX_ROWS: a prompt

    explicit inputs(const attention & a)
        : q(random_floats((size_t) (a.dk * TOKENS * a.heads), 1)),
          k(random_floats((size_t) (a.dk * a.n_kv * a.kv_heads), 2)),
          v(random_floats((size_t) (a.dv * a.n_kv * a.kv_heads), 3)),
          sinks(random_floats((size_t) a.heads, 4)) {
        if (ggml_is_quantized(a.type)) {
            round_off(a.type, a.dk, k);
            round_off(a.type, a.dv, v);
        }
    }

    // Returns the values that a cache of this type stores.
    static void round_off(ggml_type type, int64_t width, std::vector<float> & x) {
        std::vector<char> data(ggml_row_size(type, width) * (x.size() / width));
        ggml_quantize_chunk(type, x.data(), data.data(), 0, (int64_t) x.size() / width, width, nullptr);
        ggml_get_type_traits(type)->to_float(data.data(), x.data(), (int64_t) x.size());
    }
};

// Token t attends to the positions before n_kv - 80 + t.
static bool visible(const attention & a, int64_t token, int64_t position) {
    return position < std::max<int64_t>(1, a.n_kv - 80 + token);
}

static ggml_tensor * input(ggml_context * ctx, ggml_type type, int64_t n0, int64_t n1, int64_t n2) {
    return ggml_new_tensor_3d(ctx, type, n0, n1, n2);
}

static void set(ggml_tensor * t, const float * x) {
    std::vector<char> data(ggml_nbytes(t));
    if (t->type == GGML_TYPE_F32) {
        memcpy(data.data(), x, data.size());
    } else {
        ggml_quantize_chunk(t->type, x, data.data(), 0, ggml_nrows(t), t->ne[0], nullptr);
    }
    ggml_backend_tensor_set(t, data.data(), 0, data.size());
}

// Computes attention of tokens [from, from + n) with `padding` hidden positions at the end of the cache; out: n x heads
// x dv.
static std::vector<float> attend(ggml_backend_t backend, const attention & a, const inputs & in, int64_t from,
                                 int64_t n, int threads, int64_t padding) {
    const int64_t n_kv = a.n_kv + padding;
    ggml_context * ctx = ggml_init({ggml_tensor_overhead() * 16 + ggml_graph_overhead(), nullptr, true});
    ggml_tensor *q = input(ctx, GGML_TYPE_F32, a.dk, n, a.heads), *k = input(ctx, a.type, a.dk, n_kv, a.kv_heads);
    ggml_tensor *v = input(ctx, a.type, a.dv, n_kv, a.kv_heads), *mask = input(ctx, GGML_TYPE_F16, n_kv, n, 1);
    ggml_tensor * sinks = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, a.heads);
    ggml_tensor * out = ggml_flash_attn_ext(ctx, q, k, v, mask, 1.0f / sqrtf((float) a.dk), a.max_bias, a.softcap);
    if (a.sinks) {
        ggml_flash_attn_ext_add_sinks(out, sinks);
    }
    our_kernel = eagle_work_size(threads, out) > 0;
    ggml_cgraph * g = ggml_new_graph(ctx);
    ggml_build_forward_expand(g, out);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);

    std::vector<float> qs((size_t) (a.dk * n * a.heads)), ks((size_t) (a.dk * n_kv * a.kv_heads)),
        vs((size_t) (a.dv * n_kv * a.kv_heads)), ms((size_t) (n_kv * n), -INFINITY);
    for (int64_t h = 0; h < a.heads; ++h) {
        memcpy(&qs[h * n * a.dk], &in.q[(h * inputs::TOKENS + from) * a.dk], (size_t) (n * a.dk) * sizeof(float));
    }
    for (int64_t h = 0; h < a.kv_heads; ++h) {
        memcpy(&ks[h * n_kv * a.dk], &in.k[h * a.n_kv * a.dk], (size_t) (a.n_kv * a.dk) * sizeof(float));
        memcpy(&vs[h * n_kv * a.dv], &in.v[h * a.n_kv * a.dv], (size_t) (a.n_kv * a.dv) * sizeof(float));
    }
    for (int64_t t = 0; t < n; ++t) {
        for (int64_t i = 0; i < a.n_kv; ++i) {
            ms[t * n_kv + i] = visible(a, from + t, i) ? 0.0f : -INFINITY;
        }
    }
    set(q, qs.data());
    set(k, ks.data());
    set(v, vs.data());
    set(mask, ms.data());
    if (a.sinks) {
        set(sinks, in.sinks.data());
    }
    ggml_backend_cpu_set_n_threads(backend, threads);
    if (ggml_backend_graph_compute(backend, g) != GGML_STATUS_SUCCESS) {
        abort();
    }
    std::vector<float> y((size_t) ggml_nelements(out));
    ggml_backend_tensor_get(out, y.data(), 0, ggml_nbytes(out));
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    return y;
}

// Returns the normalized error of one token against float64.
static double nmse(const attention & a, const inputs & in, int64_t token, const float * y) {
    double err = 0, ref = 0;
    for (int64_t h = 0; h < a.heads; ++h) {
        const int64_t hk = h / (a.heads / a.kv_heads);
        std::vector<double> out((size_t) a.dv), s((size_t) a.n_kv, -INFINITY);
        double top = a.sinks ? in.sinks[h] : -INFINITY;
        for (int64_t i = 0; i < a.n_kv && visible(a, token, i); ++i) {
            double dot = 0;
            for (int64_t d = 0; d < a.dk; ++d) {
                dot += (double) in.q[(h * inputs::TOKENS + token) * a.dk + d] * in.k[(hk * a.n_kv + i) * a.dk + d];
            }
            dot /= sqrt((double) a.dk);
            s[i] = a.softcap != 0 ? a.softcap * tanh(dot / a.softcap) : dot;
            top = std::max(top, s[i]);
        }
        double sum = a.sinks ? exp(in.sinks[h] - top) : 0;
        for (int64_t i = 0; i < a.n_kv && visible(a, token, i); ++i) {
            const double w = exp(s[i] - top);
            sum += w;
            for (int64_t d = 0; d < a.dv; ++d) {
                out[d] += w * in.v[(hk * a.n_kv + i) * a.dv + d];
            }
        }
        for (int64_t d = 0; d < a.dv; ++d) {
            err += (y[h * a.dv + d] - out[d] / sum) * (y[h * a.dv + d] - out[d] / sum);
            ref += out[d] / sum * out[d] / sum;
        }
    }
    return err / ref;
}

static void check_attention(ggml_backend_t backend, const attention & a) {
    const inputs in(a);
    const size_t row = (size_t) (a.heads * a.dv);
    std::vector<float> alone;
    for (int64_t t = 0; t < inputs::TOKENS; ++t) {
        const std::vector<float> y = attend(backend, a, in, t, 1, 1, 0);
        check(nmse(a, in, t, y.data()) < (our_kernel ? 1e-6 : 1e-4) || a.max_bias != 0, a.name() + ": accuracy");
        alone.insert(alone.end(), y.begin(), y.end());
    }
    for (int64_t n : {1, 2, 3, 5, 9, 16, 17, 18, 33, 64, 72, 73, 100}) {
        if (!our_kernel && n > EAGLE_EXACT_MAX_ROWS) {  // ggml's kernel computes a prompt in tiles
            continue;
        }
        for (int threads = 1; threads <= 4; ++threads) {
            const int64_t from = (3 * n + threads) % (inputs::TOKENS + 1 - n);
            const std::vector<float> y = attend(backend, a, in, from, n, threads, threads % 2 * 256);
            check(memcmp(y.data(), &alone[from * row], y.size() * sizeof(float)) == 0,
                  a.name() + ": " + std::to_string(n) + " tokens on " + std::to_string(threads) + " threads");
        }
    }
}

int main() {
    ggml_backend_t backend = ggml_backend_cpu_init();
    eagle_cpu_exact_set(1);
    for (const attention & a : {
             attention{256, 256, 8, 2, 1280, GGML_TYPE_F16, false, 0, 0},     // qwen3.5 0.8b
             attention{128, 128, 4, 4, 512, GGML_TYPE_F16, false, 50.0f, 0},  // gemma 2
             attention{64, 64, 8, 1, 768, GGML_TYPE_F32, true, 0, 0},
             attention{96, 96, 2, 1, 300, GGML_TYPE_F16, false, 30.0f, 0},
             attention{128, 64, 6, 2, 1024, GGML_TYPE_BF16, false, 0, 8.0f},
             attention{16, 16, 2, 2, 41, GGML_TYPE_F16, false, 0, 0},
             attention{128, 128, 8, 2, 1100, GGML_TYPE_Q8_0, true, 0, 0},
             attention{64, 96, 4, 2, 600, GGML_TYPE_Q4_0, false, 0, 0},
             attention{40, 40, 4, 2, 700, GGML_TYPE_F16, false, 0, 0},  // ggml's kernel
         }) {
        check_attention(backend, a);
    }
    ggml_backend_free(backend);
    printf("%s\n", failures == 0 ? "ok" : "failed");
    return failures == 0 ? 0 : 1;
}
