//! Pod and container of a process, from the text of `/proc/<pid>/cgroup`. Pure; the text is hostile.
//!
//! What systemd, kubelet, containerd, CRI-O, Docker, Podman, iSulad and nerdctl make of a container's cgroup differs in prefixes
//! alone: a pod is `pod<UID>`, a container a segment that ends with 64 hex digits.

/// Which of the lines counts: version 2 first, then the hierarchies of version 1 that runtimes use.
const HIERARCHIES: [&str; 5] = ["", "memory", "pids", "devices", "name=systemd"];
/// What runtimes write before a container's number.
const PREFIXES: [&str; 7] = ["cri-containerd", "crio", "docker", "libpod", "nerdctl", "isulad", "nspawn"];
/// Hex digits of a container's number.
const CONTAINER_DIGITS: usize = 64;
/// A pod's number: five groups of hex digits.
const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];
/// The same of a static pod: the hash of its file, without groups.
const STATIC_DIGITS: usize = 32;

/// Where a process runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cgroup {
    /// UID of the pod, with `-` between its groups.
    pub pod_uid: Option<String>,
    /// Number of the container: 64 hex digits.
    pub container_id: Option<String>,
}

impl Cgroup {
    /// Of a process on this machine; nothing if it is gone.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        std::fs::read_to_string(format!("/proc/{pid}/cgroup")).map(|text| Self::parse(&text)).unwrap_or_default()
    }

    /// Of the text of a `cgroup` file.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let lines: Vec<(&str, &str)> = text
            .lines()
            .filter_map(|line| {
                let mut fields = line.splitn(3, ':');
                let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
                Some((controllers, path))
            })
            .collect();
        let of_hierarchy = |name: &str| {
            lines.iter().find(|(controllers, _)| controllers.split(',').any(|controller| controller == name))
        };
        let preferred = HIERARCHIES.iter().filter_map(|name| of_hierarchy(name));
        let found = preferred.chain(&lines).map(|(_, path)| Self::of_path(path));
        found.into_iter().find(|found| *found != Self::default()).unwrap_or_default()
    }

    fn of_path(path: &str) -> Self {
        Self { pod_uid: pod(path), container_id: path.rsplit('/').find_map(container).map(str::to_owned) }
    }
}

/// The innermost pod of a path: a node may itself be a pod's container.
fn pod(path: &str) -> Option<String> {
    path.rmatch_indices("pod").find_map(|(at, word)| {
        let is_begin = at == 0 || matches!(path.as_bytes()[at - 1], b'/' | b'-');
        if is_begin { uid(&path[at + word.len()..]) } else { None }
    })
}

/// The UID that a text begins with, if the name ends behind it.
fn uid(text: &str) -> Option<String> {
    let grouped = || {
        let mut at = 0;
        for (number, digits) in GROUPS.iter().enumerate() {
            if number > 0 {
                at += usize::from(matches!(text.as_bytes().get(at)?, b'-' | b'_'));
            }
            is_hex(text.get(at..at + digits)?).then_some(())?;
            at += digits;
        }
        // Without the four separators it is another thing.
        (at == 36).then_some(at)
    };
    let plain = || is_hex(text.get(..STATIC_DIGITS)?).then_some(STATIC_DIGITS);
    let len = grouped().or_else(plain)?;
    let behind = &text[len..];
    let behind = behind.strip_prefix(".slice").unwrap_or(behind);
    (behind.is_empty() || behind.starts_with(['/', ':'])).then(|| text[..len].replace('_', "-"))
}

/// The container's number that a segment of a path ends with.
fn container(segment: &str) -> Option<&str> {
    let (before, number) = split_number(segment.strip_suffix(".scope").unwrap_or(segment))?;
    if before.is_empty() || before.ends_with(':') {
        return Some(number);
    }
    let prefix = before.strip_suffix('-')?;
    let prefix = prefix.rsplit(':').next().unwrap_or(prefix);
    PREFIXES.contains(&prefix).then_some(number)
}

