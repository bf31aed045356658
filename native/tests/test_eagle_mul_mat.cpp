// Tests the verification kernels: each row has the same bits alone and in any batch, with any number of threads, and is
// as accurate as ggml's kernels against a float64 product of the dequantized weights.
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "eagle_exact.h"
#include "eagle_shares.h"
#include "eagle_tuning.h"
#include "eagle_wide.h"
#include "mul_mat_case.h"

using eagle::layout;

static int failures = 0;
static const int64_t MAX_ROWS = EAGLE_EXACT_MAX_ROWS;
static const int64_t BATCHES[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 16, 17, 18, 33, 64, 72};

static void check(bool ok, const std::string & what) {
    if (!ok) {
        fprintf(stderr, "FAIL %s\n", what.c_str());
        ++failures;
    }
}

struct shape {
    int64_t cols, rows;
};

// Odd row counts, widths of one block, sizes of real models (0.8b: 1024 and 3584; 4b: 2560 and 9728 cut down in rows).
static const shape SHAPES[] = {{256, 8},    {256, 1},   {512, 13},  {1024, 24}, {1024, 256},
                               {1024, 250}, {3584, 64}, {2560, 40}, {9728, 16}};

static std::vector<float> slice(const std::vector<float> & x, int64_t from, int64_t n, int64_t cols) {
    return std::vector<float>(x.begin() + from * cols, x.begin() + (from + n) * cols);
}

static std::vector<float> one_by_one(ggml_backend_t backend, const weights & w, const std::vector<float> & x,
                                     int64_t n) {
    std::vector<float> all;
    for (int64_t j = 0; j < n; ++j) {
        const std::vector<float> y = multiply(backend, w, slice(x, j, 1, w.tensor->ne[0]), 1, 1);
        all.insert(all.end(), y.begin(), y.end());
    }
    return all;
}

// Normalized mean squared error against float64.
static double nmse(const weights & w, const float * dequantized, const std::vector<float> & x,
                   const std::vector<float> & y, int64_t n) {
    const int64_t cols = w.tensor->ne[0], rows = w.tensor->ne[1];
    double err = 0, ref = 0;
    for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < rows; ++i) {
            double sum = 0;
            for (int64_t k = 0; k < cols; ++k) {
                sum += (double) dequantized[i * cols + k] * x[j * cols + k];
            }
            err += (y[j * rows + i] - sum) * (y[j * rows + i] - sum);
            ref += sum * sum;
        }
    }
    return err / ref;
}

// ggml's kernel for one row may differ from that for four rows. It is the exact one for types without a kernel of ours.
static void check_accuracy(ggml_backend_t backend, const weights & w, const weights & their_w, ggml_type type,
                           const std::vector<float> & values, const std::vector<char> & quantized,
                           const std::vector<float> & x, const std::string & name) {
    std::vector<float> plain(values.size());
    if (type == GGML_TYPE_F32) {
        plain = values;
    } else {
        ggml_get_type_traits(type)->to_float(quantized.data(), plain.data(), (int64_t) values.size());
    }
    eagle_cpu_exact_set(0);
    const double theirs = std::max(nmse(w, plain.data(), x, multiply(backend, their_w, x, 4, 2), 4),
                                   nmse(w, plain.data(), x, one_by_one(backend, their_w, x, 4), 4));
    eagle_cpu_exact_set(1);
    const double ours = nmse(w, plain.data(), x, multiply(backend, w, x, 4, 2), 4);
    check(ours < 5e-4 && ours <= 1.1 * theirs + 1e-12,
          name + ": nmse " + std::to_string(ours * 1e6) + "e-6, ggml's " + std::to_string(theirs * 1e6) + "e-6");
}

static void check_bits(ggml_backend_t backend, const weights & w, const std::vector<float> & x,
                       const std::string & name) {
    const int64_t cols = w.tensor->ne[0], rows = w.tensor->ne[1];
    const std::vector<float> alone = one_by_one(backend, w, x, MAX_ROWS);
    for (int64_t n : BATCHES) {
        for (int threads : {1 + (int) (n % 4), 1 + (int) ((n + 2) % 4)}) {
            const int64_t from = (n * 7 + threads) % (MAX_ROWS + 1 - n);
            const std::vector<float> y = multiply(backend, w, slice(x, from, n, cols), n, threads);
            check(memcmp(y.data(), alone.data() + from * rows, y.size() * sizeof(float)) == 0,
                  name + ": " + std::to_string(n) + " rows on " + std::to_string(threads) + " threads");
        }
    }
}

static const char * const LAYOUTS[] = {"plain", "interleaved", "wide"};

