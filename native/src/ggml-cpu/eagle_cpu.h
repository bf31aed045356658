// Exact CPU kernels, as ggml-cpu calls them.
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

// Returns the number of phases of the node if our kernels compute it, else 0 (ggml computes it, in one phase). All
// tickets of a phase finish before the next one begins.
int eagle_phases(const struct ggml_tensor * node, bool use_ref);

// Estimates the cost of a phase of our node, in values of a plain operation.
int64_t eagle_phase_values(const struct ggml_tensor * node, int phase);

// Computes one ticket and phase of the node. Returns false if exact kernels are off or do not support it; then ggml
// computes it.
bool eagle_compute_forward(const struct ggml_compute_params * params, struct ggml_tensor * node);

// Returns the size of the work buffer that eagle_compute_forward needs for the node, 0 if it does not support it.
size_t eagle_work_size(int n_threads, const struct ggml_tensor * node);

// Returns true if interleaved weights must be multiplied row by row, false if kernels for four rows are allowed.
bool eagle_one_row_at_a_time(int64_t n_rows);

// Returns true if weight layouts that only inexact kernels read may be offered. The first call freezes the answer for
// the process.
bool eagle_allows_foreign_layouts(void);

// Returns the buffer type of our repacked layout (eagle_wide.h).
struct ggml_backend_buffer_type * eagle_wide_buffer_type(void);

// Returns true if products of these weights with up to eagle::MAX_ROWS rows have the same bits as with one row.
bool eagle_cpu_exact_weights(const struct ggml_tensor * weights);

// The mode does not change between these two calls, because the threads of a graph read it at every node.
void eagle_graph_begins(void);
void eagle_graph_ends(void);

// Set and get the mode of eagle_exact.h. Setting waits for running graphs. Strict mode fails once
// eagle_allows_foreign_layouts() has returned true.
bool eagle_cpu_exact_set(int mode);
int eagle_cpu_exact_mode(void);

// Returns this library's name: ggml-cpu, or one of several for different CPUs (LLAMA_EAGLE_PORTABLE).
const char * eagle_cpu_library(void);

// Returns eagle_cpu_exact_set, _mode and _weights and eagle_cpu_library by name, for libraries that do not link this
// one; null for other names.
void * eagle_cpu_proc_address(const char * name);

#ifdef __cplusplus
}
#endif
