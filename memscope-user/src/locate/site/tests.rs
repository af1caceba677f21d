use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use super::*;
use crate::os::elf::SymbolKind;

const OLD: Kernel = Kernel { emulates_nops: false, optimizes_nop5: false };
const NEW: Kernel = Kernel { emulates_nops: true, optimizes_nop5: true };

/// All arguments in registers, no return probe.
const ARGS: SiteUse = SiteUse { args: 0xff, needs_return: false, stack_args: false, follows: false };
/// All arguments and a return probe.
const CALL: SiteUse = SiteUse { needs_return: true, ..ARGS };
/// Arguments on the stack too.
const STACK: SiteUse = SiteUse { stack_args: true, ..ARGS };
/// The first argument only.
const FIRST: SiteUse = SiteUse { args: 1, ..ARGS };

const EMULATED: SiteCost = SiteCost::Emulated;
const STEPPED: SiteCost = SiteCost::SingleStepped;
const NOP5: SiteCost = SiteCost::Nop5Optimizable;

fn site_of(machine: Machine, code: &[u8], usage: SiteUse, kernel: Kernel) -> (u32, SiteCost) {
    let function = Function::new(machine, 0x1000, code, code.len() as u64);
    let site = choose(&function, usage, kernel).expect("has a site");
    (site.offset, site.cost)
}

fn x86(code: &[u8], usage: SiteUse) -> (u32, SiteCost) {
    site_of(Machine::X86_64, code, usage, OLD)
}

fn arm(words: &[u32], usage: SiteUse) -> (u32, SiteCost) {
    site_of(Machine::Aarch64, &code_of(words), usage, OLD)
}

fn code_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Lets tests read as assembler: pieces of code, joined.
macro_rules! asm {
    ($($piece:expr),* $(,)?) => { [$(&$piece[..]),*].concat() };
}

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const PUSH_RBP: [u8; 1] = [0x55];
const PUSH_R12: [u8; 2] = [0x41, 0x54];
const SUB_RSP_24: [u8; 4] = [0x48, 0x83, 0xec, 0x18];
const RET: [u8; 1] = [0xc3];
const MOV_RAX_RDI: [u8; 3] = [0x48, 0x89, 0xf8];
const XOR_EDI_EDI: [u8; 2] = [0x31, 0xff];
const NOP5_BYTES: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

#[test]
fn push_at_the_entry_is_taken() {
    assert_eq!(x86(&asm![PUSH_RBP, RET], CALL), (0, EMULATED));
    assert_eq!(x86(&asm![PUSH_R12, RET], CALL), (0, EMULATED));
}

#[test]
fn push_behind_the_landing_pad_is_taken() {
    // endbr64 has 4 bytes
    assert_eq!(x86(&asm![ENDBR64, PUSH_RBP, RET], CALL), (4, EMULATED));
    // pushing an argument reads it only
    assert_eq!(x86(&asm![ENDBR64, [0x57], RET], CALL), (4, EMULATED));
}

#[test]
fn push_with_other_prefixes_is_stepped() {
    // rex.w push rbp; push imm8; push qword [rdi]: single-stepped all, and nothing cheaper follows
    for push in [&[0x48, 0x55][..], &[0x6a, 0x01], &[0xff, 0x37]] {
        assert_eq!(x86(&asm![push, RET], CALL), (0, STEPPED));
    }
}

#[test]
fn moved_stack_ends_the_scan_for_returns_and_stack_arguments() {
    // endbr64 (4), sub rsp,24 (4), push rbp at 8
    let code = asm![ENDBR64, SUB_RSP_24, PUSH_RBP, RET];
    assert_eq!(x86(&code, CALL), (0, STEPPED));
    assert_eq!(x86(&code, STACK), (0, STEPPED));
    assert_eq!(x86(&code, ARGS), (8, EMULATED));
}

#[test]
fn second_push_is_no_place_for_a_return_probe() {
    // at 1 the return address is one word further up
    let code = asm![PUSH_RBP, [0x53], RET];
    let function = Function::new(Machine::X86_64, 0, &code, 3);
    let offsets = |usage| -> Vec<u32> {
        let sites = candidates(&function, usage, OLD).expect("has sites");
        sites.iter().map(|site| site.offset).collect()
    };
    assert_eq!(offsets(CALL), [0]);
    assert_eq!(offsets(ARGS), [0, 1, 2]);
}

#[test]
fn clobbered_arguments_end_the_scan() {
    // xor edi,edi (2) writes all of rdi; push rbp at 2
    let code = asm![XOR_EDI_EDI, PUSH_RBP, RET];
    assert_eq!(x86(&code, ARGS), (0, STEPPED));
    // rsi alone survives: bit 1
    assert_eq!(x86(&code, SiteUse { args: 0b10, ..ARGS }), (2, EMULATED));
}

#[test]
fn narrow_writes_clobber() {
    // mov dil,1 (3); mov di,1 (4); mov dl,cl (2); cwd writes dx (2)
    for (write, bit) in [
        (&[0x40, 0xb7, 0x01][..], 0),
        (&[0x66, 0xbf, 0x01, 0x00], 0),
        (&[0x88, 0xca], 2),
        (&[0x66, 0x99], 2),
        // mov r8b,1 and mov r9d,1
        (&[0x41, 0xb0, 0x01], 4),
        (&[0x41, 0xb9, 0x01, 0x00, 0x00, 0x00], 5),
    ] {
        let code = asm![write, PUSH_RBP, RET];
        assert_eq!(x86(&code, SiteUse { args: 1 << bit, ..CALL }), (0, STEPPED), "{write:x?}");
        let others = SiteUse { args: 0x3f & !(1 << bit), ..CALL };
        assert_eq!(x86(&code, others), (write.len() as u32, EMULATED), "{write:x?}");
    }
}

