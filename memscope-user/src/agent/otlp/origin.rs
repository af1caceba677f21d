//! Who sends: the resource and the scope of all messages.

use nix::sys::utsname::uname;

use super::messages::{KeyValue, Resource, Scope};

/// The node's name, as a `DaemonSet` gives it to its container.
const NODE_NAME: &str = "NODE_NAME";
/// Longest name of a host.
const MAX_NAME_BYTES: usize = 253;

/// Who sends, and since when it counts.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) resource: Resource,
    pub(super) scope: Scope,
    /// Start of the agent, nanoseconds since the Unix epoch.
    pub(super) start_ns: u64,
}

impl Origin {
    /// This machine.
    pub(super) fn of_this_machine(start_ns: u64) -> Self {
        let node = std::env::var(NODE_NAME).unwrap_or_default();
        let host = uname().map(|names| names.nodename().to_string_lossy().into_owned()).unwrap_or_default();
        Self::new(&host, &node, start_ns)
    }

    /// In a pod the system's name is the pod's, so the node's name stands for the host where it is known. It is the instance, too: each node has one
    /// agent, and Prometheus keeps no other attribute of the resource in each series (`job`, `instance`).
    pub(super) fn new(host: &str, node: &str, start_ns: u64) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let (host, node) = (clean(host), clean(node));
        let host = if node.is_empty() { host } else { node.clone() };
        let names = [("service.instance.id", host.clone()), ("host.name", host), ("k8s.node.name", node)];
        let names = names.into_iter().filter(|(_, name)| !name.is_empty());
        let fixed = [("service.name", "memscope-agent".to_owned()), ("service.version", version.to_owned())];
        let attributes = fixed.into_iter().chain(names).map(|(key, value)| KeyValue::text(key, value)).collect();
        Self {
            resource: Resource { attributes },
            scope: Scope { name: "memscope-bpf".to_owned(), version: version.to_owned() },
            start_ns,
        }
    }
}

fn clean(name: &str) -> String {
    let name: String = name.chars().filter(|c| !c.is_control()).collect();
    name[..name.floor_char_boundary(MAX_NAME_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(origin: &Origin) -> Vec<(&str, String)> {
        let text = |pair: &KeyValue| format!("{:?}", pair.value.clone().and_then(|value| value.value));
        origin.resource.attributes.iter().map(|pair| (pair.key.as_str(), text(pair))).collect()
    }

    /// Without Kubernetes the system's name is the host's; with it the node's is.
    #[test]
    fn host_and_node() {
        let version = format!("Some(Text({:?}))", env!("CARGO_PKG_VERSION"));
        let fixed = [("service.name", "Some(Text(\"memscope-agent\"))".to_owned()), ("service.version", version)];
        let mut expected = fixed.to_vec();
        expected.push(("service.instance.id", "Some(Text(\"a3\"))".to_owned()));
        expected.push(("host.name", "Some(Text(\"a3\"))".to_owned()));
        assert_eq!(attributes(&Origin::new("a3\n", "", 0)), expected);
        let mut expected = fixed.to_vec();
        expected.push(("service.instance.id", "Some(Text(\"node-7\"))".to_owned()));
        expected.push(("host.name", "Some(Text(\"node-7\"))".to_owned()));
        expected.push(("k8s.node.name", "Some(Text(\"node-7\"))".to_owned()));
        assert_eq!(attributes(&Origin::new("memscope-agent-x2k", "node-7", 0)), expected);
    }
}
