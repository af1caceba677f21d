//! One row of a dump, whoever wrote it: checked, and reduced to what events need.

use super::attr::Pairs;
use crate::model::{AccessKind, AllocApi, Device, OpPhase, PageType, Pool, Stacks, module_id};
use crate::sinks::{row::unescaped, stacks::Parser};

/// What a row tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Malloc(Pool),
    Free(Pool),
    Returned(Pool),
    Access(AccessKind),
    Op(OpPhase),
    /// Whether it begins.
    AtbOp(bool),
    Launch,
    Mark,
    RangeStart,
    RangeEnd,
    AclInit,
    AclFinalize,
    Step,
    OutOfMemory,
}

/// A row. Numbers that it does not have are `None`; `name` and `detail` are texts as they were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DumpRow {
    pub(super) kind: Kind,
    pub(super) id: u64,
    pub(super) time_ns: u64,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) device: Device,
    /// File of the row, by its place among the files given.
    pub(super) file: u32,
    /// Line of the row in its file, or number of the row in its table.
    pub(super) line: u64,
    pub(super) ptr: Option<u64>,
    pub(super) allocation_id: Option<u64>,
    pub(super) size_bytes: Option<u64>,
    pub(super) used_bytes: Option<u64>,
    pub(super) total_bytes: Option<u64>,
    /// Active bytes of a pool; stream of a launch; flag word of a failed allocation.
    pub(super) number: Option<u64>,
    /// No call of the program stands behind the row.
    pub(super) shadow: bool,
    pub(super) page: PageType,
    pub(super) api: AllocApi,
    pub(super) module_id: Option<u8>,
    /// Whose a block is, as the dump says.
    pub(super) owner: String,
    /// Pool of an access.
    pub(super) pool: Pool,
    pub(super) name: String,
    /// Type of a tensor's elements; function that failed; domain of a mark; name of a pool that is none of ours.
    pub(super) word: String,
    /// Shape of a tensor.
    pub(super) format: String,
    pub(super) shape: String,
    pub(super) stacks: Stacks,
}

/// The cells of a row as text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells<'a> {
    pub(super) id: &'a str,
    pub(super) event: &'a str,
    pub(super) event_type: &'a str,
    pub(super) name: &'a str,
    pub(super) time: &'a str,
    pub(super) pid: &'a str,
    pub(super) tid: &'a str,
    pub(super) device: &'a str,
    pub(super) ptr: &'a str,
    pub(super) python: &'a str,
    pub(super) native: &'a str,
}

impl Cells<'_> {
    fn stacks(&self, parser: &mut Parser) -> Stacks {
        Stacks { native: parser.parse(self.native), python: parser.parse(self.python), mixed: None }
    }
}

/// What is wrong with a row, and in which column.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) column: &'static str,
    pub(super) what: String,
}

/// A row that was understood: a row, or a kind of row that nothing here needs (its name).
#[derive(Debug)]
pub(super) enum Understood {
    Row(Box<DumpRow>),
    Unused(String),
}

const NOT_AVAILABLE: &str = "N/A";
/// Bytes of a name that are kept.
const MAX_NAME: usize = 64 << 10;

