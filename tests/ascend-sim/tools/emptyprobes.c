/* Probes that do nothing at the places where a tracer has its own: what any uprobe costs there, and no tracer can go below.
 *   emptyprobes list [PID]     the places of all uprobe multi links that process PID has, or of all there are: `e` or `r`
 *                              (return), offset, file
 *   emptyprobes attach FILE [WHAT]   probes them, one link for those of one kind and file; says "ready", then waits for the
 *                              end of its input. WHAT they do: `empty` nothing, `lookup` a look into a hash map by what
 *                              the process's number gives, `record:e` and `record:r` the same, and 64 bytes with the time into a
 *                              ring at entries or at returns, `read:e` the same with 56 bytes that the first argument
 *                              points to, `text:e` the same with the text there: what no tracer can do without
 *   emptyprobes exist KIND ID...   how many of these links, maps or programs (KIND `link`, `map`, `prog`) there are
 * Nothing but bpf(2) is needed; the kernel has to be Linux 6.8 or newer, which reports the places of links. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <linux/bpf.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

static int new_map(uint32_t type, uint32_t key_size, uint32_t value_size, uint32_t entries)
{
    union bpf_attr attr = {.map_type = type, .key_size = key_size, .value_size = value_size, .max_entries = entries};
    long fd = sys_bpf(BPF_MAP_CREATE, &attr, sizeof attr);
    if (fd < 0)
        give_up("the kernel refused", "a map");
    return (int)fd;
}

#define RING_BYTES (64u << 20)
#define RECORD_BYTES 64
#define FROM_STACK(offset) MOVE(BPF_REG_2, BPF_REG_10), {.code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = BPF_REG_2, .imm = (offset)}
#define SET(reg, number) {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = (reg), .imm = (number)}
#define MOVE(to, from) {.code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = (to), .src_reg = (from)}
#define STORE(offset) {.code = BPF_STX | BPF_MEM | BPF_DW, .dst_reg = BPF_REG_10, .src_reg = BPF_REG_0, .off = (offset)}
#define MAP(fd) {.code = BPF_LD | BPF_IMM | BPF_DW, .dst_reg = BPF_REG_1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = (fd)}, {.code = 0}
#define CALL(helper) {.code = BPF_JMP | BPF_CALL, .imm = (helper)}
/* First argument of the probed function, in `struct pt_regs`. */
#ifdef __aarch64__
#define FIRST_ARGUMENT 0
#else
#define FIRST_ARGUMENT 112
#endif
#define EXIT {.code = BPF_JMP | BPF_EXIT}

static int new_program(const struct bpf_insn *code, uint32_t count)
{
    union bpf_attr attr = {.prog_type = BPF_PROG_TYPE_KPROBE,
                           .insns = (uint64_t)(uintptr_t)code,
                           .insn_cnt = count,
                           .license = (uint64_t)(uintptr_t) "GPL",
                           .expected_attach_type = TRACE_UPROBE_MULTI};
    long fd = sys_bpf(BPF_PROG_LOAD, &attr, sizeof attr);
    if (fd < 0)
        give_up("the kernel refused", "a program");
    return (int)fd;
}

static int empty_program(void)
{
    const struct bpf_insn code[] = {SET(BPF_REG_0, 0), EXIT};
    return new_program(code, sizeof code / sizeof code[0]);
}

/* Finds the one entry of a hash map, whatever process it is. With a ring it sends a record: the time, and, if there is a helper that
 * reads, what the first argument points to. */