/// A name that ends with a container's number: what is before it, and the number.
pub(super) fn split_number(name: &str) -> Option<(&str, &str)> {
    let (before, number) = name.split_at_checked(name.len().checked_sub(CONTAINER_DIGITS)?)?;
    is_hex(number).then_some((before, number))
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: &str = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d";
    const D: &str = "c8b38413c88eefe063b8cd3f01c16be5e3bda9693a19a68a88807baca9feb937";
    const U: &str = "5759a1ae-36ca-48a8-b20a-b0b5c8a90fb8";
    const V: &str = "5759a1ae_36ca_48a8_b20a_b0b5c8a90fb8";
    const S: &str = "89f4f2cb511c3b0b7e5272cff5ec37bf";

    /// Each text as a runtime writes it, with the pod and the container that it names.
    #[test]
    fn paths_of_runtimes() {
        let systemd = format!("kubepods-pod{V}.slice");
        let burstable = format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{V}.slice");
        let kubelet = "kubelet.slice/kubelet-kubepods.slice";
        let both = (Some(U), Some(C));
        let alone = (None, Some(C));
        let vectors = [
            ("v2 containerd burstable", format!("0::/{burstable}/cri-containerd-{C}.scope"), both),
            ("v2 containerd guaranteed", format!("0::/kubepods.slice/{systemd}/cri-containerd-{C}.scope"), both),
            ("v2 containerd cgroupfs", format!("0::/kubepods/burstable/pod{U}/{C}"), both),
            (
                "v1 containerd cgroupfs",
                format!("12:pids:/kubepods/besteffort/pod{U}/{C}\n11:memory:/kubepods/besteffort/pod{U}/{C}\n0::/"),
                both,
            ),
            (
                "cgroupfs path, systemd kubelet",
                format!(
                    "11:memory:/system.slice/containerd.service/kubepods-burstable-pod{V}.slice:cri-containerd:{C}"
                ),
                both,
            ),
            ("v2 cri-o", format!("0::/{burstable}/crio-{C}.scope"), both),
            ("v2 cri-o, group below", format!("0::/kubepods.slice/{systemd}/crio-{C}.scope/container"), both),
            ("v1 cri-o", format!("9:memory:/kubepods/burstable/pod{U}/crio-{C}"), both),
            ("cri-o monitor", format!("0::/kubepods.slice/{systemd}/crio-conmon-{C}.scope"), (Some(U), None)),
            ("v1 docker, kubelet", format!("9:memory:/{burstable}/docker-{C}.scope"), both),
            ("v1 docker", format!("10:devices:/docker/{C}\n9:memory:/docker/{C}"), alone),
            ("v2 docker", format!("0::/system.slice/docker-{C}.scope"), alone),
            ("v2 podman", format!("0::/machine.slice/libpod-{C}.scope/container"), alone),
            (
                "podman of a user",
                format!("0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{C}.scope"),
                alone,
            ),
            ("isulad", format!("9:memory:/isulad/{C}"), alone),
            ("nerdctl", format!("0::/system.slice/nerdctl-{C}.scope"), alone),
            ("containerd namespace", format!("9:memory:/k8s.io/{C}"), alone),
            ("static pod", format!("0::/kubepods-burstable-pod{S}.slice/cri-containerd-{C}.scope"), (Some(S), Some(C))),
            ("kind", format!("0::/{kubelet}/kubelet-kubepods-besteffort-pod{V}.slice/cri-containerd-{C}.scope"), both),
            (
                "kind on docker: the innermost",
                format!("0::/docker/{D}/{kubelet}/kubelet-kubepods-pod{V}.slice/cri-containerd-{C}.scope"),
                both,
            ),
            ("docker in docker", format!("9:memory:/docker/{D}/docker/{C}"), alone),
            ("k3s", format!("0::/k3s/kubepods/burstable/pod{U}/{C}"), both),
            ("slurm", "0::/system.slice/slurmstepd.scope/job_4242/step_0/user/task_3".to_owned(), (None, None)),
            ("a service", "0::/system.slice/sshd.service".to_owned(), (None, None)),
            ("own namespace", "0::/".to_owned(), (None, None)),
            (
                "beside our namespace",
                format!("0::/../../kubepods-burstable-pod{V}.slice/cri-containerd-{C}.scope"),
                both,
            ),
            ("hybrid, bare", format!("0::/\n4:memory:/kubepods/pod{U}/{C}"), both),
            ("hybrid, service", format!("4:memory:/kubepods/pod{U}/{C}\n0::/system.slice/containerd.service"), both),
            ("only looks like one", format!("0::/user.slice/pod{U}x/{C}z"), (None, None)),
            ("colon in the path", format!("0::/a:b/kubepods/pod{U}/{C}"), both),
            ("sandbox", format!("0::/kubepods.slice/{systemd}/cri-containerd-{D}.scope"), (Some(U), Some(D))),
            ("empty", String::new(), (None, None)),
        ];
        assert_eq!(vectors.len(), 32);
        for (name, text, (pod_uid, container_id)) in vectors {
            let expected =
                Cgroup { pod_uid: pod_uid.map(str::to_owned), container_id: container_id.map(str::to_owned) };
            assert_eq!(Cgroup::parse(&text), expected, "{name}: {text}");
        }
    }

    /// Whatever the text is: no panic, and no value but hex digits and dashes.
    #[test]
    fn values_are_numbers() {
        let hostile = [
            format!("0::/pod{U}\u{e9}/{C}"),
            format!("0::/\u{e9}{C}"),
            format!("0::/pod{}\"}}\n0::/x", &U[..35]),
            "0::/podäöü".to_owned(),
            format!("0::/docker-{}\u{e9}", &C[..63]),
            "::::\n\0\n0:".to_owned(),
        ];
        for text in hostile {
            let Cgroup { pod_uid, container_id } = Cgroup::parse(&text);
            let mut values = pod_uid.iter().chain(&container_id).flat_map(|value| value.chars());
            assert!(values.all(|c| c.is_ascii_hexdigit() || c == '-'), "{text:?}");
        }
    }
}
