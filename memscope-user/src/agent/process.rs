//! What is known of a process that was found.

use std::fs;

use nix::unistd::{Uid, User};

use super::{
    cgroup::Cgroup,
    fold::{Target, Where},
    names::{Names, Naming},
    rules::Facts,
};
use crate::{
    hash::HashMap,
    os::process::{command, environment, variable},
};

/// Names of users that are remembered.
const MAX_USERS: usize = 4096;
/// Digits of a container's number that stand for its name.
const SHORT_ID: usize = 12;
/// Variables that give a process's rank, the first that is there counts.
const RANKS: [&str; 3] = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"];

/// Longest name of a job.
const MAX_JOB: usize = 128;

/// Names of users, each looked up once.
#[derive(Debug, Default)]
pub(super) struct Users(HashMap<u32, String>);

impl Users {
    fn name(&mut self, uid: u32) -> String {
        if self.0.len() >= MAX_USERS {
            self.0.clear();
        }
        let look_up = || User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name);
        self.0.entry(uid).or_insert_with(|| look_up().unwrap_or_else(|| uid.to_string())).clone()
    }
}

/// What a look at a process gives.
pub(super) enum Look {
    /// This.
    Known(Box<(Facts, Target)>),
    /// Nothing: it is gone.
    Gone,
    /// Its container's name is not there yet.
    Later,
}

/// Looks at a process.
pub(super) fn look(pid: u32, names: &mut Names, users: &mut Users, job_from: &[String]) -> Look {
    let Some(uid) = uid_of(pid) else { return Look::Gone };
    let cgroup = Cgroup::of(pid);
    let naming = cgroup.container_id.as_deref().map(|id| names.of(id, std::time::Instant::now()));
    let name = match naming {
        Some(Naming::Known(name)) => Some(name),
        Some(Naming::Later) => return Look::Later,
        Some(Naming::Unknown) | None => None,
    };
    let facts = Facts {
        command: command(pid),
        user: users.name(uid),
        uid,
        namespace: name.as_ref().map(|name| name.namespace.clone()),
        pod: name.as_ref().map(|name| name.pod.clone()),
        pod_uid: cgroup.pod_uid,
        container: name.as_ref().map(|name| name.container.clone()),
        container_id: cgroup.container_id,
        labels: name.map(|name| name.labels).unwrap_or_default(),
    };
    let environment = environment(pid).unwrap_or_default();
    let target = Target { job: job(&environment, job_from), ..target(&facts, rank(&environment)) };
    Look::Known(Box::new((facts, target)))
}

/// Labels of a process.
fn target(facts: &Facts, rank: String) -> Target {
    let short = |id: &String| id.chars().take(SHORT_ID).collect();
    let place = Where {
        namespace: facts.namespace.clone().unwrap_or_default(),
        pod_name: facts.pod.clone().or_else(|| facts.pod_uid.clone()).unwrap_or_default(),
        container_name: facts.container.clone().or_else(|| facts.container_id.as_ref().map(short)).unwrap_or_default(),
    };
    Target {
        place,
        container_id: facts.container_id.clone().unwrap_or_default(),
        comm: facts.command.clone(),
        rank,
        job: String::new(),
        uid: facts.uid,
    }
}

/// The real user of a process.
pub(super) fn uid_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn rank(environment: &[u8]) -> String {
    let number = |name| {
        let value = std::str::from_utf8(variable(environment, name)?).ok()?;
        value.parse::<u32>().ok()
    };
    RANKS.into_iter().find_map(number).map(|rank| rank.to_string()).unwrap_or_default()
}

/// The value of the first of these variables that has a plain one.
fn job(environment: &[u8], names: &[String]) -> String {
    let plain = |name: &String| {
        let value = std::str::from_utf8(variable(environment, name)?).ok()?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'/');
        ((1..=MAX_JOB).contains(&value.len()) && value.bytes().all(is_plain)).then(|| value.to_owned())
    };
    names.iter().find_map(plain).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names come first; without them UID and number stand for pod and container; without those nothing does.
    #[test]
    fn labels_by_what_is_known() {
        let facts = Facts {
            pod_uid: Some("5759a1ae-36ca-48a8-b20a-b0b5c8a90fb8".into()),
            container_id: Some("9ec39b91f3d70e1beff5".into()),
            ..Facts::default()
        };
        let place = target(&facts, String::new()).place;
        assert_eq!(
            (place.pod_name.as_str(), place.container_name.as_str()),
            ("5759a1ae-36ca-48a8-b20a-b0b5c8a90fb8", "9ec39b91f3d7")
        );
        let named = Facts { pod: Some("vllm-0".into()), container: Some("server".into()), ..facts };
        let place = target(&named, String::new()).place;
        assert_eq!((place.pod_name.as_str(), place.container_name.as_str()), ("vllm-0", "server"));
        assert_eq!(target(&Facts::default(), String::new()).place, Where::default());
    }

    /// The first variable with a plain value counts: a value of a program becomes a cell of tables.
    #[test]
    fn jobs_have_plain_names() {
        let environment = b"JOB_NAME=a b\0VC_JOB_NAME=team/train-7.1\0SLURM_JOB_ID=42\0EMPTY=\0";
        let of = |names: &[&str]| job(environment, &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["NONE", "JOB_NAME", "EMPTY", "VC_JOB_NAME", "SLURM_JOB_ID"]), "team/train-7.1");
        assert_eq!(of(&["SLURM_JOB_ID"]), "42");
        assert_eq!(of(&["JOB_NAME", "EMPTY"]), "");
    }

    #[test]
    fn own_process_is_known() {
        let pid = std::process::id();
        let looked = look(pid, &mut Names::new(std::path::Path::new("")), &mut Users::default(), &[]);
        let Look::Known(known) = looked else { panic!("it is there") };
        let (facts, target) = *known;
        assert_eq!((facts.uid, target.uid), (Uid::current().as_raw(), Uid::current().as_raw()));
        assert_eq!(target.comm, command(pid));
    }
}