static int program_of(int map, int ring, int reads)
{
    const struct bpf_insn code[] = {
        MOVE(BPF_REG_6, BPF_REG_1),
        CALL(BPF_FUNC_get_current_pid_tgid),
        {.code = BPF_ALU64 | BPF_AND | BPF_K, .dst_reg = BPF_REG_0},
        STORE(-8),
        FROM_STACK(-8),
        MAP(map),
        CALL(BPF_FUNC_map_lookup_elem),
        /* Over what follows, to the end. */
        {.code = BPF_JMP | BPF_JEQ | BPF_K, .dst_reg = BPF_REG_0, .off = ring < 0 ? 0 : 23},
        /* There is no end but this one without a ring. */
        SET(BPF_REG_0, 0),
        STORE(-16), STORE(-24), STORE(-32), STORE(-40), STORE(-48), STORE(-56), STORE(-64),
        /* Over the reading, which has to look as if it could be reached: here register 0 is always 0. */
        {.code = BPF_JMP | (reads ? BPF_JNE : BPF_JEQ) | BPF_K, .dst_reg = BPF_REG_0, .off = 5},
        MOVE(BPF_REG_1, BPF_REG_10), {.code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = BPF_REG_1, .imm = -RECORD_BYTES},
        SET(BPF_REG_2, RECORD_BYTES - 8),
        {.code = BPF_LDX | BPF_MEM | BPF_DW, .dst_reg = BPF_REG_3, .src_reg = BPF_REG_6, .off = FIRST_ARGUMENT},
        CALL(reads ? reads : BPF_FUNC_probe_read_user),
        CALL(BPF_FUNC_ktime_get_ns),
        STORE(-8 - RECORD_BYTES),
        MAP(ring),
        FROM_STACK(-8 - RECORD_BYTES),
        SET(BPF_REG_3, RECORD_BYTES),
        SET(BPF_REG_4, BPF_RB_NO_WAKEUP),
        CALL(BPF_FUNC_ringbuf_output),
        SET(BPF_REG_0, 0),
        EXIT,
    };
    enum { WITHOUT_RING = 10 };
    static const struct bpf_insn end[] = {SET(BPF_REG_0, 0), EXIT};
    struct bpf_insn lookup[WITHOUT_RING + 2];
    if (ring >= 0)
        return new_program(code, sizeof code / sizeof code[0]);
    memcpy(lookup, code, WITHOUT_RING * sizeof code[0]);
    memcpy(lookup + WITHOUT_RING, end, sizeof end);
    return new_program(lookup, WITHOUT_RING + 2);
}

/* The programs at entries and at returns, and the ring of those that need one, or -1. */
struct programs {
    int entry, returned, ring;
};

static struct programs programs_for(const char *what)
{
    static const uint64_t key, value;
    if (!strcmp(what, "empty")) {
        int empty = empty_program();
        return (struct programs){empty, empty, -1};
    }
    int map = new_map(BPF_MAP_TYPE_HASH, sizeof key, sizeof value, 1024);
    union bpf_attr attr = {.map_fd = (uint32_t)map, .key = (uint64_t)(uintptr_t)&key, .value = (uint64_t)(uintptr_t)&value};
    if (sys_bpf(BPF_MAP_UPDATE_ELEM, &attr, sizeof attr))
        give_up("cannot fill", "a map");
    int lookup = program_of(map, -1, 0);
    if (!strcmp(what, "lookup"))
        return (struct programs){lookup, lookup, -1};
    bool words = !strcmp(what, "read:e"), text = !strcmp(what, "text:e");
    int reads = words ? BPF_FUNC_probe_read_user : text ? BPF_FUNC_probe_read_user_str : 0;
    int ring = new_map(BPF_MAP_TYPE_RINGBUF, 0, 0, RING_BYTES), record = program_of(map, ring, reads);
    if (!strcmp(what, "record:e") || words || text)
        return (struct programs){record, lookup, ring};
    if (!strcmp(what, "record:r"))
        return (struct programs){lookup, record, ring};
    fprintf(stderr, "emptyprobes: no such probes: %s\n", what);
    exit(2);
}

/* Until the end of the input. What is in the ring is thrown away, so that there is always room. */
static void wait_for_end(int ring)
{
    long page = sysconf(_SC_PAGESIZE);
    _Atomic uint64_t *taken = MAP_FAILED, *sent = MAP_FAILED;
    struct pollfd input = {.events = POLLIN};
    if (ring >= 0) {
        taken = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_SHARED, ring, 0);
        sent = mmap(NULL, (size_t)page, PROT_READ, MAP_SHARED, ring, page);
        if (taken == MAP_FAILED || sent == MAP_FAILED)
            give_up("cannot map", "the ring");
    }
    while (!poll(&input, 1, ring < 0 ? -1 : 1) || getchar() != EOF)
        if (ring >= 0)
            atomic_store(taken, atomic_load(sent));
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
static void attach(const char *name, const char *what)
{
    static struct site sites[MAX_SITES];
    static uint64_t offsets[MAX_SITES];
    size_t count = 0;
    unsigned long long offset;
    struct programs programs = programs_for(what);
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
        int program = sites[i].kind == 'r' ? programs.returned : programs.entry;
        attach_link(program, sites[i].kind, sites[i].path, offsets, places);
    }
    printf("ready %zu\n", count);
    fflush(stdout);
    wait_for_end(programs.ring);
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
    else if ((argc == 3 || argc == 4) && !strcmp(argv[1], "attach"))
        attach(argv[2], argc == 4 ? argv[3] : "empty");
    else if (argc >= 3 && !strcmp(argv[1], "exist"))
        exist(argv[2], argv + 3, argc - 3);
    else {
        fprintf(stderr, "usage: emptyprobes list [PID] | attach FILE [empty|lookup|record:e|record:r|read:e] | exist KIND ID...\n");
        return 2;
    }
    return 0;
}
