/* libruntime_v100.so: a launch that changes no register, so that a caller sees whether a tracer does. Its name is that of a
 * chip's part of the runtime. */
#if defined(__x86_64__)
__asm__(".text\n.globl rtKernelLaunch\n.type rtKernelLaunch, @function\n.balign 16\n"
        "rtKernelLaunch:\nendbr64\nnop\nnop\nret\n.size rtKernelLaunch, . - rtKernelLaunch\n");
#elif defined(__aarch64__)
__asm__(".text\n.globl rtKernelLaunch\n.type rtKernelLaunch, @function\n.balign 16\n"
        "rtKernelLaunch:\nhint #34\nnop\nnop\nret\n.size rtKernelLaunch, . - rtKernelLaunch\n");
#endif
