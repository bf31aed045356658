// What one token leaves in the records of one layer, in floats. See eagle_gdn.h for the order.

#pragma once

#include <cstdint>

struct eagle_round_layout {
    int64_t n_slots = 0;  // tokens recorded per cell: n_rs_seq + 1, or 0 with n_rs_seq = 0
    int64_t head_dim = 0;
    int64_t n_k_heads = 0;
    int64_t n_v_heads = 0;
    int64_t n_channels = 0;   // of the convolution
    int64_t conv_window = 0;  // conv kernel - 1

    int64_t gdn_floats() const { return head_dim * (n_k_heads + n_v_heads) + 2 * n_v_heads; }
    int64_t gdn_offset() const { return n_slots * n_channels; }
    // A multiple of 256 bytes: ggml-vulkan aborts where a view that its Gated DeltaNet reads is not aligned.
    int64_t row_floats() const { return (n_slots * (n_channels + gdn_floats()) + 63) / 64 * 64; }
};
