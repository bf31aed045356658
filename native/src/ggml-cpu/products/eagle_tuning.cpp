#include "eagle_tuning.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace eagle {

// The variants; the first one is the kernels' own choice. The best prefetch distance and target cache depend on the
// CPU, and so does the choice between many accumulators, two passes over unpacked weights, and two groups of weight
// rows at a time.
static constexpr tuning TUNINGS[] = {{0, 0},          {0, 4096},       {0, 8192},        {0, 16384},
                                     {4, 0, 1},       {0, 0, 1},       {0, 8192, 1},     {0, 0, 2},
                                     {0, 2048, 1, 2}, {0, 8192, 1, 2}, {0, 16384, 1, 2}, {0, 4096, 0, 2}};
static constexpr int N_TUNINGS = std::size(TUNINGS), RUNS = 8 * N_TUNINGS, FEW_RUNS = 3 * N_TUNINGS;
static constexpr int64_t MIN_BYTES = 256 << 10;  // smaller products are too short to be timed
static constexpr float MAX_RATIO =
    0.98f;  // of the time of a variant to that of the default, for the variant to be chosen
static constexpr int MAX_SHAPES = 8;

static bool is_zen4() {
#if defined(__GNUC__) && defined(__AVX512F__)
    return __builtin_cpu_is("amdfam19h");  // of that family, a Zen 3 has no AVX-512
#else
    return false;
#endif
}

// Zen 4 sustains few outstanding L1 misses, so prefetch weights into L2 while rows are multiplied. Prompts already find
// them in L2.
static int default_index(int64_t n_rows) {
    constexpr int INTO_L2 = 9;
    static_assert(TUNINGS[INTO_L2].prefetch_bytes == 8192 && TUNINGS[INTO_L2].groups == 1 &&
                  TUNINGS[INTO_L2].prefetch_level == 2);
    static const bool zen4 = is_zen4();
    return zen4 && n_rows > FEW_ROWS && n_rows <= MAX_ROWS ? INTO_L2 : 0;
}

tuning default_tuning(int64_t n_rows) {
    return TUNINGS[default_index(n_rows)];
}

// Minimum times of the variants with matrices of one shape. Threads of other graphs may write at the same time; losing
// a sample is harmless.
struct shape_record {
    std::atomic<int64_t> bytes;
    std::atomic<int> runs;
    std::atomic<float> minimum[N_TUNINGS];
};

// Variants are compared on the same shapes, because small matrices take more time per byte with any variant.
struct record {
    shape_record shapes[MAX_SHAPES];
    std::atomic<int> best;
    std::atomic<bool> is_known;

    // Returns null for shapes beyond the first MAX_SHAPES, which are not tuned.
    shape_record * shape_of(int64_t bytes) {
        for (shape_record & s : shapes) {
            int64_t none = 0;
            if (s.bytes == bytes || s.bytes.compare_exchange_strong(none, bytes) || none == bytes) {
                return &s;
            }
        }
        return nullptr;
    }

    // Returns the total time of a variant over the shapes with enough samples.
    float time_of(int index) const {
        float sum = 0.0f;
        for (const shape_record & s : shapes) {
            sum += s.runs >= FEW_RUNS ? s.minimum[index].load() : 0.0f;
        }
        return sum;
    }

    void choose(int default_index) {
        int found = default_index;
        float limit = MAX_RATIO * time_of(default_index);
        for (int i = 0; i < N_TUNINGS; ++i) {
            if (time_of(i) < limit) {
                found = i;
                limit = time_of(i);
            }
        }
        best = found;
        is_known = true;
    }
};

static bool switched_off() {
    static const char * value = getenv("LLAMA_EAGLE_TUNE");
    static const bool off = value != nullptr && (strcmp(value, "off") == 0 || strcmp(value, "0") == 0);
    return off;
}

// There is one record for each type, class of row widths and number of activation rows: activations of long rows
// compete with weights for the caches, and passes of four rows suit four rows but not five.
static record & record_of(const kernel & k, int64_t n, int64_t n_rows) {
    static record records[GGML_TYPE_COUNT][3][CALL_ROWS];
    const int width = n <= 1536 ? 0 : n <= 4096 ? 1 : 2;
    return records[k.type][width][std::min<int64_t>(n_rows, CALL_ROWS) - 1];
}

trial::trial(const kernel & k, int64_t n, int64_t bytes, int64_t n_rows)
    : default_(default_index(n_rows)), index_(default_) {
    if (k.tunable && !switched_off()) {
        record & r = record_of(k, n, n_rows);
        if (r.is_known) {
            index_ = r.best;
        } else if (bytes >= MIN_BYTES && n_rows <= CALL_ROWS) {
            record_ = &r;
            shape_ = r.shape_of(bytes);
            index_ = shape_ != nullptr ? shape_->runs.load(std::memory_order_relaxed) % N_TUNINGS : default_;
            start_ = std::chrono::steady_clock::now();
        }
    }
    tune = TUNINGS[index_];
}

void trial::end() {
    if (shape_ == nullptr) {
        return;
    }
    const std::chrono::duration<float> seconds = std::chrono::steady_clock::now() - start_;
    std::atomic<float> & minimum = shape_->minimum[index_];
    const float now = seconds.count(), before = minimum;
    if (before == 0.0f || now < before) {
        minimum = now;
    }
    if (shape_->runs.fetch_add(1, std::memory_order_relaxed) + 1 == RUNS) {
        record_->choose(default_);
    }
}

}  // namespace eagle
