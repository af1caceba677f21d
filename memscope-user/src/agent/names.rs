//! Names of pods and containers: by the container runtime, if the agent may ask it, and by the names of the kubelet's log files, which
//! needs no token and no socket.
//!
//! The kubelet keeps a link `POD_NAMESPACE_CONTAINER-ID.log` for each container of the node. Names of Kubernetes have no `_`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

use super::{cgroup::split_number, cri::Directory, metrics::Sample};
use crate::hash::HashMap;

/// Containers that are known at once; a node has some hundred.
pub(super) const MAX_CONTAINERS: usize = 16_384;
/// Least time between two readings of the folder for unknown containers.
const PAUSE: Duration = Duration::from_secs(5);
/// Longest name of Kubernetes.
const MAX_NAME: usize = 253;

/// What a container is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerName {
    /// Namespace of its pod.
    pub namespace: String,
    /// Its pod.
    pub pod: String,
    /// Its own name in the pod.
    pub container: String,
    /// Labels of its pod, which the container runtime alone knows.
    pub labels: BTreeMap<String, String>,
}

/// What is known of a container's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Naming {
    /// This one.
    Known(ContainerName),
    /// It has none.
    Unknown,
    /// The container runtime is being asked: ask again in a second.
    Later,
}

/// Knows names of containers.
#[derive(Debug)]
pub struct Names {
    folder: PathBuf,
    known: HashMap<String, ContainerName>,
    read: Option<Instant>,
    runtime: Option<Rc<Directory>>,
}

impl Names {
    /// By the files in this folder; by none, if the path is empty.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), known: HashMap::default(), read: None, runtime: None }
    }

    /// The container runtime comes first.
    #[must_use]
    pub(super) fn with_runtime(self, runtime: Option<Rc<Directory>>) -> Self {
        Self { runtime, ..self }
    }

    /// What a container is called.
    pub fn of(&mut self, container_id: &str, now: Instant) -> Naming {
        match self.runtime.as_ref().map(|runtime| runtime.of(container_id)) {
            None | Some(Naming::Unknown) => {
                self.by_log(container_id, now).cloned().map_or(Naming::Unknown, Naming::Known)
            }
            Some(naming) => naming,
        }
    }

    pub(super) fn samples(&self) -> impl Iterator<Item = Sample> {
        self.runtime.iter().flat_map(|runtime| runtime.samples())
    }

    /// What a container is called, if the kubelet knows it.
    fn by_log(&mut self, container_id: &str, now: Instant) -> Option<&ContainerName> {
        let may_read = self.read.is_none_or(|read| now.duration_since(read) >= PAUSE);
        if !self.known.contains_key(container_id) && may_read && !self.folder.as_os_str().is_empty() {
            self.read = Some(now);
            self.read_folder();
        }
        self.known.get(container_id)
    }

    fn read_folder(&mut self) {
        let Ok(files) = fs::read_dir(&self.folder) else { return };
        let names = files.flatten().filter_map(|file| parse(file.file_name().to_str()?));
        self.known = names.take(MAX_CONTAINERS).collect();
    }
}

/// A container's number and what it is called, by the name of its log.
fn parse(file: &str) -> Option<(String, ContainerName)> {
    let (name, id) = split_number(file.strip_suffix(".log")?)?;
    let mut parts = name.strip_suffix('-')?.split('_');
    let mut part = || parts.next().filter(|name| is_name(name)).map(str::to_owned);
    let (pod, namespace, container) = (part()?, part()?, part()?);
    let name = ContainerName { namespace, pod, container, labels: BTreeMap::new() };
    parts.next().is_none().then(|| (id.to_owned(), name))
}

/// A name as Kubernetes allows it: it becomes a label.
pub(super) fn is_name(text: &str) -> bool {
    let is_plain = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d";

    fn vllm() -> ContainerName {
        let [namespace, pod, container] = ["inference", "vllm-7c9d-0", "server"].map(str::to_owned);
        ContainerName { namespace, pod, container, labels: BTreeMap::new() }
    }

    #[test]
    fn logs_name_containers() {
        assert_eq!(parse(&format!("vllm-7c9d-0_inference_server-{ID}.log")), Some((ID.to_owned(), vllm())));
        let others = [
            format!("vllm_inference-{ID}.log"),
            format!("a_b_c_d-{ID}.log"),
            format!("a_b_c-{}.log", &ID[1..]),
            format!("a_b_c-{ID}"),
            format!("A_b_c-{ID}.log"),
            format!("a_\"}}_c-{ID}.log"),
            format!("__-{ID}.log"),
            format!("{ID}.log"),
            "\u{e9}.log".to_owned(),
        ];
        for file in others {
            assert_eq!(parse(&file), None, "{file}");
        }
    }

    /// A container that starts later is found, after a pause; without a folder nothing is.
    #[test]
    fn folder_is_read_again_for_unknown_containers() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut names = Names::new(folder.path());
        let start = Instant::now();
        assert_eq!(names.of(ID, start), Naming::Unknown);
        fs::write(folder.path().join(format!("vllm-7c9d-0_inference_server-{ID}.log")), "").expect("a file");
        assert_eq!(names.of(ID, start + PAUSE / 2), Naming::Unknown);
        assert_eq!(names.of(ID, start + PAUSE), Naming::Known(vllm()));
        assert_eq!(Names::new(Path::new("")).of(ID, start), Naming::Unknown);
    }
}
