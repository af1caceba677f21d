//! Checks a `memscope_dump_*.csv` (contract §3).

use super::{COLUMNS, Cells, RowChecker, Violation};

/// What may differ between files that are right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CsvRules {
    /// Rows with a device are in time order. Ours are; the reference's are not.
    pub time_ordered: bool,
    /// The reference's offline analysis rewrote the file with a CSV library: lines end in CR LF, and names of marks
    /// have lost their quotes.
    pub rewritten: bool,
    /// Pools of the program's or the user's own, which are Event Types of blocks.
    pub pools: &'static [&'static str],
}

/// A cell as it stands in the file.
#[derive(Debug, Default)]
struct RawCell {
    text: String,
    quoted: bool,
}

/// Checks a whole file.
#[must_use]
pub fn check(bytes: &[u8], rules: CsvRules) -> Vec<Violation> {
    let mut checker = RowChecker { time_ordered: rules.time_ordered, pools: rules.pools, ..RowChecker::default() };
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            checker.complain(0, format!("file is no UTF-8: `{error}`"));
            return checker.violations;
        }
    };
    let unified = if rules.rewritten { text.replace("\r\n", "\n") } else { text.to_owned() };
    let text = unified.as_str();
    let header = COLUMNS.join(",") + "\n";
    let Some(body) = text.strip_prefix(&header) else {
        checker.complain(1, format!("header: `{}`", text.lines().next().unwrap_or_default()));
        return checker.violations;
    };
    if !text.ends_with('\n') {
        checker.complain(0, "file does not end in a newline");
    }
    if text.contains('\r') {
        checker.complain(0, "file has carriage returns");
    }
    let mut place = 2;
    let mut rest = body;
    while !rest.is_empty() {
        match split_row(rest) {
            Ok((raw, tail)) => {
                row(&mut checker, place, &raw, rules);
                place += rest[..rest.len() - tail.len()].matches('\n').count() as u64;
                rest = tail;
            }
            Err(problem) => {
                checker.complain(place, problem);
                break;
            }
        }
    }
    checker.violations
}

fn row(checker: &mut RowChecker, place: u64, raw: &[RawCell], rules: CsvRules) {
    let [id, event, event_type, name, time, pid, tid, device, ptr, attr, python, native] = raw else {
        return checker.complain(place, format!("row has {} cells, not 12", raw.len()));
    };
    for cell in [id, event, event_type, time, pid, tid, device, ptr] {
        if cell.quoted {
            checker.complain(place, format!("cell is quoted: `{}`", cell.text));
        }
    }
    if name.quoted && event.text != "MSTX" && !name.text.contains([',', '"']) {
        checker.complain(place, format!("Name is quoted: `{}`", name.text));
    }
    let pairs = attr_pairs(attr).unwrap_or_else(|problem| {
        checker.complain(place, problem);
        Vec::new()
    });
    let requoted = |cell: &RawCell| if cell.quoted { format!("\"{}\"", cell.text) } else { cell.text.clone() };
    checker.row(&Cells {
        place,
        id: id.text.clone(),
        event: event.text.clone(),
        event_type: event_type.text.clone(),
        name: name.text.clone(),
        name_quoted: name.quoted || rules.rewritten,
        time: time.text.clone(),
        pid: pid.text.clone(),
        tid: tid.text.clone(),
        device: device.text.clone(),
        ptr: ptr.text.clone(),
        attr: pairs,
        stacks: [requoted(python), requoted(native)],
    });
}

/// `"{k:v,k:v}"`: a value runs to the last comma before the next colon.
fn attr_pairs(cell: &RawCell) -> Result<Vec<(String, String)>, String> {
    if cell.text.is_empty() && !cell.quoted {
        return Ok(Vec::new());
    }
    let bad = || format!("Attr syntax: `{}`", cell.text);
    let inner = cell.text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).filter(|_| cell.quoted);
    let mut parts = inner.ok_or_else(bad)?.split(':');
    let mut key = parts.next().filter(|key| is_key(key)).ok_or_else(bad)?;
    let mut pairs = Vec::new();
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            pairs.push((key.to_owned(), part.to_owned()));
            return Ok(pairs);
        }
        let (value, next) = part.rsplit_once(',').ok_or_else(bad)?;
        pairs.push((key.to_owned(), value.to_owned()));
        key = Some(next).filter(|key| is_key(key)).ok_or_else(bad)?;
    }
    Err(bad())
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Takes one row off the front (RFC 4180: a quote inside a quoted cell is doubled).
fn split_row(text: &str) -> Result<(Vec<RawCell>, &str), String> {
    let mut cells = Vec::new();
    let mut rest = text;
    loop {
        let (cell, tail) = split_cell(rest)?;
        cells.push(cell);
        match tail.chars().next() {
            Some(',') => rest = &tail[1..],
            Some('\n') => return Ok((cells, &tail[1..])),
            None => return Ok((cells, tail)),
            Some(other) => return Err(format!("text after a closing quote: `{other}`")),
        }
    }
}

