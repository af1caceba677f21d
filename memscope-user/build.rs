//! Builds the BPF object, or takes a prebuilt one, and the tool for mstx (`mstx-tool.rs`).
//!
//! Order for the object: `MEMSCOPE_BPF_OBJECT` (packagers), else a nested cargo build with bpf-linker. The nested build has
//! its own target directory (cargo locks the outer one), `RUSTC_BOOTSTRAP=1` for `-Zbuild-std` alone, and
//! remapped paths, so that two checkouts give the same bytes.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    println!("cargo:rerun-if-env-changed=MEMSCOPE_BPF_OBJECT");
    for source in ["mstx-tool.rs", "../memscope-ebpf", "../memscope-common", "../Cargo.lock"] {
        println!("cargo:rerun-if-changed={source}");
    }
    if env::var_os("CARGO_FEATURE_TRACE").is_none() {
        return;
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let object = match env::var_os("MEMSCOPE_BPF_OBJECT") {
        Some(path) => PathBuf::from(path),
        None => build(&out),
    };
    let to = out.join("memscope.bpf.o");
    if let Err(error) = fs::copy(&object, &to) {
        panic!("cannot copy the BPF object `{}`: {error}", object.display());
    }
    build_mstx_tool(&out);
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("cargo did not set {name}: {error}"))
}

fn build(out: &Path) -> PathBuf {
    let arch = variable("CARGO_CFG_TARGET_ARCH");
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("..");
    let root = root.canonicalize().unwrap_or_else(|error| panic!("cannot resolve `{}`: {error}", root.display()));
    let target = out.join("bpf-target");
    let mut cargo = Command::new(variable("CARGO"));
    // Settings of the outer build for the host must not reach the BPF build.
    for name in ["RUSTC", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        cargo.env_remove(name);
    }
    cargo
        .current_dir(&root)
        .env("PATH", search_path(&root))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags(&arch, &root))
        .args(["build", "--release", "--locked", "--bins", "--package", "memscope-ebpf"])
        .args(["--target", "bpfel-unknown-none", "-Zbuild-std=core", "--target-dir"])
        .arg(&target);
    let status = cargo.status().unwrap_or_else(|error| panic!("cannot run cargo: {error}"));
    assert!(
        status.success(),
        "the BPF object was not built; `./x setup` installs bpf-linker, or set MEMSCOPE_BPF_OBJECT to a prebuilt object"
    );
    target.join("bpfel-unknown-none/release/memscope")
}

/// `PATH` with the project's own tools first.
fn search_path(root: &Path) -> String {
    format!("{}:{}", root.join(".tools/bin").display(), env::var("PATH").unwrap_or_default())
}

fn flags(arch: &str, root: &Path) -> String {
    let mut flags = vec![
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        // bpf-linker reports the LLVM it fell back on.
        "-Alinker_messages".to_owned(),
        format!("--remap-path-prefix={}=memscope", root.display()),
    ];
    if let Some(home) = env::var_os("CARGO_HOME").or_else(|| env::var_os("HOME")) {
        flags.push(format!("--remap-path-prefix={}=home", Path::new(&home).display()));
    }
    flags.join("\u{1f}")
}

/// A library without any dependency, so that every program can load it, whatever C library it has.
fn build_mstx_tool(out: &Path) {
    let source = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("mstx-tool.rs");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.arg(&source).arg("-o").arg(out.join("libmemscope_mstx.so"));
    rustc.args([
        "--crate-name=memscope_mstx",
        "--crate-type=cdylib",
        "--edition=2024",
        "--target",
        &variable("TARGET"),
    ]);
    rustc.args(["-Copt-level=2", "-Cpanic=abort", "-Cstrip=symbols", "-Ctarget-feature=-crt-static"]);
    // The toolchain's own linker: so none for the other machine is needed, and there is no C to link.
    rustc.args(["-Clinker=rust-lld", "-Clinker-flavor=ld.lld", "-Clink-arg=--build-id=sha1", "-Dwarnings"]);
    // Its functions call each other, not those of the same names elsewhere in the program.
    rustc.arg("-Clink-arg=-Bsymbolic");
    rustc.arg(format!("--remap-path-prefix={}=memscope", source.parent().unwrap_or(&source).display()));
    let status = rustc.status().unwrap_or_else(|error| panic!("cannot run rustc: {error}"));
    assert!(status.success(), "`{}` was not built", source.display());
}
