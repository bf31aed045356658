// llama_decode with our errors.
#pragma once

#include "llama.h"

namespace eagle {

// may_stop: at Ctrl-C, where the thread hears it.
void decode(llama_context & ctx, const llama_batch & batch, bool may_stop);

}  // namespace eagle