#[test]
fn other_registers_do_not_matter() {
    // endbr64 (4), mov rax,rdi (3), xor eax,eax (2), push rbp at 9
    assert_eq!(x86(&asm![ENDBR64, MOV_RAX_RDI, [0x31, 0xc0], PUSH_RBP, RET], CALL), (9, EMULATED));
}

#[test]
fn branches_are_sites_but_nothing_behind_them_is() {
    // endbr64; jmp +0x100: a tail call, return address unmoved
    assert_eq!(x86(&asm![ENDBR64, [0xe9, 0x00, 0x01, 0x00, 0x00]], CALL), (4, EMULATED));
    // endbr64; test rdi,rdi (3); je +1 at 7
    let checked = asm![ENDBR64, [0x48, 0x85, 0xff], [0x74, 0x01], RET, PUSH_RBP, RET];
    assert_eq!(x86(&checked, CALL), (7, EMULATED));
    // a call only where it is the entry: its emulation forgets the shadow stack
    assert_eq!(x86(&asm![ENDBR64, [0xe8, 0x10, 0x00, 0x00, 0x00], RET], CALL), (0, STEPPED));
    assert_eq!(x86(&asm![[0xe8, 0x10, 0x00, 0x00, 0x00], RET], CALL), (0, EMULATED));
    // endbr64; long je at 4
    assert_eq!(x86(&asm![ENDBR64, [0x0f, 0x84, 0x10, 0x00, 0x00, 0x00], RET], CALL), (4, EMULATED));
    // jmp rax (2) is stepped, and the push behind it is not reached from here
    assert_eq!(x86(&asm![ENDBR64, [0xff, 0xe0], PUSH_RBP, RET], CALL), (0, STEPPED));
    // loop +0 (2) is a branch that is not emulated
    assert_eq!(x86(&asm![ENDBR64, [0xe2, 0x00], PUSH_RBP, RET], CALL), (0, STEPPED));
}

#[test]
fn loop_heads_are_avoided() {
    // 0 endbr64, 4 nop, 5 dec eax (2), 7 jne -5 to 4, 9 ret: the nop runs once per round
    let head_on_site = asm![ENDBR64, [0x90], [0xff, 0xc8], [0x75, 0xfb], RET];
    assert_eq!(x86(&head_on_site, CALL), (0, STEPPED));
    // 7 jne -9 to 0: the function starts over
    let head_on_entry = asm![ENDBR64, [0x90], [0xff, 0xc8], [0x75, 0xf7], RET];
    assert_eq!(x86(&head_on_entry, CALL), (4, EMULATED));
    // 7 jne -4 to 5: behind the site
    let head_behind = asm![ENDBR64, [0x90], [0xff, 0xc8], [0x75, 0xfc], RET];
    assert_eq!(x86(&head_behind, CALL), (4, EMULATED));
    // 0 endbr64, 4 xor eax,eax, 6 nop, 7 jne -5 to 4: a place in between
    let head_between = asm![ENDBR64, [0x31, 0xc0], [0x90], [0x75, 0xfb], RET];
    assert_eq!(x86(&head_between, CALL), (0, STEPPED));
}

#[test]
fn a_branch_far_behind_counts() {
    // endbr64; nop; 1000 times nop; jmp to 4: at 1005, next is 1010, so -1006
    let code = asm![ENDBR64, [0x90], [0x90; 1000], [0xe9], (-1006_i32).to_le_bytes()];
    assert_eq!(x86(&code, CALL), (0, STEPPED));
}

#[test]
fn unknown_extent_allows_only_the_push_behind_the_landing_pad() {
    let sites =
        |code: &[u8], size| choose(&Function::new(Machine::X86_64, 0, code, size), CALL, OLD).map(|site| site.offset);
    assert_eq!(sites(&asm![ENDBR64, PUSH_RBP, RET], 0), Ok(4));
    assert_eq!(sites(&asm![ENDBR64, [0x90], RET], 0), Ok(0));
    assert_eq!(sites(&asm![MOV_RAX_RDI, PUSH_RBP, RET], 0), Ok(0));
    // claims 100 bytes but the file has only 6
    assert_eq!(sites(&asm![ENDBR64, [0x90], RET], 100), Ok(0));
    // larger than the searched part
    let large = asm![ENDBR64, vec![0x90; 70_000], RET];
    assert_eq!(sites(&large, large.len() as u64), Ok(0));
    // undecodable bytes hide branches: 06 is no instruction
    assert_eq!(sites(&asm![ENDBR64, [0x90], RET, [0x06, 0x00]], 8), Ok(0));
}

#[test]
fn another_entry_bounds_the_site() {
    let code = asm![ENDBR64, PUSH_RBP, RET];
    let mut function = Function::new(Machine::X86_64, 0, &code, 6);
    function.inner_entry = Some(4);
    assert_eq!(choose(&function, CALL, OLD).map(|site| site.offset), Ok(0));
    function.inner_entry = Some(5);
    assert_eq!(choose(&function, CALL, OLD).map(|site| site.offset), Ok(4));
}

#[test]
fn branches_from_neighbours_count() {
    // The function is endbr64; nop; ret, size 6. Before it: jmp +4, which ends at 0. Behind it: jmp -4, from 8 back.
    let code = asm![ENDBR64, [0x90], RET];
    let mut function = Function::new(Machine::X86_64, 0x1000, &code, 6);
    function.before = &[0xeb, 0x05];
    assert_eq!(choose(&function, CALL, OLD).map(|site| site.offset), Ok(4));
    function.before = &[0xeb, 0x04];
    assert_eq!(choose(&function, CALL, OLD).map(|site| site.offset), Ok(0));
    function.before = &[];
    function.after = &[0xeb, 0xfc];
    assert_eq!(choose(&function, CALL, OLD).map(|site| site.offset), Ok(0));
    // aarch64: adrp; ret at 4. The word before it: b .+8
    let code = code_of(&[CMP_X0_0, ADRP_X3, RET_ARM]);
    let before = code_of(&[0x1400_0002]);
    let mut function = Function::new(Machine::Aarch64, 0x1000, &code, 12);
    assert_eq!(choose(&function, CALL, OLD).map(|site| site.offset), Ok(4));
    function.before = &before;
    assert_eq!(choose(&function, CALL, OLD).map(|site| site.offset), Ok(0));
}