// ggml cannot read our repacked layout, so the comparison uses the plain layout.
static void check_type(ggml_backend_t backend, ggml_type type, layout l) {
    const int64_t group = l == layout::wide ? eagle::WIDE : l == layout::interleaved ? 8 : 1;
    for (const shape & s : SHAPES) {
        if (s.rows % group != 0 || s.cols % ggml_blck_size(type) != 0) {
            continue;
        }
        const std::string name = std::string(ggml_type_name(type)) + " " + LAYOUTS[(int) l] + " " +
                                 std::to_string(s.cols) + "x" + std::to_string(s.rows);
        const std::vector<float> values = random_floats((size_t) (s.cols * s.rows), 1);
        const std::vector<float> x = random_floats((size_t) (s.cols * MAX_ROWS), 2);
        const std::vector<char> quantized = quantize(type, values.data(), s.rows, s.cols);  // takes long
        const weights w(type, s.cols, s.rows, quantized, l);
        if (!w.readable) {
            printf("%s: no such layout on this CPU\n", name.c_str());
            return;
        }
        const weights theirs(type, s.cols, s.rows, quantized, l == layout::wide ? layout::plain : l);
        check_accuracy(backend, w, theirs, type, values, quantized, x, name);
        check_bits(backend, w, x, name);
    }
}

// Weights can be read back unchanged from our repacked layout, and prompts have the same bits in it as verifications.
static void check_wide(ggml_backend_t backend, ggml_type type) {
    const int64_t cols = 1536, rows = 48, n = 300;  // more than the unpacked blocks of a kernel, not a multiple
    const std::string name = std::string(ggml_type_name(type)) + " wide";
    const std::vector<float> values = random_floats((size_t) (cols * rows), 6);
    const weights w(type, cols, rows, values.data(), layout::wide);
    if (!w.readable) {
        return;
    }
    std::vector<char> in = quantize(type, values.data(), rows, cols), out(in.size());
    ggml_backend_tensor_get(w.tensor, out.data(), 0, out.size());
    check(in == out, name + ": read back");
    const size_t group = eagle::WIDE * w.tensor->nb[1];  // groups of rows can be written and read separately, too
    ggml_backend_tensor_set(w.tensor, in.data(), group, group);
    std::copy_n(in.data(), group, in.data() + group);
    ggml_backend_tensor_get(w.tensor, out.data(), group, 2 * group);
    check(std::equal(out.begin(), out.begin() + 2 * group, in.begin() + group), name + ": a group");
    ggml_backend_tensor_get(w.tensor, in.data(), 0, in.size());
    check(std::equal(in.begin(), in.begin() + group, in.begin() + group), name + ": a group's copy");

    const std::vector<float> x = random_floats((size_t) (cols * n), 7);
    const std::vector<float> all = multiply(backend, w, x, n, 3);
    for (int64_t j : {0, 16, 17, 128, 299}) {
        const std::vector<float> y = multiply(backend, w, slice(x, j, 1, cols), 1, 1);
        check(memcmp(y.data(), all.data() + j * rows, y.size() * sizeof(float)) == 0,
              name + ": row " + std::to_string(j) + " of " + std::to_string(n));
    }
    eagle_cpu_exact_set(0);
    check(multiply(backend, w, x, n, 2) == all, name + ": switched off");
    eagle_cpu_exact_set(1);
}

// All variants of the tuner have the same bits.
static void check_tuning(ggml_type type) {
    const int64_t cols = 768, rows = 48, n = 11;  // a pair of groups and a single one
    const eagle::kernel * k = eagle::find_kernel(type, layout::wide);
    const std::vector<float> values = random_floats((size_t) (cols * rows), 8), x = random_floats(cols * n, 9);
    const weights w(type, cols, rows, values.data(), layout::wide);
    if (!w.readable) {
        return;
    }
    const size_t size = k->act_size(*k, cols);
    std::vector<char> packed(size * n + 64);
    std::vector<std::vector<float>> out(n, std::vector<float>(rows));
    const char * act[n];
    float * dst[n];
    for (int64_t j = 0; j < n; ++j) {
        char * to = eagle::align64(packed.data()) + j * size;
        k->pack(*k, x.data() + j * cols, to, cols, 0, cols / k->pack_block);
        act[j] = to;
        dst[j] = out[j].data();
    }
    std::vector<std::vector<float>> first;
    for (eagle::tuning tune : {eagle::tuning{0, 0},
                               {1, 4096},
                               {4, 32768, 2},
                               {6, 64, 1},
                               {100, 0},
                               {0, 0, 1},
                               {0, 0, 2},
                               {0, 8192, 0, 2},
                               {0, 8192, 1, 2}}) {
        k->dot({k, cols, (const char *) w.tensor->data, w.tensor->nb[1] * k->group, rows, act, (int) n, dst, tune});
        first = first.empty() ? out : first;
        check(out == first, std::string(ggml_type_name(type)) + ": rows " + std::to_string(tune.rows) + ", ahead " +
                                std::to_string(tune.prefetch_bytes) + ", groups " + std::to_string(tune.groups) +
                                ", level " + std::to_string(tune.prefetch_level));
    }
}

