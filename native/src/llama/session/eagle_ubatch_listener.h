// Who is told of every piece of a decode, between its computation and the next one's.
#pragma once

struct llama_ubatch;

struct eagle_ubatch_listener {
    virtual ~eagle_ubatch_listener() = default;

    // The context's last graph computed it. Throws nothing.
    virtual void decoded(const llama_ubatch & ubatch) = 0;
};
