//! `fleet`: the queries of `fleet/` over a folder of evidence, by the program `duckdb`.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::{Child, Command, ExitCode, Stdio},
    thread,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};

use super::{FAILURE, error, terminal};
use crate::printable::Style;

const VIEWS: &str = include_str!("../../../fleet/duckdb.sql");
/// The oldest version that the queries are tested with.
const LEAST_VERSION: (u32, u32) = (1, 5);
/// How large lines of JSON and tables may become while they are read.
const PIECE_BYTES: usize = 1 << 16;

/// The questions. `rollout` has to be given two sides: it is a file alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Query {
    /// Which rank grows steadily, while its peers do not?
    LeakByRank,
    /// Which rank holds more than its peers?
    RankOutlier,
    /// What holds more than a week ago?
    GrowthWeek,
    /// Who was out of memory, what did it ask for, who held most?
    OutOfMemory,
    /// How much do pools hold without handing it out?
    FragmentationByJob,
    /// Which pod holds which NPU memory now?
    NodeTop,
    /// How far can the other answers be trusted?
    EvidenceGaps,
}

impl Query {
    const fn text(self) -> &'static str {
        match self {
            Self::LeakByRank => include_str!("../../../fleet/leak_by_rank.sql"),
            Self::RankOutlier => include_str!("../../../fleet/rank_outlier.sql"),
            Self::GrowthWeek => include_str!("../../../fleet/growth_week.sql"),
            Self::OutOfMemory => include_str!("../../../fleet/out_of_memory.sql"),
            Self::FragmentationByJob => include_str!("../../../fleet/fragmentation_by_job.sql"),
            Self::NodeTop => include_str!("../../../fleet/node_top.sql"),
            Self::EvidenceGaps => include_str!("../../../fleet/evidence_gaps.sql"),
        }
    }
}

/// `fleet`.
#[derive(Debug, Args)]
pub(super) struct FleetArgs {
    /// The question; docs/fleet.md says what its columns mean.
    #[arg(value_name = "QUERY", value_enum)]
    pub query: Query,
    /// Folder of evidence, as agents write it: the one with `v1` in it. Or that of a bucket, `s3://bucket/folder`.
    #[arg(long, value_name = "DIR|URL")]
    pub from: PathBuf,
    /// One day, or from one day to another, UTC: 2026-11-20, 2026-11-14..2026-11-20 [default: all].
    #[arg(long, value_name = "DAY[..DAY]", value_parser = days)]
    pub days: Option<Days>,
    /// The program `duckdb`, 1.5 or later: its name or path.
    #[arg(long, value_name = "PROGRAM", default_value = "duckdb")]
    pub engine: PathBuf,
    /// Rows as CSV.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Rows as JSON.
    #[arg(long)]
    pub json: bool,
}

/// The first day and the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Days(String, String);

fn days(text: &str) -> Result<Days, String> {
    let day = |day: &str| {
        let is_digits = |part: &str, count| part.len() == count && part.bytes().all(|byte| byte.is_ascii_digit());
        match day.split('-').collect::<Vec<_>>()[..] {
            [year, month, date] if is_digits(year, 4) && is_digits(month, 2) && is_digits(date, 2) => {
                Ok(day.to_owned())
            }
            _ => Err(format!("`{day}` is not a day like 2026-11-20")),
        }
    };
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let (first, last) = (day(first)?, day(last)?);
    if first > last {
        return Err(format!("{first} is later than {last}"));
    }
    Ok(Days(first, last))
}

/// Runs a query.
pub(super) fn run(args: &FleetArgs) -> ExitCode {
    match ask(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            error(format_args!("{failure:#}"));
            ExitCode::from(FAILURE)
        }
    }
}

