//! Everything that is done to this repository: one verb, one file. Started by `./x` or `cargo xtask`.

mod apt;
mod arch;
mod bench;
mod bpf;
mod build;
mod check;
mod code;
mod demo;
mod deny;
mod dist;
mod docs;
mod faults;
mod findings;
mod fleet;
mod frameworks;
mod fuzz;
mod install;
mod interpreters;
mod live;
mod mindspore;
mod miri;
mod nextest;
mod npu;
mod peers;
mod pictures;
mod project;
mod python;
mod servers;
mod setup;
mod sim;
mod standalone;
mod tables;
mod test;
mod unit;
mod venv;
mod vm;
mod wheel;
mod wheels;

use std::{env, process::ExitCode};

use anyhow::{Result, bail};

const VERBS: &str = "\
usage: ./x VERB [ARGUMENTS]
  setup [--vm]        installs the tools that are missing; with --vm those of `vm` and its kernels too
  build               target/release/memscope-bpf
  sim [ARCH]          the simulated Ascend libraries and workloads, in target/ascend-sim
  python              the Python package, in target/python-package
  demo [ARGUMENTS]    traces a simulated program, to see what it looks like (as root); `demo --record` keeps the trace as the
                      recording that an installed program shows (memscope-user/demo/torch.capture)
  check [--figures]   format, lints, documentation, each feature set, the other architecture, and which folder knows which
                      (docs/architecture.md); --figures prints figures of the code instead
  deny [--no-advisories]
                      licences, sources, second versions and advisories of all crates, by cargo-deny and deny.toml (network; the tool
                      is built once, in minutes)
  docs                the documentation as a site with search, in target/book
  pictures            the screens in the readmes and their picture, as today's program prints them
  unit [NAME...]      tests without root, network and BPF; in seconds once it is compiled. NAME and further arguments go to nextest
  live [NAME...]      builds the program and the simulation, and runs the tests under real probes (as root)
  test [--shared DIR] [--no-wheels] [--no-browser] [NEXTEST ARGUMENTS]
                      everything, live tests too (as root); DIR adds the group that needs recordings, --no-wheels
                      leaves out those that fetch real libraries and packages for tables (200 MB, once), --no-browser those
                      of pages in Chromium, which is installed.
                      With further arguments only those tests, without `check`
  faults [ROUNDS] [--seed N] [--only TEXT]
                      kills, signals and starves the tracer, its guard, the daemon and traced programs at random moments (as
                      root; 1000 rounds take half an hour), and counts what was harmed or lost; docs/reliability.md
  fuzz [TARGET] [--seconds N] [--seed N] [--keep]
                      makes up bytes for all that reads those of others, 60 seconds each; --keep adds what reaches new code to
                      fuzz/corpus
  miri [NAME...]      tests of pure code (records, rows, pipeline, analyses) under Miri, with a nightly compiler of its own
  npu [VERSION...] [-- TEST ARGUMENTS]
                      traces real torch_npu on the simulated libraries and compares with its own statistics (as root;
                      x86-64, CPython 3.11, network and 2 GB of disk for each version)
  mindspore [VERSION...] [-- TEST ARGUMENTS]
                      the same with real MindSpore and its figures
  pythons             CPython 3.14 with its C library, from Debian's next release, in target/pythons; `test`, `live` and `wheel --test`
                      use it then
  servers [NAME...] [-- TEST ARGUMENTS]
                      the same with real servers and frameworks on torch_npu 2.9.0.post9, and with leaks put into their programs: transformers,
                      ddp, fsdp2, deepspeed, vllm (what `npu` needs, 200 MB for each and 2.5 GB for vllm); docs/servers.md
  fleet               queries over a fleet's evidence in DuckDB and Spark (Java 17, 700 MB of packages); `test` has DuckDB alone
  containerd          names and labels of pods for the agent, by a real containerd (as root; apt-get, 30 MB, curl)
  prometheus          the agent's rules and dashboard in a real Prometheus, beside an agent at work (as root; apt-get, 30 MB)
  victoriametrics     the agent's numbers in a real receiver of OTLP, VictoriaMetrics (as root; apt-get, 40 MB)
  rotel               the agent's numbers and events in a real OpenTelemetry collector, Rotel (as root; package index, 10 MB)
  vm [KERNEL...] [-- TEST ARGUMENTS]
                      the live tests on other kernels in QEMU, such as 5.10-x86_64 or 6.12-aarch64, or `all`; whole runs are
                      kept in docs/kernels.md. `part` runs a few on these two
  bench [NAME...] [--quick] [--minutes N]
                      what tracing costs the target and what the tracer can take (cost, throughput), also with many probes and
                      processes (scale), of a big process (big), what scripts pay (python) and a watch costs (watch), what the analyses find in made-up
                      servers and what they cost (leaks, sizes), what pages cost (report) and replays (whatif). The first six, as root, write their parts
                      of docs/overhead.md. `soak` runs only by its name and does so, too: N minutes (20) of a server beside
                      programs that come and go
  wheels              looks for our functions in many versions of the real libraries, which are fetched (1 GB)
  dist [--test [ROOT.tar...] | --verify SUMS]
                      programs for both architectures that run from glibc 2.17 on, Debian and RPM packages and checksums, in
                      target/dist; --test installs the package of this machine's into a clean system and traces with it (as
                      root), or does so in the systems in those archives; --verify builds the BPF objects again and holds them
                      against SHA256SUMS
  wheel [--test]      the Python package for both architectures (glibc 2.17, CPython 3.8 and later), and one without its native
                      half, in target/wheel; --test installs and uses them with each Python that is at hand
  bpf                 the BPF objects of both architectures, for packagers, in target/bpf
";

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let verb = arguments.next().unwrap_or_default();
    match dispatch(&verb, &arguments.collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(verb: &str, arguments: &[String]) -> Result<()> {
    match verb {
        "setup" => install::run(arguments),
        "build" => build::run(),
        "sim" => sim::run(arguments),
        "python" => python::run(arguments),
        "demo" => demo::run(arguments),
        "check" => check::run(arguments),
        "unit" => unit::run(arguments),
        "live" => live::run(arguments),
        "test" => test::run(arguments),
        test::BESIDE => test::beside(),
        "faults" => faults::run(arguments),
        "fuzz" => fuzz::run(arguments),
        "fleet" => fleet::run(arguments),
        "miri" => miri::run(arguments),
        "npu" => npu::run(arguments),
        "mindspore" => mindspore::run(arguments),
        "pythons" => interpreters::run(arguments),
        "servers" => servers::run(arguments),
        "bench" => bench::run(arguments),
        "prometheus" => peers::run(&peers::PROMETHEUS, arguments),
        "victoriametrics" => peers::run(&peers::VICTORIAMETRICS, arguments),
        "rotel" => peers::run(&peers::ROTEL, arguments),
        "containerd" => peers::run(&peers::CONTAINERD, arguments),
        "vm" => vm::run(arguments),
        "bpf" => bpf::run(),
        "dist" => dist::run(arguments),
        "deny" => deny::run(arguments),
        "docs" => docs::run(arguments),
        "pictures" => pictures::run(arguments),
        "wheel" => wheel::run(arguments),
        "wheels" => wheels::run(arguments),
        "" | "help" | "-h" | "--help" => {
            print!("{VERBS}");
            Ok(())
        }
        other => bail!("no verb `{other}`\n{VERBS}"),
    }
}
