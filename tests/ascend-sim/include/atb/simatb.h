/* Entry point of the simulated ATB for C programs. */
#ifndef SIMATB_H
#define SIMATB_H
#include <stdint.h>
#include "sim_export.h"
#ifdef __cplusplus
extern "C" {
#endif
/* Runs operation `name`, inside of it `inner` if that is not null; 1 if the inner one threw, which it does on request. */
typedef int simatb_run_func(const char *name, const char *inner, void *workspace, uint64_t workspace_size,
                            uint64_t intermediate_size, int throws);
SIM_API simatb_run_func simatb_run;
#ifdef __cplusplus
}
#endif
#endif
