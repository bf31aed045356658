// Boundaries (eagle_features.h) that a model's graph does not publish itself.
#pragma once

struct ggml_tensor;
struct llm_graph_context;

// Publishes the state that `cur` hands to the next block, if `name` is llama.cpp's name for it. Called for every named
// tensor while a graph is built; adds no nodes. A graph that sets its own boundary afterwards has the last word.
void eagle_publish_boundary(const llm_graph_context & graph, ggml_tensor * cur, const char * name, int il);
