//! Rules and dashboard of the node agent, in a real Prometheus that reads the page of an agent at work. Needs what live tests need, and
//! `MEMSCOPE_PROMETHEUS`, the folder of its unpacked package: `./x prometheus` fetches them.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use memscope_tests::harness::agent::{Agent, get, own_name, waiting};
use memscope_tests::harness::tracer::Folder;
use nix::sys::signal::Signal;
use serde_json::Value;

/// Panels without a figure here: the driver's management library is not there, and places have to grow for minutes.
const WITHOUT: [&str; 2] = ["Device memory in use, from DCMI", "Fastest growing places"];

fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/agent")
}

fn program(name: &str) -> PathBuf {
    let packages = std::env::var_os("MEMSCOPE_PROMETHEUS").expect("set by `./x prometheus`");
    PathBuf::from(packages).join("usr/bin").join(name)
}

/// A server with the agent's settings, which reads a page each second.
struct Server {
    child: Child,
    address: String,
    _folder: Folder,
}

impl Server {
    fn start(page: &str) -> Self {
        let folder = Folder::new();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        drop(listener);
        // As they are published, but for the address and the haste.
        let settings = fs::read_to_string(package().join("prometheus/prometheus.yml")).expect("settings");
        let rules = package().join("prometheus/rules.yml").canonicalize().expect("rules");
        let settings = settings
            .replace("127.0.0.1:9478", page)
            .replace("scrape_interval: 15s", "scrape_interval: 1s\n    scrape_timeout: 1s")
            .replace("- rules.yml", &format!("- {}", rules.display()));
        assert!(settings.contains(page) && settings.contains("interval: 1s"), "{settings}");
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, format!("global: {{evaluation_interval: 1s}}\n{settings}")).expect("written");
        let child = Command::new(program("prometheus"))
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .args([&format!("--web.listen-address={address}"), "--log.level=warn"])
            .stderr(Stdio::inherit())
            .spawn()
            .expect("it starts");
        Self { child, address, _folder: folder }
    }

    fn ask(&self, path: &str) -> Option<Value> {
        serde_json::from_str(&get(&self.address, path, "application/json").ok()?).ok()
    }

    /// Samples of a query: labels and values.
    fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let path = format!("/api/v1/query?query={}", escaped(query));
        let answer = self.ask(&path).unwrap_or_else(|| panic!("no answer to {query}"));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        let samples = answer["data"]["result"].as_array().expect("samples");
        let value =
            |sample: &Value| sample["value"][1].as_str().and_then(|value| value.parse().ok()).expect("a number");
        samples.iter().map(|sample| (sample["metric"].clone(), value(sample))).collect()
    }

    /// Waits until a query has this many samples.
    fn wait_for(&self, query: &str, count: usize) {
        let start = Instant::now();
        while self.ask("/api/v1/rules").is_none() || self.query(query).len() < count {
            assert!(start.elapsed() < Duration::from_secs(60), "{query} has no {count} samples");
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

/// Title and query of each panel, in all panels of the dashboard.
fn panels(of: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for panel in of["panels"].as_array().into_iter().flatten() {
        let title = panel["title"].as_str().unwrap_or_default();
        let queries = panel["targets"].as_array().into_iter().flatten();
        found.extend(queries.filter_map(|query| Some((title.to_owned(), query["expr"].as_str()?.to_owned()))));
        found.extend(panels(panel));
    }
    found
}

/// The rules are valid, and each alert fires where it has to (`rules_test.yml`).
#[test]
fn rules_hold_their_tests() {
    for arguments in [["check", "rules", "rules.yml"], ["test", "rules", "rules_test.yml"]] {
        let mut command = Command::new(program("promtool"));
        let output = command.args(arguments).current_dir(package().join("prometheus")).output().expect("it runs");
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&said));
    }
    let text = |name: &str| fs::read_to_string(package().join("prometheus").join(name)).expect("readable");
    let (rules, tests) = (text("rules.yml"), text("rules_test.yml"));
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert_eq!(alerts.len(), 10);
    for alert in alerts {
        assert!(tests.contains(&format!("alertname: {alert}\n")), "{alert} has no test");
    }
}

/// The page of an agent at work is read without an error; all rules are evaluated on it; each panel of the dashboard has samples, and what they say of
/// the program is what the page says.
#[test]
fn dashboard_has_its_samples() {
    let name = own_name("prom");
    let agent = Agent::start(&name);
    let mut target = waiting(&name, "pool", &["--serve", "--hold", "3", "--size", "1000000", "--leaks", "0"]);
    let _ = agent.wait_for_processes(1);
    fs::write(target.folder.path().join("go"), "\n").expect("it reads");
    let _ = agent.wait_for_page("its calls", |page| {
        page.count("memscope_allocations_total", &[("layer", "pool")]).is_some_and(|count| count > 100)
    });
    let server = Server::start(&agent.address());
    server.wait_for("count_over_time(memscope_allocations_total{layer=\"pool\"}[1m]) > 3", 1);
    let up = server.query("up{job=\"memscope\"}");
    assert_eq!((up.len(), up[0].1, &up[0].0["node"]), (1, 1.0, &"node-1".into()));
    let dashboard = fs::read(package().join("grafana/memscope.json")).expect("a dashboard");
    let panels = panels(&serde_json::from_slice(&dashboard).expect("JSON"));
    assert!(panels.len() >= 14, "{panels:?}");
    let without: Vec<&str> = panels
        .iter()
        .filter(|(_, query)| server.query(&query.replace("$node", "node-.*").replace("$namespace", ".*")).is_empty())
        .map(|(title, _)| title.as_str())
        .collect();
    assert_eq!(without, WITHOUT);
    let rules = server.ask("/api/v1/rules").expect("rules");
    let groups = rules["data"]["groups"].as_array().expect("groups");
    let rules: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().expect("rules")).collect();
    assert_eq!(rules.len(), 16);
    for rule in rules {
        assert_eq!((&rule["health"], rule["lastError"].as_str().unwrap_or_default()), (&"ok".into(), ""), "{rule:#}");
    }
    // The program has ended, and what it did is still counted.
    target.signal(Signal::SIGTERM);
    assert!(target.wait().success());
    let page = agent.wait_for_processes(0);
    let counted = page.count("memscope_allocations_total", &[("layer", "pool")]).expect("a count") as f64;
    server.wait_for(&format!("memscope_allocations_total{{layer=\"pool\"}} == {counted}"), 1);
    server.wait_for("memscope_targets{state=\"traced\"} == 0", 1);
    agent.end();
    server.wait_for("up{job=\"memscope\"} == 0", 1);
}
