//! Tables of the Python package in pyarrow, polars and pandas as they are installed (`python/tests/tables.py`).
//!
//! Needs `MEMSCOPE_TABLES_PYTHON`, an interpreter that has these, and `MEMSCOPE_PYTHON_DIR`: `./x test` fetches the former.

use std::path::Path;
use std::process::Command;

use memscope_tests::harness::tracer::python_package;

#[test]
fn packages_take_tables_over() {
    let python = std::env::var_os("MEMSCOPE_TABLES_PYTHON");
    let python = python.expect("MEMSCOPE_TABLES_PYTHON names no interpreter: run these tests with `./x test`");
    let mut command = Command::new(python);
    command.args(["-B", "-m", "unittest", "tables"]).env("PYTHONPATH", python_package());
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/tests"));
    let output = command.output().expect("an interpreter that starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("Ran 5 tests"), "{said}");
}
