//! Uprobes of the kernel's own (tracefs), by another user of the same functions than the tracer: as `perf probe` and bpftrace have them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};
use tempfile::TempDir;

/// Registers of a function's first two arguments, as tracefs has them.
const ARGUMENTS: [&str; 2] = if cfg!(target_arch = "aarch64") { ["%x0", "%x1"] } else { ["%di", "%si"] };

/// A library and what it exports.
#[derive(Debug)]
pub struct Symbols {
    path: PathBuf,
    /// Address, place in the file, and size in it of each part that is loaded.
    loads: Vec<[u64; 3]>,
    /// Addresses by name.
    names: BTreeMap<String, u64>,
}

impl Symbols {
    /// Reads it.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let bytes = fs::read(path).expect("a library");
        let elf = object::File::parse(bytes.as_slice()).expect("an ELF file");
        let load = |part: object::Segment<'_, '_>| [part.address(), part.file_range().0, part.file_range().1];
        let defined = elf.dynamic_symbols().filter(object::ObjectSymbol::is_definition);
        let names = defined.filter_map(|symbol| Some((symbol.name().ok()?.to_owned(), symbol.address())));
        Self { path: path.to_owned(), loads: elf.segments().map(load).collect(), names: names.collect() }
    }

    /// Where in the file a symbol is.
    fn offset(&self, name: &str) -> u64 {
        let addr = *self.names.get(name).unwrap_or_else(|| panic!("no {name}"));
        let load = self.loads.iter().find(|[start, _, size]| (*start..start + size).contains(&addr));
        load.map(|[start, offset, _]| offset + addr - start).expect("a symbol that is loaded")
    }
}

/// Probes that log each call. Dropped, they are gone.
#[derive(Debug)]
pub struct Uprobes {
    /// Where tracefs is mounted for it.
    mounted: TempDir,
    name: String,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Name of the probe.
    pub probe: String,
    /// The thread.
    pub tid: u32,
    /// Its first two arguments.
    pub arguments: [u64; 2],
}

impl Uprobes {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        let mounted = tempfile::tempdir().expect("a folder");
        mount(Some("tracefs"), mounted.path(), Some("tracefs"), MsFlags::empty(), None::<&str>).expect("tracefs");
        let probes = Self { mounted, name: format!("memscope_test_{}", std::process::id()) };
        fs::create_dir(probes.instance()).expect("an instance of tracefs");
        fs::write(probes.instance().join("buffer_size_kb"), "4096").expect("a size");
        probes
    }

    fn instance(&self) -> PathBuf {
        self.mounted.path().join("instances").join(&self.name)
    }

    fn write(&self, line: &str) {
        let file = OpenOptions::new().append(true).open(self.mounted.path().join("uprobe_events"));
        file.expect("events").write_all(line.as_bytes()).unwrap_or_else(|error| panic!("`{line}`: {error}"));
    }

    /// One at this distance behind the start of a function; while it exists, it counts in `counter`.
    pub fn add(&self, probe: &str, symbols: &Symbols, function: &str, behind: u64, counter: Option<&str>) {
        let place = symbols.offset(function) + behind;
        let mut line = format!("p:{}/{probe} {}:{place:#x}", self.name, symbols.path.display());
        if let Some(counter) = counter {
            let _ = write!(line, "({:#x})", symbols.offset(counter));
        }
        let _ = write!(line, " a={}:x64 b={}:x64", ARGUMENTS[0], ARGUMENTS[1]);
        self.write(&line);
    }

    /// They log from here on, or no longer.
    pub fn enable(&self, on: bool) {
        let switch = self.instance().join("events").join(&self.name).join("enable");
        fs::write(switch, if on { "1" } else { "0" }).expect("a switch");
    }

    /// What was logged. Panics if something was lost.
    #[must_use]
    pub fn hits(&self) -> Vec<Hit> {
        let text = fs::read_to_string(self.instance().join("trace")).expect("a log");
        let head = text.lines().find(|line| line.starts_with("# entries-in-buffer/entries-written: "));
        let (kept, written) = head.and_then(|head| head.split(": ").nth(1)?.split_once('/')).expect("counts");
        assert_eq!(written.split_whitespace().next(), Some(kept), "the log is too small");
        text.lines().filter(|line| !line.starts_with('#')).map(hit).collect()
    }
}

impl Default for Uprobes {
    fn default() -> Self {
        Self::new()
    }
}

/// `python3-123 [001] DNZff 1.234: step: (0x7f...) a=0x1 b=0x2`
fn hit(line: &str) -> Hit {
    let parse = || {
        let (before, after) = line.split_once(": (")?;
        let tid = before.split_once(" [")?.0.rsplit_once('-')?.1.trim().parse().ok()?;
        let value = |name: &str| {
            let (_, text) = after.split_once(name)?;
            u64::from_str_radix(text.split(' ').next()?, 16).ok()
        };
        let probe = before.rsplit_once(' ')?.1.to_owned();
        Some(Hit { probe, tid, arguments: [value(" a=0x")?, value(" b=0x")?] })
    };
    parse().unwrap_or_else(|| panic!("a line of the log: `{line}`"))
}

impl Drop for Uprobes {
    fn drop(&mut self) {
        let _ = fs::write(self.instance().join("events").join(&self.name).join("enable"), "0");
        let _ = fs::remove_dir(self.instance());
        let list = fs::read_to_string(self.mounted.path().join("uprobe_events")).unwrap_or_default();
        for probe in list.lines().filter_map(|line| line.strip_prefix("p:")?.split(' ').next()) {
            if probe.starts_with(&format!("{}/", self.name)) {
                let file = OpenOptions::new().append(true).open(self.mounted.path().join("uprobe_events"));
                let _ = file.and_then(|mut file| file.write_all(format!("-:{probe}").as_bytes()));
            }
        }
        let _ = umount2(self.mounted.path(), MntFlags::MNT_DETACH);
    }
}