/// Makes a row of cells. `place` is its file and line.
pub(super) fn understand(
    cells: &Cells<'_>,
    attr: &Pairs<'_>,
    place: (u32, u64),
    stacks: &mut Parser,
) -> Result<Understood, Fault> {
    // Numbers first, so that a damaged row is found even where its kind does not matter.
    let id = number("ID", cells.id)?;
    let time_ns = number("Timestamp(ns)", cells.time)?;
    let pid = process_number("Process Id", cells.pid)?;
    let tid = process_number("Thread Id", cells.tid)?;
    let device = device(cells.device)?;
    let ptr = pointer(cells.ptr)?;
    let Some(kind) = kind(cells.event, cells.event_type, attr.get("owner")) else {
        let mut name = format!("{} {}", cells.event, cells.event_type);
        name.truncate(name.floor_char_boundary(64));
        return Ok(Understood::Unused(name));
    };
    let driver = attr.get("owner").and_then(|owner| owner.strip_prefix("CANN@"));
    let owner_module = driver.and_then(|owner| owner.split('@').next()).and_then(module_id);
    let mut row = DumpRow {
        kind,
        id,
        time_ns,
        pid,
        tid,
        device,
        file: place.0,
        line: place.1,
        ptr: ptr.or(attr.address("addr")?),
        allocation_id: attr.number("allocation_id")?,
        size_bytes: attr.number("size")?,
        used_bytes: attr.number("used")?,
        total_bytes: attr.number("total")?,
        number: attr.number("active")?,
        shadow: attr.get("shadow") == Some("true"),
        page: match attr.get("page_type") {
            Some("huge") => PageType::Huge,
            Some("giant") => PageType::Giant,
            _ => PageType::Normal,
        },
        api: if attr.get("alloc_type") == Some("create") { AllocApi::Create } else { AllocApi::Alloc },
        module_id: owner_module,
        owner: attr.get("owner").unwrap_or_default().to_owned(),
        pool: attr.get("type").and_then(pool).unwrap_or(Pool::Pta),
        name: String::new(),
        word: attr.get("dtype").unwrap_or_default().to_owned(),
        format: attr.get("format").unwrap_or_default().to_owned(),
        shape: attr.get("shape").unwrap_or_default().to_owned(),
        stacks: cells.stacks(stacks),
    };
    match kind {
        Kind::Malloc(_) | Kind::Free(_) | Kind::Returned(_) if row.ptr.is_none() => {
            return Err(Fault { column: "Ptr", what: format!("a {} row needs an address", cells.event) });
        }
        Kind::Malloc(_) if row.size_bytes.is_none() => {
            return Err(Fault { column: "Attr", what: "a MALLOC row needs a `size`".to_owned() });
        }
        Kind::Launch => row.number = attr.signed("streamId").map(|id| id as u64),
        Kind::Mark | Kind::RangeStart | Kind::RangeEnd => {
            attr.get("domain").unwrap_or_default().clone_into(&mut row.word);
        }
        Kind::AtbOp(_) => {
            row.ptr = attr.get("workspace_ptr").and_then(|ptr| address("Attr", ptr).ok());
            row.size_bytes = attr.get("workspace_size").and_then(|size| size.parse().ok());
        }
        Kind::OutOfMemory => {
            row.size_bytes = attr.number("req_size")?;
            row.number = attr.number("flag")?;
            attr.get("func").unwrap_or_default().clone_into(&mut row.word);
        }
        _ => {}
    }
    if let Kind::Malloc(Pool::Named(pool)) | Kind::Free(Pool::Named(pool)) | Kind::Returned(Pool::Named(pool)) = kind {
        pool.as_str().clone_into(&mut row.word);
    }
    if !matches!(kind, Kind::Malloc(_) | Kind::Free(_) | Kind::Returned(_)) && cells.name != NOT_AVAILABLE {
        row.name = unescaped(&cells.name[..cells.name.floor_char_boundary(MAX_NAME)]);
    }
    Ok(Understood::Row(Box::new(row)))
}

fn kind(event: &str, event_type: &str, owner: Option<&str>) -> Option<Kind> {
    // msMemScope writes workspaces as PTA; the owner tells them apart, where it is known.
    let pool = |text| match pool(text) {
        Some(Pool::Pta) if owner.is_some_and(|owner| owner.starts_with("PTA_WORKSPACE")) => Some(Pool::PtaWorkspace),
        pool => pool,
    };
    Some(match (event, event_type) {
        ("MALLOC", pool_name) => Kind::Malloc(pool(pool_name)?),
        ("FREE", pool_name) => Kind::Free(pool(pool_name)?),
        ("BLOCK_FREE", pool_name) => Kind::Returned(pool(pool_name)?),
        ("ACCESS", "READ") => Kind::Access(AccessKind::Read),
        ("ACCESS", "WRITE") => Kind::Access(AccessKind::Write),
        ("ACCESS", "UNKNOWN") => Kind::Access(AccessKind::Unknown),
        ("OP_LAUNCH", "ATEN_START") => Kind::Op(OpPhase::Start),
        ("OP_LAUNCH", "ATEN_END") => Kind::Op(OpPhase::End),
        ("OP_LAUNCH", "NPU_SUBMIT") => Kind::Op(OpPhase::Submit),
        ("OP_LAUNCH", "ATB_START") => Kind::AtbOp(true),
        ("OP_LAUNCH", "ATB_END") => Kind::AtbOp(false),
        ("KERNEL_LAUNCH", "KERNEL_LAUNCH") => Kind::Launch,
        ("MSTX", "Mark") => Kind::Mark,
        ("MSTX", "Range_start") => Kind::RangeStart,
        ("MSTX", "Range_end") => Kind::RangeEnd,
        ("SYSTEM", "ACL_INIT") => Kind::AclInit,
        ("SYSTEM", "ACL_FINI") => Kind::AclFinalize,
        ("SYSTEM", "STEP") => Kind::Step,
        ("OOM_DETAIL", "OOM_TRIGGER") => Kind::OutOfMemory,
        _ => return None,
    })
}

