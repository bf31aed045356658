#include "eagle_bytes_read.h"

#include <cmath>
#include <cstdio>

#include "eagle_info.h"
#include "ggml.h"
#include "llama-model.h"

namespace eagle {

double bytes_read(const ggml_tensor & weight, const llama_hparams & hparams, uint32_t il, int32_t n_rows) {
    const double n_bytes = (double) ggml_nbytes(&weight);
    if (weight.ne[2] == 1 || hparams.n_expert == 0) {
        return n_bytes;
    }
    const double used = (double) hparams.n_expert_used(il) / hparams.n_expert;
    return n_bytes * (1.0 - std::pow(1.0 - used, n_rows));
}

}  // namespace eagle

double eagle_bytes_read(const llama_model * model, int32_t n_rows) {
    if (!model || n_rows < 1) {
        return 0.0;
    }
    const llama_hparams & hparams = model->hparams;
    double sum = model->output ? (double) ggml_nbytes(model->output) : 0.0;
    for (const auto & [name, weight] : model->tensors_by_name) {
        unsigned il = 0;
        const bool in_block = std::sscanf(name.c_str(), "blk.%u.", &il) == 1;
        const bool of_mtp_head = in_block && il >= hparams.n_layer();
        if (weight != model->output && weight != model->tok_embd && !of_mtp_head) {
            sum += eagle::bytes_read(*weight, hparams, il, n_rows);
        }
    }
    return sum;
}
