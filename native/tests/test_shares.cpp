// Tests that every unit is computed once, and that a ticket gets adjacent units while it has units of its own.

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "eagle_shares.h"

namespace {

void require(bool condition, const char * what) {
    if (!condition) {
        fprintf(stderr, "failed: %s\n", what);
        exit(1);
    }
}

struct team {
    std::vector<char> work;
    std::vector<eagle::shares> members;

    team(int n_threads, int64_t n) : work(eagle::shares::work_size(n_threads) + 64, (char) 0xff) {
        for (int i = 0; i < n_threads; ++i) {
            ggml_compute_params params = {};
            params.ith = i;
            params.nth = n_threads;
            eagle::shares::share_out(&params, eagle::align64(work.data()), n);
            members.emplace_back(&params, eagle::align64(work.data()), n);
        }
    }
};

void every_unit_is_taken_once(int n_threads, int64_t n) {
    team t(n_threads, n);
    std::vector<std::atomic<int>> taken(n);
    std::vector<std::thread> threads;
    for (eagle::shares & own : t.members) {
        threads.emplace_back([&own, &taken] {
            for (int64_t unit = own.next(); unit >= 0; unit = own.next()) {
                ++taken[unit];
            }
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    for (const std::atomic<int> & times : taken) {
        require(times == 1, "every unit is taken once");
    }
}

void own_units_first_then_others() {
    team t(3, 9);
    eagle::shares &first = t.members[0], &second = t.members[1], &third = t.members[2];
    require(second.next() == 3 && third.next() == 6, "each ticket begins with units of its own");
    for (const int64_t unit : {0, 1, 2, 4, 5, 7, 8, -1, -1}) {
        require(first.next() == unit, "a ticket takes its own units in order, then what others have left");
    }
    require(second.next() == -1 && third.next() == -1, "nothing is left");
}

}  // namespace

int main() {
    for (const int n_threads : {1, 2, 3, 16}) {
        for (const int64_t n : {0, 1, 2, 15, 1000}) {
            every_unit_is_taken_once(n_threads, n);
        }
    }
    own_units_first_then_others();
    printf("ok\n");
    return 0;
}
