#include "eagle_cores.h"

#include <algorithm>
#include <thread>

#ifdef __linux__
#include <sched.h>
#include <unistd.h>
#endif

namespace eagle {

#ifdef __linux__

static std::vector<int> read_allowed_cores() {
    std::vector<int> cores;
    cpu_set_t set;
    if (sched_getaffinity(getpid(), sizeof(set), &set) == 0) {
        for (int i = 0; i < CPU_SETSIZE; ++i) {
            if (CPU_ISSET(i, &set)) {
                cores.push_back(i);
            }
        }
    }
    return cores;
}

int current_core() {
    return sched_getcpu();
}

void stay_on_core(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int c : allowed_cores()) {
        if (core < 0 || c == core) {
            CPU_SET(c, &set);
        }
    }
    sched_setaffinity(0, sizeof(set), &set);
}

#else

static std::vector<int> read_allowed_cores() {
    return {};
}

int current_core() {
    return -1;
}

void stay_on_core(int) {}

#endif

const std::vector<int> & allowed_cores() {
    static const auto & cores =
        *new std::vector<int>(read_allowed_cores());  // never destroyed, because threads may outlive static objects
    return cores;
}

int available_cores() {
    const size_t n = allowed_cores().empty() ? std::thread::hardware_concurrency() : allowed_cores().size();
    return std::max(1, (int) n);
}

}  // namespace eagle