#[test]
fn visible_stores_end_the_scan() {
    // mov dword [rdi],0 (6); push rbp
    assert_eq!(x86(&asm![[0xc7, 0x07, 0, 0, 0, 0], PUSH_RBP, RET], CALL), (0, STEPPED));
    // lock inc dword [rdi] is refused at 0 and everything behind it is late
    let locked = Function::new(Machine::X86_64, 0x40, &[0xf0, 0xff, 0x07, 0x55], 4);
    assert!(matches!(choose(&locked, CALL, OLD), Err(SiteError::Refused { address: 0x40, .. })));
}

#[test]
fn stores_over_the_incoming_stack_end_what_lies_there() {
    // mov [rsp+8],rdi (5): the first stack argument; push rbp at 5
    let code = asm![[0x48, 0x89, 0x7c, 0x24, 0x08], PUSH_RBP, RET];
    assert_eq!(x86(&code, STACK), (0, STEPPED));
    assert_eq!(x86(&code, ARGS), (5, EMULATED));
    // mov [rsp-8],rdi (5): the red zone
    assert_eq!(x86(&asm![[0x48, 0x89, 0x7c, 0x24, 0xf8], PUSH_RBP, RET], STACK), (5, EMULATED));
}

#[test]
fn nops_depend_on_the_kernel() {
    let code = asm![[0x90], NOP5_BYTES, RET];
    assert_eq!(site_of(Machine::X86_64, &code, CALL, OLD), (0, EMULATED));
    assert_eq!(site_of(Machine::X86_64, &code, CALL, NEW), (1, NOP5));
    let emulating = Kernel { optimizes_nop5: false, ..NEW };
    let padded = asm![ENDBR64, NOP5_BYTES, RET];
    assert_eq!(site_of(Machine::X86_64, &padded, CALL, OLD), (0, STEPPED));
    assert_eq!(site_of(Machine::X86_64, &padded, CALL, emulating), (4, EMULATED));
    // 66 90: refused by kernels that do not emulate it
    let short = asm![[0x66, 0x90], RET];
    assert_eq!(site_of(Machine::X86_64, &short, CALL, OLD), (2, STEPPED));
    assert_eq!(site_of(Machine::X86_64, &short, CALL, NEW), (0, EMULATED));
    // cs nopw 0(rax,rax,1), 10 bytes: the prefix is refused
    let long = asm![[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], RET];
    assert_eq!(site_of(Machine::X86_64, &long, CALL, NEW), (10, STEPPED));
}

#[test]
fn nop5_needs_one_page_and_no_red_zone() {
    let at = |address, code: &[u8]| {
        let function = Function::new(Machine::X86_64, address, code, code.len() as u64);
        choose(&function, CALL, NEW).map(|site| (site.offset, site.cost))
    };
    let code = asm![NOP5_BYTES, RET];
    assert_eq!(at(0x1ffb, &code), Ok((0, NOP5))); // 0xffb + 5 is the page's end
    assert_eq!(at(0x1ffc, &code), Ok((0, EMULATED)));
    // mov [rsp-8],rdi (5); nop5: the call would overwrite the stored value
    let leaf = asm![[0x48, 0x89, 0x7c, 0x24, 0xf8], NOP5_BYTES, RET];
    assert_eq!(at(0x1000, &leaf), Ok((0, STEPPED)));
}

#[test]
fn what_the_kernel_mistakes_is_refused() {
    // xchg rax,r8: a nop to older kernels. vpcmpeqb xmm0,xmm0,xmm1: `je` by its opcode. mov ss,eax: masks traps.
    for harmful in [&[0x49, 0x90][..], &[0xc5, 0xf9, 0x74, 0xc1], &[0x8e, 0xd0]] {
        let code = asm![harmful, RET];
        let usage = SiteUse { args: 1, ..CALL };
        assert_eq!(x86(&code, usage), (harmful.len() as u32, STEPPED), "{harmful:x?}");
    }
    // data16 call: refused
    assert_eq!(x86(&asm![ENDBR64, [0x66, 0xe8, 0, 0, 0, 0], RET], CALL), (0, STEPPED));
}

#[test]
fn short_and_broken_functions() {
    let function = |code: &'static [u8], size| Function::new(Machine::X86_64, 0x10, code, size);
    assert_eq!(choose(&function(&[], 0), CALL, OLD), Err(SiteError::NoCode { address: 0x10 }));
    assert_eq!(choose(&function(&[0x06], 1), CALL, OLD), Err(SiteError::NoCode { address: 0x10 }));
    // a push cut in two by the symbol's size
    assert_eq!(choose(&function(&[0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0x54], 5), CALL, OLD).map(|s| s.offset), Ok(0));
    let other = Function::new(Machine::Other(243), 0, &[0x13, 0, 0, 0], 4);
    assert_eq!(choose(&other, CALL, OLD), Err(SiteError::Machine { machine: Machine::Other(243) }));
}

#[test]
fn instruction_is_shown() {
    let code = asm![ENDBR64, PUSH_RBP, RET];
    let site = choose(&Function::new(Machine::X86_64, 0, &code, 6), CALL, OLD).expect("has a site");
    assert_eq!(site.instruction, "push rbp");
}

