/* Probes that do nothing at the places where a tracer has its own: what any uprobe costs there, and no tracer can go below.
 *   emptyprobes list [PID]     the places of all uprobe multi links that process PID has, or of all there are: `e` or `r`
 *                              (return), offset, file
 *   emptyprobes attach FILE    probes them, one link for those of one kind and file; says "ready", then waits for the
 *                              end of its input
 *   emptyprobes exist KIND ID...   how many of these links, maps or programs (KIND `link`, `map`, `prog`) there are
 * Nothing but bpf(2) is needed; the kernel has to be Linux 6.8 or newer, which tells where links are. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <linux/bpf.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_SITES 8192
#define MAX_PATH 4096
/* Newer than the headers of some systems (include/uapi/linux/bpf.h). */
#define LINK_TYPE_UPROBE_MULTI 12
#define TRACE_UPROBE_MULTI 48
#define UPROBE_MULTI_RETURN 1

struct link_info {
    uint32_t type, id, prog_id, padding;
    uint64_t path, offsets, ref_ctr_offsets, cookies;
    uint32_t path_size, count, flags, pid;
    char more[64];
};

struct link_create {
    uint32_t prog_fd, target_fd, attach_type, link_flags;
    uint64_t path, offsets, ref_ctr_offsets, cookies;
    uint32_t count, flags, pid, padding;
};

static long sys_bpf(int command, void *attr, unsigned size)
{
    return syscall(SYS_bpf, command, attr, size);
}

static void give_up(const char *what, const char *detail)
{
    fprintf(stderr, "emptyprobes: %s %s: %m\n", what, detail);
    exit(1);
}

static int link_by_id(uint32_t id)
{
    union bpf_attr attr = {.link_id = id};
    return (int)sys_bpf(BPF_LINK_GET_FD_BY_ID, &attr, sizeof attr);
}

static bool link_info(int fd, struct link_info *info)
{
    union bpf_attr attr = {.info = {.bpf_fd = (uint32_t)fd, .info_len = sizeof *info, .info = (uint64_t)(uintptr_t)info}};
    return !sys_bpf(BPF_OBJ_GET_INFO_BY_FD, &attr, sizeof attr) && info->type == LINK_TYPE_UPROBE_MULTI;
}

static void list_link(uint32_t id)
{
    static uint64_t offsets[MAX_SITES];
    static char path[MAX_PATH];
    struct link_info info = {.path = (uint64_t)(uintptr_t)path,
                             .offsets = (uint64_t)(uintptr_t)offsets,
                             .path_size = sizeof path,
                             .count = MAX_SITES};
    int fd = link_by_id(id);
    /* It may have gone meanwhile. */
    if (fd < 0)
        return;
    if (link_info(fd, &info))
        for (uint32_t i = 0; i < info.count; i++)
            printf("%c %llu %s\n", info.flags & UPROBE_MULTI_RETURN ? 'r' : 'e', (unsigned long long)offsets[i], path);
    close(fd);
}

/* The number behind `link_id:` of an open file; 0 if it is no link. */
static uint32_t link_id(const char *pid, const char *fd)
{
    char path[MAX_PATH], line[256];
    uint32_t id = 0;
    snprintf(path, sizeof path, "/proc/%s/fdinfo/%s", pid, fd);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "link_id: %u", &id) == 1)
            break;
    if (file)
        fclose(file);
    return id;
}

static void list(const char *pid)
{
    char path[MAX_PATH];
    snprintf(path, sizeof path, "/proc/%s/fdinfo", pid);
    DIR *directory = opendir(path);
    if (!directory)
        give_up("cannot read", path);
    for (struct dirent *entry; (entry = readdir(directory));) {
        uint32_t id = link_id(pid, entry->d_name);
        if (id)
            list_link(id);
    }
    closedir(directory);
}

static void list_all(void)
{
    union bpf_attr attr = {.start_id = 0};
    while (!sys_bpf(BPF_LINK_GET_NEXT_ID, &attr, sizeof attr)) {
        list_link(attr.next_id);
        attr.start_id = attr.next_id;
    }
}

