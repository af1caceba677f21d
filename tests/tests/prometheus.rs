//! Rules and dashboard of the node agent, in a real Prometheus that reads the page of an agent at work. Needs what live tests need, and
//! `MEMSCOPE_PROMETHEUS`, the folder of its unpacked package: `./x prometheus` fetches them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use memscope_tests::harness::agent::{Agent, own_name};
use memscope_tests::harness::promql::Server;
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
fn prometheus(page: &str) -> Server {
    // As they are published, but for the address and the haste.
    let settings = fs::read_to_string(package().join("prometheus/prometheus.yml")).expect("settings");
    let rules = package().join("prometheus/rules.yml").canonicalize().expect("rules");
    let settings = settings
        .replace("127.0.0.1:9478", page)
        .replace("scrape_interval: 15s", "scrape_interval: 1s\n    scrape_timeout: 1s")
        .replace("- rules.yml", &format!("- {}", rules.display()));
    assert!(settings.contains(page) && settings.contains("interval: 1s"), "{settings}");
    Server::start(&program("prometheus"), |address, folder| {
        let file = folder.join("prometheus.yml");
        fs::write(&file, format!("global: {{evaluation_interval: 1s}}\n{settings}")).expect("written");
        vec![
            format!("--config.file={}", file.display()),
            format!("--storage.tsdb.path={}", folder.join("data").display()),
            format!("--web.listen-address={address}"),
            "--log.level=warn".to_owned(),
        ]
    })
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
    let mut target = agent.target_at_work(&name);
    let server = prometheus(&agent.address());
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
