//! Evidence of a real agent in an object store that `moto` stands in for, and queries on it there.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Stdio};

use memscope_tests::harness::agent::{Agent, own_name, waiting};
use memscope_tests::harness::journal::pool_blocks;
use memscope_tests::harness::tracer::Folder;

use super::live_agent::fleet_in;
use super::python_with;

const KEY: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "AKID"), ("AWS_SECRET_ACCESS_KEY", "it's secret")];

fn run(arguments: &[&str]) -> String {
    let output = python_with("store.py").args(arguments).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// The server. Ends with its input.
struct Store {
    child: Child,
    /// Host and port without TLS.
    address: String,
}

impl Store {
    fn start(folder: &Folder, port: u16) -> Self {
        let log = std::fs::File::create(folder.path().join("store.log")).expect("a file");
        let mut command = python_with("store.py");
        command.arg("serve").arg(folder.path()).arg(port.to_string()).envs(KEY);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().expect("it starts");
        let mut line = String::new();
        let printed = child.stdout.take().expect("a pipe");
        BufReader::new(printed).read_line(&mut line).expect("a line");
        Self { child, address: format!("127.0.0.1:{}", line.trim()) }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        if entry.path().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.file_name().into_string().expect("a name"));
        }
    }
    found
}

/// While the store is away, files wait in the directory, the agent says it once and its programs notice nothing. The next agent uploads them by TLS, with
/// its own, and the directory is empty then. Queries find both agents' programs in the bucket, to the byte.
#[test]
fn evidence_reaches_an_object_store() {
    let (name, folder, evidence) = (own_name("stor"), Folder::new(), Folder::new());
    let home = folder.path().to_str().expect("a path");
    run(&["certificate", home]);
    run(&["extension", home]);
    let port = {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        listener.local_addr().expect("an address").port()
    };
    let settings = format!(
        "[evidence]\ndirectory = \"{}\"\n[evidence.upload]\nurl = \"s3://fleet/ranks/\"\nendpoint = \"https://127.0.0.1:{port}\"\n",
        evidence.path().display()
    );
    let certificate = folder.path().join("cert.pem").display().to_string();
    let variables = [&KEY[..], &[("SSL_CERT_FILE", &certificate)]].concat();
    let hold = |agent: &Agent| {
        let mut target = waiting(&name, "pool", &["--serve", "--idle", "--hold", "5", "--size", "3000000"]);
        let _ = agent.wait_for_processes(1);
        std::fs::write(target.folder.path().join("go"), "\n").expect("it reads");
        let _ = agent.wait_for_page("blocks that are held", |page| {
            page.count("memscope_memory_live_blocks", &[("pool", "pta")]) == Some(5)
        });
        let held: u64 = pool_blocks(&target.folder.journal().by_process()[&target.pid()]).values().sum();
        let pid = target.pid();
        target.stop();
        (pid, held)
    };

    let agent = Agent::start_in(&name, &settings, &variables);
    let first = hold(&agent);
    let said = agent.end_saying();
    assert!(
        said.contains("bytes of evidence are not uploaded") && said.contains("they wait in the directory"),
        "{said}"
    );
    let waiting_files = files(evidence.path());
    // Two tables with minutes, and one with places.
    assert_eq!(waiting_files.len(), 3, "{waiting_files:?}");

    let store = Store::start(&folder, port);
    // A server with a certificate of its own making gets nothing.
    let said = Agent::start_in(&name, &settings, &KEY).end_saying();
    assert!(said.contains("bytes of evidence are not uploaded"), "{said}");
    assert_eq!(files(evidence.path()).len(), 3);

    let agent = Agent::start_in(&name, &settings, &variables);
    let _ = agent.wait_for_page("uploads", |page| {
        page.count("memscope_agent_evidence_uploads_total", &[("result", "ok")]) == Some(3)
            && page.count("memscope_agent_evidence_waiting_bytes", &[]) == Some(0)
    });
    let second = hold(&agent);
    let said = agent.end_saying();
    assert!(!said.contains("evidence"), "{said}");
    assert_eq!(files(evidence.path()), [""; 0]);

    let endpoint = format!("http://{}", store.address);
    let of_bucket = [("HOME", home), ("AWS_ENDPOINT_URL", &endpoint), ("AWS_REGION", "us-east-1")];
    let gaps = fleet_in("evidence_gaps", Path::new("s3://fleet/ranks"), &[&KEY[..], &of_bucket].concat());
    assert_eq!(gaps[0]["lost"], 0, "{gaps:#}");
    for (pid, held) in [first, second] {
        assert_eq!(run(&["held", &store.address, &pid.to_string()]), held.to_string());
    }
}
