//! One small program per row, for kernels without attach cookies (before 5.15): there the program itself has
//! to know its row. All of them share one body.

use core::ffi::c_void;

use crate::probes::{enter, leave};

macro_rules! slots {
    ($($enter:ident, $leave:ident = $row:literal;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(link_section = "uprobe")]
        fn $enter(ctx: *mut c_void) -> u32 {
            enter(ctx, $row)
        }

        #[unsafe(no_mangle)]
        #[unsafe(link_section = "uretprobe")]
        fn $leave(ctx: *mut c_void) -> u32 {
            leave(ctx, $row)
        }
    )*};
}

// Row 0 is "none": its pair is never attached and keeps the numbering plain.
slots! {
    enter_00, leave_00 = 0;
    enter_01, leave_01 = 1;
    enter_02, leave_02 = 2;
    enter_03, leave_03 = 3;
    enter_04, leave_04 = 4;
    enter_05, leave_05 = 5;
    enter_06, leave_06 = 6;
    enter_07, leave_07 = 7;
    enter_08, leave_08 = 8;
    enter_09, leave_09 = 9;
    enter_10, leave_10 = 10;
    enter_11, leave_11 = 11;
    enter_12, leave_12 = 12;
    enter_13, leave_13 = 13;
    enter_14, leave_14 = 14;
    enter_15, leave_15 = 15;
    enter_16, leave_16 = 16;
    enter_17, leave_17 = 17;
    enter_18, leave_18 = 18;
    enter_19, leave_19 = 19;
    enter_20, leave_20 = 20;
    enter_21, leave_21 = 21;
    enter_22, leave_22 = 22;
    enter_23, leave_23 = 23;
    enter_24, leave_24 = 24;
    enter_25, leave_25 = 25;
    enter_26, leave_26 = 26;
    enter_27, leave_27 = 27;
    enter_28, leave_28 = 28;
    enter_29, leave_29 = 29;
    enter_30, leave_30 = 30;
    enter_31, leave_31 = 31;
    enter_32, leave_32 = 32;
    enter_33, leave_33 = 33;
    enter_34, leave_34 = 34;
    enter_35, leave_35 = 35;
    enter_36, leave_36 = 36;
    enter_37, leave_37 = 37;
    enter_38, leave_38 = 38;
    enter_39, leave_39 = 39;
    enter_40, leave_40 = 40;
    enter_41, leave_41 = 41;
    enter_42, leave_42 = 42;
    enter_43, leave_43 = 43;
    enter_44, leave_44 = 44;
    enter_45, leave_45 = 45;
    enter_46, leave_46 = 46;
    enter_47, leave_47 = 47;
    enter_48, leave_48 = 48;
    enter_49, leave_49 = 49;
    enter_50, leave_50 = 50;
    enter_51, leave_51 = 51;
    enter_52, leave_52 = 52;
    enter_53, leave_53 = 53;
    enter_54, leave_54 = 54;
    enter_55, leave_55 = 55;
    enter_56, leave_56 = 56;
    enter_57, leave_57 = 57;
    enter_58, leave_58 = 58;
    enter_59, leave_59 = 59;
    enter_60, leave_60 = 60;
    enter_61, leave_61 = 61;
    enter_62, leave_62 = 62;
    enter_63, leave_63 = 63;
}
