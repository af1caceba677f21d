//! Programs' events as the files that a trace of them would leave.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use memscope::analyses::{Analysis, Finding};
use memscope::model::{Event, RunEnd};
use memscope::sinks::{DumpOptions, DumpSink, Format, Sink as _};

use crate::attached::START_NS;
use crate::program::Program;
use crate::records::ToCapture;
use crate::training::{Shape, train};

/// Events between two flushes of a dump; a trace flushes twice a second.
const FLUSH_EVENTS: u64 = 100_000;

/// Writes the files of a training program in a format; gives what is to be read again.
pub(crate) fn write(format: &str, folder: &Path, shape: Shape) -> Result<PathBuf> {
    let path = folder.join("run.capture");
    let format = match format {
        "csv" => Format::Csv,
        "db" => Format::Db,
        "capture" => {
            train(Program::new(vec![Box::new(ToCapture::create(&path, START_NS)?)]), shape);
            return Ok(path);
        }
        other => bail!("no format `{other}`"),
    };
    let options = DumpOptions { out_dir: folder.join("out"), format, ..DumpOptions::default() };
    let sink = DumpSink::new(&options, |_| {})?;
    train(Program::new(vec![Box::new(ToDump { sink, events: 0 })]), shape);
    Ok(options.out_dir)
}

/// Bytes of all files below a folder, or of a file.
pub(crate) fn size_bytes(path: &Path) -> Result<u64> {
    let metadata = fs::metadata(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    if !metadata.is_dir() {
        return Ok(metadata.len());
    }
    fs::read_dir(path)?.map(|entry| size_bytes(&entry?.path())).sum()
}

/// Writes rows.
struct ToDump {
    sink: DumpSink,
    events: u64,
}

impl Analysis for ToDump {
    fn observe(&mut self, event: &Event) {
        self.sink.write(event).expect("room on the disk");
        self.events += 1;
        if self.events.is_multiple_of(FLUSH_EVENTS) {
            self.sink.flush().expect("room on the disk");
        }
    }

    fn finish(&mut self, _: &RunEnd) -> Vec<Finding> {
        self.sink.finish().expect("room on the disk");
        Vec::new()
    }
}