// aarch64. Words as the assembler gives them.
const BTI_C: u32 = 0xd503_245f;
const PACIASP: u32 = 0xd503_233f;
const NOP: u32 = 0xd503_201f;
const STP_FP_LR_PRE: u32 = 0xa9be_7bfd; // stp x29, x30, [sp, #-32]!
const MOV_FP_SP: u32 = 0x9100_03fd;
const SUB_SP_32: u32 = 0xd100_83ff;
const STP_X19_X20: u32 = 0xa901_53f3; // stp x19, x20, [sp, #16]
const MOV_X19_X0: u32 = 0xaa00_03f3;
const MOV_X0_X1: u32 = 0xaa01_03e0;
const ADRP_X3: u32 = 0x9000_0003;
const CBZ_X0_8: u32 = 0xb400_0040; // cbz x0, .+8
const B_64: u32 = 0x1400_0010; // b .+64
const BL_64: u32 = 0x9400_0010;
const RET_ARM: u32 = 0xd65f_03c0;
const CMP_X0_0: u32 = 0xf100_001f;
const LDR_X8_X0: u32 = 0xf940_0008; // ldr x8, [x0]
const STR_XZR_X0: u32 = 0xf900_001f; // str xzr, [x0]
const LDR_X0_SP: u32 = 0xf940_03e0; // ldr x0, [sp]
const LDXR: u32 = 0xc85f_7c01; // ldxr x1, [x0]
const MRS_TPIDR: u32 = 0xd53b_d048; // mrs x8, tpidr_el0
const LDR_LITERAL: u32 = 0x5800_0048; // ldr x8, .+8
const MOV_X9_LR: u32 = 0xaa1e_03e9; // mov x9, x30

#[test]
fn arm_frame_is_stepped_behind_the_landing_pad() {
    assert_eq!(arm(&[STP_FP_LR_PRE, MOV_FP_SP, RET_ARM], CALL), (0, STEPPED));
    assert_eq!(arm(&[BTI_C, STP_FP_LR_PRE, MOV_FP_SP, RET_ARM], CALL), (4, STEPPED));
}

#[test]
fn arm_return_probe_sits_before_signing() {
    // behind paciasp the kernel would put an unsigned address under autiasp
    assert_eq!(arm(&[PACIASP, ADRP_X3, RET_ARM], CALL), (0, STEPPED));
    assert_eq!(arm(&[PACIASP, ADRP_X3, RET_ARM], ARGS), (4, EMULATED));
}

#[test]
fn arm_return_probe_sits_before_the_link_register_is_saved() {
    for saves in [STP_FP_LR_PRE, MOV_X9_LR, SUB_SP_32] {
        assert_eq!(arm(&[saves, CBZ_X0_8, RET_ARM, RET_ARM], CALL), (0, STEPPED), "{saves:#x}");
        assert_eq!(arm(&[saves, CBZ_X0_8, RET_ARM, RET_ARM], ARGS), (4, EMULATED), "{saves:#x}");
    }
}

#[test]
fn arm_emulated_instructions_are_preferred() {
    for emulated in [ADRP_X3, CBZ_X0_8, B_64, RET_ARM] {
        assert_eq!(arm(&[BTI_C, CMP_X0_0, emulated, RET_ARM], CALL), (8, EMULATED), "{emulated:#x}");
    }
    // `bl` takes the link register that the return probe has just changed
    assert_eq!(arm(&[BTI_C, CMP_X0_0, BL_64, RET_ARM], CALL), (4, STEPPED));
    assert_eq!(arm(&[BTI_C, CMP_X0_0, BL_64, RET_ARM], ARGS), (8, EMULATED));
}

#[test]
fn arm_clobbers_and_effects_end_the_scan() {
    assert_eq!(arm(&[MOV_X0_X1, ADRP_X3, RET_ARM], FIRST), (0, STEPPED));
    assert_eq!(arm(&[MOV_X19_X0, ADRP_X3, RET_ARM], FIRST), (4, EMULATED));
    assert_eq!(arm(&[LDR_X0_SP, ADRP_X3, RET_ARM], FIRST), (0, STEPPED));
    assert_eq!(arm(&[LDR_X8_X0, ADRP_X3, RET_ARM], FIRST), (4, EMULATED));
    assert_eq!(arm(&[STR_XZR_X0, ADRP_X3, RET_ARM], FIRST), (0, STEPPED));
    // adrp x3 changes argument 3, so the second adrp is no site, but the first is
    assert_eq!(arm(&[ADRP_X3, ADRP_X3, RET_ARM], ARGS), (0, EMULATED));
}

#[test]
fn arm_stack_arguments_need_the_stack_pointer() {
    assert_eq!(arm(&[SUB_SP_32, STP_X19_X20, ADRP_X3, RET_ARM], STACK), (0, STEPPED));
    assert_eq!(arm(&[SUB_SP_32, STP_X19_X20, ADRP_X3, RET_ARM], ARGS), (8, EMULATED));
}

#[test]
fn arm_refused_instructions_are_no_sites() {
    assert_eq!(arm(&[MRS_TPIDR, NOP, RET_ARM], CALL), (8, EMULATED));
    assert_eq!(arm(&[LDR_LITERAL, NOP, STR_XZR_X0, RET_ARM], CALL), (4, STEPPED));
    let exclusive = code_of(&[LDXR, NOP, RET_ARM]);
    let function = Function::new(Machine::Aarch64, 0, &exclusive, 12);
    assert!(matches!(choose(&function, CALL, OLD), Err(SiteError::Refused { .. })));
}

#[test]
fn arm_nops_depend_on_the_kernel() {
    let code = code_of(&[NOP, STR_XZR_X0, RET_ARM]);
    assert_eq!(site_of(Machine::Aarch64, &code, CALL, OLD), (0, STEPPED));
    assert_eq!(site_of(Machine::Aarch64, &code, CALL, NEW), (0, EMULATED));
}

