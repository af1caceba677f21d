/* Calls a function with every register full, and sees whether they still are afterwards. x86-64. */
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
#else
static uint64_t check_registers(void (*call)(void))
{
    call();
    return 0;
}
#endif
#endif
