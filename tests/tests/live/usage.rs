//! The driver's own figures, by a DCMI that says what a script says; also one that hangs, fails, or is not to be trusted.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memscope_tests::harness::rows::dump_files;
use memscope_tests::harness::tracer::{Folder, Run, Running, Target, Tracer, simulation, tracer_path};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::ledger::{ledger, part};
use super::shared::{DEFAULT, assert_nothing_lost, compare};

const MIB: u64 = 1 << 20;

/// A DCMI in a folder of its own: the tests may have been built by an untrusted user.
pub(crate) struct Dcmi(Folder);

impl Dcmi {
    pub(crate) fn new(script: &str) -> Self {
        let dcmi = Self(Folder::new());
        fs::copy(simulation().join("lib/libdcmi.so"), dcmi.library()).expect("a copy");
        fs::set_permissions(dcmi.library(), Permissions::from_mode(0o755)).expect("a mode");
        dcmi.says(script);
        dcmi
    }

    fn library(&self) -> PathBuf {
        self.0.path().join("libdcmi.so")
    }

    /// What it says from here on.
    fn says(&self, script: &str) {
        let new = self.0.path().join("new");
        fs::write(&new, script).expect("a script");
        fs::rename(new, self.0.path().join("dcmi.script")).expect("a script");
    }

    pub(crate) fn trace(&self, tracer: Tracer) -> Tracer {
        tracer.option("--usage-library").option(self.library())
    }
}

