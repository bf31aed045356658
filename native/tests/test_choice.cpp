// Tests the choice from a row of logits against a stable sort: on the host, and by graph nodes on every device that has
// the operations. The nodes must never be wrong, and may leave a row to the host only if they have to.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "eagle_choice.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "stand_in.h"

namespace {

using eagle::Choice;
using floats = std::vector<float>;

int failures = 0;

void check(bool ok, const std::string & what) {
    if (!ok) {
        fprintf(stderr, "FAIL %s\n", what.c_str());
        ++failures;
    }
}

// Sorts by descending logit, then by ascending id.
Choice reference(const float * row, int64_t n) {
    std::vector<llama_token> ids(n);
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](llama_token a, llama_token b) { return row[a] > row[b]; });
    return {{ids[0], ids[1]}, row[ids[0]] == row[ids[1]] ? 0.0f : row[ids[0]] - row[ids[1]]};
}

// Computes the choices of rows with a graph on one device.
struct graph {
    int64_t n, n_rows;
    ggml_backend_ptr backend;
    ggml_context_ptr ctx;
    ggml_gallocr_ptr memory;
    ggml_cgraph * gf = nullptr;
    ggml_tensor * logits;
    ggml_tensor * result;

    graph(ggml_backend_dev_t dev, int64_t n, int64_t n_rows)
        : n(n), n_rows(n_rows), backend(ggml_backend_dev_init(dev, nullptr)) {
        ctx.reset(ggml_init({64 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
        logits = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n, n_rows);
        ggml_set_input(logits);
        ggml_set_output(logits);
        result = eagle::choice_nodes(ctx.get(), logits, dev);
        if (result) {
            ggml_set_output(result);
            gf = ggml_new_graph(ctx.get());
            ggml_build_forward_expand(gf, result);
            memory.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend.get())));
            ggml_gallocr_alloc_graph(memory.get(), gf);
        }
    }

    floats compute(const floats & rows) {
        ggml_backend_tensor_set(logits, rows.data(), 0, ggml_nbytes(logits));
        check(ggml_backend_graph_compute(backend.get(), gf) == GGML_STATUS_SUCCESS, "the graph computes");
        floats after(rows.size());
        ggml_backend_tensor_get(logits, after.data(), 0, ggml_nbytes(logits));
        const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
        check(std::equal(rows.begin(), rows.end(), after.begin(), same), "the logits stay as they are");
        floats out(ggml_nelements(result));
        ggml_backend_tensor_get(result, out.data(), 0, ggml_nbytes(result));
        return out;
    }
};

using fill = std::function<void(std::mt19937 &, float *, int64_t)>;

void normal(std::mt19937 & rng, float * row, int64_t n) {
    std::normal_distribution<float> dist(0, 3);
    std::generate(row, row + n, [&] { return dist(rng); });
}

void with(std::mt19937 & rng, float * row, int64_t n, const std::vector<std::pair<int64_t, float>> & values) {
    normal(rng, row, n);
    for (auto [i, value] : values) {
        row[i < 0 ? n + i : i] = value;
    }
}

struct kind {
    const char * name;
    bool decided;  // the nodes have chosen
    fill make;
};

const kind KINDS[] = {
    {"normal", true, normal},
    {"first id", true, [](auto & rng, float * r, int64_t n) { with(rng, r, n, {{0, 90}}); }},
    {"last id", true, [](auto & rng, float * r, int64_t n) { with(rng, r, n, {{-1, 90}}); }},
    {"neighbours", true, [](auto & rng, float * r, int64_t n) { with(rng, r, n, {{1, 90}, {2, 91}}); }},
    {"an ulp", true, [](auto & rng, float * r, int64_t n) { with(rng, r, n, {{-1, 90}, {0, nextafterf(90, 0)}}); }},
    {"second place tied", true,
     [](auto & rng, float * r, int64_t n) { with(rng, r, n, {{2, 90}, {1, 60}, {-1, 60}}); }},
    {"negative", true,
     [](auto &, float * r, int64_t n) {
         std::fill(r, r + n, -1e6f);
         r[1] = -2e5f;
         r[n - 1] = -1e5f;
     }},
    {"mostly excluded", true,
     [](auto & rng, float * r, int64_t n) {
         normal(rng, r, n);
         std::fill(r + 2, r + n, -INFINITY);
     }},
    {"tie of the ends", false, [](auto & rng, float * r, int64_t n) { with(rng, r, n, {{0, 90}, {-1, 90}}); }},
    {"tie of neighbours", false, [](auto & rng, float * r, int64_t n) { with(rng, r, n, {{1, 90}, {2, 90}}); }},
    {"tie of zeros", false,
     [](auto &, float * r, int64_t n) {
         std::fill(r, r + n, -1.0f);
         r[1] = -0.0f;
         r[2] = 0.0f;
     }},
    {"all equal", false, [](auto &, float * r, int64_t n) { std::fill(r, r + n, -7.5f); }},
    {"all but one excluded", false,
     [](auto &, float * r, int64_t n) {
         std::fill(r, r + n, -INFINITY);
         r[n - 1] = 3;
     }},
    {"nothing above -inf", false, [](auto &, float * r, int64_t n) { std::fill(r, r + n, -INFINITY); }},
    {"infinite", false, [](auto & rng, float * r, int64_t n) { with(rng, r, n, {{2, INFINITY}}); }},
};

