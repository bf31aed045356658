// Layout of the records of one layer, in floats. eagle_gdn.h describes the order.

#pragma once

#include <cstddef>
#include <cstdint>

struct eagle_round_layout {
    int64_t n_slots = 0;  // tokens recorded per cell: n_rs_seq + 1, or 0 with n_rs_seq = 0
    int64_t head_dim = 0;
    int64_t n_k_heads = 0;
    int64_t n_v_heads = 0;
    int64_t n_channels = 0;   // channels of the convolution
    int64_t conv_window = 0;  // conv kernel - 1

    int64_t gdn_floats() const { return head_dim * (n_k_heads + n_v_heads) + 2 * n_v_heads; }
    int64_t gdn_offset() const { return n_slots * n_channels; }
    int64_t row_floats() const { return n_slots * (n_channels + gdn_floats()); }
};

// Offsets in a record row if ordinary operations write it, in floats. All tokens of a part are contiguous, so that one
// operation can copy or read them. The convolution's part has one row per channel and starts with the window: the
// window after n tokens is the columns from n on.
struct eagle_round_parts {
    // ggml-vulkan aborts if the inputs of its Gated DeltaNet are not aligned; no device requires more bytes than this.
    static constexpr size_t ALIGNMENT = 256;

    int64_t n_columns, k, v, g, beta, end;  // the convolution's part is at 0

    explicit eagle_round_parts(const eagle_round_layout & l) {
        n_columns = l.conv_window + l.n_slots;
        k = aligned(n_columns * l.n_channels);
        v = k + aligned(l.n_slots * l.head_dim * l.n_k_heads);
        g = v + aligned(l.n_slots * l.head_dim * l.n_v_heads);
        beta = g + aligned(l.n_slots * l.n_v_heads);
        end = beta + aligned(l.n_slots * l.n_v_heads);
    }

    static int64_t aligned(int64_t n_floats) {
        constexpr int64_t n = ALIGNMENT / sizeof(float);
        return (n_floats + n - 1) / n * n;
    }
};
