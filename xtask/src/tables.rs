//! Packages that take over the tables of the Python package's analyses (`tests/tests/tables.rs`), and that read exports
//! (`tests/tests/loaders.rs`).

use std::path::PathBuf;

use anyhow::Result;

use crate::{project::target, venv};

/// Names the interpreter that has them.
pub(crate) const PYTHON: &str = "MEMSCOPE_TABLES_PYTHON";
const PACKAGES: &str = "pandas==3.0.0 polars==1.36.1 pyarrow==22.0.0 duckdb==1.5.5 duckdb-cli==1.5.5 duckdb-extension-httpfs==1.5.5 moto[s3]==5.2.5 flask==3.1.3 flask-cors==6.0.5 kubernetes-validate==1.37.0 perfetto==0.59.1 protobuf==7.36.2";

/// An environment with them, which is made once.
pub(crate) fn fetch() -> Result<PathBuf> {
    venv::with(&target().join("tables"), PACKAGES, "groups `tables` and `loaders`, by CPython 3.11 or later,")
}
