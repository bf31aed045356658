// Creation and placement of the nodes of eagle_gdn.h. They update the cache in place, so they must run on its device:
// an update of a copy would be lost.

#pragma once

#include "eagle_round_layout.h"
#include "ggml-backend.h"
#include "ggml.h"

// In Mamba 2, q is C, k is B, v is x, g is dt, and A replaces beta.
struct eagle_round_scan {
    ggml_tensor * q;  // [k_dim, heads, T, n_seqs]
    ggml_tensor * k;
    ggml_tensor * v;      // [v_dim, H, T, n_seqs]
    ggml_tensor * g;      // [1, H, T, n_seqs]
    ggml_tensor * beta;   // [1, H, T, n_seqs]; A: [1, H]
    ggml_tensor * state;  // [k_dim, v_dim, H, n_seqs], a view of the cache
};

struct eagle_round_window {
    ggml_tensor * window;  // [W, channels, n_seqs], a view of the cache
    ggml_tensor * x;       // [channels, T, n_seqs]
};

// Records of the batch.
struct eagle_round_replay {
    ggml_tensor * records;   // view [row, n_seqs], or null
    ggml_tensor * n_replay;  // I32 [n_seqs]: number of earlier records to replay
    int64_t n_recorded;      // at most this many of each sequence's last new tokens are recorded
};

// Returns [v_dim * H, T * n_seqs].
ggml_tensor * eagle_round_scan_node(ggml_context * ctx, const eagle_round_layout & layout, const eagle_round_scan & in,
                                    const eagle_round_replay & replay);

// Returns [W + T, channels, n_seqs].
ggml_tensor * eagle_round_window_node(ggml_context * ctx, const eagle_round_layout & layout,
                                      const eagle_round_window & in, const eagle_round_replay & replay);

// Returns true if the device supports the nodes of this layout.
bool eagle_round_device_knows(ggml_backend_dev_t dev, const eagle_round_layout & layout);

// Assigns a node to the backend of its cache tensor. Throws if the scheduler has no such backend.
void eagle_round_pin(ggml_backend_sched_t sched, ggml_tensor * node, const ggml_tensor * cache);

// Returns true if, in an allocated graph, each of these nodes is on the device of its cache and reads it without a
// copy. Logs the first one that does not.
bool eagle_round_is_placed(ggml_backend_sched_t sched, ggml_cgraph * graph);
