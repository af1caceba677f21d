//! One small program per row, for kernels without attach cookies (before 5.15): there the program itself has
//! to know its row. It leaves its number behind and jumps to the program that does the work, which is verified once.
//! User space loads those that it attaches.

use core::ffi::c_void;

use aya_ebpf::{
    helpers::generated::bpf_get_current_pid_tgid,
    macros::map,
    maps::{PerCpuArray, ProgramArray},
    programs::ProbeContext,
};
use memscope_common::{
    Miss,
    row::{JUMP_ENTER, JUMP_LEAVE, JUMP_LEAVE_OWN, JUMPS as JUMP_COUNT, SLOTS},
};

use crate::misses::count;

/// The programs that do the work, by `JUMP_*`.
#[map]
static JUMPS: ProgramArray = ProgramArray::with_max_entries(JUMP_COUNT, 0);

/// The jump that is being made on a CPU.
#[map]
static JUMPER: PerCpuArray<Jumper> = PerCpuArray::with_max_entries(1, 0);

#[repr(C)]
#[derive(Clone, Copy)]
struct Jumper {
    /// `pid_tgid`.
    thread: u64,
    row: u64,
}

/// Jumps; does not come back if there is something to jump to.
#[inline(always)]
fn jump(ctx: *mut c_void, to: u32, row: u16) -> u32 {
    if let Some(jumper) = JUMPER.get_ptr_mut(0) {
        // SAFETY: a helper without arguments; a live map value.
        unsafe { *jumper = Jumper { thread: bpf_get_current_pid_tgid(), row: row.into() } };
        // SAFETY: the program's own context, and a map of programs.
        unsafe { JUMPS.tail_call(&ProbeContext::new(ctx), to) };
    }
    count(row, Miss::UnknownRow);
    0
}

/// Row of the probe that has jumped here. 0 is none: another thread has jumped on this CPU in the meantime, which it cannot
/// do on kernels that need these programs.
#[inline(always)]
pub(crate) fn jumper() -> u32 {
    match JUMPER.get(0) {
        // SAFETY: a helper without arguments.
        Some(Jumper { thread, row }) if *thread == unsafe { bpf_get_current_pid_tgid() } => *row as u32,
        _ => 0,
    }
}

macro_rules! slots {
    ($($enter:ident, $leave:ident, $leave_own:ident = $row:literal;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[unsafe(link_section = "uprobe")]
            fn $enter(ctx: *mut c_void) -> u32 {
                jump(ctx, JUMP_ENTER, $row)
            }

            #[unsafe(no_mangle)]
            #[unsafe(link_section = "uretprobe")]
            fn $leave(ctx: *mut c_void) -> u32 {
                jump(ctx, JUMP_LEAVE, $row)
            }

            #[unsafe(no_mangle)]
            #[unsafe(link_section = "uprobe")]
            fn $leave_own(ctx: *mut c_void) -> u32 {
                jump(ctx, JUMP_LEAVE_OWN, $row)
            }
        )*

        const ROWS: &[u16] = &[$($row),*];
    };
}

const _: () = assert!(ROWS.len() == SLOTS as usize);

