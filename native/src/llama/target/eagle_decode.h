// llama_decode with our errors.
#pragma once

#include "llama.h"

namespace eagle {

// may_stop: Ctrl-C interrupts it if the thread is interruptible.
void decode(llama_context & ctx, const llama_batch & batch, bool may_stop);

}  // namespace eagle
