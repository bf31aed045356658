// Receives every ubatch of a decode, after its computation and before that of the next one.
#pragma once

struct llama_ubatch;

struct eagle_ubatch_listener {
    virtual ~eagle_ubatch_listener() = default;

    // `ubatch` was computed by the context's last graph. Must not throw.
    virtual void decoded(const llama_ubatch & ubatch) = 0;
};
