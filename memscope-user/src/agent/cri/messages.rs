//! What is read of the answers of a container runtime: `k8s.io/cri-api`, `pkg/apis/runtime/v1/api.proto`. `v1alpha2` has the same fields.

use std::collections::BTreeMap;

use prost::Message;

/// `ListPodSandboxResponse`.
#[derive(Clone, Message, PartialEq)]
pub(super) struct Sandboxes {
    #[prost(message, repeated, tag = "1")]
    pub(super) items: Vec<Sandbox>,
}

/// `PodSandbox`.
#[derive(Clone, Message, PartialEq)]
pub(super) struct Sandbox {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) metadata: Option<SandboxMetadata>,
    #[prost(btree_map = "string, string", tag = "5")]
    pub(super) labels: BTreeMap<String, String>,
}

/// `PodSandboxMetadata`.
#[derive(Clone, Message, PartialEq)]
pub(super) struct SandboxMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
}

/// `ListContainersResponse`.
#[derive(Clone, Message, PartialEq)]
pub(super) struct Containers {
    #[prost(message, repeated, tag = "1")]
    pub(super) containers: Vec<Container>,
}

/// `Container`.
#[derive(Clone, Message, PartialEq)]
pub(super) struct Container {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) pod_sandbox_id: String,
    #[prost(message, optional, tag = "3")]
    pub(super) metadata: Option<ContainerMetadata>,
}

/// `ContainerMetadata`.
#[derive(Clone, Message, PartialEq)]
pub(super) struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}
