//! All readers of foreign bytes: `./x fuzz` makes up bytes for each of these (`fuzz/`), and tests run its corpora
//! again.
//!
//! A target only has to end, without a panic and in little memory. The meaning of the bytes is for other tests.

use std::{cell::OnceCell, fs, path::Path, sync::Arc};

use tempfile::TempDir;

use crate::{
    analyses::{
        Analysis, ByStackAnalysis, DecomposeAnalysis, DeviceUseAnalysis, FragmentationAnalysis, GrowthAnalysis,
        HeldAnalysis, InefficientAnalysis, LedgerAnalysis, OomAnalysis, PeaksAnalysis, StepLeaksAnalysis,
        decompose::RuleSet,
        select::{Filter, Selection, Window},
    },
    backend,
    capture::{CaptureError, CaptureHeader, Reader, Writer, WriterOptions},
    cli, daemon,
    decode::{Body, Records, notes},
    holders, input,
    kernel::task_layout,
    locate::{hidden, python, site},
    os::{elf::ElfFile, maps},
    pipeline::{self, Audience, PipelineConfig},
    probes::ProbeSpec,
    python as interpreter,
    stacks::unwind,
    whatif::{self, Card, Settings, Setup, Until, snapshot::requests_of},
};

/// Reads bytes.
pub type Target = fn(&[u8]);

/// All targets, by the names of their corpora.
pub const TARGETS: [(&str, Target); 14] = [
    ("btf", task_layout::any_types),
    ("capture", capture),
    ("csv", |bytes| dump("dump.csv", bytes)),
    ("daemon", daemon),
    ("db", |bytes| dump("dump.db", bytes)),
    ("decode", decode),
    ("elf", elf),
    ("filter", filter),
    ("holders", holders::any_process),
    ("maps", maps),
    ("python", python),
    ("rules", rules),
    ("snapshot", snapshot),
    ("unwind", unwind::any_file),
];

/// What `filter` chooses from.
const DUMP: &str = "\
ID,Event,Event Type,Name,Timestamp(ns),Process Id,Thread Id,Device Id,Ptr,Attr,Call Stack(Python),Call Stack(C)
1,MALLOC,HAL,N/A,1000000000000000,7,8,0,0x1000,\"{allocation_id:1,addr:0x1000,size:4096,owner:CANN@APP}\",,
2,MALLOC,PTA,N/A,1000000000000300,7,8,0,0x1000,\"{allocation_id:2,addr:0x1000,size:512,total:2048,used:512}\",\"a.py(3): f\",
3,FREE,PTA,N/A,1000000000000700,7,8,0,0x1000,\"{allocation_id:2,addr:0x1000,size:512,total:2048,used:0}\",,
";

fn analyses(rules: &Arc<RuleSet>) -> Vec<Box<dyn Analysis>> {
    vec![
        Box::new(StepLeaksAnalysis::default()),
        Box::new(GrowthAnalysis::default()),
        Box::new(PeaksAnalysis::new(Arc::clone(rules))),
        Box::new(HeldAnalysis::default()),
        Box::new(ByStackAnalysis::default()),
        Box::new(OomAnalysis::default()),
        Box::new(InefficientAnalysis::default()),
        Box::new(DecomposeAnalysis::new(Arc::clone(rules))),
        Box::new(FragmentationAnalysis::new(Arc::clone(rules))),
        Box::new(LedgerAnalysis::default()),
        Box::new(DeviceUseAnalysis::default()),
    ]
}

/// A file's place in a folder that this thread keeps. No folder, no run.
fn with_path(name: &str, read: impl FnOnce(&Path)) {
    thread_local! {
        static FOLDER: OnceCell<Option<TempDir>> = const { OnceCell::new() };
    }
    FOLDER.with(|folder| {
        let folder = folder.get_or_init(|| tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).ok());
        if let Some(folder) = folder {
            read(&folder.path().join(name));
        }
    });
}

/// A file with these bytes.
fn with_file(name: &str, bytes: &[u8], read: impl FnOnce(&Path)) {
    with_path(name, |path| {
        if fs::write(path, bytes).is_ok() {
            read(path);
        }
    });
}

fn dump(name: &str, bytes: &[u8]) {
    with_file(name, bytes, |path| {
        let _ = input::run(&[path.to_owned()], analyses(&Arc::new(RuleSet::builtin())));
    });
}

