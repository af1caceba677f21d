//! Outputs go where they were asked for and nowhere else, and nothing is left of runs that were refused.

use std::{
    ffi::CString,
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{chown, lchown, symlink},
    },
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use memscope_tests::harness::{
    tracer::{Folder, Tracer, simulation, tracer_path, workload_path},
    user::User,
};
use nix::libc;

/// Swaps two names in a folder, over and over, until it is dropped.
struct Attacker {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Attacker {
    fn start(one: &Path, other: &Path) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).expect("a path");
        let (flag, one, other) = (Arc::clone(&ended), path(one), path(other));
        let swap = move || {
            let mut swaps = 0;
            while !flag.load(Ordering::Relaxed) {
                // SAFETY: both are texts that end.
                let swapped = unsafe {
                    libc::renameat2(libc::AT_FDCWD, one.as_ptr(), libc::AT_FDCWD, other.as_ptr(), libc::RENAME_EXCHANGE)
                };
                assert_eq!(swapped, 0, "cannot swap: {}", std::io::Error::last_os_error());
                swaps += 1;
                thread::yield_now();
            }
            swaps
        };
        Self { ended, thread: Some(thread::spawn(swap)) }
    }

    fn stop(&mut self) -> u64 {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.take().map_or(0, |thread| thread.join().expect("swapped"))
    }
}

fn names(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
}

fn trace_into(output: &Path, format: &str, folder: &Folder) -> Output {
    let mut command = Command::new(tracer_path());
    command.args(["run", "--no-progress", "--format", format, "-o"]).arg(output).arg("--").arg(workload_path("steps"));
    command.env("LD_LIBRARY_PATH", simulation().join("lib")).env("ASCEND_SIM_JOURNAL", folder.journal_path());
    command.output().expect("the tracer runs")
}

/// Makes sure that root writes nothing into a folder of an attacker's choice: the output folder is another user's, who swaps it for a link
/// to a folder of root's all the time. A trace is whole in the one folder, or refused.
#[test]
fn output_folder_that_its_owner_swaps() {
    let folder = Folder::new();
    let [theirs, roots] = ["theirs", "roots"].map(|name| folder.path().join(name));
    fs::create_dir_all(theirs.join("out")).expect("folders");
    fs::create_dir(&roots).expect("a folder");
    symlink(&roots, theirs.join("link")).expect("a link");
    for path in [theirs.clone(), theirs.join("out")] {
        chown(path, Some(User::ID), Some(User::ID)).expect("given away");
    }
    lchown(theirs.join("link"), Some(User::ID), Some(User::ID)).expect("given away");
    let mut attacker = Attacker::start(&theirs.join("out"), &theirs.join("link"));
    let mut whole = 0;
    for format in ["csv", "db", "csv", "db", "csv", "db"] {
        let output = trace_into(&theirs.join("out"), format, &folder);
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => whole += 1,
            Some(125) => assert!(said.contains("is a link of user 54321"), "{said}"),
            code => panic!("{code:?}: {said}"),
        }
        assert_eq!(names(&roots), Vec::<PathBuf>::new(), "{said}");
    }
    assert!(attacker.stop() > 100);
    let real = [theirs.join("out"), theirs.join("link")].into_iter().find(|path| !path.is_symlink()).expect("a folder");
    let captures = names(&real).into_iter().filter(|path| path.extension().is_some_and(|ext| ext == "capture")).count();
    assert_eq!(captures, whole);
}

/// Makes sure that runs which are refused, at whatever moment, leave no folder or file behind, and that folders of the user stay.
#[test]
fn refused_runs_leave_nothing() {
    let folder = Folder::new();
    let bad = folder.path().join("bad");
    fs::write(&bad, "#!/no/such/interpreter\n").expect("a file");
    fs::set_permissions(&bad, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("executable");
    let (deep, own) = (folder.path().join("a/b"), folder.path().join("own"));
    fs::create_dir(&own).expect("a folder");
    for output in [&deep, &own] {
        for arguments in [
            &["run", "-o", "OUT", "--", "BAD"][..],
            &["run", "-o", "OUT", "--probe", "alloc:nosuch", "--", "true"],
            &["replay", "BAD", "-o", "OUT"],
            &["run", "-o", "OUT", "--link", "cookie", "--ops", "all", "--max-rows", "8", "--", "BAD"],
        ] {
            let path = |argument: &&str| match *argument {
                "OUT" => output.clone(),
                "BAD" => bad.clone(),
                other => PathBuf::from(other),
            };
            let mut command = Command::new(tracer_path());
            let said = command.args(arguments.iter().map(path)).output().expect("the tracer runs");
            assert!(!said.status.success(), "{arguments:?}");
            assert!(!folder.path().join("a").exists(), "{arguments:?}: {}", String::from_utf8_lossy(&said.stderr));
            assert_eq!(names(&own), Vec::<PathBuf>::new(), "{arguments:?}");
        }
    }
}

/// Makes sure that a limit of file sizes is like a full disk: one error that names it, and the program goes on to its own end.
#[test]
fn limit_of_file_sizes() {
    for format in ["csv", "db"] {
        let folder = Folder::new();
        let mut command = Command::new("/bin/bash");
        command.args(["-c", "ulimit -S -f 64; exec \"$@\"", "bash"]).arg(tracer_path());
        command.args(["run", "--no-progress", "--format", format, "-o"]).arg(folder.output_path()).arg("--");
        command.arg(workload_path("pairs")).args(["--pairs", "300000", "--hal"]);
        command.env("LD_LIBRARY_PATH", simulation().join("lib")).env("ASCEND_SIM_JOURNAL", "");
        let output = command.current_dir(folder.path()).output().expect("the tracer runs");
        let (said, printed) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        assert_eq!(output.status.code(), Some(125), "{format}: {said}");
        assert!(said.contains("tracing ends here, the traced program goes on"), "{said}");
        assert!(said.contains("files may have 65536 bytes: `ulimit -f`"), "{said}");
        assert!(printed.contains("\"allocs\":300000,\"frees\":300000"), "{printed}");
    }
}

/// Makes sure that a program which `run` starts has the action for SIGXFSZ that it would have had.
#[test]
fn limit_of_file_sizes_ends_the_program_as_ever() {
    const WRITE: &str = "ulimit -S -f 1; exec head -c 4096 /dev/zero > big";
    let run = Tracer::run_program("/bin/bash", &["-c", WRITE]).finish();
    assert_eq!(run.code(), 128 + libc::SIGXFSZ, "{}", run.said());
}
