// llama_decode with our errors.
#pragma once

#include "eagle_progress.h"

namespace eagle {

// may_stop: Ctrl-C interrupts it if the thread is interruptible. progress: null for a batch that is no prompt.
void decode(llama_context & ctx, const llama_batch & batch, bool may_stop, Progress * progress = nullptr);

}  // namespace eagle