void check_choice(const Choice & found, const Choice & expected, const float * row, bool on_host, std::string what) {
    check(found.ids[0] == expected.ids[0], what + ": first");
    // A device may return any of the tokens with the second largest logit.
    check(on_host ? found.ids[1] == expected.ids[1] : row[found.ids[1]] == row[expected.ids[1]], what + ": second");
    check(found.gap == expected.gap, what + ": gap");
}

void check_device(ggml_backend_dev_t dev, int64_t n, int64_t n_rows) {
    std::mt19937 rng(n + n_rows);
    graph g(dev, n, n_rows);
    if (!g.result) {
        printf("%s has not all operations\n", ggml_backend_dev_name(dev));
        return;
    }
    for (size_t first = 0; first < std::size(KINDS); ++first) {
        floats rows(n * n_rows);
        const auto kind_of = [&](int64_t r) { return KINDS[(first + r) % std::size(KINDS)]; };
        for (int64_t r = 0; r < n_rows; ++r) {
            kind_of(r).make(rng, &rows[r * n], n);
        }
        const floats result = g.compute(rows);
        for (int64_t r = 0; r < n_rows; ++r) {
            const std::string what = std::string(ggml_backend_dev_name(dev)) + ", row " + std::to_string(r) + " of " +
                                     std::to_string(n_rows) + " x " + std::to_string(n) + ", " + kind_of(r).name;
            Choice found;
            const bool decided = eagle::read_choice(result.data(), n_rows, r, found);
            check(decided == kind_of(r).decided, what + ": who decides");
            if (decided) {
                check_choice(found, reference(&rows[r * n], n), &rows[r * n], false, what);
            }
        }
    }
}

// With NaN at any place the nodes agree with the host or leave the choice to it.
void check_nan(ggml_backend_dev_t dev) {
    std::mt19937 rng(7);
    const int64_t n = 700;
    graph g(dev, n, 1);
    std::vector<floats> rows(5, floats(n));
    for (floats & row : rows) {
        normal(rng, row.data(), n);
    }
    rows[0][0] = rows[1][1] = rows[2][n / 2] = rows[3][n - 1] = NAN;
    rows[4].assign(n, NAN);
    for (const floats & row : rows) {
        Choice found;
        if (g.result && eagle::read_choice(g.compute(row).data(), 1, 0, found)) {
            check(found.ids[0] == eagle::choose(row.data(), n).ids[0], "NaN is passed over");
        }
    }
}

void check_host() {
    std::mt19937 rng(1);
    for (const kind & k : KINDS) {
        for (int64_t n : {4, 5, 1024, 1025, 5000}) {
            floats row(n);
            k.make(rng, row.data(), n);
            check_choice(eagle::choose(row.data(), n), reference(row.data(), n), row.data(), true,
                         std::string("host, ") + k.name);
        }
    }
    for (int round = 0; round < 1000; ++round) {
        floats row(2 + rng() % 3000);
        std::generate(row.begin(), row.end(), [&] { return (float) (rng() % 1000); });
        check_choice(eagle::choose(row.data(), row.size()), reference(row.data(), row.size()), row.data(), true,
                     "host, many ties");
    }
    const floats row = {NAN, -2, NAN, -1};
    check_choice(eagle::choose(row.data(), 4), {{3, 1}, 1.0f}, row.data(), true, "host, NaN");
}

}  // namespace

int main() {
    ggml_backend_load_all();
    stand_in_register(1, "", 256);  // with CUDA's ARGMAX
    check_host();
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        for (int64_t n : {4, 33, 1000, 5003, 248320}) {
            for (int64_t n_rows : {1, 2, 17}) {
                check_device(dev, n, n > 100000 ? std::min<int64_t>(n_rows, 2) : n_rows);
            }
        }
        check_nan(dev);
    }
    printf("%s\n", failures == 0 ? "ok" : "failed");
    return failures == 0 ? 0 : 1;
}
