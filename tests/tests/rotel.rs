//! What the node agent sends by OTLP, in a real OpenTelemetry collector, Rotel. Needs what live tests need, and `MEMSCOPE_ROTEL`, the
//! interpreter that has its package: `./x rotel` fetches it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use memscope_tests::harness::agent::{Agent, own_name};
use memscope_tests::harness::otlp::{instruments, settings, works};
use memscope_tests::harness::promql::Server;

/// The program in its package.
fn program() -> PathBuf {
    let python = std::env::var_os("MEMSCOPE_ROTEL").expect("set by `./x rotel`");
    let libraries = Path::new(&python).ancestors().nth(2).expect("an environment").join("lib");
    let mut versions = fs::read_dir(&libraries).expect("libraries").flatten();
    let version = versions.next().expect("a version of Python").path();
    version.join("site-packages/rotel/rotel-agent")
}

fn collector() -> Server {
    let server = Server::start(&program(), |address, folder| {
        let pid_file = folder.join("pid").display().to_string();
        ["start", "--exporter", "blackhole", "--debug-log", "logs", "--debug-log", "metrics"]
            .into_iter()
            .chain([
                "--debug-log-verbosity",
                "detailed",
                "--otlp-grpc-endpoint",
                "127.0.0.1:0",
                "--pid-file",
                &pid_file,
            ])
            .chain(["--otlp-http-endpoint", address])
            .map(str::to_owned)
            .collect()
    });
    server.wait_until_it_listens();
    server
}

/// Attributes of the text below its headline, as `name=value`.
fn attributes(text: &str) -> Vec<String> {
    let lines = text.lines().skip(1).take_while(|line| line.starts_with("     -> "));
    let attribute = |line: &str| {
        let (name, value) = line.trim_start_matches("     -> ").split_once(": ").expect("a value");
        let value = value.split_once('(').expect("a kind").1.trim_end_matches(')');
        format!("{name}={value}")
    };
    lines.map(attribute).collect()
}

/// The collector takes the one event, with each of its attributes, and all numbers; it refuses nothing. A request that no further attempt was
/// made of has not recovered, although the program's pool goes on.
#[test]
fn collector_takes_events_and_numbers() {
    let (server, name) = (collector(), own_name("rotl"));
    let endpoint = format!("http://{}", server.address);
    let agent = Agent::start_in(&name, &settings(&endpoint, ""), &[("NODE_NAME", "node-5")]);
    let (pid, [working, _]) = works(&agent, &name);
    let bundle = agent.bundle();
    let page = agent.wait_for_page("requests", |page| {
        page.count("memscope_agent_otlp_requests_total", &[("result", "ok")]).is_some_and(|count| count > 3)
    });
    for result in ["partial", "later", "refused", "no_answer"] {
        assert_eq!(page.count("memscope_agent_otlp_requests_total", &[("result", result)]), Some(0), "{result}");
    }
    assert_eq!(page.count("memscope_agent_otlp_dropped_total", &[]), Some(0));
    server.wait_until_it_writes("EventName: memscope.oom");
    agent.end();

    let output = server.output();
    let resources: Vec<&str> = output.split("ResourceLog #0\n").skip(1).collect();
    let [event] = &resources[..] else { panic!("one event: {resources:#?}") };
    let part = |from: &str| event.split_once(from).unwrap_or_else(|| panic!("no {from}: {event}")).1;
    let of_resource = attributes(part("Resource SchemaURL: \n"));
    let mut of_resource: Vec<&str> = of_resource.iter().map(String::as_str).collect();
    of_resource.retain(|attribute| !attribute.starts_with("service.version="));
    assert_eq!(
        of_resource,
        ["service.name=memscope-agent", "service.instance.id=node-5", "host.name=node-5", "k8s.node.name=node-5"]
    );
    let of_event: BTreeSet<String> = attributes(&format!("\n{}", part("\nAttributes:\n"))).into_iter().collect();
    let file = bundle.file_name().expect("a name").to_string_lossy();
    let expected = [
        "hw.id=0".to_owned(),
        "memscope.layer=hal".to_owned(),
        "memscope.pool=hal".to_owned(),
        format!("process.pid={pid}"),
        // `aclrtMalloc` adds 32 bytes to the pebibyte.
        format!("memscope.requested={}", (1_u64 << 50) + 32),
        "memscope.status=6".to_owned(),
        "memscope.recovered=false".to_owned(),
        format!("memscope.bundle={file}"),
    ];
    let expected: BTreeSet<String> = expected.into();
    let live: Vec<&String> = of_event.difference(&expected).collect();
    assert!(expected.is_subset(&of_event), "{of_event:#?}");
    assert!(live.len() == 1 && live[0].starts_with("memscope.memory.live="), "{live:?}");

    let taken: BTreeSet<&str> = output.lines().filter_map(|line| line.strip_prefix("     -> Name: ")).collect();
    let sent = instruments();
    let sent = sent.iter().filter(|(_, family)| {
        let has = |page: &memscope_tests::checkers::page::Page| {
            page.samples.keys().any(|(of, _)| [family.clone(), format!("{family}_count")].contains(of))
        };
        has(&working) || has(&page)
    });
    let sent: BTreeSet<&str> = sent.map(|(name, _)| name.as_str()).collect();
    assert!(sent.len() > 30 && sent.is_subset(&taken), "{:?}", sent.difference(&taken).collect::<Vec<_>>());
}
