/* Entry point of the simulated ATB for C programs. */
#ifndef SIMATB_H
#define SIMATB_H
#include <stdbool.h>
#include <stdint.h>
#include "sim_export.h"
#ifdef __cplusplus
extern "C" {
#endif
/* An operation, with another inside of it if `inner` is not null. */
struct simatb_request {
    const char *name, *inner;
    void *workspace;
    uint64_t workspace_size, intermediate_size;
    /* Where the tensors are, 4096 bytes each. */
    void *data;
    uint32_t inputs, outputs;
    /* Bytes of each output, if it is not what its type and sizes make. */
    uint64_t output_size;
    /* The inner one throws; the operation catches that, unless it is to escape. */
    bool throws, escapes;
    /* What it launches, with its argument; may be null. */
    void (*kernels)(void *);
    void *argument;
};
/* Runs it; 1 if something was thrown. */
typedef int simatb_run_func(const struct simatb_request *request);
SIM_API simatb_run_func simatb_run;
#ifdef __cplusplus
}
#endif
#endif
