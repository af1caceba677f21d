//! Stacks as flame-graph tools read them: one line for each, outermost frame first, `;` between frames, then a blank and
//! a weight.
//!
//! The outermost frame is the pool and its device, since the driver's blocks contain the blocks of pools: each is a
//! tower of its own, and their sum means nothing. With several processes, the process comes before it. Frames are named
//! so that calls of one function merge: native ones without offset and address, those of Python as function and file,
//! with lines on request.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::analyses::by_stack::{ByStack, StackSum};
use crate::dump_format::stack_cell::last_line;
use crate::dump_format::text::push_text;
use crate::model::{Device, Stack, Stacks};
use crate::text::frame::Frame;

/// The weight of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Bytes; otherwise blocks.
    pub bytes: bool,
    /// Blocks live at the end; otherwise all allocations.
    pub live: bool,
}

impl Weight {
    const fn of(self, sum: &StackSum) -> u64 {
        match (self.bytes, self.live) {
            (true, true) => sum.live_bytes,
            (false, true) => sum.live_blocks,
            (true, false) => sum.allocated_bytes,
            (false, false) => sum.allocations,
        }
    }
}

/// The stack of a call that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The most useful one.
    Best,
    /// The native one.
    Native,
    /// The Python stack.
    Python,
    /// Both in one; where they could not be merged, the native one.
    Mixed,
}

/// Writes all lines with a weight, in the order of their frames. Returns their number.
pub fn write(
    found: &[&ByStack],
    (which, with_lines): (Which, bool),
    weight: Weight,
    out: &mut impl Write,
) -> io::Result<usize> {
    let several = found.iter().any(|one| one.pid != found[0].pid);
    let mut lines: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    for ByStack { pid, device, pool, sums, .. } in found {
        let mut lead = Vec::new();
        if several {
            lead.extend_from_slice(format!("process {pid};").as_bytes());
        }
        push_frame(&mut lead, &format!("{}, {}", pool.display_name(), device_name(*device)));
        for sum in sums {
            let value = weight.of(sum);
            if value > 0 {
                let mut line = lead.clone();
                push_stack(&mut line, chosen(sum.stacks, which), with_lines);
                let total = lines.entry(line).or_default();
                *total = total.saturating_add(value);
            }
        }
    }
    for (line, value) in &lines {
        out.write_all(line)?;
        writeln!(out, " {value}")?;
    }
    Ok(lines.len())
}

fn device_name(device: Device) -> String {
    match device {
        Device::Npu(number) => format!("npu {number}"),
        Device::Cpu => "host".to_owned(),
        Device::None => "no device".to_owned(),
    }
}

fn chosen(stacks: Stacks, which: Which) -> Option<Stack> {
    match which {
        Which::Best => stacks.best(),
        Which::Native => stacks.native,
        Which::Python => stacks.python.filter(|stack| !stack.frames().is_empty()),
        Which::Mixed => stacks.native_or_mixed(),
    }
}

/// Appends a stack to its line, outermost frame first. A cut one begins with the reason.
fn push_stack(line: &mut Vec<u8>, stack: Option<Stack>, with_lines: bool) {
    let Some(stack) = stack else {
        line.push(b';');
        return push_frame(line, "<no stack>");
    };
    if let Some(why) = last_line(stack.end()) {
        line.push(b';');
        push_frame(line, why.trim_start_matches("... "));
    }
    for frame in stack.frames().iter().rev() {
        line.push(b';');
        push_frame(line, &short(frame, with_lines));
    }
}

/// A frame without what differs between calls of one function.
fn short(frame: &str, with_lines: bool) -> String {
    match Frame::of(frame) {
        Frame { name, file, line: line @ 1.., python: true } if with_lines => {
            format!("{name} ({}:{line})", file.rsplit('/').next().unwrap_or(file))
        }
        Frame { name, file, python: true, .. } => format!("{name} ({})", file.rsplit('/').next().unwrap_or(file)),
        Frame { name, file, .. } if name.starts_with("+0x") => format!("{file}{name}"),
        Frame { name, .. } => name.to_owned(),
    }
}

