// Tests that first_maximum returns the lowest index of the largest value, for rows of any length.
#include <cstdio>
#include <random>
#include <vector>

#include "eagle_first_maximum.h"

static int failures = 0;

static void check(const std::vector<float> & x, int64_t expected, const char * what) {
    const int64_t found = eagle::first_maximum(x.data(), (int64_t) x.size());
    if (found != expected) {
        fprintf(stderr, "FAIL %s of %zu: %lld, not %lld\n", what, x.size(), (long long) found, (long long) expected);
        ++failures;
    }
}

int main() {
    std::mt19937 rng(1);
    for (int round = 0; round < 2000; ++round) {
        std::vector<float> x(1 + rng() % 5000);
        for (float & v : x) {
            v = (float) (rng() % 1000);  // many equal values
        }
        check(x, std::max_element(x.begin(), x.end()) - x.begin(), "many ties");
        const int64_t at = (int64_t) (rng() % x.size());
        x[at] = 1000;
        check(x, at, "one peak");
    }
    check(std::vector<float>(3000, -INFINITY), 0, "nothing above -inf");
    check(std::vector<float>(3000, NAN), 0, "only NaN");
    std::vector<float> x(3000, NAN);
    x[2999] = -1;
    check(x, 2999, "one number");
    printf("%s\n", failures == 0 ? "ok" : "failed");
    return failures == 0 ? 0 : 1;
}