fn ask(args: &FleetArgs) -> Result<()> {
    let script = script(args)?;
    ensure!(
        bucket(args).is_some() || args.from.join("v1").is_dir(),
        "`{}` is no folder of evidence: it has no folder `v1` (docs/fleet.md)",
        args.from.display()
    );
    check_version(args)?;
    let (format, style) = match (args.csv, args.json) {
        (true, _) => ("-csv", Style::Text),
        (_, true) => ("-json", Style::Json),
        _ => ("-table", Style::Text),
    };
    // No settings of the user: they may change how rows look.
    let mut duckdb = Command::new(&args.engine);
    duckdb
        .args(["-init", "/dev/null", "-batch", "-bail", "-nullvalue", "", format])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut duckdb = duckdb.spawn().map_err(|failure| missing(args, failure))?;
    let printed = feed_and_print(&mut duckdb, script, style);
    let status = duckdb.wait().context("cannot wait for DuckDB")?;
    ensure!(status.success(), "DuckDB has failed ({status}): its words are above");
    printed.context("cannot print the rows")
}

/// Rows name functions of other people's programs: what must not reach a terminal does not.
fn feed_and_print(duckdb: &mut Child, script: String, style: Style) -> io::Result<()> {
    let (Some(mut to), Some(from)) = (duckdb.stdin.take(), duckdb.stdout.take()) else {
        return Err(io::Error::other("no pipe"));
    };
    // Where DuckDB ends before it has read all, its status says more.
    let feeding = thread::spawn(move || to.write_all(script.as_bytes()));
    let mut from = io::BufReader::with_capacity(PIECE_BYTES, from);
    let printed = terminal::print_as(style, None, |out| io::copy(&mut from, out).map(drop));
    drop(from);
    let _ = feeding.join();
    printed
}

fn missing(args: &FleetArgs, failure: io::Error) -> anyhow::Error {
    let engine = args.engine.display();
    if failure.kind() == io::ErrorKind::NotFound {
        return anyhow!(
            "there is no program `{engine}`: install DuckDB's (`pip install duckdb-cli`), or name it by --engine"
        );
    }
    anyhow!(failure).context(format!("cannot run `{engine}`"))
}

fn check_version(args: &FleetArgs) -> Result<()> {
    let output = Command::new(&args.engine).arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|failure| missing(args, failure))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let engine = args.engine.display();
    let Some(version) = version(&said) else { bail!("`{engine}` is not DuckDB's program: its --version names none") };
    let (major, minor) = LEAST_VERSION;
    ensure!(
        version >= LEAST_VERSION,
        "`{engine}` is DuckDB {}.{}: the queries need {major}.{minor}",
        version.0,
        version.1
    );
    Ok(())
}

