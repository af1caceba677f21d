//! Names and labels of pods for the node agent, by a real containerd. Needs what live tests need, and `MEMSCOPE_CONTAINERD`, the folder of its
//! unpacked packages: `./x containerd` fetches them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use memscope_tests::harness::agent::Agent;
use memscope_tests::harness::tracer::{Folder, simulation, workload_path};

fn packages() -> PathBuf {
    PathBuf::from(std::env::var_os("MEMSCOPE_CONTAINERD").expect("set by `./x containerd`"))
}

/// A field of a message of protobuf: a text, bytes, or a message.
fn field(number: u8, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    [&[number << 3 | 2][..], &varint(value.len()), value].concat()
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 127 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn pair(key: &str, value: &str) -> Vec<u8> {
    [field(1, key), field(2, value)].concat()
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// containerd with state of its own.
struct Containerd {
    child: Child,
    folder: Folder,
    pods: Vec<String>,
}

impl Containerd {
    fn start() -> Self {
        let folder = Folder::new();
        let path = folder.path().display();
        let config = folder.path().join("config.toml");
        let text = format!(
            "version = 2\nroot = \"{path}/root\"\nstate = \"{path}/state\"\n[grpc]\naddress = \"{path}/containerd.sock\"\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"localhost/box:1\"\nrestrict_oom_score_adj = true\n\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n"
        );
        fs::write(&config, text).expect("written");
        let log = fs::File::create(folder.path().join("containerd.log")).expect("a file");
        let mut command = program("containerd");
        let child = command.arg("-c").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let containerd = Self { child: child.expect("it starts"), folder, pods: Vec::new() };
        let begun = Instant::now();
        while !containerd.socket().exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", containerd.log());
            thread::sleep(Duration::from_millis(50));
        }
        let image = image(containerd.folder.path());
        let mut import = program("ctr");
        import.arg("-a").arg(containerd.socket()).args(["-n", "k8s.io", "images", "import"]).arg(image);
        succeed(&mut import);
        containerd
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("containerd.sock")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("containerd.log")).unwrap_or_default()
    }

    /// Calls a method; gives the first text of its answer.
    fn call(&self, method: &str, message: &[u8]) -> String {
        self.ask(method, message).unwrap_or_else(|why| panic!("{method}: {why}\n{}", self.log()))
    }

    /// The same, by curl.
    fn ask(&self, method: &str, message: &[u8]) -> Result<String, String> {
        let [request, answer, head] = ["request", "answer", "head"].map(|name| self.folder.path().join(name));
        let length = u32::try_from(message.len()).expect("a length");
        fs::write(&request, [&[0][..], &length.to_be_bytes(), message].concat()).expect("written");
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--http2-prior-knowledge", "--max-time", "60", "-H", "te: trailers"])
            .args(["-H", "content-type: application/grpc", "--data-binary"])
            .arg(format!("@{}", request.display()))
            .arg("--unix-socket")
            .arg(self.socket())
            .arg("-D")
            .arg(&head)
            .arg("-o")
            .arg(&answer)
            .arg(format!("http://localhost/runtime.v1.RuntimeService/{method}"));
        let output = curl.output().map_err(|error| error.to_string())?;
        let head = fs::read_to_string(&head).unwrap_or_default();
        if !head.contains("grpc-status: 0") {
            return Err(format!("{head}{}", String::from_utf8_lossy(&output.stderr)));
        }
        let answer = fs::read(&answer).map_err(|error| error.to_string())?;
        let text = answer.get(7..).unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// Starts a pod of one container, which runs a server that allocates.
    fn pod(&mut self, name: &str, uid: &str, labels: &[(&str, &str)]) {
        let metadata = [field(1, name), field(2, uid), field(3, "inference")].concat();
        // The network of the node: nothing is to be set up.
        let on_node = field(2, field(1, [1 << 3, 2]));
        let linux = [field(1, format!("/kubepods/pod{uid}")), on_node].concat();
        let labels: Vec<u8> = labels.iter().flat_map(|(key, value)| field(6, pair(key, value))).collect();
        let logs = self.folder.path().join("logs").display().to_string();
        let sandbox = [field(1, metadata), field(3, logs), labels, field(8, linux)].concat();
        let id = self.call("RunPodSandbox", &field(1, &sandbox));
        self.pods.push(id.clone());
        let program = workload_path("pool");
        let workloads = program.parent().expect("a folder");
        let mounts = ["/usr", "/lib", "/lib64"].map(PathBuf::from).into_iter();
        let mounts = mounts.chain([simulation(), workloads.to_owned()]).filter(|path| path.exists());
        let mounts: Vec<u8> = mounts
            .flat_map(|path| {
                let path = path.display().to_string();
                field(7, [pair(&path, &path), vec![3 << 3, 1]].concat())
            })
            .collect();
        let libraries = simulation().join("lib").display().to_string();
        let container = [
            field(1, field(1, "server")),
            field(2, field(1, "localhost/box:1")),
            field(3, program.display().to_string()),
            ["--serve", "--hold", "4", "--leaks", "0"].iter().flat_map(|word| field(4, word)).collect(),
            field(6, pair("LD_LIBRARY_PATH", &libraries)),
            mounts,
        ]
        .concat();
        let created = self.call("CreateContainer", &[field(1, id), field(2, container), field(3, sandbox)].concat());
        self.call("StartContainer", &field(1, created));
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // Also after a failure: its containers and mounts would stay.
        for pod in &self.pods {
            for method in ["StopPodSandbox", "RemovePodSandbox"] {
                let _ = self.ask(method, &field(1, pod));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One of the packages' programs.
fn program(name: &str) -> Command {
    let root = packages();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(root.join("usr/bin").join(name));
    let own = ["usr/bin", "usr/sbin"].map(|folder| root.join(folder).display().to_string()).join(":");
    command.env("PATH", format!("{own}:{path}"));
    command.env("LD_LIBRARY_PATH", root.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH)));
    command
}

/// An image with one program, as `docker save` writes it.
fn image(folder: &Path) -> PathBuf {
    let image = folder.join("image");
    fs::create_dir(&image).expect("a folder");
    let tar = |file: &Path, from: &Path, names: &[&str]| {
        succeed(Command::new("tar").arg("-cf").arg(file).arg("-C").arg(from).args(names));
    };
    let digest = |file: &Path| {
        let output = succeed(Command::new("sha256sum").arg(file));
        String::from_utf8_lossy(&output.stdout).split(' ').next().expect("a digest").to_owned()
    };
    let layer = image.join("layer.tar");
    tar(&layer, &packages().join("bin"), &["busybox"]);
    let arch = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let config = format!(
        r#"{{"architecture":"{arch}","os":"linux","config":{{"Entrypoint":["/busybox","sleep","100000"]}},"rootfs":{{"type":"layers","diff_ids":["sha256:{}"]}}}}"#,
        digest(&layer)
    );
    fs::write(image.join("config"), config).expect("written");
    let name = format!("{}.json", digest(&image.join("config")));
    fs::rename(image.join("config"), image.join(&name)).expect("renamed");
    let manifest = format!(r#"[{{"Config":"{name}","RepoTags":["localhost/box:1"],"Layers":["layer.tar"]}}]"#);
    fs::write(image.join("manifest.json"), manifest).expect("written");
    let file = folder.join("image.tar");
    tar(&file, &image, &["manifest.json", &name, "layer.tar"]);
    file
}

const UIDS: [&str; 3] = [
    "5759a1ae-36ca-48a8-b20a-b0b5c8a90fb8",
    "6759a1ae-36ca-48a8-b20a-b0b5c8a90fb8",
    "7759a1ae-36ca-48a8-b20a-b0b5c8a90fb8",
];

/// Of three pods the agent traces those with a label, one that is there at its start and one that comes later, by their names; the third is excluded.
#[test]
fn pods_are_chosen_by_label() {
    let mut containerd = Containerd::start();
    containerd.pod("vllm-0", UIDS[0], &[("app", "vllm"), ("tier", "prod")]);
    containerd.pod("train-0", UIDS[1], &[("app", "train"), ("tier", "prod")]);
    let names = format!("container_logs = \"\"\nruntime_socket = \"{}\"", containerd.socket().display());
    let agent = Agent::start_by_names("[[rules.list]]\nlabels = { app = \"vllm*\" }\n", &names);
    let of = |pod: &'static str| [("namespace", "inference"), ("pod_name", pod), ("container_name", "server")];
    let targets = [("state", "excluded")];
    let _ = agent.wait_for_page("the first pod", |page| {
        page.count("memscope_process_info", &of("vllm-0")) == Some(1)
            && page.count("memscope_targets", &targets) == Some(1)
    });
    containerd.pod("vllm-1", UIDS[2], &[("app", "vllm-canary")]);
    let page =
        agent.wait_for_page("the second pod", |page| page.count("memscope_process_info", &of("vllm-1")) == Some(1));
    assert_eq!(page.count("memscope_process_info", &[]), Some(2), "{page:#?}");
    assert_eq!(page.count("memscope_targets", &targets), Some(1), "{page:#?}");
    assert_eq!(page.count("memscope_agent_runtime_requests_total", &[("result", "error")]), Some(0));
    assert!(page.count("memscope_agent_runtime_requests_total", &[("result", "ok")]) >= Some(2));
    agent.end();
}
