#include "eagle_info.h"
#include "llama-model.h"

ggml_backend_dev_t eagle_layer_device(const llama_model * model, int32_t layer) {
    if (!model || layer < 0 || layer > (int32_t) model->hparams.n_layer()) {
        return nullptr;
    }
    return layer == (int32_t) model->hparams.n_layer() ? model->dev_output() : model->dev_layer(layer);
}
