// Emulates memory of PACE_GBS GB/s (environment; 0 or unset: no limit): the threads that computed a node of a graph wait
// until the bytes that it reads and writes in memory would have been transferred. Compiled into copies of ggml-cpu by
// paced.py, never into the product.
//
// Counted is what outlives a graph: weights, keys and values, recurrent states. Activations are in buffers for
// computing, which fit into caches.
#pragma once

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml-backend.h"
#include "ggml.h"

static inline double pace_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static inline double pace_bytes_per_ns(void) {
    static double limit = -1;
    if (limit < 0) {
        const char * given = getenv("PACE_GBS");
        limit = given ? atof(given) : 0;
    }
    return limit;
}

static inline int pace_is_kept(const struct ggml_tensor * t) {
    ggml_backend_buffer_t buffer = t->view_src ? t->view_src->buffer : t->buffer;
    return buffer && ggml_backend_buffer_get_usage(buffer) != GGML_BACKEND_BUFFER_USAGE_COMPUTE;
}

static inline double pace_values(const struct ggml_tensor * t, double n) {
    return n * ggml_type_size(t->type) / ggml_blck_size(t->type);
}

static inline double pace_bytes_of(const struct ggml_tensor * t) {
    return t && pace_is_kept(t) ? pace_values(t, ggml_nelements(t)) : 0;
}

// Share of a mixture's experts that a product reads.
static inline double pace_experts(const struct ggml_tensor * ids, int64_t n_experts) {
    char * is_used = (char *) calloc(n_experts, 1);
    int64_t n_used = 0;
    for (int64_t row = 0; is_used && row < ids->ne[1]; row++) {
        for (int64_t i = 0; i < ids->ne[0]; i++) {
            const int32_t id = *(const int32_t *) ((const char *) ids->data + row * ids->nb[1] + i * ids->nb[0]);
            n_used += !is_used[id];
            is_used[id] = 1;
        }
    }
    free(is_used);
    return (double) n_used / n_experts;
}

// Bytes of the records of replayed and new tokens (eagle_gdn.h), of which a node reads and writes a few.
static inline double pace_records(const struct ggml_tensor * node) {
    const int is_gdn = !strcmp(ggml_op_name(node->op), "EAGLE_GDN");
    const struct ggml_tensor * replayed = node->src[is_gdn ? 7 : 3];
    const struct ggml_tensor * added = node->src[is_gdn ? 2 : 1];
    const int64_t n_added = is_gdn ? added->ne[2] : added->ne[1];
    const double floats = is_gdn ? node->src[1]->ne[0] * node->src[1]->ne[1] + (added->ne[0] + 2) * added->ne[1]
                                 : added->ne[0];
    double n = 0;
    for (int64_t i = 0; i < replayed->ne[0]; i++) {
        n += ((const int32_t *) replayed->data)[i] + n_added;
    }
    return n * floats * sizeof(float);
}

static inline double pace_bytes(const struct ggml_tensor * node) {
    switch (node->op) {
    case GGML_OP_GET_ROWS:
        return pace_is_kept(node->src[0]) ? pace_values(node->src[0], ggml_nelements(node)) : 0;
    case GGML_OP_SET_ROWS:
        return pace_is_kept(node) ? pace_values(node, ggml_nelements(node->src[0])) : 0;
    case GGML_OP_MUL_MAT_ID:
        return pace_bytes_of(node->src[0]) * pace_experts(node->src[2], node->src[0]->ne[2]);
    default:
        break;
    }
    if (!strncmp(ggml_op_name(node->op), "EAGLE_", 6)) {  // states are read and written in place
        const int is_gdn = !strcmp(ggml_op_name(node->op), "EAGLE_GDN");
        return 2 * pace_bytes_of(node->src[is_gdn ? 5 : 0]) + pace_records(node);
    }
    double bytes = 0;
    for (int i = 0; i < GGML_MAX_SRC && node->src[i]; i++) {
        bytes += pace_bytes_of(node->src[i]);
    }
    return bytes;
}

// Waits, in every thread that computed a part of the node, for the rest of the time that its bytes take.
static inline void pace_wait(double start_ns, const struct ggml_tensor * node) {
    const double limit = pace_bytes_per_ns();
    if (limit <= 0) {
        return;
    }
    const double end_ns = start_ns + pace_bytes(node) / limit;
    while (pace_now_ns() < end_ns) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}