// The tuner chooses a variant for each number of rows: passes of four rows, the fastest here, are timed again for five.
static void check_tuned_by_rows() {
    const eagle::kernel * k = eagle::find_kernel(GGML_TYPE_Q4_K, layout::wide);
    if (k == nullptr || !k->tunable) {
        return;
    }
    const int64_t cols = 8192, bytes = 1 << 20;
    int n_tried = 0;
    for (; n_tried < 1000; ++n_tried) {
        eagle::trial trial(*k, cols, bytes, 4);
        if (trial.is_over()) {
            break;
        }
        if (trial.tune.rows != 4) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        trial.end();
    }
    check(n_tried > 0 && n_tried < 1000, "tuning: trials of four rows: " + std::to_string(n_tried));
    check(eagle::trial(*k, cols, bytes, 4).tune.rows == 4, "tuning: the fastest variant for four rows");
    const eagle::trial other(*k, cols, bytes, 5);
    check(!other.is_over() && other.tune.rows == 0, "tuning: five rows are tried by themselves");
}

// Matrices of two shapes alternate, and the small one takes more time per byte. A variant must not win because it was
// timed on the large one.
static void check_tuned_by_shapes() {
    const eagle::kernel * k = eagle::find_kernel(GGML_TYPE_Q4_K, layout::wide);
    if (k == nullptr || !k->tunable) {
        return;
    }
    int n_tried = 0;
    for (; n_tried < 1000; ++n_tried) {
        eagle::trial trial(*k, 8192, n_tried % 2 == 0 ? 1 << 20 : 1 << 22, 6);
        if (trial.is_over()) {
            break;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(trial.tune.prefetch_bytes == 4096 ? 1 : 2));
        trial.end();
    }
    check(eagle::trial(*k, 8192, 1 << 20, 6).tune.prefetch_bytes == 4096,
          "tuning: the fastest variant for matrices of two shapes");
}

// Tests rows whose width is not a multiple of a vector, and zero activations.
static void check_ragged(ggml_backend_t backend) {
    for (ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16}) {
        for (int64_t cols : {1, 7, 33, 100}) {
            const std::vector<float> values = random_floats((size_t) cols * 5, 3),
                                     x = random_floats((size_t) cols * MAX_ROWS, 4);
            const std::vector<char> quantized = quantize(type, values.data(), 5, cols);
            const weights w(type, cols, 5, quantized, layout::plain);
            check_accuracy(backend, w, w, type, values, quantized, x,
                           std::string(ggml_type_name(type)) + " ragged " + std::to_string(cols));
            check_bits(backend, w, x, std::string(ggml_type_name(type)) + " ragged " + std::to_string(cols));
        }
    }
    const std::vector<float> values = random_floats(256 * 8, 5), zero(256 * 2);
    for (ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K}) {
        const weights w(type, 256, 8, values.data(), layout::plain);
        for (float v : multiply(backend, w, zero, 2, 2)) {
            check(v == 0.0f, std::string(ggml_type_name(type)) + " times zero");
        }
    }
}

int main() {
    ggml_backend_t backend = ggml_backend_cpu_init();
    for (ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_K,
                           GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_Q5_0, GGML_TYPE_Q3_K, GGML_TYPE_IQ4_NL,
                           GGML_TYPE_IQ4_XS, GGML_TYPE_IQ3_XXS, GGML_TYPE_IQ3_S}) {
        check_type(backend, type, layout::plain);
    }
    for (ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q4_K, GGML_TYPE_Q2_K, GGML_TYPE_IQ4_NL}) {
        check_type(backend, type, layout::interleaved);
    }
    for (ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0,
                           GGML_TYPE_IQ4_NL, GGML_TYPE_MXFP4, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K,
                           GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_XS}) {
        check_type(backend, type, layout::wide);
        check_wide(backend, type);
        check_tuning(type);
    }
    check_tuned_by_rows();
    check_tuned_by_shapes();
    check_ragged(backend);
    ggml_backend_free(backend);
    printf("%s\n", failures == 0 ? "ok" : "failed");
    return failures == 0 ? 0 : 1;
}