#[test]
fn arm_loop_heads_are_avoided() {
    // 0 cmp, 4 adrp, 8 b.ne .-4 to 4, 12 ret
    assert_eq!(arm(&[CMP_X0_0, ADRP_X3, 0x54ff_ffe1, RET_ARM], CALL), (0, STEPPED));
    // 8 b.ne .-8 to 0
    assert_eq!(arm(&[CMP_X0_0, ADRP_X3, 0x54ff_ffc1, RET_ARM], CALL), (4, EMULATED));
    // 8 tbnz w0, #0, .-4; cbnz x0, .-4; b .-4
    for back in [0x3707_ffe0, 0xb5ff_ffe0, 0x17ff_ffff] {
        assert_eq!(arm(&[CMP_X0_0, ADRP_X3, back, RET_ARM], CALL), (0, STEPPED), "{back:#x}");
    }
}

/// No bytes make it panic, and every site lies inside.
#[test]
fn random_code_is_survived() {
    let mut state = 0x5eed_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..20_000 {
        let code: Vec<u8> = (0..next() % 100).map(|_| next() as u8).collect();
        let size = if next() % 4 == 0 { next() } else { code.len() as u64 };
        let usage = SiteUse {
            args: next() as u8,
            needs_return: next() % 2 == 0,
            stack_args: next() % 2 == 0,
            follows: next() % 2 == 0,
        };
        for machine in [Machine::X86_64, Machine::Aarch64] {
            let function = Function::new(machine, next(), &code, size);
            for site in candidates(&function, usage, NEW).unwrap_or_default() {
                assert!((site.offset as usize) < code.len().min(SCAN_BYTES));
            }
        }
    }
}

/// Files with false starts and sizes of functions.
#[test]
fn hostile_files_are_survived() {
    let original = std::fs::read("/bin/true").expect("readable");
    let mut state = 0x5eed_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..300 {
        let mut bytes = original.clone();
        for _ in 0..8 {
            bytes[(next() % 0x400) as usize] = next() as u8;
        }
        let Ok(file) = ElfFile::parse(&bytes) else {
            continue;
        };
        for vaddr in [0, 1, 0x1000, 0x2000, next(), u64::MAX - 40, u64::MAX] {
            let name = String::new();
            let next_vaddr = Some(next()).filter(|next| next % 2 == 0);
            let resolved = Resolved { name, vaddr, file_offset: 0, size_bytes: next() % 5000, next_vaddr };
            if let Some(function) = Function::in_file(&file, &resolved) {
                let _ = candidates(&function, CALL, NEW);
            }
        }
    }
}

/// A segment may claim to reach past the end of the address space.
#[test]
fn addresses_at_the_end_are_survived() {
    let mut function = Function::new(Machine::X86_64, u64::MAX - 1, &[0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3], 6);
    function.before = &[0xeb];
    function.after = &[0xeb];
    assert_eq!(choose(&function, CALL, NEW).map(|site| site.offset), Ok(0));
}

/// `objdump`'s view of a file: starts of instructions, and targets of direct branches.
struct Disassembly {
    starts: HashSet<u64>,
    targets: Vec<u64>,
}

fn disassemble(objdump: &str, path: &Path) -> Disassembly {
    let output = Command::new(objdump).args(["-d", "--no-show-raw-insn"]).arg(path).output();
    let output = output.unwrap_or_else(|error| panic!("this test needs {objdump} (binutils): {error}"));
    assert!(output.status.success(), "{objdump} failed on {}", path.display());
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = || {
        let split = text.lines().filter_map(|line| line.split_once(":\t"));
        split.filter_map(|(address, code)| Some((u64::from_str_radix(address.trim(), 16).ok()?, code)))
    };
    let starts: HashSet<_> = lines().map(|(address, _)| address).collect();
    // Tables among the code are disassembled too and make branches into the middle of instructions.
    let mut targets: Vec<_> = lines().filter_map(|(_, code)| target(code)).filter(|to| starts.contains(to)).collect();
    targets.sort_unstable();
    Disassembly { starts, targets }
}

/// `jne 1234 <name>`, `call …`, `b.ne …`, `cbz x0, …`
fn target(code: &str) -> Option<u64> {
    let mut words = code.split_whitespace().skip_while(|word| matches!(*word, "bnd" | "notrack"));
    let name = words.next()?;
    let branches = name.starts_with('j')
        || ["call", "loop", "b.", "cb", "tb"].iter().any(|start| name.starts_with(start))
        || matches!(name, "b" | "bl");
    let (operands, _) = code.split_once(" <")?;
    let last = operands.split_whitespace().next_back()?;
    u64::from_str_radix(last, 16).ok().filter(|_| branches)
}

/// Checks every function of `path` against `objdump` and prints the gain.
fn check_against(objdump: &str, path: &Path) {
    let known = disassemble(objdump, path);
    let bytes = std::fs::read(path).expect("readable");
    let file = ElfFile::parse(&bytes).expect("parses");
    let symbols = file.symbols().expect("symbols").filter(|symbol| symbol.kind == SymbolKind::Function);
    let names: HashSet<_> = symbols.filter_map(|symbol| str::from_utf8(symbol.name).ok()).collect();
    let functions = file.resolve(&names.into_iter().collect::<Vec<_>>()).expect("resolves");
    assert!(functions.len() > 20);
    for (title, usage) in [("all, return", CALL), ("all", ARGS), ("3, return", SiteUse { args: 7, ..CALL })] {
        let (mut entry_stepped, mut stepped, mut refused) = (0, 0, 0);
        for resolved in &functions {
            let function = Function::in_file(&file, resolved).expect("mapped from the file");
            let first = decode(&function, OLD).expect("known machine").first().and_then(|step| step.cost);
            entry_stepped += usize::from(first == Some(STEPPED));
            match choose(&function, usage, OLD) {
                Ok(site) => {
                    stepped += usize::from(site.cost == STEPPED);
                    check_site(&known, resolved, &site);
                }
                Err(_) => refused += 1,
            }
        }
        let (all, path) = (functions.len(), path.display());
        println!(
            "{path}, arguments {title}: {all} functions, single-stepped {entry_stepped} at the entry, {stepped} at the site; {refused} refused"
        );
    }
}