fn capture(bytes: &[u8]) {
    let Ok(reader) = Reader::new(bytes, Path::new("made up")) else { return };
    let analyses = analyses(&Arc::new(RuleSet::builtin()));
    let _ = pipeline::replay_from(reader, PipelineConfig::default(), Audience::of(analyses), &mut |_| {});
}

fn decode(bytes: &[u8]) {
    assert!(Records::new(bytes).count() <= bytes.len() / 24 + 1, "each step makes progress");
    assert!(notes(bytes).all(|note| note.len() <= bytes.len()));
    for record in Records::new(bytes).flatten() {
        match record.body {
            Body::Objects(objects) => drop(objects.iter().count()),
            Body::Stack(stack) => {
                let _ = (stack.frames.addresses().count(), stack.frames.python().count());
            }
            Body::Code(code) => {
                let _ = interpreter::text(code.name.bytes, code.name.kind);
                let _ = interpreter::line(code.version, code.lines.unwrap_or_default(), code.first_line, 4);
            }
            _ => {}
        }
    }
    with_path("records.capture", |path| {
        let _ = fs::remove_file(path);
        if write(path, bytes).is_ok() {
            let _ = input::run(&[path.to_owned()], analyses(&Arc::new(RuleSet::builtin())));
        }
    });
}

/// A good capture with these records, good or not.
fn write(path: &Path, records: &[u8]) -> Result<(), CaptureError> {
    let rows = backend::builtin().map(ProbeSpec::describe).collect();
    let mut writer =
        Writer::create(path, &CaptureHeader { rows, ..CaptureHeader::default() }, WriterOptions::default())?;
    writer.append(records)?;
    writer.finish().map(drop)
}

fn elf(bytes: &[u8]) {
    const USES: [site::SiteUse; 2] = [
        site::SiteUse { args: 0xff, needs_return: true, stack_args: false, follows: false },
        site::SiteUse { args: 1, needs_return: false, stack_args: true, follows: true },
    ];
    let Ok(file) = ElfFile::parse(bytes) else { return };
    let _ = (file.machine(), file.build_id(), file.interpreter(), file.soname(), file.idle_code());
    let _ = (file.constants(), file.executable_segments(), file.mappings(true), file.unwind_table());
    let _ = file.relocations().map(Iterator::count);
    let names: Vec<&str> = backend::builtin().map(|spec| spec.symbol).collect();
    for resolved in [file.resolve(&names), file.resolve_local(&names)].into_iter().flatten().flatten() {
        let Some(function) = site::Function::in_file(&file, &resolved) else { continue };
        let _ = site::ends(&function, false);
        for usage in USES {
            let _ = site::candidates(&function, usage, site::Kernel::default());
        }
    }
    for spec in backend::builtin() {
        if let Some(locator) = spec.locator {
            let _ = hidden::locate(locator, spec.symbol, &file, None);
        }
    }
}

fn maps(bytes: &[u8]) {
    let count = bytes.split(|byte| *byte == b'\n').filter_map(maps::line).filter(|line| line.end < line.start).count();
    assert!(count <= bytes.len());
}

fn python(bytes: &[u8]) {
    python::any_table(bytes);
    let Some(([version, kind, first, last], rest)) = bytes.split_first_chunk() else { return };
    let _ = interpreter::text(rest, *kind);
    for last in [u32::from(*last), u32::from(*last) << 24, u32::MAX] {
        let _ = interpreter::line(*version, rest, u32::from(*first), last);
    }
}

fn daemon(bytes: &[u8]) {
    let Ok(Some(line)) = daemon::protocol::line(bytes) else { return };
    let Ok(settings) = daemon::protocol::settings(line) else { return };
    // The last option is fixed by the daemon; the user's values never become further options.
    assert!(settings.options().iter().all(|option| option.starts_with("--")), "{settings:?}");
}

/// A condition on each line.
fn filter(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let conditions = text.lines().filter_map(|line| cli::condition(line).ok()).collect();
    let selection = Selection { window: Window::default(), filter: Filter { conditions, rules: None } };
    with_file("filtered.csv", DUMP.as_bytes(), |path| {
        let options = input::Options { selection, ..input::Options::default() };
        let _ = input::run_with(&[path.to_owned()], options, vec![Box::new(HeldAnalysis::default())]);
    });
}

/// A memory snapshot of `PyTorch`, and its requests through the model of the pool.
fn snapshot(bytes: &[u8]) {
    let Ok(requests) = requests_of(bytes, None) else { return };
    let _ = whatif::find_settings(&requests, requests.family.newest(), &Card::default());
    let setup =
        Setup { settings: Settings::of(requests.family), card: Card::default(), with_script: true, with_limits: true };
    let _ = whatif::replay(&requests, &setup, Until::End);
}

