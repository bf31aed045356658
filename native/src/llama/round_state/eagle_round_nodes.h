// The nodes of eagle_gdn.h and their place: they work in place on the cache, so a copy of it on another device would
// lose what they do.

#pragma once

#include "eagle_round_layout.h"
#include "ggml-backend.h"
#include "ggml.h"

struct eagle_round_gdn {
    ggml_tensor * q;  // [S, heads, T, n_seqs]
    ggml_tensor * k;
    ggml_tensor * v;  // [S, H, T, n_seqs]
    ggml_tensor * g;  // [1, H, T, n_seqs]
    ggml_tensor * beta;
    ggml_tensor * state;  // [S, S, H, n_seqs], a view of the cache
};

struct eagle_round_window {
    ggml_tensor * window;  // [W, channels, n_seqs], a view of the cache
    ggml_tensor * x;       // [channels, T, n_seqs]
};

// The batch's records: a view [row, n_seqs], or null without any.
struct eagle_round_replay {
    ggml_tensor * records;
    ggml_tensor * n_replay;  // I32 [n_seqs], of the tokens recorded before
    int64_t n_recorded;      // of each sequence's new tokens the last ones, at most
};

// [S * H, T * n_seqs]
ggml_tensor * eagle_round_gdn_node(ggml_context * ctx, const eagle_round_layout & layout, const eagle_round_gdn & in,
                                   const eagle_round_replay & replay);

// [W + T, channels, n_seqs]
ggml_tensor * eagle_round_window_node(ggml_context * ctx, const eagle_round_layout & layout,
                                      const eagle_round_window & in, const eagle_round_replay & replay);

// Whether the device computes both nodes for this layout.
bool eagle_round_device_knows(ggml_backend_dev_t dev, const eagle_round_layout & layout);

// Keeps a node on the backend that its cache tensor lies on. Throws when the scheduler has none.
void eagle_round_pin(ggml_backend_sched_t sched, ggml_tensor * node, const ggml_tensor * cache);

// After a graph is allocated: whether each of its nodes lies where its cache does, and reads that instead of a copy.
// Logs the first one that does not.
bool eagle_round_is_placed(ggml_backend_sched_t sched, ggml_cgraph * graph);
