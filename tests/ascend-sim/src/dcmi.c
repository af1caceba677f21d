/* libdcmi.so: says what the file `dcmi.script` beside it says, read by each call. Its lines:
 *   device LOGIC CARD CHIP TOTAL_MB USED_MB     a device with HBM
 *   ddr LOGIC CARD CHIP TOTAL_MB AVAILABLE_MB   one without
 *   process LOGIC PID BYTES
 *   hang FUNCTION      it does not return
 *   fail FUNCTION      it returns an error */
#define _GNU_SOURCE
#include "sim_export.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_DEVICES 16
#define MAX_PROCESSES 64
#define NOT_SUPPORTED (-8255)
#define FAILED (-8005)

struct dcmi_hbm_info {
    unsigned long long memory_size;
    unsigned int freq;
    unsigned long long memory_usage;
    int temp;
    unsigned int bandwith_util_rate;
};

struct dcmi_get_memory_info_stru {
    unsigned long long memory_size, memory_available;
    unsigned int freq;
    unsigned long hugepagesize, hugepages_total, hugepages_free;
    unsigned int utiliza;
    unsigned char reserve[60];
};

struct dcmi_proc_mem_info {
    int proc_id;
    unsigned long proc_mem_usage;
};

struct device {
    int logic, card, chip;
    bool ddr;
    unsigned long long total, second;
};

struct process {
    int logic;
    struct dcmi_proc_mem_info info;
};

struct script {
    int devices, processes, result;
    struct device device[MAX_DEVICES];
    struct process process[MAX_PROCESSES];
};

static void read_line(struct script *script, const char *line, const char *function)
{
    char word[16], name[64];
    struct device device = {0};
    struct process process = {0};
    if (sscanf(line, "%15s %d %d %d %llu %llu", word, &device.logic, &device.card, &device.chip, &device.total,
               &device.second) == 6 &&
        script->devices < MAX_DEVICES) {
        device.ddr = !strcmp(word, "ddr");
        script->device[script->devices++] = device;
    } else if (sscanf(line, "process %d %d %lu", &process.logic, &process.info.proc_id,
                      &process.info.proc_mem_usage) == 3 &&
               script->processes < MAX_PROCESSES) {
        script->process[script->processes++] = process;
    } else if (sscanf(line, "%15s %63s", word, name) == 2 && !strcmp(name, function)) {
        while (!strcmp(word, "hang"))
            pause();
        script->result = FAILED;
    }
}

static struct script read_script(const char *function)
{
    struct script script = {0};
    char path[PATH_MAX], line[256];
    Dl_info own;
    dladdr((void *)read_script, &own);
    const char *slash = strrchr(own.dli_fname, '/');
    snprintf(path, sizeof path, "%.*s/dcmi.script", slash ? (int)(slash - own.dli_fname) : 1, slash ? own.dli_fname : ".");
    FILE *file = fopen(path, "re");
    if (!file) {
        script.result = FAILED;
        return script;
    }
    while (fgets(line, sizeof line, file))
        read_line(&script, line, function);
    fclose(file);
    return script;
}

static const struct device *find(const struct script *script, int card, int chip)
{
    for (int i = 0; i < script->devices; i++)
        if (script->device[i].card == card && script->device[i].chip == chip)
            return &script->device[i];
    return NULL;
}

SIM_API int dcmi_init(void)
{
    return read_script(__func__).result;
}

SIM_API int dcmi_get_card_list(int *card_num, int *card_list, int list_len)
{
    struct script script = read_script(__func__);
    *card_num = 0;
    for (int i = 0; i < script.devices; i++) {
        bool known = false;
        for (int j = 0; j < *card_num; j++)
            known = known || card_list[j] == script.device[i].card;
        if (!known && *card_num < list_len)
            card_list[(*card_num)++] = script.device[i].card;
    }
    return script.result;
}

/* Chips are numbered without gaps. */
SIM_API int dcmi_get_device_num_in_card(int card_id, int *device_num)
{
    struct script script = read_script(__func__);
    *device_num = 0;
    for (int i = 0; i < script.devices; i++)
        *device_num += script.device[i].card == card_id;
    return script.result;
}

SIM_API int dcmi_get_device_logic_id(int *device_logic_id, int card_id, int device_id)
{
    struct script script = read_script(__func__);
    const struct device *device = find(&script, card_id, device_id);
    if (!device)
        return NOT_SUPPORTED;
    *device_logic_id = device->logic;
    return script.result;
}

SIM_API int dcmi_get_device_hbm_info(int card_id, int device_id, struct dcmi_hbm_info *info)
{
    struct script script = read_script(__func__);
    const struct device *device = find(&script, card_id, device_id);
    if (!device || device->ddr)
        return NOT_SUPPORTED;
    info->memory_size = device->total;
    info->memory_usage = device->second;
    return script.result;
}

SIM_API int dcmi_get_device_memory_info_v3(int card_id, int device_id, struct dcmi_get_memory_info_stru *info)
{
    struct script script = read_script(__func__);
    const struct device *device = find(&script, card_id, device_id);
    if (!device || !device->ddr)
        return NOT_SUPPORTED;
    info->memory_size = device->total;
    info->memory_available = device->second;
    return script.result;
}

static int processes(const struct script *script, int card, int chip, struct dcmi_proc_mem_info *list, int *num)
{
    const struct device *device = find(script, card, chip);
    *num = 0;
    for (int i = 0; device && i < script->processes; i++)
        if (script->process[i].logic == device->logic)
            list[(*num)++] = script->process[i].info;
    return device ? script->result : NOT_SUPPORTED;
}

SIM_API int dcmi_get_device_resource_info(int card_id, int device_id, struct dcmi_proc_mem_info *info, int *num)
{
    struct script script = read_script(__func__);
    return processes(&script, card_id, device_id, info, num);
}

/* What the one above calls in the real library; it works on more boards. */
SIM_API int dcmi_get_npu_proc_mem_info(int card_id, int device_id, struct dcmi_proc_mem_info *info, int *num)
{
    struct script script = read_script(__func__);
    return processes(&script, card_id, device_id, info, num);
}
