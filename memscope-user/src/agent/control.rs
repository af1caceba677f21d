//! The control socket: one request, a JSON object on a line; answers, each the same. Who asks the kernel says, not the asker.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Longest line.
pub const MAX_LINE_BYTES: usize = 64 << 10;
/// A capture is at most so long.
pub const MAX_SECONDS: u64 = 24 * 3600;

/// What is wanted.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// How the agent is, and whom it traces.
    Status {},
    /// A full trace of some processes for a while.
    Capture {
        /// The process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        /// All traced processes of this pod.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pod: Option<String>,
        /// For so long.
        seconds: u64,
        /// Where to.
        directory: PathBuf,
    },
}

/// What comes back.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// It was refused.
    Refused {
        /// Why.
        why: String,
    },
    /// How the agent is.
    Status(Box<Status>),
    /// A capture has begun.
    Begun {
        /// Of these processes.
        pids: Vec<u32>,
    },
    /// A capture has ended.
    Ended {
        /// Exit status of the tracer; 0 is well.
        status: i32,
    },
}

/// How the agent is.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Status {
    /// Version of the agent.
    pub version: String,
    /// Level, see `docs/agent.md`.
    pub level: u8,
    /// Changes of the level, the newest last.
    pub changes: Vec<String>,
    /// Processor time of all parts over the last interval, in cores.
    pub overhead_cores: f64,
    /// What is allowed of it.
    pub budget_cores: f64,
    /// Events so far.
    pub events: u64,
    /// Records lost so far.
    pub lost: u64,
    /// Traced processes, and those that are left out for a while with a pool that was read.
    pub processes: Vec<ProcessStatus>,
    /// Processes that are left out.
    pub excluded: usize,
}

/// A traced process.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct ProcessStatus {
    /// Its number.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Short name of its program.
    pub command: String,
    /// Namespace of its pod.
    pub namespace: String,
    /// Its pod.
    pub pod: String,
    /// Its container.
    pub container: String,
    /// It is not traced for a while: the sums of its pools are read.
    #[serde(default)]
    pub left_out: bool,
    /// It is traced without its pools for a while: their sums are read.
    #[serde(default)]
    pub reduced: bool,
    /// Its pools.
    pub pools: Vec<PoolStatus>,
}

/// A pool of a process.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PoolStatus {
    /// Device.
    pub device: String,
    /// Pool.
    pub pool: String,
    /// Live bytes.
    pub live_bytes: u64,
    /// What the pool says beyond what is known by place.
    pub untracked_bytes: u64,
    /// How fast its live bytes grow, over up to an hour; unknown for the first ten minutes.
    #[serde(default)]
    pub growth_bytes_per_second: Option<f64>,
    /// Seconds until a growing pool holds all that the driver has free: earliest, middle, latest of an interval of 90 %; `None` there: beyond
    /// 60 times what was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<[Option<f64>; 3]>,
    /// The place that holds most.
    #[serde(default)]
    pub largest: Option<LargestPlace>,
    /// Places that grow, the fastest first.
    pub growing: Vec<GrowingPlace>,
}

/// The place that holds most of a pool.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct LargestPlace {
    /// The innermost frame of the user's code, or the size of its blocks.
    pub place: String,
    /// What it holds.
    pub live_bytes: u64,
}

/// A place that grows.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct GrowingPlace {
    /// Frames, innermost first; none where no stack was taken.
    pub frames: Vec<String>,
    /// Size of its blocks, where there is no stack.
    pub size_bytes: u64,
    /// How fast.
    pub bytes_per_second: f64,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    /// Its user.
    pub uid: u32,
    /// Its group, and its further ones.
    pub groups: Vec<u32>,
}

/// Rights of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Everything.
    All,
    /// See all processes.
    Read,
    /// See the processes of one user.
    Own(u32),
    /// Nothing: no user of this machine is known for it.
    None,
}

/// Users of other namespaces are all this one.
const UNMAPPED: u32 = 65_534;

impl Asker {
    /// What it may do, where members of `group` may see all.
    #[must_use]
    pub fn rights(&self, group: Option<u32>) -> Rights {
        match self.uid {
            0 => Rights::All,
            UNMAPPED => Rights::None,
            _ if group.is_some_and(|group| self.groups.contains(&group)) => Rights::Read,
            uid => Rights::Own(uid),
        }
    }
}

impl Request {
    /// Reads a line.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let request: Self =
            serde_json::from_slice(line).map_err(|error| format!("the request makes no sense: {error}"))?;
        if let Self::Capture { pid, pod, seconds, directory } = &request {
            if pid.is_some() == pod.is_some() {
                return Err("a capture is of a process or of a pod: one of both has to be given".to_owned());
            }
            if !(1..=MAX_SECONDS).contains(seconds) {
                return Err(format!("a capture is 1 to {MAX_SECONDS} seconds long, not {seconds}"));
            }
            if !directory.is_absolute() {
                return Err(format!("`{}` is no absolute path", directory.display()));
            }
        }
        Ok(request)
    }
}

impl Status {
    /// What those may see who have these rights.
    #[must_use]
    pub fn seen_by(mut self, rights: Rights) -> Self {
        if let Rights::Own(uid) = rights {
            self.processes.retain(|process| process.uid == uid);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_by_user_and_group() {
        let asker = |uid, groups: &[u32]| Asker { uid, groups: groups.to_vec() };
        assert_eq!(asker(0, &[]).rights(None), Rights::All);
        assert_eq!(asker(1000, &[1000, 7]).rights(Some(7)), Rights::Read);
        assert_eq!(asker(1000, &[1000]).rights(Some(7)), Rights::Own(1000));
        assert_eq!(asker(1000, &[1000]).rights(None), Rights::Own(1000));
        assert_eq!(asker(65_534, &[7]).rights(Some(7)), Rights::None);
    }

    #[test]
    fn others_see_their_own() {
        let of = |uid| ProcessStatus { uid, ..ProcessStatus::default() };
        let status = Status { processes: vec![of(0), of(1000), of(1001)], ..Status::default() };
        assert_eq!(status.clone().seen_by(Rights::Own(1000)).processes, [of(1000)]);
        assert_eq!(status.seen_by(Rights::Read).processes.len(), 3);
    }

    #[test]
    fn requests_are_checked() {
        let capture = |pid: Option<u32>, pod: Option<&str>, seconds, directory: &str| {
            let pod = pod.map(str::to_owned);
            let request = Request::Capture { pid, pod, seconds, directory: directory.into() };
            Request::parse(&serde_json::to_vec(&request).expect("JSON"))
        };
        assert!(capture(Some(1), None, 60, "/tmp/x").is_ok());
        assert!(capture(None, Some("vllm-0"), 60, "/tmp/x").is_ok());
        assert!(capture(Some(1), Some("vllm-0"), 60, "/tmp/x").is_err());
        assert!(capture(None, None, 60, "/tmp/x").is_err());
        assert!(capture(Some(1), None, 0, "/tmp/x").is_err());
        assert!(capture(Some(1), None, MAX_SECONDS + 1, "/tmp/x").is_err());
        assert!(capture(Some(1), None, 60, "x").is_err());
        assert_eq!(Request::parse(br#"{"ask":"status"}"#), Ok(Request::Status {}));
        for wrong in [&b""[..], b"{}", b"[]", br#"{"ask":"stop"}"#, br#"{"ask":"status","x":1}"#, b"\xff"] {
            assert!(Request::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