/// A table of rules, on blocks with stacks.
fn rules(bytes: &[u8]) {
    let Some(rules) = str::from_utf8(bytes).ok().and_then(|text| RuleSet::of_text(text).ok()) else { return };
    with_file("ruled.csv", DUMP.as_bytes(), |path| {
        let _ = input::run(&[path.to_owned()], vec![Box::new(DecomposeAnalysis::new(Arc::new(rules)))]);
    });
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        panic::{self, AssertUnwindSafe},
        path::PathBuf,
    };

    use proptest::{
        collection::vec,
        prelude::*,
        sample::{Index, select},
        test_runner::{RngAlgorithm, TestRng, TestRunner},
    };

    use super::*;

    const CORPORA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus");

    fn corpus(name: &str) -> Vec<PathBuf> {
        let files = fs::read_dir(Path::new(CORPORA).join(name));
        let files = files.unwrap_or_else(|error| panic!("no corpus of {name}: {error}"));
        let mut inputs: Vec<_> = files.map(|file| file.expect("an entry").path()).collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "{name}");
        inputs
    }

    /// Each target has a corpus, and each corpus a target.
    #[test]
    fn corpora_are_of_targets() {
        let folders = fs::read_dir(CORPORA).expect("corpora");
        let folders: BTreeSet<_> = folders.map(|folder| folder.expect("an entry").file_name()).collect();
        assert_eq!(folders, TARGETS.iter().map(|(name, _)| (*name).into()).collect());
    }

    /// Inputs that a run of `./x fuzz` has found worth keeping, and each input that has made a target fail once.
    #[test]
    fn corpora_are_read() {
        for (name, target) in TARGETS {
            for input in corpus(name) {
                println!("{}", input.display());
                target(&fs::read(&input).expect("readable"));
            }
        }
    }

    /// A change of an input.
    #[derive(Clone, Debug)]
    enum Change {
        Set(Index, u8),
        /// A number of 8 bytes, as they stand for sizes, counts and offsets.
        Number(Index, u64),
        Cut(Index),
        Repeat(Index, Index),
    }

    impl Change {
        fn any() -> impl Strategy<Value = Self> {
            let place = any::<Index>;
            let number = select(vec![0, 1, u64::from(u32::MAX), i64::MAX as u64, 1 << 63, u64::MAX - 7, u64::MAX]);
            prop_oneof![
                4 => (place(), any::<u8>()).prop_map(|(at, byte)| Self::Set(at, byte)),
                2 => (place(), number).prop_map(|(at, number)| Self::Number(at, number)),
                1 => place().prop_map(Self::Cut),
                1 => (place(), place()).prop_map(|(from, to)| Self::Repeat(from, to)),
            ]
        }

        fn apply(&self, bytes: &mut Vec<u8>) {
            if bytes.is_empty() {
                return;
            }
            let at = |index: &Index| index.index(bytes.len());
            match self {
                Self::Set(place, byte) => {
                    let at = at(place);
                    bytes[at] = *byte;
                }
                Self::Number(place, number) => {
                    let at = at(place);
                    let end = bytes.len().min(at + 8);
                    bytes[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
                }
                Self::Cut(place) => bytes.truncate(at(place)),
                Self::Repeat(from, to) => {
                    let (from, to) = (at(from), at(to));
                    let piece = bytes[from.min(to)..from.max(to)].to_vec();
                    bytes.extend(piece);
                }
            }
        }
    }

    /// What `./x fuzz` does at length, in small: inputs near those of the corpora, the same in each run.
    #[test]
    fn inputs_near_the_corpora_are_read() {
        for (name, target) in TARGETS {
            let inputs: Vec<_> = corpus(name).iter().map(|input| fs::read(input).expect("readable")).collect();
            let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
            let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
            let changed = (select(inputs), vec(Change::any(), 1..6));
            let result = runner.run(&changed, |(mut bytes, changes)| {
                for change in changes {
                    change.apply(&mut bytes);
                }
                let read = panic::catch_unwind(AssertUnwindSafe(|| target(&bytes)));
                prop_assert!(read.is_ok(), "{name} cannot read {:?}", String::from_utf8_lossy(&bytes));
                Ok(())
            });
            result.unwrap_or_else(|error| panic!("{error}"));
        }
    }
}
