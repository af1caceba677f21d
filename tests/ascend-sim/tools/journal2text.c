/* journal2text DIR...: all records of the journals, sorted by time, as tab-separated text. */
#define _GNU_SOURCE
#include "journal_format.h"
#include "journal_funcs.h"
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct row {
    struct journal_entry entry;
    uint32_t pid;
    char lib[16];
    size_t order; /* as read: keeps equal times of a thread in order */
    char *text;
    size_t text_len;
};

static struct row *rows;
static size_t row_count, row_room;

static void *checked(void *memory)
{
    if (!memory) {
        perror("journal2text");
        exit(1);
    }
    return memory;
}

static struct row *row_new(void)
{
    if (row_count == row_room) {
        row_room = row_room ? row_room * 2 : 4096;
        rows = checked(realloc(rows, row_room * sizeof *rows));
    }
    rows[row_count] = (struct row){.order = row_count};
    return &rows[row_count++];
}

/* The slots may hold less than the text, which was cut, or some zeros more. */
static void read_text(FILE *file, struct row *row)
{
    uint64_t length = row->entry.args[3];
    size_t room = journal_text_slots(row->entry.flags) * sizeof row->entry;
    row->text = checked(malloc(room));
    if (fread(row->text, 1, room, file) != room)
        fprintf(stderr, "journal2text: a text is cut off\n");
    row->text_len = length < JOURNAL_TEXT_MAX ? length : JOURNAL_TEXT_MAX;
    if (row->text_len > room)
        row->text_len = room;
}

static void read_file(const char *path, const char *name)
{
    unsigned pid, tid;
    char lib[16];
    struct journal_entry entry;
    if (sscanf(name, "%u-%u-%15[^.]", &pid, &tid, lib) != 3)
        return;
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(1);
    }
    while (fread(&entry, sizeof entry, 1, file) == 1 && entry.flags & JOURNAL_COMMITTED) {
        struct row *row = row_new();
        row->entry = entry;
        row->pid = pid;
        memcpy(row->lib, lib, sizeof lib);
        if (journal_text_slots(entry.flags))
            read_text(file, row);
    }
    fclose(file);
}

static void read_directory(const char *path)
{
    char file[4096];
    struct dirent *item;
    DIR *directory = checked(opendir(path));
    while ((item = readdir(directory))) {
        const char *end = strrchr(item->d_name, '.');
        if (!end || strcmp(end, ".journal"))
            continue;
        snprintf(file, sizeof file, "%s/%s", path, item->d_name);
        read_file(file, item->d_name);
    }
    closedir(directory);
}

static int by_time(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    if (x->entry.time_ns != y->entry.time_ns)
        return x->entry.time_ns < y->entry.time_ns ? -1 : 1;
    return x->order < y->order ? -1 : 1;
}

static const char *func_name(uint16_t func)
{
    switch (func) {
#define NAME(number, library, name) \
    case number: \
        return #name;
        JOURNAL_FUNCS(NAME)
#undef NAME
    default:
        return "?";
    }
}

static void print_text(const struct row *row)
{
    for (size_t i = 0; i < row->text_len; i++) {
        unsigned char c = (unsigned char)row->text[i];
        if (c < 0x20 || c >= 0x7f || c == '\\')
            printf("\\x%02x", c);
        else
            putchar(c);
    }
}

static void print_row(const struct row *row)
{
    const struct journal_entry *entry = &row->entry;
    printf("%" PRIu64 "\t%u\t%u\t%s\t%s\t", entry->time_ns, row->pid, entry->tid, row->lib, func_name(entry->func));
    if (entry->ret == JOURNAL_RET_UNKNOWN)
        printf("?");
    else
        printf("%" PRId64, entry->ret);
    for (int i = 0; i < 4; i++)
        printf("\t%#" PRIx64, entry->args[i]);
    printf("\t%#" PRIx64 "\t", entry->out);
    print_text(row);
    putchar('\n');
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: journal2text DIR...\n");
        return 2;
    }
    for (int i = 1; i < argc; i++)
        read_directory(argv[i]);
    qsort(rows, row_count, sizeof *rows, by_time);
    printf("time_ns\tpid\ttid\tlib\tfunc\tret\targ0\targ1\targ2\targ3\tout\ttext\n");
    for (size_t i = 0; i < row_count; i++)
        print_row(&rows[i]);
    return 0;
}
