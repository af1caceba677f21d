/* libmypool.so */
#include <cstring>
#include <stdexcept>
#include "journal.h"
#include "mypool/mypool.h"
#include "slab.h"

static Slab slab;

static void note(uint16_t func, uint64_t first, uint64_t second, uint64_t third, void *out)
{
    const uint64_t args[4] = {first, second, third, 0};
    if (JOURNALING)
        journal_add(func, 0, args, U(out));
}

void *my_alloc(size_t size)
{
    if (size > SLAB_LARGEST)
        return nullptr;
    void *ptr = slab.take(size);
    note(JF_mypool_my_alloc, size, 0, 0, ptr);
    return ptr;
}

void my_free(void *ptr)
{
    note(JF_mypool_my_free, U(ptr), 0, 0, nullptr);
    slab.give(ptr);
}

int my_take(void **out, size_t count, size_t size, int device)
{
    if (count * size > SLAB_LARGEST)
        return 12;
    *out = slab.take(count * size);
    note(JF_mypool_my_take, size, count, static_cast<unsigned>(device), *out);
    return 0;
}

void my_give(int device, void **ptr)
{
    note(JF_mypool_my_give, U(*ptr), static_cast<unsigned>(device), 0, nullptr);
    slab.give(*ptr);
}

void my_note(int level, const char *text)
{
    const uint64_t args[4] = {static_cast<unsigned>(level), U(text), 0, 0};
    if (JOURNALING)
        journal_add_text(JF_mypool_my_note, 0, args, 0, text);
}

namespace my {

class SIM_API Pool {
public:
    __attribute__((noinline)) void *take(size_t size);
    __attribute__((noinline)) void give(void *ptr);
};

void *Pool::take(size_t size)
{
    if (size > SLAB_LARGEST)
        throw std::length_error("too much");
    void *ptr = slab.take(size);
    note(JF_mypool_Pool_take, size, 0, 0, ptr);
    return ptr;
}

SIM_API void *moved(size_t size);

void Pool::give(void *ptr)
{
    note(JF_mypool_Pool_give, U(ptr), 0, 0, nullptr);
    slab.give(ptr);
}

}

static my::Pool pool;

int simpool_take(size_t size, void **out)
{
    try {
        *out = pool.take(size);
    } catch (const std::length_error &) {
        return 1;
    }
    return 0;
}

void simpool_give(void *ptr)
{
    pool.give(ptr);
}

/* Each moves its arguments away before an instruction that the kernel emulates: to a register, and into the frame. The block that
 * `my::moved` gives for n bytes is at n << 12. */
#define FUNCTION(name) ".globl " name "\n.type " name ", %function\n.balign 16\n" name ":\n"
#define END(name) ".size " name ", . - " name "\n"
#ifdef __x86_64__
asm(".pushsection .text\n"
    FUNCTION("my_moved_free")
    "sub $24, %rsp\nmov %rdi, %rax\nxor %edi, %edi\njmp 1f\n1: add $24, %rsp\nret\n"
    END("my_moved_free")
    FUNCTION("my_moved_note")
    "endbr64\nsub $24, %rsp\nmov %rsi, 8(%rsp)\nxor %esi, %esi\njmp 1f\n1: add $24, %rsp\nret\n"
    END("my_moved_note")
    FUNCTION("_ZN2my5movedEm")
    "sub $40, %rsp\nmov %rdi, 32(%rsp)\nmov %rdi, %rax\nxor %edi, %edi\njmp 1f\n"
    "1: shl $12, %rax\nadd $40, %rsp\nret\n"
    END("_ZN2my5movedEm")
    ".popsection\n");
#else
asm(".pushsection .text\n"
    FUNCTION("my_moved_free")
    "sub sp, sp, #16\nmov x9, x0\nmov x0, #0\nb 1f\n1: add sp, sp, #16\nret\n"
    END("my_moved_free")
    FUNCTION("my_moved_note")
    "sub sp, sp, #32\nstr x1, [sp, #8]\nmov x1, #0\nb 1f\n1: add sp, sp, #32\nret\n"
    END("my_moved_note")
    FUNCTION("_ZN2my5movedEm")
    "sub sp, sp, #48\nstr x0, [sp, #40]\nlsl x9, x0, #12\nmov x0, #0\nb 1f\n"
    "1: mov x0, x9\nadd sp, sp, #48\nret\n"
    END("_ZN2my5movedEm")
    ".popsection\n");
#endif

void *simpool_moved(size_t size)
{
    return my::moved(size);
}
