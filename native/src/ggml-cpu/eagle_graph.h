// Computes the graphs of ggml's CPU backend with a team of threads (eagle_team.h).
#pragma once

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_cgraph;
struct ggml_compute_params;
struct ggml_cplan;
struct ggml_threadpool;

// Returns a team with up to n_threads threads and sets *n_threads to their number.
void * eagle_team_borrow(int * n_threads);
void eagle_team_give_back(void * team);

// Computes cgraph with n_threads threads of `team`. Returns false if cplan's abort callback stopped it.
bool eagle_team_compute(void * team, struct ggml_threadpool * pool, const struct ggml_cgraph * cgraph,
                        const struct ggml_cplan * cplan, int n_threads);

// Implements ggml_barrier for the operations that call it.
void eagle_team_barrier(void * team);

// Defined in ggml-cpu.c. Computes this thread's part of a node and returns the number of following nodes fused with it.
int eagle_ggml_compute_node(const struct ggml_cgraph * cgraph, int node, struct ggml_compute_params * params,
                            const struct ggml_cplan * cplan);

// Defined in ggml-cpu.c. Gives the calling thread the priority and affinity of thread number `thread` of the pool.
void eagle_ggml_enter_pool(struct ggml_threadpool * pool, int thread);

#ifdef __cplusplus
}
#endif
