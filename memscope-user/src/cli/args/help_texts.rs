//! Headings of options and examples, for the help of commands.

/// Which calls and rows.
pub(super) const RECORD: &str = "What is recorded";
/// What is analysed and printed.
pub(super) const REPORT: &str = "Report";
/// `--since`, `--until`, `--filter`.
pub(in crate::cli) const PART: &str = "Part of the run";
/// Files that are written.
pub(super) const OUTPUT: &str = "Files";
/// Messages of the program.
pub(super) const MESSAGES: &str = "Messages";
/// When a trace ends.
pub(super) const LIMITS: &str = "Limits";
/// How processes are traced.
pub(super) const HOW: &str = "Tracing";
/// Who holds blocks.
pub(super) const HOLDERS: &str = "Holders";

/// Examples of `run`.
pub(super) const RUN: &str = "Examples:
  memscope-bpf run -- python train.py                       leaks, growth, failed requests
  memscope-bpf run --analysis=auto,oom,peaks -- bash train.sh   out of memory: who held it
  memscope-bpf run --html -d 5m -- python serve.py          with a page for a browser
  memscope-bpf run --fail-on=leak,'peak>60G' -- pytest      status 3 where it is found";

/// Examples of `attach`.
pub(super) const ATTACH: &str = "Examples:
  sudo memscope-bpf attach 1234 -d 30s                      a server grows: at which line?
  sudo memscope-bpf attach 1234 -d 10m --html               with a page for a browser
  sudo memscope-bpf attach 1234 --capture-only -o trace     the least cost; `replay` later";

/// Examples of `leaks`.
pub(super) const LEAKS: &str = "Examples:
  memscope-bpf leaks                                        the newest run
  memscope-bpf leaks trace --since 5m --filter 'stack~serve.py'
  memscope-bpf leaks trace --fail-on=leak,growth            status 3 where one is found";

/// Examples of `report`.
pub(super) const PAGE: &str = "Examples:
  memscope-bpf report --open                                the newest run in a browser
  memscope-bpf report trace --since 5m -o leak.html         from a moment on";

/// Examples of `export`.
pub(super) const EXPORT: &str = "Examples:
  memscope-bpf export -f folded trace | flamegraph.pl > held.svg
  memscope-bpf export -f pprof trace -o peak.pb.gz
  memscope-bpf export -f perfetto trace -o trace.pftrace    for ui.perfetto.dev";

/// Examples of `diff`.
pub(super) const DIFF: &str = "Examples:
  memscope-bpf diff before after                            two runs
  memscope-bpf diff trace --from 1m --to 10m                two moments of one";

/// Examples of `holders`.
pub(super) const OF_HOLDERS: &str = "Examples:
  sudo memscope-bpf holders --pid 1234                      all of the pool, by variable
  sudo memscope-bpf holders --pid 1234 --growing            of what grows in 20 s";

/// Examples of `fleet`.
pub(super) const FLEET: &str = "Examples:
  memscope-bpf fleet evidence_gaps --from /data/evidence    how far answers can be trusted
  memscope-bpf fleet leak_by_rank --from /data/evidence --days 2026-11-20";

/// Examples of `top`.
pub(super) const TOP: &str = "Examples:
  sudo memscope-bpf top 1234                                the screen; h shows its keys
  sudo memscope-bpf top 1234 --once                         one sample, as text
  sudo memscope-bpf top 1234 --json --interval 10s >> memory.jsonl";