/// Appends a frame; what separates frames and lines is replaced or escaped.
fn push_frame(line: &mut Vec<u8>, frame: &str) {
    push_text(line, &frame.replace(';', ":"), false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::ascend::pools;
    use crate::model::StackEnd;

    fn sum(native: &[&'static str], python: &[&'static str], live: (u64, u64), all: (u64, u64)) -> StackSum {
        let stack =
            |frames: &[&'static str]| (!frames.is_empty()).then(|| Stack::keep(frames.iter().copied(), StackEnd::Root));
        StackSum {
            stacks: Stacks { native: stack(native), python: stack(python), mixed: None },
            live_blocks: live.0,
            live_bytes: live.1,
            allocations: all.0,
            allocated_bytes: all.1,
        }
    }

    fn text(found: &[&ByStack], which: Which, weight: Weight) -> String {
        let mut text = Vec::new();
        write(found, (which, false), weight, &mut text).expect("written");
        String::from_utf8(text).expect("text")
    }

    const LIVE: Weight = Weight { bytes: true, live: true };

    /// Two places of one function merge; a group without weight has no line.
    #[test]
    fn lines_of_one_process() {
        let sums = vec![
            sum(&["halMemAlloc", "app(f(int, char*)+0x10) [0x1010]", "app(+0x20) [0x1020]"], &[], (1, 100), (2, 200)),
            sum(&["halMemAlloc", "app(f(int, char*)+0x18) [0x1018]", "app(+0x20) [0x1020]"], &[], (2, 50), (2, 50)),
            sum(&["halMemAlloc", "[0x99]"], &["/x/a.py(7): C.f", "b;c.py(1): <module>"], (0, 0), (1, 8)),
            sum(&[], &[], (1, 1), (1, 1)),
        ];
        let found = ByStack { pid: 5, device: Device::Npu(0), pool: pools::HAL, sums, found: Vec::new(), left_out: 0 };
        let f = "Hal memory, npu 0;app+0x20;f(int, char*);halMemAlloc";
        let none = "Hal memory, npu 0;<no stack>";
        assert_eq!(text(&[&found], Which::Best, LIVE), format!("{none} 1\n{f} 150\n"));
        let all = Weight { live: false, ..LIVE };
        let python = "Hal memory, npu 0;<module> (b:c.py);C.f (a.py)";
        assert_eq!(text(&[&found], Which::Best, all), format!("{python} 8\n{none} 1\n{f} 250\n"));
        let count = Weight { bytes: false, live: false };
        assert_eq!(
            text(&[&found], Which::Native, count),
            format!("{none} 1\nHal memory, npu 0;[0x99];halMemAlloc 1\n{f} 4\n")
        );
    }

    /// With lines two places of one Python function are apart.
    #[test]
    fn lines_of_functions() {
        let sums = vec![
            sum(&[], &["/x/a.py(7): C.f", "b.py(1): g"], (1, 10), (1, 10)),
            sum(&[], &["/x/a.py(9): C.f", "b.py(1): g"], (1, 30), (1, 30)),
        ];
        let found = ByStack { pid: 5, device: Device::Npu(0), pool: pools::PTA, sums, found: Vec::new(), left_out: 0 };
        let mut out = Vec::new();
        write(&[&found], (Which::Best, true), LIVE, &mut out).expect("written");
        let lead = format!("{}, npu 0;g (b.py:1);C.f (a.py", pools::PTA.display_name());
        assert_eq!(String::from_utf8(out).expect("text"), format!("{lead}:7) 10\n{lead}:9) 30\n"));
        assert_eq!(text(&[&found], Which::Best, LIVE).lines().count(), 1);
    }

    /// Several processes are separate, and so are cut stacks; however a program names its functions, a line stays one.
    #[test]
    fn lines_of_several_processes() {
        let place = Stacks { native: Some(Stack::keep(["a\nb;c 7"], StackEnd::Fault)), ..Stacks::default() };
        let one = |pid| ByStack {
            pid,
            device: Device::Cpu,
            pool: pools::HOST,
            sums: vec![StackSum { stacks: place, live_blocks: 1, live_bytes: pid.into(), ..StackSum::default() }],
            found: Vec::new(),
            left_out: 0,
        };
        let tower = "Host memory, host;[truncated: memory of the program could not be read];a\\nb:c 7";
        assert_eq!(text(&[&one(5), &one(6)], Which::Best, LIVE), format!("process 5;{tower} 5\nprocess 6;{tower} 6\n"));
        assert_eq!(text(&[], Which::Best, LIVE), "");
    }

    #[test]
    fn frames_are_shortened() {
        let cases = [
            ("libc.so.6(qsort+0x1f) [0x7f12]", "qsort"),
            ("app(operator()(int)+0x4) [0x1] at a.cpp:7", "operator()(int)"),
            ("app(size) [inlined] at a.cpp:7", "size"),
            ("[vdso](+0x5) [0x1]", "[vdso]+0x5"),
            ("halMemAlloc", "halMemAlloc"),
            ("<lost>", "<lost>"),
            ("/usr/lib/x (y)/a.py(12): f.<locals>.<lambda>", "f.<locals>.<lambda> (a.py)"),
        ];
        for (frame, name) in cases {
            assert_eq!(short(frame, false), name);
        }
    }
}
