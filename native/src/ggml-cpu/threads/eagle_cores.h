// The cores that this process may use.
#pragma once

#include <vector>

namespace eagle {

// Returns the cores of the process's initial affinity mask in ascending order; empty if the system does not report it.
const std::vector<int> & allowed_cores();

// Returns the number of cores for this process, at least 1.
int available_cores();

// Returns the core that runs the calling thread, -1 if unknown.
int current_core();

// Pins the calling thread to one core; -1 allows all cores again.
void stay_on_core(int core);

}  // namespace eagle
