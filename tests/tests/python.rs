//! The Python package's own tests (python/tests), by all interpreters that are at hand. No tracer, no root.
//!
//! Needs `MEMSCOPE_PYTHON_DIR`: `./x test` sees to it.

use std::{path::Path, process::Command};

use memscope_tests::harness::{pythons::interpreters, tracer::python_package};

#[test]
fn package_passes_its_tests_with_every_interpreter() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/tests");
    for python in interpreters() {
        let mut command = Command::new(&python.path);
        command.args(["-B", "-m", "unittest", "discover", "-s"]).arg(&tests);
        command.env("PYTHONPATH", python_package()).env("PYTHONDONTWRITEBYTECODE", "1");
        let output = command.output().expect("an interpreter that starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{python:?}\n{said}");
        // No test found is no success.
        let ran = said.lines().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse::<u32>().ok());
        assert!(ran.is_some_and(|ran| ran >= 23), "{python:?}\n{said}");
    }
}