/// The pool of an Event Type. Those that we do not know have been named by a program.
fn pool(text: &str) -> Option<Pool> {
    Some(match text {
        NOT_AVAILABLE | "" => return None,
        "HAL" => Pool::Hal,
        "HOST" | "HOST_PINNED" => Pool::Host,
        "PTA" => Pool::Pta,
        "PTA_WORKSPACE" => Pool::PtaWorkspace,
        "ATB" => Pool::Atb,
        "MINDSPORE" => Pool::MindSpore,
        other => Pool::custom(other),
    })
}

/// A decimal number, if these digits are one.
pub(super) fn plain_number(digits: &[u8]) -> Option<u64> {
    let add = |number: u64, &byte: &u8| {
        byte.is_ascii_digit().then(|| number.checked_mul(10)?.checked_add(u64::from(byte - b'0'))).flatten()
    };
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

/// A strict decimal number.
pub(super) fn number(column: &'static str, text: &str) -> Result<u64, Fault> {
    plain_number(text.as_bytes()).ok_or_else(|| not(column, text, "a decimal number"))
}

/// `N/A` is a process that is not known.
fn process_number(column: &'static str, text: &str) -> Result<u32, Fault> {
    if text == NOT_AVAILABLE {
        return Ok(0);
    }
    u32::try_from(number(column, text)?).map_err(|_| not(column, text, "a process number"))
}

fn device(text: &str) -> Result<Device, Fault> {
    const COLUMN: &str = "Device Id";
    match text {
        "cpu" | "host" => Ok(Device::Cpu),
        NOT_AVAILABLE | "" | "9999" => Ok(Device::None),
        text => {
            let id = number(COLUMN, text)?;
            u32::try_from(id).map(Device::Npu).map_err(|_| not(COLUMN, text, "a device number"))
        }
    }
}

fn pointer(text: &str) -> Result<Option<u64>, Fault> {
    if text == NOT_AVAILABLE || text.is_empty() {
        return Ok(None);
    }
    address("Ptr", text).map(Some)
}

/// `0x` and at most 16 hexadecimal digits.
pub(super) fn address(column: &'static str, text: &str) -> Result<u64, Fault> {
    let digit = |number: u64, byte: u8| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return None,
        };
        // Leading zeros are none too many.
        (number >> 60 == 0).then_some(number << 4 | u64::from(digit))
    };
    let digits = text.strip_prefix("0x").filter(|digits| !digits.is_empty());
    digits.and_then(|digits| digits.bytes().try_fold(0, digit)).ok_or_else(|| not(column, text, "an address"))
}

pub(super) fn not(column: &'static str, text: &str, wanted: &str) -> Fault {
    let start: String = text.chars().take(40).flat_map(char::escape_debug).collect();
    let more = if text.chars().nth(40).is_some() { "…" } else { "" };
    Fault { column, what: format!("`{start}{more}` is not {wanted}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_the_program_gave_them() {
        let cases = [
            ("plain", "plain"),
            (r"a\\b\n\u{1b}[0m", "a\\b\n\u{1b}[0m"),
            (r"\\n", r"\n"),
            ("'=1+1", "=1+1"),
            ("''@x", "'@x"),
            ("'quoted'", "'quoted'"),
            // Not made by us: as it is.
            (r"C:\dir", r"C:\dir"),
            (r"end\", r"end\"),
            (r"\u{110000}", r"\u{110000}"),
        ];
        for (cell, text) in cases {
            assert_eq!(unescaped(cell), text, "{cell}");
        }
    }

    #[test]
    fn numbers_are_strict() {
        assert_eq!(number("ID", "18446744073709551615"), Ok(u64::MAX));
        for bad in ["", "-1", "+1", " 1", "1.0", "0x1", "18446744073709551616", "１"] {
            assert!(number("ID", bad).is_err(), "{bad}");
        }
        assert_eq!(address("Ptr", "0x000012c041400000"), Ok(0x12c0_4140_0000));
        for bad in ["12", "0x", "0xg", "0x+1", "0x12345678123456781"] {
            assert!(address("Ptr", bad).is_err(), "{bad}");
        }
        assert_eq!(
            (device("cpu"), device("7"), device("N/A")),
            (Ok(Device::Cpu), Ok(Device::Npu(7)), Ok(Device::None))
        );
        assert!(device("npu0").is_err());
    }
}
