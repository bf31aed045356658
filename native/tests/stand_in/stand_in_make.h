// Devices of another make than the plain stand-in.
#pragma once

#include "ggml.h"

namespace stand_in {

struct Make {
    const char * registry;                      // its name; devices are registry0, registry1, ...
    bool (*compute)(ggml_tensor * node);        // in memory of the host; false: the CPU backend's turn
    bool (*knows)(const ggml_tensor * node);    // beside the stand-in's own table
    void * (*proc_address)(const char * name);  // of the registry
};

__attribute__((visibility("default"))) void register_make(const Make & make);

}  // namespace stand_in
