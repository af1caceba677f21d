//! Against a server of gRPC that is made up, byte by byte.

use std::{
    convert::Infallible,
    future::{Future, ready},
};

use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::{
    HeaderMap, Request, Response,
    body::{Bytes, Incoming},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use prost::Message as _;
use tokio::{net::UnixListener, task::LocalSet};

use super::{
    messages::{Container, ContainerMetadata, Containers, Sandbox, SandboxMetadata, Sandboxes},
    *,
};
use crate::agent::notes::Notes;

const POD: &str = "89f4f2cb511c3b0b7e5272cff5ec37bf89f4f2cb511c3b0b7e5272cff5ec37bf";
const CONTAINER: &str = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d";

fn sandbox(id: &str, name: &str, labels: &[(&str, &str)]) -> Sandbox {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let metadata = SandboxMetadata { name: name.to_owned(), namespace: "inference".to_owned() };
    Sandbox { id: id.to_owned(), metadata: Some(metadata), labels }
}

fn container(id: &str, of: &str) -> Container {
    let metadata = Some(ContainerMetadata { name: "server".to_owned() });
    Container { id: id.to_owned(), pod_sandbox_id: of.to_owned(), metadata }
}

/// A made-up runtime.
#[derive(Clone, Default)]
struct Runtime(Rc<RefCell<Said>>);

#[derive(Default)]
struct Said {
    sandboxes: Vec<Sandbox>,
    containers: Vec<Container>,
    /// Methods that were called.
    calls: Vec<String>,
    /// Only `v1alpha2` is there.
    is_old: bool,
    /// What comes instead of an answer.
    instead: Option<Instead>,
}

#[derive(Clone)]
enum Instead {
    /// This body, with status 0.
    Body(Vec<u8>),
    /// A gRPC status in the head alone.
    Status(&'static str, &'static str),
    /// No gRPC status.
    NoStatus,
    Hang,
}

type Body = BoxBody<Bytes, Infallible>;

impl Runtime {
    fn listen(&self, socket: &Path) {
        let listener = UnixListener::bind(socket).expect("a socket");
        let runtime = self.clone();
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let runtime = runtime.clone();
                let answer = service_fn(move |request: Request<Incoming>| {
                    let runtime = runtime.clone();
                    async move { runtime.answer(request).await }
                });
                let connection = http2::Builder::new(call::Local).serve_connection(TokioIo::new(stream), answer);
                tokio::task::spawn_local(async move {
                    let _ = connection.await;
                });
            }
        });
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let (head, body) = request.into_parts();
        let asked = body.collect().await.expect("a body").to_bytes();
        assert_eq!(&asked[..], [0; 5]);
        assert_eq!(["te", "content-type"].map(|name| &head.headers[name]), ["trailers", "application/grpc"]);
        let path = head.uri.path().to_owned();
        self.0.borrow_mut().calls.push(path.clone());
        let instead = self.0.borrow().instead.clone();
        let (is_old, message) = {
            let said = self.0.borrow();
            let message = match path.rsplit('/').next() {
                Some("ListPodSandbox") => Sandboxes { items: said.sandboxes.clone() }.encode_to_vec(),
                Some("ListContainers") => Containers { containers: said.containers.clone() }.encode_to_vec(),
                other => panic!("{other:?}"),
            };
            (said.is_old, message)
        };
        let refused = |code: &str, text: &str| {
            let head = Response::builder().header("grpc-status", code).header("grpc-message", text);
            head.body(Full::default().boxed()).expect("a head")
        };
        if is_old && path.starts_with("/runtime.v1.") {
            return Ok(refused("12", "unknown service runtime.v1.RuntimeService"));
        }
        Ok(match instead {
            Some(Instead::Status(code, text)) => refused(code, text),
            Some(Instead::NoStatus) => Response::new(Full::default().boxed()),
            Some(Instead::Hang) => std::future::pending().await,
            Some(Instead::Body(bytes)) => whole(bytes),
            None => whole([&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat()),
        })
    }
}

/// An answer, and a status of 0 behind it.
fn whole(bytes: Vec<u8>) -> Response<Body> {
    let trailers = HeaderMap::from_iter([("grpc-status".parse().expect("a name"), "0".parse().expect("a value"))]);
    Response::new(Full::from(bytes).with_trailers(ready(Some(Ok(trailers)))).boxed())
}

/// Runs a test beside a made-up runtime that listens on a socket.
fn with_runtime<T, F: Future<Output = T>>(test: impl FnOnce(Runtime, PathBuf) -> F) -> T {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("cri.sock");
    let reactor =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a reactor");
    LocalSet::new().block_on(&reactor, async {
        let runtime = Runtime::default();
        runtime.listen(&socket);
        test(runtime, socket.clone()).await
    })
}

/// Answers of real runtimes are long: here of 300 pods.
#[test]
fn names_and_labels_of_pods() {
    with_runtime(|runtime, socket| async move {
        {
            let mut said = runtime.0.borrow_mut();
            let label = "x".repeat(60);
            let pods =
                (0..300).map(|number| sandbox(&number.to_string(), &format!("pod-{number}"), &[("long", &label)]));
            said.sandboxes = pods.chain([sandbox(POD, "vllm-0", &[("app", "vllm"), ("tier", "prod")])]).collect();
            said.containers = vec![container(CONTAINER, POD), container(POD, "7")];
        }
        let (sandboxes, containers) = ask(&socket).await.expect("an answer");
        let names = names(sandboxes, containers);
        let found = &names[CONTAINER];
        assert_eq!(
            (found.namespace.as_str(), found.pod.as_str(), found.container.as_str()),
            ("inference", "vllm-0", "server")
        );
        let labels: Vec<_> = found.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(labels, [("app", "vllm"), ("tier", "prod")]);
        assert_eq!((names.len(), names[POD].pod.as_str()), (2, "pod-7"));
        let expected =
            ["ListPodSandbox", "ListContainers"].map(|method| format!("/runtime.v1.RuntimeService/{method}"));
        assert_eq!(runtime.0.borrow().calls, expected);
    });
}

