//! `agent`: being the node agent, or asking the one that runs.

mod top;

use std::{fmt::Write as _, path::Path, process::ExitCode};

use anyhow::{Context as _, Result, anyhow, bail};

use super::{
    FAILURE,
    args::{AgentArgs, AgentCaptureArgs, AgentCommand, AgentStatusArgs, LogLevel},
    error, message, messages, terminal,
};
use crate::{
    agent::{
        self, RunOptions,
        config::Config,
        control::{Answer, PoolStatus, ProcessStatus, Request, Status},
    },
    session::text::size,
    text::numbers::{counted, time},
};

/// Runs the agent, or asks one.
pub(super) fn run(args: &AgentArgs) -> ExitCode {
    let done = match &args.command {
        None => be(args),
        Some(AgentCommand::Status(args)) => status(args),
        Some(AgentCommand::Top(args)) => top::run(args),
        Some(AgentCommand::Capture(args)) => capture(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error(format_args!("{failure:#}"));
            ExitCode::from(FAILURE)
        }
    }
}

fn be(args: &AgentArgs) -> Result<()> {
    let level = if args.quiet { LogLevel::Error } else { LogLevel::Info };
    let config = args.config.as_deref().map_or_else(|| Ok(Config::default()), Config::read)?;
    let options = RunOptions { config, once: args.once };
    let page = agent::run(options, messages::listener(level))?;
    if args.once {
        terminal::print(|out| out.write_all(page.as_bytes())).context("cannot print the page")?;
    }
    Ok(())
}

/// Asks the agent, and gives its answers one by one; a refusal is a failure.
fn ask(socket: &Path, request: &Request, mut took: impl FnMut(Answer) -> Result<()>) -> Result<()> {
    let mut result = Ok(());
    let asked = agent::ask(socket, request, |answer| {
        let taken = match answer {
            Answer::Refused { why } => Err(anyhow!("the agent refuses: {why}")),
            answer => took(answer),
        };
        if result.is_ok() {
            result = taken;
        }
    });
    asked.with_context(|| {
        format!(
            "cannot ask the agent at `{}`: does it run, and may this user ask it (docs/agent.md)?",
            socket.display()
        )
    })?;
    result
}

/// How the agent is.
fn ask_status(socket: &Path) -> Result<Box<Status>> {
    let mut found = None;
    ask(socket, &Request::Status {}, |answer| {
        if let Answer::Status(status) = answer {
            found = Some(status);
        }
        Ok(())
    })?;
    found.context("the agent gave no answer")
}

fn status(args: &AgentStatusArgs) -> Result<()> {
    let status = ask_status(&args.socket)?;
    let text = if args.json { serde_json::to_string_pretty(&status)? + "\n" } else { status_text(&status) };
    let style = if args.json { crate::printable::Style::Json } else { crate::printable::Style::Text };
    terminal::print_as(style, None, |out| out.write_all(text.as_bytes())).context("cannot print the status")
}

/// What is shown of a status.
fn status_text(status: &Status) -> String {
    let Status { version, level, overhead_cores, budget_cores, events, lost, processes, excluded, changes } = status;
    let mut text = format!(
        "agent {version}: level {level}, {:.2} % of a core of {:.2} % allowed, {events} events, {lost} lost\n\
         {} traced, {excluded} left out by rules\n",
        overhead_cores * 100.0,
        budget_cores * 100.0,
        counted(processes.iter().filter(|process| !process.left_out).count() as u64, "process")
    );
    for change in changes {
        let _ = writeln!(text, "  {change}");
    }
    for process in processes {
        process_text(process, &mut text);
    }
    text
}

