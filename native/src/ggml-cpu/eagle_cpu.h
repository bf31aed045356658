// What ggml-cpu's own files call: exact kernels for the batches of a verification.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;
struct ggml_tensor;
struct ggml_backend_buffer_type;

// Number of phases of the node if it is ours: all tickets of one end before the next begins. 0 leaves it to ggml, whose
// operations have one.
int eagle_phases(const struct ggml_tensor * node, bool use_ref);

// Roughly how much a phase of our node computes, in values of a plain operation.
int64_t eagle_phase_values(const struct ggml_tensor * node, int phase);

// Runs params' ticket and phase of the node if exact kernels are on and one covers it; false leaves it to ggml.
bool eagle_compute_forward(const struct ggml_compute_params * params, struct ggml_tensor * node);

// Bytes of work buffer the node needs if eagle_compute_forward takes it, 0 if it does not.
size_t eagle_work_size(int n_threads, const struct ggml_tensor * node);

// Whether interleaved weights must be multiplied row by row (true) or may use kernels that take four rows at once.
bool eagle_one_row_at_a_time(int64_t n_rows);

// Whether weight layouts that only inexact kernels read may be offered. Asking fixes the answer.
bool eagle_allows_foreign_layouts(void);

// The buffer type of weights in our own layout (eagle_wide.h).
struct ggml_backend_buffer_type * eagle_wide_buffer_type(void);

// Whether every batch of up to eagle::MAX_ROWS rows multiplies these weights exactly as one row does.
bool eagle_cpu_exact_weights(const struct ggml_tensor * weights);

// The mode holds between these two: its threads ask at every node, and must hear the same.
void eagle_graph_begins(void);
void eagle_graph_ends(void);

// The mode of eagle_exact.h. Setting waits for the graphs that run, and fails when strictness comes after foreign
// layouts have been asked for.
bool eagle_cpu_exact_set(int mode);
int eagle_cpu_exact_mode(void);

// This library's name: ggml-cpu, or one of several for different CPUs (LLAMA_EAGLE_PORTABLE).
const char * eagle_cpu_library(void);

// The last four by name, for libraries that do not link this one; null for other names.
void * eagle_cpu_proc_address(const char * name);

#ifdef __cplusplus
}
#endif
