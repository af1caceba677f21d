//! A made-up training as a dump: 24 weights, six steps with activations, and a metric that keeps a block in each.

use std::fmt::Write as _;

const HOSTILE: [&str; 9] = [
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=alert(1)>",
    "'><svg/onload=alert(1)>",
    "{{data}}{{script}}",
    "\u{202e}gnp.exe",
    "${alert(1)}",
    "javascript:alert(1)",
    "\u{1b}[2J\u{200b}",
    "__proto__",
];

struct Dump {
    text: String,
    rows: u64,
    time_ns: u64,
    used: [u64; 2],
    hostile: bool,
}

/// The rows.
pub(crate) fn dump(hostile: bool) -> String {
    let head = "ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)\n";
    let mut dump = Dump { text: head.to_owned(), rows: 0, time_ns: 1_700_000_000_000_000_000, used: [0; 2], hostile };
    for segment in 0..4_u64 {
        dump.block("MALLOC", "HAL", (1 + segment, BASE + (segment << 24), 16 << 20), "segment");
    }
    for weight in 0..24_u64 {
        dump.block("MALLOC", "PTA", (100 + weight, BASE + (weight << 20), 1 << 20), "Model.__init__");
    }
    for step in 1..=6_u64 {
        dump.row(&format!("MSTX,Range_start,{}", dump.mark("step start", 0)), "N/A", "", "");
        dump.row(&format!("MSTX,Mark,{}", dump.mark("batch", step)), "N/A", "", "");
        let activation = (200 + step, BASE + (26 << 20), 4 << 20);
        dump.block("MALLOC", "PTA", activation, "Block.forward");
        dump.block("FREE", "PTA", activation, "");
        dump.block("MALLOC", "PTA", (300 + step, BASE + (40 << 20) + (step << 18), 1 << 18), "Metrics.update");
        dump.row(&format!("MSTX,Range_end,\"Range end from id {step}\""), "N/A", "", "");
    }
    dump.text
}

const BASE: u64 = 0x1200_0000_0000;

impl Dump {
    fn bad(&self) -> &'static str {
        HOSTILE[self.rows as usize % HOSTILE.len()]
    }

    /// Steps keep their text: without it they are none.
    fn mark(&self, text: &str, step: u64) -> String {
        if self.hostile && step > 0 { quoted(self.bad()) } else { quoted(text) }
    }

    fn block(&mut self, event: &str, pool: &str, (id, addr, size): (u64, u64, u64), function: &str) {
        let used = &mut self.used[usize::from(pool == "PTA")];
        *used = if event == "MALLOC" { *used + size } else { *used - size };
        let mut attr = format!("{{allocation_id:{id},addr:0x{addr:016x},size:{size},used:{used}");
        if pool == "PTA" {
            let _ = write!(attr, ",total:{}", self.used[0]);
        }
        attr.push('}');
        let mut stack = format!("/srv/model.py(7): {function}\n/srv/train.py(3): <module>");
        if self.hostile {
            let bad = self.bad();
            stack = format!("/{bad}/x.py(3): {bad}\n{bad}\n{stack}");
        }
        let stack = if event == "MALLOC" { stack } else { String::new() };
        self.row(&format!("{event},{pool},N/A"), &format!("0x{addr:016x}"), &attr, &stack);
    }

    fn row(&mut self, what: &str, addr: &str, attr: &str, stack: &str) {
        self.time_ns += 1_000_000;
        let (id, time_ns) = (self.rows, self.time_ns);
        let _ = writeln!(self.text, "{id},{what},{time_ns},4242,4242,0,{addr},{},{},", quoted(attr), quoted(stack));
        self.rows += 1;
    }
}

fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("\"{}\"", text.replace('"', "\"\"")) }
}