fn check_site(known: &Disassembly, resolved: &Resolved, site: &Site) {
    let address = resolved.vaddr + u64::from(site.offset);
    assert!(known.starts.contains(&address), "{} + {}", resolved.name, site.offset);
    let above = known.targets.partition_point(|target| *target <= resolved.vaddr);
    let jumped_to = known.targets.get(above).is_some_and(|target| *target <= address);
    assert!(!jumped_to, "{} + {}: {}", resolved.name, site.offset, site.instruction);
}

/// Against another disassembler: each site starts an instruction, and nothing in the whole file jumps behind the entry
/// up to it, from wherever.
#[test]
fn sites_in_libraries_are_instruction_starts() {
    let native: [&str; 3] = if cfg!(target_arch = "aarch64") {
        ["/lib/aarch64-linux-gnu/libc.so.6", "/lib/ld-linux-aarch64.so.1", "/lib/aarch64-linux-gnu/libm.so.6"]
    } else {
        ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libm.so.6"]
    };
    for path in native {
        check_against("objdump", Path::new(path));
    }
}

/// The same for the other architecture, from the packages that cross builds need anyway.
#[cfg(target_arch = "x86_64")]
#[test]
fn sites_in_aarch64_libraries_are_instruction_starts() {
    for path in ["/usr/aarch64-linux-gnu/lib/libc.so.6", "/usr/aarch64-linux-gnu/lib/libm.so.6"] {
        check_against("aarch64-linux-gnu-objdump", Path::new(path));
    }
}

/// Worked out by hand from the opcodes: calls, conditional jumps and those by a register are none.
#[test]
fn direct_jumps_are_found() {
    // 0x1000 je +2; call +0; jmp +2 to 0x100b; jmp rax; jmp -16 from 0x1010 to 0x1000
    let x86 = [0x74, 0x02, 0xe8, 0, 0, 0, 0, 0xeb, 0x02, 0xff, 0xe0, 0xe9, 0xf0, 0xff, 0xff, 0xff];
    assert_eq!(jumps(Machine::X86_64, 0x1000, &x86), [0x100b, 0x1000]);
    // 0x1000 cbz x0, .+8; bl .+64; b .+64 from 0x1008; ret; b .-16 from 0x1010
    let arm = code_of(&[CBZ_X0_8, BL_64, B_64, RET_ARM, 0x17ff_fffc]);
    assert_eq!(jumps(Machine::Aarch64, 0x1000, &arm), [0x1048, 0x1000]);
}

/// Worked out by hand from the opcodes.
#[test]
fn own_returns_are_found() {
    let found = |machine, bytes: &[u8]| ends(&Function::new(machine, 0x1000, bytes, bytes.len() as u64), true);
    let x86 = |bytes: &[u8]| found(Machine::X86_64, bytes);
    // push rbp; test edi,edi; je +2; pop rbp; ret; xor eax,eax; pop rbp; rep ret
    let two = [0x55, 0x85, 0xff, 0x74, 0x02, 0x5d, 0xc3, 0x31, 0xc0, 0x5d, 0xf3, 0xc3];
    assert_eq!(x86(&two), Some(vec![6, 10]));
    // A constant that looks like a return: mov eax, 0xc3; ret.
    assert_eq!(x86(&[0xb8, 0xc3, 0, 0, 0, 0xc3]), Some(vec![5]));
    assert_eq!(x86(&[0xe9, 0, 0, 0, 0]), None, "leaves by a jump");
    assert_eq!(x86(&[0xc3, 0x06]), None, "does not decode to its end");
    // An unknown size may hide returns.
    assert_eq!(ends(&Function::new(Machine::X86_64, 0x1000, &[0xc3], 0), true), None);
    let arm = |words: &[u32]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        found(Machine::Aarch64, &bytes)
    };
    assert_eq!(arm(&[0xd503_201f, 0xd65f_03c0, 0xd503_201f, 0xd65f_03c0]), Some(vec![4, 12]));
    assert_eq!(arm(&[0xd65f_03c0, 0xd65f_0bff]), None, "retaa takes no probe");
    assert_eq!(arm(&[0xd503_201f]), None);
}

/// Calls that take the place of a return, by hand from the opcodes: behind an epilogue, and out of the function.
#[test]
fn last_calls_are_ends() {
    let found = |machine, bytes: &[u8]| ends(&Function::new(machine, 0x1000, bytes, bytes.len() as u64), false);
    let x86 = |bytes: &[u8]| found(Machine::X86_64, bytes);
    // push rbp; test edi,edi; je +2; pop rbp; ret; pop rbp; jmp r8 (10: what comes behind the pop at 9)
    assert_eq!(x86(&[0x55, 0x85, 0xff, 0x74, 0x02, 0x5d, 0xc3, 0x90, 0x5d, 0x41, 0xff, 0xe0]), Some(vec![6, 9]));
    // pop rbp; jmp far away. add rsp,8; jmp far away, twice.
    assert_eq!(x86(&[0x5d, 0xe9, 0, 1, 0, 0]), Some(vec![1]));
    assert_eq!(x86(&[0x48, 0x83, 0xc4, 8, 0xe9, 0, 1, 0, 0, 0x48, 0x83, 0xc4, 8, 0xeb, 0x70]), Some(vec![4, 13]));
    // Within the function; to a cold part, behind a mov; a table of jumps: pop rbp; jmp -3; ret. mov ebx,edi; jmp far; ret. jmp rax; ret
    assert_eq!(x86(&[0x5d, 0xeb, 0xfd, 0xc3]), Some(vec![3]));
    assert_eq!(x86(&[0x89, 0xfb, 0xe9, 0, 1, 0, 0, 0xc3]), Some(vec![7]));
    assert_eq!(x86(&[0x89, 0xfb, 0xff, 0xe0, 0xc3]), Some(vec![4]));
    // ldp x29, x30, [sp], #32; b .+64; ldp; br x16; ldp; b .-4 (within); mov x19, x0; b .+64; ret
    let words = [0xa8c2_7bfd, B_64, 0xa8c2_7bfd, 0xd61f_0200, 0xa8c2_7bfd, 0x17ff_ffff, 0xaa00_03f3, B_64, RET_ARM];
    assert_eq!(found(Machine::Aarch64, &code_of(&words)), Some(vec![32, 4, 12]));
}

