// The cores that this process may use.
#pragma once

#include <vector>

namespace eagle {

// Numbers of the cores in the affinity mask that the process began with, in ascending order. Empty where the system
// does not say.
const std::vector<int> & allowed_cores();

// How many cores there are for this process, at least 1.
int available_cores();

// The core that runs the calling thread, -1 if unknown.
int current_core();

// Keeps the calling thread on one core; -1 allows all of them again.
void stay_on_core(int core);

}  // namespace eagle
