/* Memory of another process, by a key that that process has exported. What it had at that moment is copied: enough for programs that look at what
 * they got. The address is one of the process's own, and no block of its device memory, as with the real driver. */
#define _GNU_SOURCE
#include "acl/acl_rt.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_IMPORTS 256

static struct import {
    char key[64];
    void *addr;
    size_t size;
} imports[MAX_IMPORTS];

aclError aclrtIpcMemGetExportKey(void *addr, size_t size, char *key, size_t len, uint64_t flags)
{
    int written = snprintf(key, len, "%d:%p:%zu", getpid(), addr, size);
    return written < 0 || (size_t)written >= len ? ACL_ERROR_INVALID_PARAM : ACL_SUCCESS;
}

aclError aclrtIpcMemSetImportPid(const char *key, int32_t *pids, size_t count)
{
    return ACL_SUCCESS;
}

aclError aclrtIpcMemImportByKey(void **addr, const char *key, uint64_t flags)
{
    int pid;
    void *source;
    size_t size;
    if (sscanf(key, "%d:%p:%zu", &pid, &source, &size) != 3)
        return ACL_ERROR_INVALID_PARAM;
    for (struct import *import = imports; import < imports + MAX_IMPORTS; import++) {
        if (import->addr)
            continue;
        /* Among the addresses of devices, as the driver has it, and no private memory of the process. */
        static char *next = (char *)0x1a0000000000;
        void *copy = mmap(next, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (copy == MAP_FAILED)
            break;
        next = (char *)copy + (size + (1 << 21)) / (1 << 21) * (1 << 21);
        struct iovec local = {copy, size}, remote = {source, size};
        process_vm_readv(pid, &local, 1, &remote, 1, 0);
        snprintf(import->key, sizeof import->key, "%s", key);
        import->addr = *addr = copy;
        import->size = size;
        return ACL_SUCCESS;
    }
    return ACL_ERROR_BAD_ALLOC;
}

aclError aclrtIpcMemClose(const char *key)
{
    for (struct import *import = imports; import < imports + MAX_IMPORTS; import++) {
        if (!import->addr || strcmp(import->key, key))
            continue;
        munmap(import->addr, import->size);
        import->addr = NULL;
        return ACL_SUCCESS;
    }
    return ACL_ERROR_INVALID_PARAM;
}