/// A runtime that has the older version alone is asked by it.
#[test]
fn older_runtimes_answer() {
    with_runtime(|runtime, socket| async move {
        runtime.0.borrow_mut().is_old = true;
        ask(&socket).await.expect("an answer");
        let calls = runtime.0.borrow().calls.clone();
        let of = |version: &str, method: &str| format!("/runtime.{version}.RuntimeService/{method}");
        let expected = [of("v1", "ListPodSandbox"), of("v1alpha2", "ListPodSandbox"), of("v1alpha2", "ListContainers")];
        assert_eq!(calls, expected);
    });
}

/// Each failure is one sentence, in time.
#[test]
fn failures_are_named() {
    let said = |instead: Instead| {
        with_runtime(|runtime, socket| async move {
            runtime.0.borrow_mut().instead = Some(instead);
            ask(&socket).await.expect_err("no answer").to_string()
        })
    };
    assert_eq!(said(Instead::Status("7", "not for you")), "it refuses, gRPC status 7: not for you");
    assert_eq!(said(Instead::NoStatus), "its answer is none of a container runtime: no gRPC status");
    assert_eq!(said(Instead::Hang), "no answer within 5 s");
    let malformed: [&[u8]; 4] = [b"", b"\0\0\0\0", b"\x01\0\0\0\0", b"\0\0\0\0\x09x"];
    for body in malformed {
        assert_eq!(said(Instead::Body(body.to_vec())), "its answer is none of a container runtime: no whole message");
    }
    let too_long = said(Instead::Body(vec![0; (16 << 20) + 6]));
    assert_eq!(too_long, "its answer is none of a container runtime: it is longer than 16 MiB");
    let other_fields = said(Instead::Body(b"\0\0\0\0\x02\x08\x01".to_vec()));
    assert_eq!(other_fields, "its answer is none of a container runtime: fields of other types");
    let gone = with_runtime(|_, socket| async move {
        ask(&socket.with_extension("other")).await.expect_err("no answer").to_string()
    });
    assert_eq!(gone, "cannot connect: No such file or directory (os error 2)");
}

/// What Kubernetes would not accept is no name: it would become a label of a metric, or a cell of a table.
#[test]
fn hostile_names_are_left_out() {
    let pods = ["a\"b", "A", "", "vllm\n", "ok"].map(|name| sandbox(name, name, &[]));
    let other_id = CONTAINER.replace('9', "g");
    let containers = pods.iter().map(|pod| container(CONTAINER, &pod.id)).chain([
        container(&other_id, "ok"),
        container("", "ok"),
        container(POD, "none"),
    ]);
    let containers = Containers { containers: containers.collect() };
    let found = names(Sandboxes { items: pods.to_vec() }, containers);
    assert_eq!((found.len(), found[CONTAINER].pod.as_str()), (1, "ok"));
    let long =
        [("x".repeat(318), "v".to_owned()), ("k".to_owned(), "y".repeat(64)), ("kept".to_owned(), "y".repeat(63))];
    assert_eq!(labels(long.into_iter().collect()).into_keys().collect::<Vec<_>>(), ["kept"]);
    assert_eq!(labels((0..100).map(|number| (number.to_string(), String::new())).collect()).len(), MAX_LABELS);
}

/// An unknown container is put off until a question that began later has its answer; then it is known, or has no name. A failure counts as
/// an answer, and is said once.
#[test]
fn unknown_containers_are_put_off() {
    with_runtime(|runtime, socket| async move {
        let (notes, speaker) = Notes::with_speaker();
        let directory = start(&socket, &speaker).expect("a task");
        // The first question is under way.
        sleep(Duration::from_millis(1)).await;
        assert_eq!(directory.of(CONTAINER), Naming::Later);
        runtime.0.borrow_mut().sandboxes = vec![sandbox(POD, "vllm-0", &[])];
        sleep(PAUSE * 2).await;
        assert_eq!(directory.of(CONTAINER), Naming::Unknown);
        // Nothing new is asked because of it; in a minute all is.
        runtime.0.borrow_mut().containers = vec![container(CONTAINER, POD)];
        sleep(REFRESH / 2).await;
        assert_eq!(directory.of(CONTAINER), Naming::Unknown);
        sleep(REFRESH).await;
        assert!(matches!(directory.of(CONTAINER), Naming::Known(name) if name.pod == "vllm-0"));
        runtime.0.borrow_mut().instead = Some(Instead::NoStatus);
        sleep(REFRESH * 3).await;
        assert!(matches!(directory.of(CONTAINER), Naming::Known(_)));
        assert_eq!(directory.of(POD), Naming::Later);
        sleep(PAUSE * 2).await;
        assert_eq!(directory.of(POD), Naming::Unknown);
        runtime.0.borrow_mut().instead = None;
        sleep(REFRESH + PAUSE * 2).await;
        let notes = notes.all();
        let [failed, again] = &notes[..] else { panic!("{notes:#?}") };
        assert!(
            failed.contains("no gRPC status: pods that it has not named have no labels until it answers"),
            "{failed}"
        );
        assert!(again.ends_with("answers again"), "{again}");
        // At the start, a second later, and each minute from then on; one between for the other container.
        let counts: Vec<_> = directory.samples().map(|sample| format!("{:?}", sample.number)).collect();
        assert_eq!(counts, ["Whole(4)", "Whole(4)"]);
    });
}