/// Follows these arguments.
const fn following(args: u8) -> SiteUse {
    SiteUse { args, follows: true, ..ARGS }
}

/// Offset of the site, bytes back to the entry's stack pointer, and where the arguments are (kind and offset).
type Followed = (u32, u64, Vec<(u32, i32)>);

fn followed(machine: Machine, code: &[u8], args: u8) -> Option<Followed> {
    let function = Function::new(machine, 0x1000, code, code.len() as u64);
    let site = choose(&function, following(args), OLD).expect("has a site");
    let places = site.places?;
    assert_ne!(site.cost, STEPPED);
    Some((site.offset, places.stack, places.args.iter().map(|place| (place.kind, place.offset)).collect()))
}

/// Worked out by hand. Registers by their offsets in `pt_regs` of the kernel's `arch/x86/include/asm/ptrace.h`.
#[test]
fn x86_arguments_are_followed() {
    const RBX: (u32, i32) = (1, 40);
    const RAX: (u32, i32) = (1, 80);
    const RSI: (u32, i32) = (1, 104);
    const NONE: (u32, i32) = (0, 0);
    let found = |code: &[u8], args| followed(Machine::X86_64, code, args);
    // sub rsp,24; mov rbx,rdi; mov rdi,[rdi+8]; test rdi,rdi; je +0; ret
    let moved = asm![SUB_RSP_24, [0x48, 0x89, 0xfb, 0x48, 0x8b, 0x7f, 0x08, 0x48, 0x85, 0xff, 0x74, 0x00, 0xc3]];
    assert_eq!(found(&moved, 0b11), Some((14, 24, vec![RBX, RSI, NONE, NONE, NONE, NONE])));
    // The third is in rdx all the time: an ordinary site.
    assert_eq!(found(&moved, 0b100), None);
    // Into the frame: sub rsp,24; mov [rsp+8],rdi; xor edi,edi; jmp +0; ret
    let stored = asm![SUB_RSP_24, [0x48, 0x89, 0x7c, 0x24, 0x08], XOR_EDI_EDI, [0xeb, 0x00, 0xc3]];
    assert_eq!(found(&stored, 1), Some((11, 24, vec![(2, 8), NONE, NONE, NONE, NONE, NONE])));
    // With a frame pointer: mov rax,rsp; sub rsp,24; mov [rax-16],rsi; xor esi,esi; push rbp: 8 above the stack pointer.
    let frame = asm![[0x48, 0x89, 0xe0], SUB_RSP_24, [0x48, 0x89, 0x70, 0xf0, 0x31, 0xf6], PUSH_RBP, RET];
    assert_eq!(found(&frame, 0b10), Some((13, 24, vec![NONE, (2, 8), NONE, NONE, NONE, NONE])));
    // Pushed with a prefix (rex.w), which is stepped, then lost: rex.w push rdi; xor edi,edi; push rbp; ret
    let pushed = asm![[0x48, 0x57], XOR_EDI_EDI, PUSH_RBP, RET];
    assert_eq!(found(&pushed, 1), Some((4, 8, vec![(2, 0), NONE, NONE, NONE, NONE, NONE])));
    // From register to register: mov rbx,rdi; mov rax,rbx; xor ebx,ebx; xor edi,edi; push rbp; ret
    let twice = asm![[0x48, 0x89, 0xfb, 0x48, 0x89, 0xd8, 0x31, 0xdb], XOR_EDI_EDI, PUSH_RBP, RET];
    assert_eq!(found(&twice, 1), Some((10, 0, vec![RAX, NONE, NONE, NONE, NONE, NONE])));
}

/// A value that is no longer an argument is not taken for one.
#[test]
fn x86_lost_arguments_are_not_followed() {
    let lost = |code: &[u8]| assert_eq!(followed(Machine::X86_64, code, 1), None, "{code:x?}");
    // Half of it: mov ebx,edi; xor edi,edi; push rbp; ret
    lost(&asm![[0x89, 0xfb], XOR_EDI_EDI, PUSH_RBP, RET]);
    // Overwritten in the frame: sub rsp,24; mov [rsp+8],rdi; mov dword [rsp+12],0; xor edi,edi; push rbp; ret
    let store = [0x48, 0x89, 0x7c, 0x24, 0x08, 0xc7, 0x44, 0x24, 0x0c, 0, 0, 0, 0];
    lost(&asm![SUB_RSP_24, store, XOR_EDI_EDI, PUSH_RBP, RET]);
    // Below the red zone: mov [rsp-136],rdi; xor edi,edi; push rbp; ret
    lost(&asm![[0x48, 0x89, 0xbc, 0x24, 0x78, 0xff, 0xff, 0xff], XOR_EDI_EDI, PUSH_RBP, RET]);
    // Written where others may see it: mov rbx,rdi; mov [rdi],rsi; xor edi,edi; push rbp; ret
    lost(&asm![[0x48, 0x89, 0xfb, 0x48, 0x89, 0x37], XOR_EDI_EDI, PUSH_RBP, RET]);
    // Over the caller's words: mov rbx,rdi; mov [rsp],rsi; xor edi,edi; push rbp; ret
    lost(&asm![[0x48, 0x89, 0xfb, 0x48, 0x89, 0x34, 0x24], XOR_EDI_EDI, PUSH_RBP, RET]);
    // Not the argument but an address near it: lea rbx,[rdi+8]; xor edi,edi; push rbp; ret
    lost(&asm![[0x48, 0x8d, 0x5f, 0x08], XOR_EDI_EDI, PUSH_RBP, RET]);
    // A stack pointer that is not known: mov rbx,rdi; and rsp,-32; xor edi,edi; push rbp; ret
    lost(&asm![[0x48, 0x89, 0xfb, 0x48, 0x83, 0xe4, 0xe0], XOR_EDI_EDI, PUSH_RBP, RET]);
    // Beyond a call: mov rbx,rdi; call +0; push rbp; ret. And beyond a jump (ff e0, jmp rax).
    lost(&asm![[0x48, 0x89, 0xfb], XOR_EDI_EDI, [0xe8, 0, 0, 0, 0], PUSH_RBP, RET]);
    lost(&asm![[0x48, 0x89, 0xfb], XOR_EDI_EDI, [0xff, 0xe0], PUSH_RBP, RET]);
    // Behind a place that is jumped to: mov rbx,rdi; xor edi,edi; push rbp; jmp to the push
    lost(&asm![[0x48, 0x89, 0xfb], XOR_EDI_EDI, PUSH_RBP, [0xeb, 0xfd]]);
}

