//! A real server beside the agent; one of metrics is asked by `PromQL` as Prometheus is.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::agent::get;
use super::tracer::Folder;

/// How long it may take to start, and to have samples.
const PATIENCE: Duration = Duration::from_secs(60);
const OUTPUT: &str = "output";

/// A server with a folder of its own, until it goes out of scope.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Host and port.
    pub address: String,
    folder: Folder,
}

impl Server {
    /// Starts it, with arguments by the address that it is to have and its folder.
    #[must_use]
    pub fn start(program: &Path, arguments: impl FnOnce(&str, &Path) -> Vec<String>) -> Self {
        let folder = Folder::new();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        drop(listener);
        let mut command = Command::new(program);
        let output = File::create(folder.path().join(OUTPUT)).expect("a file");
        command.args(arguments(&address, folder.path())).stdout(output).stderr(Stdio::inherit());
        let child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        Self { child, address, folder }
    }

    /// What it has written to its standard output.
    #[must_use]
    pub fn output(&self) -> String {
        fs::read_to_string(self.folder.path().join(OUTPUT)).expect("its output")
    }

    /// Waits until it takes connections.
    pub fn wait_until_it_listens(&self) {
        let start = Instant::now();
        while TcpStream::connect(&self.address).is_err() {
            assert!(start.elapsed() < PATIENCE, "it does not listen");
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Waits until its output has a text.
    pub fn wait_until_it_writes(&self, text: &str) {
        let start = Instant::now();
        while !self.output().contains(text) {
            assert!(start.elapsed() < PATIENCE, "it does not write {text}");
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// What it answers; `None` before it listens.
    #[must_use]
    pub fn ask(&self, path: &str) -> Option<Value> {
        serde_json::from_str(&get(&self.address, path, "application/json").ok()?).ok()
    }

    /// Waits until it answers queries.
    pub fn wait_until_it_runs(&self) {
        let start = Instant::now();
        while self.ask("/api/v1/query?query=1").is_none() {
            assert!(start.elapsed() < PATIENCE, "it does not start");
            thread::sleep(Duration::from_millis(200));
        }
    }

    /// Samples of a query: labels and values.
    #[must_use]
    pub fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let path = format!("/api/v1/query?query={}", escaped(query));
        let answer = self.ask(&path).unwrap_or_else(|| panic!("no answer to {query}"));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        let samples = answer["data"]["result"].as_array().expect("samples");
        let value =
            |sample: &Value| sample["value"][1].as_str().and_then(|value| value.parse().ok()).expect("a number");
        samples.iter().map(|sample| (sample["metric"].clone(), value(sample))).collect()
    }

    /// Waits until a query has this many samples.
    pub fn wait_for(&self, query: &str, count: usize) {
        self.wait_until_it_runs();
        let start = Instant::now();
        while self.query(query).len() < count {
            assert!(start.elapsed() < PATIENCE, "{query} has no {count} samples");
            thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As a part of an address.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() {
            escaped.push(byte.into());
        } else {
            // Memory takes everything.
            let _ = write!(escaped, "%{byte:02x}");
        }
    }
    escaped
}