/* `return 0`. */
static int empty_program(void)
{
    static const struct bpf_insn code[] = {
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0},
        {.code = BPF_JMP | BPF_EXIT},
    };
    union bpf_attr attr = {.prog_type = BPF_PROG_TYPE_KPROBE,
                           .insns = (uint64_t)(uintptr_t)code,
                           .insn_cnt = sizeof code / sizeof code[0],
                           .license = (uint64_t)(uintptr_t) "GPL",
                           .expected_attach_type = TRACE_UPROBE_MULTI};
    long fd = sys_bpf(BPF_PROG_LOAD, &attr, sizeof attr);
    if (fd < 0)
        give_up("the kernel refused", "the empty program");
    return (int)fd;
}

static void attach_link(int program, char kind, const char *path, const uint64_t *offsets, uint32_t count)
{
    struct link_create attr = {.prog_fd = (uint32_t)program,
                               .attach_type = TRACE_UPROBE_MULTI,
                               .path = (uint64_t)(uintptr_t)path,
                               .offsets = (uint64_t)(uintptr_t)offsets,
                               .count = count,
                               .flags = kind == 'r' ? UPROBE_MULTI_RETURN : 0};
    if (sys_bpf(BPF_LINK_CREATE, &attr, sizeof attr) < 0)
        give_up("cannot attach to", path);
}

struct site {
    uint64_t offset;
    char kind;
    char path[MAX_PATH];
};

static int by_link(const void *a, const void *b)
{
    const struct site *one = a, *other = b;
    int order = strcmp(one->path, other->path);
    order = order ? order : one->kind - other->kind;
    return order ? order : (one->offset > other->offset) - (one->offset < other->offset);
}

/* A place that the tracer has probed twice costs one trap all the same. */
static void attach(const char *name)
{
    static struct site sites[MAX_SITES];
    static uint64_t offsets[MAX_SITES];
    size_t count = 0;
    unsigned long long offset;
    int program = empty_program();
    FILE *file = fopen(name, "re");
    if (!file)
        give_up("cannot read", name);
    while (count < MAX_SITES && fscanf(file, " %c %llu %4095[^\n]", &sites[count].kind, &offset, sites[count].path) == 3)
        sites[count++].offset = offset;
    qsort(sites, count, sizeof sites[0], by_link);
    for (size_t i = 0, begin = 0; i < count; i = begin) {
        uint32_t places = 0;
        for (; begin < count && sites[begin].kind == sites[i].kind && !strcmp(sites[begin].path, sites[i].path); begin++)
            if (!places || offsets[places - 1] != sites[begin].offset)
                offsets[places++] = sites[begin].offset;
        attach_link(program, sites[i].kind, sites[i].path, offsets, places);
    }
    printf("ready %zu\n", count);
    fflush(stdout);
    while (getchar() != EOF) {
    }
}

static void exist(const char *kind, char **ids, int count)
{
    int command = !strcmp(kind, "link") ? BPF_LINK_GET_FD_BY_ID : !strcmp(kind, "map") ? BPF_MAP_GET_FD_BY_ID : BPF_PROG_GET_FD_BY_ID;
    int found = 0;
    for (int i = 0; i < count; i++) {
        /* All three have the number at the same place. */
        union bpf_attr attr = {.link_id = (uint32_t)strtoul(ids[i], NULL, 10)};
        long fd = sys_bpf(command, &attr, sizeof attr);
        if (fd < 0 && errno != ENOENT)
            give_up("cannot ask for", ids[i]);
        if (fd >= 0) {
            found++;
            close((int)fd);
        }
    }
    printf("%d\n", found);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "list"))
        list(argv[2]);
    else if (argc == 2 && !strcmp(argv[1], "list"))
        list_all();
    else if (argc == 3 && !strcmp(argv[1], "attach"))
        attach(argv[2]);
    else if (argc >= 3 && !strcmp(argv[1], "exist"))
        exist(argv[2], argv + 3, argc - 3);
    else {
        fprintf(stderr, "usage: emptyprobes list [PID] | attach FILE | exist KIND ID...\n");
        return 2;
    }
    return 0;
}
