/* Driver HAL: the part of the public interface that the simulation has. */
#ifndef ASCEND_HAL_H
#define ASCEND_HAL_H
#include <stddef.h>
#include <stdint.h>
#include "sim_export.h"

typedef enum {
    DRV_ERROR_NONE = 0,
    DRV_ERROR_INVALID_VALUE = 3,
    DRV_ERROR_OUT_OF_MEMORY = 6,
    DRV_ERROR_NOT_EXIST = 11,
    DRV_ERROR_BUSY = 13,
} drvError_t;
typedef drvError_t DVresult;
typedef uint32_t DVdevice;

/* The flag word of halMemAlloc. */
#define MEM_DEVID_MASK 0x3ffull
#define MEM_VIRT_BIT 10
#define MEM_SVM (0ull << MEM_VIRT_BIT)
#define MEM_DEV (1ull << MEM_VIRT_BIT)
#define MEM_HOST (2ull << MEM_VIRT_BIT)
#define MEM_DVPP (3ull << MEM_VIRT_BIT)
#define MEM_HOST_UVA (6ull << MEM_VIRT_BIT)
#define MEM_VIRT_MASK (0xfull << MEM_VIRT_BIT)
#define MEM_TYPE_HBM (1ull << 14)
#define MEM_PAGE_HUGE (1ull << 17)
#define MEM_PAGE_MASK (3ull << 17)
#define MEM_SET_ALIGN_SIZE(n) (((n) & 0x1full) << 20)
#define MEM_ADVISE_P2P (1ull << 25)
#define MEM_PAGE_GIANT (1ull << 31)
#define MEM_MODULE_ID_BIT 56

enum { MODULE_HCCL = 3, MODULE_RUNTIME = 7, MODULE_APP = 33 };

typedef struct drv_mem_handle drv_mem_handle_t;

enum drv_mem_side { MEM_HOST_SIDE, MEM_DEV_SIDE, MEM_HOST_NUMA_SIDE };
enum drv_mem_pg_type { MEM_NORMAL_PAGE_TYPE, MEM_HUGE_PAGE_TYPE, MEM_GIANT_PAGE_TYPE };

struct drv_mem_prop {
    uint32_t side;
    uint32_t devid;
    uint32_t module_id;
    uint32_t pg_type;
    uint32_t mem_type;
    uint64_t reserve;
};

struct MemPhyInfo {
    unsigned long total;
    unsigned long free;
    unsigned long huge_total;
    unsigned long huge_free;
};
struct MemAddrInfo {
    uint64_t **addr;
    unsigned int cnt;
    unsigned int mem_type;
    unsigned int flag;
};
struct MemInfo {
    union {
        struct MemPhyInfo phy_info;
        struct MemAddrInfo addr_info;
    };
};
#define MEM_INFO_TYPE_DDR_SIZE 1
#define MEM_INFO_TYPE_HBM_SIZE 2

struct mem_module_usage {
    char name[32];
    size_t cur_mem_size;
    size_t mem_peak_size;
    size_t reserved[8];
};

SIM_API drvError_t halMemAlloc(void **pp, unsigned long long size, unsigned long long flag);
SIM_API drvError_t halMemFree(void *pp);
SIM_API drvError_t halMemCreate(drv_mem_handle_t **handle, size_t size, const struct drv_mem_prop *prop, uint64_t flag);
SIM_API drvError_t halMemRelease(drv_mem_handle_t *handle);
SIM_API drvError_t halMemRetainAllocationHandle(drv_mem_handle_t **handle, void *ptr);
SIM_API drvError_t halMemAddressReserve(void **ptr, size_t size, size_t alignment, void *addr, uint64_t flag);
SIM_API drvError_t halMemAddressFree(void *ptr);
SIM_API drvError_t halMemMap(void *ptr, size_t size, size_t offset, drv_mem_handle_t *handle, uint64_t flag);
SIM_API drvError_t halMemUnmap(void *ptr);
SIM_API drvError_t halHostRegister(void *src_ptr, unsigned long long size, uint32_t flag, uint32_t devid, void **dst_ptr);
SIM_API drvError_t halHostUnregister(void *src_ptr, uint32_t devid);
SIM_API DVresult halMemGetInfo(DVdevice device, unsigned int type, struct MemInfo *info);
SIM_API drvError_t halGetMemUsageInfo(uint32_t dev, struct mem_module_usage *usage, size_t in_num, size_t *out_num);
#endif
