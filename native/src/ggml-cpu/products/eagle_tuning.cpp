#include "eagle_tuning.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace eagle {

// The first is the kernels' own choice. Caches and prefetchers differ: how far ahead to ask for weights and into which
// cache, and whether many accumulators, two passes over unpacked weights or two groups of weight rows at a time are
// cheaper.
static constexpr tuning WAYS[] = {{0, 0},          {0, 4096},       {0, 8192},        {0, 16384},
                                  {4, 0, 1},       {0, 0, 1},       {0, 8192, 1},     {0, 0, 2},
                                  {0, 2048, 1, 2}, {0, 8192, 1, 2}, {0, 16384, 1, 2}, {0, 4096, 0, 2}};
static constexpr int N_WAYS = std::size(WAYS), RUNS = 8 * N_WAYS, FEW_RUNS = 3 * N_WAYS;
static constexpr int64_t LEAST_BYTES = 256 << 10;  // less takes too short to be timed
static constexpr float GAIN = 0.98f;               // a way must be this much faster than the usual one
static constexpr int MOST_SHAPES = 8;

static bool is_zen4() {
#if defined(__GNUC__) && defined(__AVX512F__)
    return __builtin_cpu_is("amdfam19h");  // of that family, a Zen 3 has no AVX-512
#else
    return false;
#endif
}

// Which of the ways is good on this kind of CPU, before anything is tried. A Zen 4 has few misses of its first cache
// under way at a time: asked into the second, weights come while some rows are multiplied. A prompt has them there.
static int usual_index(int64_t n_rows) {
    constexpr int INTO_SECOND = 9;
    static_assert(WAYS[INTO_SECOND].ahead == 8192 && WAYS[INTO_SECOND].groups == 1 && WAYS[INTO_SECOND].level == 2);
    static const bool zen4 = is_zen4();
    return zen4 && n_rows > FEW_ROWS && n_rows <= MAX_ROWS ? INTO_SECOND : 0;
}

tuning usual_way(int64_t n_rows) {
    return WAYS[usual_index(n_rows)];
}

// Least times of the ways with matrices of one shape. Threads of other graphs may write at the same time: a lost sample
// is no loss.
struct shape_record {
    std::atomic<int64_t> bytes;
    std::atomic<int> runs;
    std::atomic<float> least[N_WAYS];
};

// Ways are compared with the same shapes: a small matrix takes more time per byte, whichever way it is multiplied.
struct record {
    shape_record shapes[MOST_SHAPES];
    std::atomic<int> best;
    std::atomic<bool> is_known;

    // Null: of shapes beyond the first few nothing is learned.
    shape_record * shape_of(int64_t bytes) {
        for (shape_record & s : shapes) {
            int64_t none = 0;
            if (s.bytes == bytes || s.bytes.compare_exchange_strong(none, bytes) || none == bytes) {
                return &s;
            }
        }
        return nullptr;
    }

    // Of the shapes that were multiplied often enough, all together.
    float time_of(int way) const {
        float sum = 0.0f;
        for (const shape_record & s : shapes) {
            sum += s.runs >= FEW_RUNS ? s.least[way].load() : 0.0f;
        }
        return sum;
    }

    void choose(int usual) {
        int found = usual;
        float bar = GAIN * time_of(usual);
        for (int i = 0; i < N_WAYS; ++i) {
            if (time_of(i) < bar) {
                found = i;
                bar = time_of(i);
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

// One for each type, class of widths and number of rows: activations of long rows compete with weights for caches, and
// a pass of four rows is as good as another for four, but not for five.
static record & record_of(const kernel & k, int64_t n, int64_t n_rows) {
    static record records[GGML_TYPE_COUNT][3][CALL_ROWS];
    const int width = n <= 1536 ? 0 : n <= 4096 ? 1 : 2;
    return records[k.type][width][std::min<int64_t>(n_rows, CALL_ROWS) - 1];
}

trial::trial(const kernel & k, int64_t n, int64_t bytes, int64_t n_rows) : usual_(usual_index(n_rows)), way_(usual_) {
    if (k.tunable && !switched_off()) {
        record & r = record_of(k, n, n_rows);
        if (r.is_known) {
            way_ = r.best;
        } else if (bytes >= LEAST_BYTES && n_rows <= CALL_ROWS) {
            record_ = &r;
            shape_ = r.shape_of(bytes);
            way_ = shape_ != nullptr ? shape_->runs.load(std::memory_order_relaxed) % N_WAYS : usual_;
            start_ = std::chrono::steady_clock::now();
        }
    }
    tune = WAYS[way_];
}

void trial::end() {
    if (shape_ == nullptr) {
        return;
    }
    const std::chrono::duration<float> seconds = std::chrono::steady_clock::now() - start_;
    std::atomic<float> & least = shape_->least[way_];
    const float now = seconds.count(), before = least;
    if (before == 0.0f || now < before) {
        least = now;
    }
    if (shape_->runs.fetch_add(1, std::memory_order_relaxed) + 1 == RUNS) {
        record_->choose(usual_);
    }
}

}  // namespace eagle
