//! Names and labels of pods, from the node's container runtime: containerd, CRI-O or iSulad, by the interface that the kubelet uses (CRI).
//!
//! One task beside the agent's loop asks for all pods and all containers, two questions that change nothing, when a container is unknown
//! and once a minute. The loop never waits: it puts a process of an unknown container off to its next look.

mod call;
mod messages;
#[cfg(test)]
pub(super) mod tests;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use self::{
    call::{CallError, ask},
    messages::{Containers, Sandboxes},
};
use super::{
    cgroup::split_number,
    metrics::Sample,
    names::{ContainerName, MAX_CONTAINERS, Naming, is_name},
};
use crate::{hash::HashMap, session::Speaker};

/// Least time from one question to the next.
const PAUSE: Duration = Duration::from_secs(1);
/// Most time: labels change.
const REFRESH: Duration = Duration::from_secs(60);
/// Labels of a pod, and bytes of a key and of a value: Kubernetes allows 317 and 63.
const MAX_LABELS: usize = 64;
const MAX_KEY: usize = 317;
const MAX_VALUE: usize = 63;

/// What the runtime says, shared by the agent's loop and the task.
#[derive(Debug, Default)]
pub(super) struct Directory {
    containers: RefCell<HashMap<String, ContainerName>>,
    /// Containers that were not in it: number of the question that was the last one to begin then.
    missing: RefCell<HashMap<String, u64>>,
    begun: Cell<u64>,
    ended: Cell<u64>,
    failed: Cell<u64>,
    wanted: Notify,
}

/// Starts the task, if a socket is set. To be called in a `LocalSet`.
pub(super) fn start(socket: &Path, speaker: &Speaker) -> Option<Rc<Directory>> {
    if socket.as_os_str().is_empty() {
        return None;
    }
    let directory = Rc::new(Directory::default());
    let (of_task, socket, speaker) = (Rc::clone(&directory), socket.to_owned(), speaker.clone());
    tokio::task::spawn_local(async move { of_task.run(socket, speaker).await });
    Some(directory)
}

impl Directory {
    /// What a container is called. An unknown one is asked for, so for a moment it is not known whether the runtime knows it.
    pub(super) fn of(&self, container_id: &str) -> Naming {
        if let Some(name) = self.containers.borrow().get(container_id) {
            return Naming::Known(name.clone());
        }
        let mut missing = self.missing.borrow_mut();
        match missing.get(container_id) {
            // The question that was under way may have come before the container.
            Some(begun) if self.ended.get() > *begun => Naming::Unknown,
            Some(_) => Naming::Later,
            None => {
                if missing.len() >= MAX_CONTAINERS {
                    missing.clear();
                }
                missing.insert(container_id.to_owned(), self.begun.get());
                self.wanted.notify_one();
                Naming::Later
            }
        }
    }

    /// Questions, by what became of them.
    pub(super) fn samples(&self) -> impl Iterator<Item = Sample> {
        let (ended, failed) = (self.ended.get(), self.failed.get());
        let counts = [("ok", ended - failed), ("error", failed)];
        counts.into_iter().map(|(result, count)| {
            Sample::whole("memscope_agent_runtime_requests", vec![("result", result.to_owned())], count)
        })
    }

    async fn run(&self, socket: PathBuf, speaker: Speaker) {
        let mut said = None;
        loop {
            self.begun.set(self.begun.get() + 1);
            let answer = ask(&socket).await;
            self.take(answer, &socket, &speaker, &mut said);
            sleep(PAUSE).await;
            // When time is up, too.
            let _ = timeout(REFRESH, self.wanted.notified()).await;
        }
    }

    /// `said`: the last message about a failure, if the last question failed.
    fn take(
        &self,
        answer: Result<(Sandboxes, Containers), CallError>,
        socket: &Path,
        speaker: &Speaker,
        said: &mut Option<String>,
    ) {
        self.ended.set(self.begun.get());
        match answer {
            Ok((sandboxes, containers)) => {
                let names = names(sandboxes, containers);
                self.missing.borrow_mut().retain(|id, _| !names.contains_key(id));
                *self.containers.borrow_mut() = names;
                if said.take().is_some() {
                    speaker.info(format_args!("the container runtime at {} answers again", socket.display()));
                }
            }
            Err(error) => {
                self.failed.set(self.failed.get() + 1);
                let text = error.to_string();
                if said.as_ref() != Some(&text) {
                    speaker.warn(format_args!(
                        "names.runtime_socket {}: {text}: pods that it has not named have no labels until it answers",
                        socket.display()
                    ));
                }
                *said = Some(text);
            }
        }
    }
}

/// Containers by their numbers. What Kubernetes would not accept as a name or label is left out.
fn names(sandboxes: Sandboxes, containers: Containers) -> HashMap<String, ContainerName> {
    let pods = sandboxes.items.into_iter().take(MAX_CONTAINERS).filter_map(|pod| {
        let metadata = pod.metadata.filter(|it| is_name(&it.name) && is_name(&it.namespace))?;
        Some((pod.id, (metadata, labels(pod.labels))))
    });
    let pods: HashMap<_, _> = pods.collect();
    let named = containers.containers.into_iter().take(MAX_CONTAINERS).filter_map(|container| {
        let (pod, labels) = pods.get(&container.pod_sandbox_id)?;
        let name = container.metadata.map(|it| it.name).filter(|name| is_name(name))?;
        // As it stands at the end of a cgroup.
        split_number(&container.id).filter(|(before, _)| before.is_empty())?;
        let (namespace, pod, labels) = (pod.namespace.clone(), pod.name.clone(), labels.clone());
        Some((container.id, ContainerName { namespace, pod, container: name, labels }))
    });
    named.collect()
}

fn labels(labels: BTreeMap<String, String>) -> BTreeMap<String, String> {
    labels
        .into_iter()
        .filter(|(key, value)| key.len() <= MAX_KEY && value.len() <= MAX_VALUE)
        .take(MAX_LABELS)
        .collect()
}