/// Of `v1.5.6 (Name) 0123456789`.
fn version(said: &str) -> Option<(u32, u32)> {
    let mut parts = said.trim().strip_prefix('v')?.split(['.', ' ']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The address of a bucket's folder.
fn bucket(args: &FleetArgs) -> Option<&str> {
    args.from.to_str().filter(|from| from.starts_with("s3://"))
}

/// What the program reads: the key of a bucket, variables, views, the query.
fn script(args: &FleetArgs) -> Result<String> {
    let absolute = std::path::absolute(&args.from).context("cannot say where the folder is")?;
    let (folder, key) = match bucket(args) {
        Some(url) => {
            (url.trim_end_matches('/'), secret(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))?)
        }
        None => (absolute.to_str().context("the folder's path is no UTF-8")?, String::new()),
    };
    let variable = |name: &str, value: &str| format!("set variable {name} = '{}';\n", quoted(value));
    let days = args.days.as_ref().map(|Days(first, last)| variable("from_date", first) + &variable("to_date", last));
    Ok(key + &variable("evidence", folder) + &days.unwrap_or_default() + VIEWS + "\n" + args.query.text())
}

fn quoted(text: &str) -> String {
    text.replace('\'', "''")
}

/// The key of a bucket, by the variables that the agent reads. Without one the engine looks for its own.
fn secret(variable: impl Fn(&str) -> Option<String>) -> Result<String> {
    const OPTIONS: [(&str, &[&str]); 4] = [
        ("key_id", &["AWS_ACCESS_KEY_ID"]),
        ("secret", &["AWS_SECRET_ACCESS_KEY"]),
        ("session_token", &["AWS_SESSION_TOKEN"]),
        ("region", &["AWS_REGION", "AWS_DEFAULT_REGION"]),
    ];
    let first = |names: &[&str]| names.iter().find_map(|name| variable(name));
    if first(&["AWS_ACCESS_KEY_ID"]).is_none() {
        return Ok(String::new());
    }
    let mut options = vec!["type s3".to_owned()];
    let given = OPTIONS.iter().filter_map(|(option, names)| Some(format!("{option} '{}'", quoted(&first(names)?))));
    options.extend(given);
    if let Some(endpoint) = first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]) {
        let Some((scheme @ ("http" | "https"), server)) = endpoint.split_once("://") else {
            bail!("AWS_ENDPOINT_URL is `{endpoint}`: its form is https://host");
        };
        let is_hosted = variable("AWS_VIRTUAL_HOSTED_STYLE_REQUEST").is_some_and(|value| value == "true");
        let style = if is_hosted { "vhost" } else { "path" };
        options.push(format!("endpoint '{}'", quoted(server.trim_end_matches('/'))));
        options.push(format!("use_ssl {}, url_style '{style}'", scheme == "https"));
    }
    // It answers with a row of its own.
    Ok(format!(".output /dev/null\ncreate temporary secret evidence ({});\n.output\n", options.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_from_the_environment() {
        let of = |variables: &[(&str, &str)]| {
            secret(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[("AWS_REGION", "x")]).expect("none"), "");
        let key = [("AWS_ACCESS_KEY_ID", "AK"), ("AWS_SECRET_ACCESS_KEY", "it's")];
        let made = |options: &str| {
            format!(
                ".output /dev/null\ncreate temporary secret evidence (type s3, key_id 'AK', secret 'it''s'{options});\n.output\n"
            )
        };
        assert_eq!(of(&key).expect("a key"), made(""));
        let more = [("AWS_DEFAULT_REGION", "cn-north-4"), ("AWS_ENDPOINT_URL", "http://10.0.0.1:9000/")];
        assert_eq!(
            of(&[key, more].concat()).expect("a key"),
            made(", region 'cn-north-4', endpoint '10.0.0.1:9000', use_ssl false, url_style 'path'")
        );
        assert!(of(&[&key[..], &[("AWS_ENDPOINT_URL", "obs")]].concat()).is_err());
    }

    #[test]
    fn days_are_checked() {
        let of = |first: &str, last: &str| Ok(Days(first.to_owned(), last.to_owned()));
        assert_eq!(days("2026-11-20"), of("2026-11-20", "2026-11-20"));
        assert_eq!(days("2026-11-14..2026-11-20"), of("2026-11-14", "2026-11-20"));
        for wrong in ["", "7", "2026-11-2", "2026-11-20..", "2026-11-20..2026-11-19", "2026-11-20'..2026-11-21"] {
            assert!(days(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(version("v1.5.6 (Variegata) 0123456789\n"), Some((1, 5)));
        assert_eq!(version("v2.0.1\n"), Some((2, 0)));
        assert_eq!(version("ls (GNU coreutils) 9.1"), None);
    }

    /// A quotation mark of a path does not end its text, and views come before the query.
    #[test]
    fn script_has_all() {
        let args = FleetArgs {
            query: Query::NodeTop,
            from: "/data/it's".into(),
            days: Some(Days("2026-11-20".into(), "2026-11-21".into())),
            engine: "duckdb".into(),
            csv: false,
            json: false,
        };
        let script = script(&args).expect("a script");
        let expected = "set variable evidence = '/data/it''s';\nset variable from_date = '2026-11-20';\nset variable to_date = '2026-11-21';\n";
        assert!(script.starts_with(expected), "{script}");
        let at = |text| script.find(text).unwrap_or_else(|| panic!("{text}"));
        assert!(at("view place_minute") < at("-- Which pod holds which NPU memory of a node now?"));
    }
}
