// Layout of the records of one layer, in floats. eagle_gdn.h describes the order.

#pragma once

#include <cstddef>
#include <cstdint>

// Recurrences that can be replayed.
enum class eagle_round_kind {
    gdn,   // Gated DeltaNet after a convolution
    ssm,   // Mamba 2
    conv,  // a convolution alone (LFM2)
};

// Names are those of Gated DeltaNet. In Mamba 2, k is B, v is x, and dt is the only gate.
struct eagle_round_layout {
    eagle_round_kind kind = eagle_round_kind::gdn;
    int64_t n_slots = 0;  // tokens recorded per cell: n_rs_seq + 1, or 0 with n_rs_seq = 0
    int64_t k_dim = 0;    // per head
    int64_t v_dim = 0;
    int64_t n_k_heads = 0;
    int64_t n_v_heads = 0;
    int64_t n_channels = 0;   // channels of the convolution
    int64_t conv_window = 0;  // conv kernel - 1

    int64_t k_floats() const { return k_dim * n_k_heads; }
    int64_t v_floats() const { return v_dim * n_v_heads; }
    int64_t beta_floats() const { return kind == eagle_round_kind::gdn ? n_v_heads : 0; }
    int64_t scan_floats() const { return k_floats() + v_floats() + n_v_heads + beta_floats(); }
    int64_t scan_offset() const { return n_slots * n_channels; }
    int64_t row_floats() const { return n_slots * (n_channels + scan_floats()); }
    int64_t state_floats() const { return k_dim * v_dim * n_v_heads; }
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
        v = k + aligned(l.n_slots * l.k_floats());
        g = v + aligned(l.n_slots * l.v_floats());
        beta = g + aligned(l.n_slots * l.n_v_heads);
        end = beta + aligned(l.n_slots * l.beta_floats());
    }

    static int64_t aligned(int64_t n_floats) {
        constexpr int64_t n = ALIGNMENT / sizeof(float);
        return (n_floats + n - 1) / n * n;
    }
};
