// Registration of devices with properties that differ from the plain stand-in.
#pragma once

#include "ggml.h"

namespace stand_in {

struct Make {
    const char * registry;                      // name of the registry; devices are registry0, registry1, ...
    bool (*compute)(ggml_tensor * node);        // computes a node in host memory; false: the CPU backend computes it
    bool (*knows)(const ggml_tensor * node);    // supports nodes in addition to the stand-in's table
    void * (*proc_address)(const char * name);  // functions of the registry
};

__attribute__((visibility("default"))) void register_make(const Make & make);

}  // namespace stand_in
