//! Comparisons as files: the reference's (contract §5.2, §8.4), and one with the true figures beside them.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use jiff::Zoned;

use super::SinkError;
use super::row::Name;
use super::tree::{FILE_MODE, OutputTree, Owner, stamp};
use crate::analyses::compare::{ComparedRow, EntryKind, Figures};

const HEADER: &str = ",,,Base,Compare\n\
                      Event,Name,Device Id,Allocated Memory(byte),Allocated Memory(byte),Diff Memory(byte)\n";
const TRUE_HEADER: &str = "Event,Name,Device Id,Base Next Size(byte),Compare Next Size(byte),Base Change(byte),\
                           Compare Change(byte),Diff Change(byte)\n";

/// Writes rows of a comparison to both files.
#[derive(Debug)]
pub struct CompareFiles {
    reference: Output,
    truth: Output,
}

#[derive(Debug)]
struct Output {
    out: BufWriter<File>,
    path: PathBuf,
}

impl CompareFiles {
    /// Makes the files below an output directory.
    pub fn create(directory: &Path, owner: Option<Owner>) -> Result<Self, SinkError> {
        let tree = OutputTree::open(directory, owner)?;
        let own = tree.make_process_dir(std::process::id())?;
        let stamp = stamp(&Zoned::now());
        let open = |name: &str, header: &str| {
            let (file, place) = tree.create(&own, &["compare"], &format!("{name}_{stamp}.csv"), FILE_MODE)?;
            let mut output = Output { out: BufWriter::new(file), path: place.path().to_owned() };
            output.write(header.as_bytes())?;
            Ok(output)
        };
        Ok(Self { reference: open("memory_compare", HEADER)?, truth: open("memory_change", TRUE_HEADER)? })
    }

    /// Paths of both files: the reference's, and the one with the true figures.
    #[must_use]
    pub fn paths(&self) -> [&Path; 2] {
        [&self.reference.path, &self.truth.path]
    }

    /// Writes one row.
    pub fn write(&mut self, row: &ComparedRow) -> Result<(), SinkError> {
        let mut line = Vec::with_capacity(128);
        let next = |figures: Option<Figures>| figures.map(|figures| i128::from(figures.next_bytes));
        head(row, &mut line);
        numbers(&mut line, next(row.base), next(row.compare));
        push(&mut line, Some(next(row.compare).unwrap_or(0) - next(row.base).unwrap_or(0)));
        line.push(b'\n');
        self.reference.write(&line)?;
        line.clear();
        let change = |figures: Option<Figures>| figures.map(|figures| i128::from(figures.delta_bytes));
        head(row, &mut line);
        numbers(&mut line, next(row.base), next(row.compare));
        numbers(&mut line, change(row.base), change(row.compare));
        push(&mut line, Some(change(row.compare).unwrap_or(0) - change(row.base).unwrap_or(0)));
        line.push(b'\n');
        self.truth.write(&line)
    }

    /// Completes both files.
    pub fn finish(mut self) -> Result<(), SinkError> {
        for output in [&mut self.reference, &mut self.truth] {
            output.out.flush().map_err(SinkError::io(&output.path))?;
        }
        Ok(())
    }
}

impl Output {
    fn write(&mut self, bytes: &[u8]) -> Result<(), SinkError> {
        let written: io::Result<()> = self.out.write_all(bytes);
        written.map_err(SinkError::io(&self.path))
    }
}

fn head(row: &ComparedRow, line: &mut Vec<u8>) {
    let event: &[u8] = match row.kind {
        EntryKind::Op => b"OP_LAUNCH,",
        EntryKind::Kernel => b"KERNEL_LAUNCH,",
    };
    line.extend_from_slice(event);
    Name::Plain(&row.name).write_csv(line);
    line.push(b',');
    line.extend_from_slice(row.device.to_string().as_bytes());
}

fn numbers(line: &mut Vec<u8>, base: Option<i128>, compare: Option<i128>) {
    push(line, base);
    push(line, compare);
}

fn push(line: &mut Vec<u8>, number: Option<i128>) {
    line.push(b',');
    match number {
        Some(number) => line.extend_from_slice(number.to_string().as_bytes()),
        None => line.extend_from_slice(b"N/A"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference's file to the byte, and ours.
    #[test]
    fn files_have_their_layout() {
        let folder = tempfile::tempdir().expect("folder");
        let mut files = CompareFiles::create(folder.path(), None).expect("made");
        let figures = |next_bytes, delta_bytes| Some(Figures { next_bytes, delta_bytes });
        let row = |name: &str, base, compare| ComparedRow {
            kind: EntryKind::Op,
            name: name.into(),
            device: 3,
            base,
            compare,
        };
        files.write(&row("torch._ops.aten.t.default", figures(10, -4), figures(30, 6))).expect("written");
        files.write(&row("=x,\"y\"", figures(10, 1), None)).expect("written");
        files.write(&row("N", None, figures(u64::MAX, 1))).expect("written");
        let [reference, truth] = files.paths().map(Path::to_owned);
        files.finish().expect("written");
        let text = |path: &Path| std::fs::read_to_string(path).expect("readable");
        assert_eq!(
            text(&reference),
            ",,,Base,Compare\nEvent,Name,Device Id,Allocated Memory(byte),Allocated Memory(byte),Diff Memory(byte)\n\
             OP_LAUNCH,torch._ops.aten.t.default,3,10,30,20\nOP_LAUNCH,\"'=x,\"\"y\"\"\",3,10,N/A,-10\n\
             OP_LAUNCH,N,3,N/A,18446744073709551615,18446744073709551615\n"
        );
        assert_eq!(
            text(&truth).lines().skip(1).collect::<Vec<_>>(),
            [
                "OP_LAUNCH,torch._ops.aten.t.default,3,10,30,-4,6,10",
                "OP_LAUNCH,\"'=x,\"\"y\"\"\",3,10,N/A,1,N/A,-1",
                "OP_LAUNCH,N,3,N/A,18446744073709551615,N/A,1,1",
            ]
        );
        assert!(reference.to_string_lossy().contains("/compare/memory_compare_"));
    }
}
