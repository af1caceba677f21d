/* Calls a function with every register full, and sees whether they still are afterwards. x86-64, and aarch64 without SVE. */
#ifndef REGISTERS_H
#define REGISTERS_H
#include <stdint.h>

/* 0 if nothing has changed. */
static uint64_t check_registers(void (*call)(void));

#if defined(__x86_64__)
__attribute__((used)) static uint8_t pattern[2048] __attribute__((aligned(64)));
__attribute__((used)) static void (*checked_call)(void);

/* General registers, flags, x87, MXCSR, and all of AVX-512 if there is that, else of AVX. */
#define GENERAL "rbx,rcx,rdx,rsi,rdi,rbp,r8,r9,r10,r11,r12,r13,r14,r15"
#define CHECK_BODY(name, LOAD, COMPARE) \
    __asm__(".text\n.type " #name ", @function\n" #name ":\n" \
            "push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\nsub $24, %rsp\n" \
            "lea pattern(%rip), %rax\n" LOAD \
            "fninit\nfldpi\nmovl $0x5f80, 8(%rsp)\nldmxcsr 8(%rsp)\n" \
            ".set value, 1\n.irp r," GENERAL "\nmovabs $0xabcdef0000000000+value, %\\r\n.set value, value+1\n.endr\n" \
            "movabs $0x1234567890, %rax\nstc\n" \
            "call *checked_call(%rip)\n" \
            "jnc 9f\n" \
            "push %rbx\nmovabs $0x1234567890, %rbx\ncmp %rbx, %rax\npop %rbx\njne 9f\n" \
            ".set value, 1\n.irp r," GENERAL "\nmovabs $0xabcdef0000000000+value, %rax\ncmp %rax, %\\r\njne 9f\n.set value, value+1\n.endr\n" \
            "lea pattern(%rip), %rax\n" COMPARE \
            "stmxcsr 8(%rsp)\ncmpl $0x5f80, 8(%rsp)\njne 9f\n" \
            "fldpi\nfcompp\nfnstsw %ax\nand $0x4500, %eax\ncmp $0x4000, %eax\njne 9f\n" \
            "xor %eax, %eax\njmp 8f\n9: mov $1, %eax\n8: fninit\nmovl $0x1f80, 8(%rsp)\nldmxcsr 8(%rsp)\nvzeroupper\n" \
            "add $24, %rsp\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n.size " #name ", . - " #name "\n")

#define NUMBERS_AVX "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"
#define NUMBERS_512 NUMBERS_AVX ",16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31"
CHECK_BODY(check_avx, ".irp n," NUMBERS_AVX "\nvmovdqa \\n*64(%rax), %ymm\\n\n.endr\n",
           ".irp n,0," NUMBERS_AVX "\n.if \\n != 15\nvpcmpeqb \\n*64(%rax), %ymm\\n, %ymm15\nvpmovmskb %ymm15, %ecx\ncmp $-1, %ecx\njne 9f\n.endif\n.endr\n");
CHECK_BODY(check_avx512,
           ".irp n," NUMBERS_512 "\nvmovdqa64 \\n*64(%rax), %zmm\\n\n.endr\n"
           "mov $0x5a5a1234, %ecx\nkmovd %ecx, %k1\nkmovd %ecx, %k7\n",
           "kmovd %k1, %ecx\ncmp $0x5a5a1234, %ecx\njne 9f\nkmovd %k7, %ecx\ncmp $0x5a5a1234, %ecx\njne 9f\n"
           ".irp n," NUMBERS_512 "\nvpcmpeqb \\n*64(%rax), %zmm\\n, %k2\nkmovq %k2, %rcx\ncmp $-1, %rcx\njne 9f\n.endr\n");
uint64_t check_avx(void), check_avx512(void);

static uint64_t check_registers(void (*call)(void))
{
    for (unsigned i = 0; i < sizeof pattern; i++)
        pattern[i] = (uint8_t)(i * 7 + 1);
    checked_call = call;
    return __builtin_cpu_supports("avx512bw") ? check_avx512() : check_avx();
}
#elif defined(__aarch64__)
__attribute__((used)) static uint8_t pattern[512] __attribute__((aligned(64)));
__attribute__((used)) static void (*checked_call)(void);

/* General registers but the frame pointer, flags, vectors, status and control of floating point. */
#define GENERAL "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28"
#define VECTORS "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31"
uint64_t check_all(void);
__asm__(".text\n.type check_all, @function\ncheck_all:\nhint #34\n"
        "stp x29, x30, [sp, #-176]!\nmov x29, sp\n"
        "stp x19, x20, [sp, #16]\nstp x21, x22, [sp, #32]\nstp x23, x24, [sp, #48]\nstp x25, x26, [sp, #64]\nstp x27, x28, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
        "adrp x0, pattern\nadd x0, x0, :lo12:pattern\n"
        ".irp n," VECTORS "\nldr q\\n, [x0, #(\\n * 16)]\n.endr\n"
        "mov x0, #0x400000\nmsr fpcr, x0\nmov x0, #0x8000000\nmsr fpsr, x0\nmov x0, #0xa0000000\nmsr nzcv, x0\n"
        ".irp n," GENERAL "\nmovz x\\n, #(\\n + 1)\nmovk x\\n, #0xabcd, lsl #48\n.endr\n"
        "adrp x30, checked_call\nldr x30, [x30, :lo12:checked_call]\nblr x30\n"
        "mrs x30, nzcv\nlsr x30, x30, #28\nsub x30, x30, #0xa\ncbnz x30, 9f\n"
        ".irp n," GENERAL "\nmovz x30, #(\\n + 1)\nmovk x30, #0xabcd, lsl #48\nsub x30, x30, x\\n\ncbnz x30, 9f\n.endr\n"
        "cmp sp, x29\nb.ne 9f\n"
        "adrp x0, pattern\nadd x0, x0, :lo12:pattern\n"
        ".irp n," VECTORS "\nmov x1, v\\n\\().d[0]\nmov x2, v\\n\\().d[1]\nldp x3, x4, [x0, #(\\n * 16)]\ncmp x1, x3\nb.ne 9f\ncmp x2, x4\nb.ne 9f\n.endr\n"
        "mrs x1, fpcr\nmov x2, #0x400000\ncmp x1, x2\nb.ne 9f\nmrs x1, fpsr\nmov x2, #0x8000000\ncmp x1, x2\nb.ne 9f\n"
        "mov x0, #0\nb 8f\n9: mov x0, #1\n8: mov x1, #0\nmsr fpcr, x1\nmsr fpsr, x1\n"
        "ldp d14, d15, [sp, #144]\nldp d12, d13, [sp, #128]\nldp d10, d11, [sp, #112]\nldp d8, d9, [sp, #96]\n"
        "ldp x27, x28, [sp, #80]\nldp x25, x26, [sp, #64]\nldp x23, x24, [sp, #48]\nldp x21, x22, [sp, #32]\nldp x19, x20, [sp, #16]\n"
        "ldp x29, x30, [sp], #176\nret\n.size check_all, . - check_all\n");

static uint64_t check_registers(void (*call)(void))
{
    for (unsigned i = 0; i < sizeof pattern; i++)
        pattern[i] = (uint8_t)(i * 7 + 1);
    checked_call = call;
    return check_all();
}
#endif
#endif