fn process_text(process: &ProcessStatus, text: &mut String) {
    let ProcessStatus { pid, command, namespace, pod, container, left_out, reduced, pools, .. } = process;
    let place = [namespace, pod, container].map(String::as_str).into_iter().filter(|name| !name.is_empty());
    let place = place.collect::<Vec<_>>().join("/");
    // Memory takes everything.
    let aside = match (*left_out, *reduced) {
        (true, _) => "(left out for a while: its pool is read)",
        (false, true) => "(traced without its pool for a while: it is read)",
        (false, false) => "",
    };
    let line = [command, &place, aside].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
    let _ = writeln!(text, "\n{pid} {line}");
    for PoolStatus { device, pool, live_bytes, untracked_bytes, seconds_left, growing, .. } in pools {
        let more = if *untracked_bytes > 0 {
            format!(", {} not known by place", size(*untracked_bytes))
        } else {
            String::new()
        };
        let _ = writeln!(text, "  {device} {pool}: {} live{more}", size(*live_bytes));
        if let Some(full) = seconds_left.and_then(full_text) {
            let _ = writeln!(text, "    {full}");
        }
        for place in growing {
            let rate = size((place.bytes_per_second * 60.0) as u64);
            let at = match place.frames.first() {
                Some(frame) => frame.clone(),
                None => format!("blocks of {}", size(place.size_bytes)),
            };
            let _ = writeln!(text, "    grows by {rate} a minute: {at}");
        }
    }
}

/// When a pool is full; `None`: not within a time that anything is known of.
fn full_text([early, middle, late]: [Option<f64>; 3]) -> Option<String> {
    let (early, late) = (time(early?), late.map_or_else(|| "later, or never".to_owned(), time));
    Some(match middle {
        Some(middle) => format!("full in {} ({early} to {late}, 90 %)", time(middle)),
        None => format!("full in {early} at the earliest (90 %), or never"),
    })
}

fn capture(args: &AgentCaptureArgs) -> Result<()> {
    let directory = std::path::absolute(&args.output_path).context("cannot say where the output folder is")?;
    let seconds = args.duration.as_secs().max(1);
    let request = Request::Capture { pid: args.pid, pod: args.pod.clone(), seconds, directory: directory.clone() };
    let mut ended = None;
    ask(&args.socket, &request, |answer| {
        match answer {
            Answer::Begun { pids } => {
                let pids = crate::session::text::list(&pids);
                let text = format_args!("capture of {pids} for {seconds} s into `{}`", directory.display());
                message(LogLevel::Info, LogLevel::Info, text);
            }
            Answer::Ended { status } => ended = Some(status),
            Answer::Status(_) | Answer::Refused { .. } => {}
        }
        Ok(())
    })?;
    match ended {
        Some(0) => Ok(()),
        Some(status) => bail!("the tracer ended with status {status}: see the log in `{}`", directory.display()),
        None => bail!("the agent ended before the capture did"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::control::GrowingPlace;

    #[test]
    fn status_as_text() {
        let growing = GrowingPlace { frames: vec!["f".into()], size_bytes: 0, bytes_per_second: 17476.27 };
        let pool = PoolStatus {
            device: "npu:0".into(),
            pool: "PTA".into(),
            live_bytes: 2 << 20,
            untracked_bytes: 1 << 20,
            growth_bytes_per_second: None,
            seconds_left: Some([Some(3600.0), Some(7260.0), None]),
            largest: None,
            growing: vec![growing],
        };
        let process = ProcessStatus {
            pid: 7,
            uid: 0,
            command: "python".into(),
            namespace: "train".into(),
            pod: "job-0".into(),
            container: String::new(),
            left_out: false,
            reduced: false,
            pools: vec![pool],
        };
        let aside = ProcessStatus { pid: 8, left_out: true, pools: Vec::new(), ..process.clone() };
        let reduced = ProcessStatus { pid: 9, left_out: false, reduced: true, ..aside.clone() };
        let status = Status {
            version: "1".into(),
            level: 1,
            changes: vec!["after 80 s: level 0 -> 1 (cpu)".into()],
            overhead_cores: 0.0123,
            budget_cores: 0.02,
            events: 10,
            lost: 0,
            processes: vec![process, aside, reduced],
            excluded: 3,
        };
        let expected = "agent 1: level 1, 1.23 % of a core of 2.00 % allowed, 10 events, 0 lost\n\
            2 processes traced, 3 left out by rules\n  after 80 s: level 0 -> 1 (cpu)\n\n\
            7 python train/job-0\n  npu:0 PTA: 2.0 MiB live, 1.0 MiB not known by place\n    \
            full in 2.0 h (60 min to later, or never, 90 %)\n    grows by 1.0 MiB a minute: f\n\n\
            8 python train/job-0 (left out for a while: its pool is read)\n\n\
            9 python train/job-0 (traced without its pool for a while: it is read)\n";
        assert_eq!(status_text(&status), expected);
    }
}