/// Words and their meaning: as another disassembler has it, see [`arm_words_are_what_they_say`].
const ARM_WORDS: [(u32, &str); 20] = [
    (0xa9be_7bfd, "stp x29, x30, [sp, #-32]!"),
    (0xa9bd_7bfd, "stp x29, x30, [sp, #-48]!"),
    (0xa901_07a0, "stp x0, x1, [x29, #16]"),
    (0x9100_03fd, "mov x29, sp"),
    (0xf900_0bf3, "str x19, [sp, #16]"),
    (0xf900_07e2, "str x2, [sp, #8]"),
    (0xf81f_03e0, "stur x0, [sp, #-16]"),
    (0xf900_0020, "str x0, [x1]"),
    (0xb900_0fe1, "str w1, [sp, #12]"),
    (0xf940_0000, "ldr x0, [x0]"),
    (0xaa00_03f3, "mov x19, x0"),
    (0x2a00_03f3, "mov w19, w0"),
    (0xd280_0000, "mov x0, #0x0"),
    (0xd280_0001, "mov x1, #0x0"),
    (0x5280_0000, "mov w0, #0x0"),
    (0x5280_0002, "mov w2, #0x0"),
    (0xd100_83ff, "sub sp, sp, #0x20"),
    (0x9000_0002, "adrp x2, 0x0"),
    (0xb400_0020, "cbz x0, .+4"),
    (0xd65f_03c0, "ret"),
];

/// Code by its meaning, a line each.
fn assembled(text: &str) -> Vec<u8> {
    let word = |line: &str| ARM_WORDS.iter().find(|(_, meaning)| *meaning == line.trim()).expect("a known word").0;
    code_of(&text.split(';').map(word).collect::<Vec<_>>())
}

/// Against another disassembler.
#[test]
fn arm_words_are_what_they_say() {
    let objdump = if cfg!(target_arch = "aarch64") { "objdump" } else { "aarch64-linux-gnu-objdump" };
    let file = tempfile::NamedTempFile::new().expect("a file");
    for (word, meaning) in ARM_WORDS {
        std::fs::write(file.path(), word.to_le_bytes()).expect("written");
        let mut command = Command::new(objdump);
        command.args(["-D", "-b", "binary", "-m", "aarch64", "--no-show-raw-insn"]).arg(file.path());
        let output = command.output().unwrap_or_else(|error| panic!("this test needs {objdump} (binutils): {error}"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (_, code) = text.trim_end().rsplit_once(":\t").expect("an instruction");
        let code = code.split("//").next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        // Of the instruction at 0 this is the next one's address.
        assert_eq!(code.replace("cbz x0, 0x4", "cbz x0, .+4"), meaning, "{word:#x}");
    }
}

/// Worked out by hand.
#[test]
fn arm_arguments_are_followed() {
    const NONE: (u32, i32) = (0, 0);
    let found = |text: &str, args| followed(Machine::Aarch64, &assembled(text), args);
    let frame =
        "stp x29, x30, [sp, #-32]!; mov x29, sp; str x19, [sp, #16]; mov x19, x0; ldr x0, [x0]; adrp x2, 0x0; ret";
    assert_eq!(found(frame, 0b11), Some((20, 32, vec![(1, 152), (1, 8), NONE, NONE, NONE, NONE])));
    let stored =
        "stp x29, x30, [sp, #-48]!; mov x29, sp; stp x0, x1, [x29, #16]; mov x0, #0x0; mov x1, #0x0; adrp x2, 0x0; ret";
    assert_eq!(found(stored, 0b11), Some((20, 48, vec![(2, 16), (2, 24), NONE, NONE, NONE, NONE])));
    let leaf = "sub sp, sp, #0x20; str x2, [sp, #8]; mov w2, #0x0; cbz x0, .+4; ret";
    assert_eq!(found(leaf, 0b100), Some((12, 32, vec![NONE, NONE, (2, 8), NONE, NONE, NONE])));
    // Half of it; out of a frame; where others see it.
    assert_eq!(found("mov w19, w0; mov w0, #0x0; adrp x2, 0x0; ret", 1), None);
    assert_eq!(found("stur x0, [sp, #-16]; mov x0, #0x0; adrp x2, 0x0; ret", 1), None);
    assert_eq!(found("mov x19, x0; str x0, [x1]; mov x0, #0x0; adrp x2, 0x0; ret", 1), None);
    // An overwritten word of the frame.
    let lost = "sub sp, sp, #0x20; str x2, [sp, #8]; str w1, [sp, #12]; mov w2, #0x0; cbz x0, .+4; ret";
    assert_eq!(found(lost, 0b100), None);
}