fn split_cell(text: &str) -> Result<(RawCell, &str), String> {
    let Some(mut rest) = text.strip_prefix('"') else {
        let (cell, tail) = text.split_at(text.find([',', '\n']).unwrap_or(text.len()));
        if cell.contains('"') {
            return Err(format!("quote in a bare cell: `{cell}`"));
        }
        return Ok((RawCell { text: cell.to_owned(), quoted: false }, tail));
    };
    let mut cell = RawCell { text: String::new(), quoted: true };
    loop {
        let (part, tail) = rest.split_once('"').ok_or("quote is never closed")?;
        cell.text.push_str(part);
        match tail.strip_prefix('"') {
            Some(more) => {
                cell.text.push('"');
                rest = more;
            }
            None => return Ok((cell, tail)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)
1,MSTX,Range_start,\"step, \"\"1\"\"\",10,7,8,0,N/A,,,
2,MALLOC,HAL,N/A,11,7,8,0,0x00000000000000a0,\"{allocation_id:1,addr:0x00000000000000a0,size:5,used:5,page_type:normal,alloc_type:alloc}\",,\"f(x) [0x1]
g [0x2]
\"
3,KERNEL_LAUNCH,KERNEL_LAUNCH,Add,12,7,8,0,N/A,\"{streamId:2,taskId:N/A}\",,
4,FREE,HAL,N/A,13,7,8,0,0x00000000000000a0,\"{allocation_id:1,addr:0x00000000000000a0,size:5,shadow:true}\",,
5,MALLOC,HOST,N/A,14,7,8,cpu,0x00000000000000b0,\"{allocation_id:2,addr:0x00000000000000b0,size:5,pinned:true,used:5}\",\"NA\",
6,MALLOC,PTA,N/A,15,7,8,0,0x00000000000000c0,\"{allocation_id:3,addr:0x00000000000000c0,size:5,used:5,total:9,inefficient_type:a,b}\",,
8,BLOCK_FREE,PTA,N/A,15,7,8,0,0x00000000000000d0,\"{allocation_id:0,addr:0x00000000000000d0,size:5,used:5,total:9,active:6}\",,
7,MSTX,Range_end,\"Range end from id 1\",16,7,8,0,N/A,,,
0,SYSTEM,ACL_INIT,N/A,9,7,8,N/A,N/A,,,
";

    const ORDERED: CsvRules = CsvRules { time_ordered: true, rewritten: false, pools: &[] };

    /// Each kind of row that is right passes.
    #[test]
    fn right_rows_pass() {
        assert_eq!(check(GOOD.as_bytes(), ORDERED), []);
    }

    /// Every rule rejects a file that breaks it, and only it.
    #[test]
    fn every_rule_can_fail() {
        let cases = [
            ("ID,Event,", "Id,Event,", "header"),
            ("0,SYSTEM,ACL_INIT,N/A,9,7,8,N/A,N/A,,,\n", "0,SYSTEM,ACL_INIT,N/A,9,7,8,N/A,N/A,,,", "file does not end"),
            ("ACL_INIT,N/A,9,7,8,N/A,N/A,,,\n", "ACL_INIT,N/A,9,7,8,N/A,N/A,,\n", "row has 11 cells"),
            ("ACL_INIT,N/A,9,7,8,N/A,N/A,,,\n", "ACL_INIT,N/A,9,7,8,N/A,N/A,,,,\n", "row has 13 cells"),
            ("1\"\"\",10", "1\"\"\"x,10", "text after a closing quote"),
            ("Add,12", "A\"dd,12", "quote in a bare cell"),
            ("from id 1\",16", "from id 1,16", "quote is never closed"),
            ("Add,12", "\"Add\",12", "Name is quoted"),
            ("\n7,MSTX", "\n\"7\",MSTX", "cell is quoted"),
            ("0,SYSTEM", "0,SISTEM", "unknown Event"),
            ("ACL_INIT", "ACL_EXIT", "unknown Event Type"),
            ("\n7,MSTX", "\n07,MSTX", "ID is no number"),
            ("\n7,MSTX", "\n1,MSTX", "ID used twice"),
            (",16,7,8,", ",16,-7,8,", "Process Id"),
            (",16,7,8,", ",16,7,,", "Thread Id"),
            (",16,7,8,", ",0,7,8,", "Timestamp is no positive"),
            (",16,7,8,", ",9223372036854775808,7,8,", "Timestamp is no positive"),
            (",16,7,8,", ",14,7,8,", "Timestamp runs backwards"),
            ("Add,12", "A\u{1b}dd,12", "Name has control characters"),
            ("Add,12", ",12", "Name is empty"),
            ("\"Range end from id 1\"", "Range end from id 1", "Name of a mark is not quoted"),
            ("\"Range end from id 1\"", "\"Range end from id x\"", "Name of a range end"),
            ("HAL,N/A,13", "HAL,x,13", "Name of a block"),
            ("ACL_INIT,N/A,9", "ACL_INIT,x,9", "Name of a system row"),
            ("13,7,8,0,", "13,7,8,N/A,", "Device Id"),
            ("14,7,8,cpu,", "14,7,8,0,", "Device Id"),
            ("12,7,8,0,N/A", "12,7,8,npu0,N/A", "Device Id"),
            ("12,7,8,0,N/A", "12,7,8,0,0x0000000000000001", "Ptr"),
            ("{streamId:2,taskId:N/A}", "{streamId:2 taskId:N/A}", "Attr syntax"),
            ("\"{streamId:2,taskId:N/A}\"", "", "Attr misses a key"),
            ("{streamId:2,taskId:N/A}", "{taskId:1,streamId:2}", "Attr misses a key"),
            ("{streamId:2,taskId:N/A}", "{streamId:0x2,taskId:N/A}", "Attr value of `streamId`"),
            ("{streamId:2,taskId:N/A}", "{streamId:2,taskId:N/A,x:1}", "Attr has a key too many"),
            ("size:5,shadow:true", "size:5,shadow:false", "Attr value of `shadow`"),
            ("alloc_type:alloc", "alloc_type:map", "Attr value of `alloc_type`"),
            ("inefficient_type:a,b", "inefficient_type:a\"\"b", "Attr value has a colon or a quote"),
            ("0,0x00000000000000c0", "0,0x00000000000000C0", "Ptr"),
            ("0,0x00000000000000c0", "0,0x00000000000000c1", "Attr addr is not Ptr"),
            ("8,BLOCK_FREE,PTA", "8,BLOCK_FREE,HAL", "unknown Event Type"),
            ("BLOCK_FREE,PTA,N/A", "BLOCK_FREE,PTA,x", "Name of a block"),
            ("0,0x00000000000000d0", "N/A,0x00000000000000d0", "Device Id"),
            (",active:6", "", "Attr misses a key"),
            ("0,0x00000000000000d0", "0,0x00000000000000d1", "Attr addr is not Ptr"),
            ("g [0x2]\n\"", "g [0x2]\"", "Call Stack"),
            ("\"NA\"", "NA", "Call Stack"),
            ("size:5,shadow:true", "size:6,shadow:true", "MALLOC and FREE of a block differ"),
            ("\n4,FREE", "\n4,MALLOC", "block has two rows"),
            ("7,8,N/A,N/A,,,\n", "7,8,N/A,N/A,,,\r\n", "file has carriage returns"),
        ];
        for (from, to, rule) in cases {
            assert_eq!(GOOD.matches(from).count(), 1, "`{from}` is not one place");
            let found = check(GOOD.replacen(from, to, 1).as_bytes(), ORDERED);
            assert!(found.iter().any(|violation| violation.text.starts_with(rule)), "{rule}: {found:?}");
        }
        let found = check(b"\xff", ORDERED);
        assert!(found[0].text.starts_with("file is no UTF-8"));
    }

    /// Rewritten files differ in two ways, and in no other.
    #[test]
    fn rewritten_files_pass_as_such() {
        let rewritten = GOOD.replace("\"Range end from id 1\"", "Range end from id 1").replace('\n', "\r\n");
        let rules = CsvRules { rewritten: true, ..ORDERED };
        assert_eq!(check(rewritten.as_bytes(), rules), []);
        assert!(!check(rewritten.as_bytes(), ORDERED).is_empty());
        assert!(!check(rewritten.replace("id 1", "id x").as_bytes(), rules).is_empty());
    }

    /// A violation names the line where its row begins, after cells of several lines too.
    #[test]
    fn lines_are_counted() {
        let found = check(GOOD.replace("Add,12", ",12").as_bytes(), ORDERED);
        assert_eq!(found, [Violation { place: 6, text: "Name is empty: ``".into() }]);
    }

    /// Time order is only asked for where it is promised.
    #[test]
    fn order_is_optional() {
        let backwards = GOOD.replace(",16,7,8,", ",14,7,8,");
        assert_eq!(check(backwards.as_bytes(), CsvRules::default()), []);
    }
}
