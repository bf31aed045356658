// Weights of an RPC server in the CPU's own layouts.
//
// A client sends weights in the file's layout and cannot know this CPU's. A model on this machine would have its
// matrices repacked, and the kernels of the two layouts add in different orders. So the server repacks a matrix in
// place when a product first reads it, with the choice that llama.cpp's loader makes: the bits, and the speed, are then
// those of one machine. Clients never see the layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "ggml-backend-impl.h"
#include "ggml-cpp.h"

// Returns what a server with these backends adds to its HELLO: 1 if rows of a batch have the bits of single rows, 0
// otherwise, as upstream's servers do.
uint8_t eagle_rpc_greeting(const std::vector<ggml_backend_t> & backends);

class eagle_rpc_weights {
  public:
    // Call it with each new buffer, which may hold weights.
    static void allocated(ggml_backend_t backend, ggml_backend_buffer_t buffer);

    // Call it before a graph is computed for the first time: repacks its matrices, and marks the tensors that are.
    void prepare(ggml_backend_t backend, ggml_cgraph * graph);

    // Call it before a graph is computed again.
    void prepare_again(ggml_backend_t backend, ggml_cgraph * graph);

    // Reads `size` bytes of the file's layout; returns false for a tensor that is not repacked.
    bool read(const ggml_tensor * tensor, void * data, size_t offset, size_t size);

    // Call it before other access. What is written or copied after its first product is no weight: it stays as sent.
    void release(const void * data, size_t size);

    void forget(ggml_backend_buffer_t buffer);

  private:
    struct weight {
        ggml_tensor plain;                       // as the client describes it
        ggml_tensor packed;                      // the same memory, marked
        ggml_backend_buffer_t layout = nullptr;  // null: stays as sent
    };
    using weights = std::map<uintptr_t, weight>;  // by address

    ggml_backend_buffer_t layout_of(ggml_backend_buffer_type_t type);
    weight choose(ggml_backend_dev_t device, const ggml_tensor * product);
    weights::iterator first_in(const void * data, size_t size);

    weights weights_;
    std::set<const ggml_cgraph *> prepared_;  // graphs since whose preparation no weight has changed
    std::map<ggml_backend_buffer_type_t, ggml_backend_buffer_ptr> layouts_;
};
