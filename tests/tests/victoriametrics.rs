//! Numbers of the node agent in a real receiver of OTLP, `VictoriaMetrics`. Needs what live tests need, and `MEMSCOPE_VICTORIAMETRICS`, the folder of
//! its unpacked package: `./x victoriametrics` fetches it.

use std::path::PathBuf;

use memscope_tests::checkers::page::Page;
use memscope_tests::harness::agent::{Agent, own_name};
use memscope_tests::harness::otlp::{self, instruments, works};
use memscope_tests::harness::promql::Server;
use serde_json::{Value, json};

/// Instruments without a change when no process is left.
const SETTLED: [&str; 8] = [
    "memscope.allocations",
    "memscope.frees",
    "memscope.memory.allocated",
    "memscope.memory.freed",
    "memscope.allocation.failures",
    "memscope.allocation.size",
    "memscope.targets",
    "memscope.bundles",
];

fn receiver() -> Server {
    let package = std::env::var_os("MEMSCOPE_VICTORIAMETRICS").expect("set by `./x victoriametrics`");
    let server = Server::start(&PathBuf::from(package).join("usr/bin/victoria-metrics"), |address, folder| {
        vec![
            format!("-httpListenAddr={address}"),
            format!("-storageDataPath={}", folder.join("data").display()),
            "-search.latencyOffset=0s".to_owned(),
            "-loggerLevel=ERROR".to_owned(),
        ]
    });
    server.wait_until_it_runs();
    server
}

/// Values of the series of one name, from the least to the greatest.
fn received(server: &Server, name: &str) -> Vec<f64> {
    sorted(server.query(&format!("{{__name__=\"{name}\"}}")).into_iter().map(|(_, value)| value))
}

fn on_page(page: &Page, name: &str) -> Vec<f64> {
    sorted(page.samples.iter().filter(|((of, _), _)| of == name).map(|(_, value)| *value))
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn settings(server: &Server, further: &str) -> String {
    otlp::settings(&format!("http://{}/opentelemetry", server.address), further)
}

/// The receiver has each family of the page under the name of the documentation, with all its series; what does not change any more has the same
/// values. It takes no logs: the one of the failed request is dropped and counted, and numbers go on.
#[test]
fn receiver_has_the_page() {
    let (server, name) = (receiver(), own_name("otlp"));
    let agent = Agent::start_in(&name, &settings(&server, ""), &[("NODE_NAME", "node-5")]);
    let (_, [working, page]) = works(&agent, &name);
    let counted = page.count("memscope_allocations_total", &[("layer", "pool")]).expect("a count");
    let pool = "{__name__=\"memscope.allocations\",\"memscope.layer\"=\"pool\"}";
    server.wait_for(&format!("{pool} == {counted}"), 1);
    let page = agent.wait_for_page("a log that is refused", |page| {
        page.count("memscope_agent_otlp_requests_total", &[("result", "refused")]) == Some(1)
    });
    assert_eq!(page.count("memscope_agent_otlp_dropped_total", &[]), Some(1));
    let said = agent.end_saying();
    let refused = format!("OTLP receiver {}, logs: it answers 400 Bad Request; with `logs = false`", server.address);
    assert!(said.contains(&refused) && !said.contains(" again"), "{said}");

    let mut labels = server.query(pool)[0].0.clone();
    let version = labels.as_object_mut().expect("labels").remove("service.version");
    assert!(version.is_some_and(|version| version.is_string()));
    let expected: Value = json!({
        "__name__": "memscope.allocations", "service.name": "memscope-agent", "service.instance.id": "node-5",
        "host.name": "node-5", "k8s.node.name": "node-5", "hw.id": "0", "memscope.layer": "pool", "memscope.pool": "pta",
    });
    assert_eq!(labels, expected);

    let (mut seen, mut settled) = (0, 0);
    for (name, family) in instruments() {
        for part in ["", "_bucket", "_sum", "_count"] {
            let [series, expected] = [&working, &page].map(|page| on_page(page, &format!("{family}{part}")));
            let found = received(&server, &format!("{name}{part}"));
            assert!(found.len() >= series.len(), "{name}{part}: {found:?} {series:?}");
            seen += usize::from(!series.is_empty());
            if SETTLED.contains(&name.as_str()) && !expected.is_empty() {
                assert_eq!(found, expected, "{name}{part}");
                settled += 1;
            }
        }
    }
    // The histogram has three names. Those of evidence, of the driver's management library and of growth have no samples here.
    assert!(seen > 30 && settled == SETTLED.len() + 2, "{seen} {settled}");
}

/// Without logs nothing is refused.
#[test]
fn numbers_alone() {
    let (server, name) = (receiver(), own_name("nums"));
    let agent = Agent::start_in(&name, &settings(&server, "logs = false\n"), &[]);
    let (_, [_, page]) = works(&agent, &name);
    let counted = page.count("memscope_allocations_total", &[("layer", "pool")]).expect("a count");
    server.wait_for(&format!("{{__name__=\"memscope.allocations\",\"memscope.layer\"=\"pool\"}} == {counted}"), 1);
    let page = agent.wait_for_page("requests", |page| {
        page.count("memscope_agent_otlp_requests_total", &[("result", "ok")]).is_some_and(|count| count > 3)
    });
    for result in ["partial", "later", "refused", "no_answer"] {
        assert_eq!(page.count("memscope_agent_otlp_requests_total", &[("result", result)]), Some(0), "{result}");
    }
    let said = agent.end_saying();
    assert!(said.contains("Info: numbers go to the OTLP receiver at http://"), "{said}");
    assert!(!said.contains("Warning: OTLP receiver"), "{said}");
}
