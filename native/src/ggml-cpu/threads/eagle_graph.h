// Computes the graphs of ggml's CPU backend by a team of threads (eagle_team.h).
#pragma once

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_cgraph;
struct ggml_compute_params;
struct ggml_cplan;
struct ggml_threadpool;

// A team with up to n_threads threads; *n_threads becomes how many it has.
void * eagle_team_borrow(int * n_threads);
void eagle_team_give_back(void * team);

// Computes cgraph by n_threads threads of `team`. False if cplan's abort callback ended it.
bool eagle_team_compute(void * team, struct ggml_threadpool * pool, const struct ggml_cgraph * cgraph,
                        const struct ggml_cplan * cplan, int n_threads);

// ggml_barrier, for operations that call it.
void eagle_team_barrier(void * team);

// In ggml-cpu.c. Computes this thread's part of a node; returns the number of nodes after it that were fused with it.
int eagle_ggml_compute_node(const struct ggml_cgraph * cgraph, int node, struct ggml_compute_params * params,
                            const struct ggml_cplan * cplan);

// In ggml-cpu.c. Gives the calling thread the priority and affinity of the pool's thread of that number.
void eagle_ggml_enter_pool(struct ggml_threadpool * pool, int thread);

#ifdef __cplusplus
}
#endif