// Row 0 is "none": its pair is never attached and keeps the numbering plain.
slots! {
    enter_000, leave_000, leave_own_000 = 0;
    enter_001, leave_001, leave_own_001 = 1;
    enter_002, leave_002, leave_own_002 = 2;
    enter_003, leave_003, leave_own_003 = 3;
    enter_004, leave_004, leave_own_004 = 4;
    enter_005, leave_005, leave_own_005 = 5;
    enter_006, leave_006, leave_own_006 = 6;
    enter_007, leave_007, leave_own_007 = 7;
    enter_008, leave_008, leave_own_008 = 8;
    enter_009, leave_009, leave_own_009 = 9;
    enter_010, leave_010, leave_own_010 = 10;
    enter_011, leave_011, leave_own_011 = 11;
    enter_012, leave_012, leave_own_012 = 12;
    enter_013, leave_013, leave_own_013 = 13;
    enter_014, leave_014, leave_own_014 = 14;
    enter_015, leave_015, leave_own_015 = 15;
    enter_016, leave_016, leave_own_016 = 16;
    enter_017, leave_017, leave_own_017 = 17;
    enter_018, leave_018, leave_own_018 = 18;
    enter_019, leave_019, leave_own_019 = 19;
    enter_020, leave_020, leave_own_020 = 20;
    enter_021, leave_021, leave_own_021 = 21;
    enter_022, leave_022, leave_own_022 = 22;
    enter_023, leave_023, leave_own_023 = 23;
    enter_024, leave_024, leave_own_024 = 24;
    enter_025, leave_025, leave_own_025 = 25;
    enter_026, leave_026, leave_own_026 = 26;
    enter_027, leave_027, leave_own_027 = 27;
    enter_028, leave_028, leave_own_028 = 28;
    enter_029, leave_029, leave_own_029 = 29;
    enter_030, leave_030, leave_own_030 = 30;
    enter_031, leave_031, leave_own_031 = 31;
    enter_032, leave_032, leave_own_032 = 32;
    enter_033, leave_033, leave_own_033 = 33;
    enter_034, leave_034, leave_own_034 = 34;
    enter_035, leave_035, leave_own_035 = 35;
    enter_036, leave_036, leave_own_036 = 36;
    enter_037, leave_037, leave_own_037 = 37;
    enter_038, leave_038, leave_own_038 = 38;
    enter_039, leave_039, leave_own_039 = 39;
    enter_040, leave_040, leave_own_040 = 40;
    enter_041, leave_041, leave_own_041 = 41;
    enter_042, leave_042, leave_own_042 = 42;
    enter_043, leave_043, leave_own_043 = 43;
    enter_044, leave_044, leave_own_044 = 44;
    enter_045, leave_045, leave_own_045 = 45;
    enter_046, leave_046, leave_own_046 = 46;
    enter_047, leave_047, leave_own_047 = 47;
    enter_048, leave_048, leave_own_048 = 48;
    enter_049, leave_049, leave_own_049 = 49;
    enter_050, leave_050, leave_own_050 = 50;
    enter_051, leave_051, leave_own_051 = 51;
    enter_052, leave_052, leave_own_052 = 52;
    enter_053, leave_053, leave_own_053 = 53;
    enter_054, leave_054, leave_own_054 = 54;
    enter_055, leave_055, leave_own_055 = 55;
    enter_056, leave_056, leave_own_056 = 56;
    enter_057, leave_057, leave_own_057 = 57;
    enter_058, leave_058, leave_own_058 = 58;
    enter_059, leave_059, leave_own_059 = 59;
    enter_060, leave_060, leave_own_060 = 60;
    enter_061, leave_061, leave_own_061 = 61;
    enter_062, leave_062, leave_own_062 = 62;
    enter_063, leave_063, leave_own_063 = 63;
    enter_064, leave_064, leave_own_064 = 64;
    enter_065, leave_065, leave_own_065 = 65;
    enter_066, leave_066, leave_own_066 = 66;
    enter_067, leave_067, leave_own_067 = 67;
    enter_068, leave_068, leave_own_068 = 68;
    enter_069, leave_069, leave_own_069 = 69;
    enter_070, leave_070, leave_own_070 = 70;
    enter_071, leave_071, leave_own_071 = 71;
    enter_072, leave_072, leave_own_072 = 72;
    enter_073, leave_073, leave_own_073 = 73;
    enter_074, leave_074, leave_own_074 = 74;
    enter_075, leave_075, leave_own_075 = 75;
    enter_076, leave_076, leave_own_076 = 76;
    enter_077, leave_077, leave_own_077 = 77;
    enter_078, leave_078, leave_own_078 = 78;
    enter_079, leave_079, leave_own_079 = 79;
    enter_080, leave_080, leave_own_080 = 80;
    enter_081, leave_081, leave_own_081 = 81;
    enter_082, leave_082, leave_own_082 = 82;
    enter_083, leave_083, leave_own_083 = 83;
    enter_084, leave_084, leave_own_084 = 84;
    enter_085, leave_085, leave_own_085 = 85;
    enter_086, leave_086, leave_own_086 = 86;
    enter_087, leave_087, leave_own_087 = 87;
    enter_088, leave_088, leave_own_088 = 88;
    enter_089, leave_089, leave_own_089 = 89;
    enter_090, leave_090, leave_own_090 = 90;
    enter_091, leave_091, leave_own_091 = 91;
    enter_092, leave_092, leave_own_092 = 92;
    enter_093, leave_093, leave_own_093 = 93;
    enter_094, leave_094, leave_own_094 = 94;
    enter_095, leave_095, leave_own_095 = 95;
    enter_096, leave_096, leave_own_096 = 96;
    enter_097, leave_097, leave_own_097 = 97;
    enter_098, leave_098, leave_own_098 = 98;
    enter_099, leave_099, leave_own_099 = 99;
    enter_100, leave_100, leave_own_100 = 100;
    enter_101, leave_101, leave_own_101 = 101;
    enter_102, leave_102, leave_own_102 = 102;
    enter_103, leave_103, leave_own_103 = 103;
    enter_104, leave_104, leave_own_104 = 104;
    enter_105, leave_105, leave_own_105 = 105;
    enter_106, leave_106, leave_own_106 = 106;
    enter_107, leave_107, leave_own_107 = 107;
    enter_108, leave_108, leave_own_108 = 108;
    enter_109, leave_109, leave_own_109 = 109;
    enter_110, leave_110, leave_own_110 = 110;
    enter_111, leave_111, leave_own_111 = 111;
    enter_112, leave_112, leave_own_112 = 112;
    enter_113, leave_113, leave_own_113 = 113;
    enter_114, leave_114, leave_own_114 = 114;
    enter_115, leave_115, leave_own_115 = 115;
    enter_116, leave_116, leave_own_116 = 116;
    enter_117, leave_117, leave_own_117 = 117;
    enter_118, leave_118, leave_own_118 = 118;
    enter_119, leave_119, leave_own_119 = 119;
    enter_120, leave_120, leave_own_120 = 120;
    enter_121, leave_121, leave_own_121 = 121;
    enter_122, leave_122, leave_own_122 = 122;
    enter_123, leave_123, leave_own_123 = 123;
    enter_124, leave_124, leave_own_124 = 124;
    enter_125, leave_125, leave_own_125 = 125;
    enter_126, leave_126, leave_own_126 = 126;
    enter_127, leave_127, leave_own_127 = 127;
    enter_128, leave_128, leave_own_128 = 128;
    enter_129, leave_129, leave_own_129 = 129;
    enter_130, leave_130, leave_own_130 = 130;
    enter_131, leave_131, leave_own_131 = 131;
    enter_132, leave_132, leave_own_132 = 132;
    enter_133, leave_133, leave_own_133 = 133;
    enter_134, leave_134, leave_own_134 = 134;
    enter_135, leave_135, leave_own_135 = 135;
    enter_136, leave_136, leave_own_136 = 136;
    enter_137, leave_137, leave_own_137 = 137;
    enter_138, leave_138, leave_own_138 = 138;
    enter_139, leave_139, leave_own_139 = 139;
    enter_140, leave_140, leave_own_140 = 140;
    enter_141, leave_141, leave_own_141 = 141;
    enter_142, leave_142, leave_own_142 = 142;
    enter_143, leave_143, leave_own_143 = 143;
    enter_144, leave_144, leave_own_144 = 144;
    enter_145, leave_145, leave_own_145 = 145;
    enter_146, leave_146, leave_own_146 = 146;
    enter_147, leave_147, leave_own_147 = 147;
    enter_148, leave_148, leave_own_148 = 148;
    enter_149, leave_149, leave_own_149 = 149;
    enter_150, leave_150, leave_own_150 = 150;
    enter_151, leave_151, leave_own_151 = 151;
    enter_152, leave_152, leave_own_152 = 152;
    enter_153, leave_153, leave_own_153 = 153;
    enter_154, leave_154, leave_own_154 = 154;
    enter_155, leave_155, leave_own_155 = 155;
    enter_156, leave_156, leave_own_156 = 156;
    enter_157, leave_157, leave_own_157 = 157;
    enter_158, leave_158, leave_own_158 = 158;
    enter_159, leave_159, leave_own_159 = 159;
}