/// Waits until the dumps hold a text.
fn wait_for_row(running: &Running, text: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let output = running.folder.output_path();
    let holds = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|rows| rows.contains(text));
    while !(output.exists() && dump_files(&output).iter().any(holds)) {
        assert!(Instant::now() < deadline, "no row has `{text}`");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Each row has the last figures that there were; the ledger accounts for them; a replay says the same.
#[test]
fn rows_and_ledgers_have_the_drivers_figures() {
    let mut target = Target::serve(&["--threads", "2", "--hold", "10", "--size", "65536"]);
    let pid = target.pid();
    let dcmi = Dcmi::new(&format!("device 0 4 0 65536 1000\nprocess 0 {pid} 5000000\nprocess 0 999999 700\n"));
    let running = dcmi.trace(Tracer::attach(&[&target])).option("--json").start();
    wait_for_row(&running, &format!("process_used:5000000,device_used:{}", 1000 * MIB));
    dcmi.says(&format!("device 0 4 0 65536 1200\nprocess 0 {pid} 6000000\nfail dcmi_get_device_resource_info\n"));
    wait_for_row(&running, &format!("process_used:6000000,device_used:{}", 1200 * MIB));
    running.signal(Signal::SIGINT);
    let run = running.finish();
    target.stop();
    let rows = run.rows();
    let figures = rows.processes[&pid].iter().filter(|row| row.is_memory() && !row.is_made_up()).map(|row| {
        let number = |key| row.attr.get(key).map(|value| value.parse::<u64>().expect("a number"));
        (number("process_used"), number("device_used"))
    });
    let (first, second) = ((Some(5_000_000), Some(1000 * MIB)), (Some(6_000_000), Some(1200 * MIB)));
    // Rows from before the first figures have none; then those come, then the others.
    let mut seen: Vec<_> = figures.collect();
    seen.dedup();
    seen.retain(|figures| *figures != (None, None));
    assert_eq!(seen, [first, second]);
    let end = ledger(&run, pid, 0, "end").expect("a ledger");
    let used = &end["used"];
    assert_eq!(used["total"]["size_bytes"], 1200 * MIB);
    assert_eq!(end["capacity_bytes"], 65536 * MIB);
    assert_eq!((part(used, "unexplained"), part(used, "other_process")), (1200 * MIB - 6_000_000, 0));
    let replay = Tracer::replay(&run.folder.capture()).option("--json").succeed();
    assert_eq!(rows.processes, replay.rows().processes);
    assert_eq!(run.json(), replay.json());
}

/// Other processes and devices without HBM; figures after the last allocation are in the ledger.
#[test]
fn other_processes_and_other_chips() {
    let mut target = Target::serve(&["--hold", "3"]);
    let pid = target.pid();
    let dcmi = Dcmi::new(&format!("ddr 0 0 0 8192 8000\ndevice 1 0 1 65536 9\nprocess 0 {pid} 1\nprocess 0 77 2000\n"));
    let running = dcmi.trace(Tracer::attach(&[&target])).option("--json").start();
    wait_for_row(&running, &format!("process_used:1,device_used:{}", 192 * MIB));
    running.signal(Signal::SIGINT);
    let run = running.finish();
    target.stop();
    let end = ledger(&run, pid, 0, "end").expect("a ledger");
    let others: Vec<(&Value, &Value)> = end["used"]["parts"]
        .as_array()
        .expect("parts")
        .iter()
        .filter(|part| part["item"] == "other_process")
        .map(|part| (&part["pid"], &part["size_bytes"]))
        .collect();
    assert_eq!(others, [(&77.into(), &2000.into())]);
    assert_eq!(end["used"]["total"]["size_bytes"], 192 * MIB);
}

fn no_figures(run: &Run) {
    let rows = run.rows();
    let with = rows.all().filter(|row| row.attr.contains_key("device_used") || row.attr.contains_key("process_used"));
    assert_eq!(with.count(), 0);
}

const SCRIPT: &str = "device 0 0 0 65536 1000\n";

/// A driver that hangs costs its figures, a line, and nothing else.
#[test]
fn hanging_driver_is_given_up() {
    let dcmi = Dcmi::new(&format!("{SCRIPT}hang dcmi_get_device_hbm_info\n"));
    let tracer = dcmi.trace(Tracer::run("serve", &["--rate", "100"]));
    let running = tracer.start();
    running.wait_for_output("ready ");
    running.wait_for_message("the driver has not answered for 2 s", 1);
    running.signal(Signal::SIGTERM);
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    assert_nothing_lost(&run);
    no_figures(&run);
    assert_eq!(run.stderr.matches("DCMI").count(), 1, "{}", run.said());
    // Nor does the end of a trace wait for one that hangs from the beginning.
    let dcmi = Dcmi::new(&format!("{SCRIPT}hang dcmi_init\n"));
    let (run, _) = compare(dcmi.trace(Tracer::run("exits", &["--how", "return"])), DEFAULT);
    no_figures(&run);
}

/// A driver that refuses, at the start or later, is reported once.
#[test]
fn refusing_driver_is_reported() {
    let cases =
        [("dcmi_init", "dcmi_init returned -8005"), ("dcmi_get_card_list", "dcmi_get_card_list returned -8005")];
    for (function, message) in cases {
        let dcmi = Dcmi::new(&format!("{SCRIPT}fail {function}\n"));
        let running = dcmi.trace(Tracer::run("serve", &["--rate", "100"])).start();
        running.wait_for_output("ready ");
        running.wait_for_message(message, 1);
        running.signal(Signal::SIGTERM);
        let run = running.finish();
        assert_eq!(run.code(), 0, "{}", run.said());
        no_figures(&run);
        assert_eq!(run.stderr.matches("DCMI").count(), 1, "{}", run.said());
    }
}

/// A library that others than root can change is not loaded, whoever asks for it.
#[test]
fn untrusted_library_is_not_loaded() {
    let dcmi = Dcmi::new(SCRIPT);
    fs::set_permissions(dcmi.library(), Permissions::from_mode(0o757)).expect("a mode");
    let running = dcmi.trace(Tracer::run("serve", &["--rate", "100"])).start();
    running.wait_for_output("ready ");
    running.wait_for_message("can be written by others than root", 1);
    running.signal(Signal::SIGTERM);
    let run = running.finish();
    assert_eq!(run.code(), 0, "{}", run.said());
    no_figures(&run);
}

/// Without a request the driver is not asked.
#[test]
fn figures_can_be_switched_off() {
    let dcmi = Dcmi::new(SCRIPT);
    let tracer = dcmi.trace(Tracer::run("exits", &["--how", "return"])).options(&["-v", "--usage-interval", "0"]);
    let (run, _) = compare(tracer.options(&["--usage-rate", "0"]), DEFAULT);
    no_figures(&run);
    assert!(!run.stderr.contains("libdcmi"), "{}", run.said());
}

fn doctor(library: &Path) -> String {
    let mut command = std::process::Command::new(tracer_path());
    let output = command.arg("doctor").arg("--usage-library").arg(library).output().expect("doctor runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter(|line| line.contains("DCMI")).collect::<Vec<_>>().join("\n")
}

/// `doctor` says whether there are figures, and why not.
#[test]
fn doctor_looks_at_dcmi() {
    let dcmi = Dcmi::new("device 0 0 0 65536 1\ndevice 3 0 1 65536 1\n");
    let line = doctor(&dcmi.library());
    assert!(line.starts_with("ok ") && line.ends_with("libdcmi.so, device(s) 0, 3"), "{line}");
    dcmi.says("fail dcmi_init\n");
    let line = doctor(&dcmi.library());
    assert!(line.starts_with("degraded ") && line.ends_with("dcmi_init returned -8005"), "{line}");
    dcmi.says("hang dcmi_init\n");
    let line = doctor(&dcmi.library());
    assert!(line.starts_with("degraded ") && line.contains("has not answered"), "{line}");
}
