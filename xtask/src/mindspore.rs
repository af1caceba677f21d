//! `mindspore`: real `MindSpore`, traced, and compared with its own figures. See `tests/mindspore/README.md`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Result;

use crate::{
    frameworks::{self, Framework},
    venv,
};

const MINDSPORE: Framework = Framework {
    name: "MindSpore",
    group: "mindspore",
    variable: "MEMSCOPE_MINDSPORE",
    // The oldest and the newest that are supported.
    versions: &["2.7.0", "2.10.0"],
    what: "version",
    tests: |_| None,
    is_version: |version| frameworks::is_numbers(version, 3),
    prepare,
};
/// Libraries that `MindSpore` opens for Ascend, below its folder of libraries. Not every version has each.
const OPENED: [&str; 7] = [
    "plugin/libmindspore_ascend.so.2",
    "plugin/libmindspore_ops_ascend.so",
    "plugin/ascend/libd_collective.so",
    "plugin/ascend/libhccl_plugin.so",
    "plugin/ascend/libmindspore_ascend_res_manager.so",
    "plugin/ascend/libmindspore_graph_ir.so",
    "plugin/ascend/ms_kernels_symmetric_memory/shmem/shmem/lib/libshmem.so",
];
/// Looks up functions of CANN by name.
const RESOURCES: &str = "plugin/ascend/libmindspore_ascend_res_manager.so";
/// Where names of operators are.
const OPERATORS: [&str; 5] = [
    "plugin/libmindspore_ops_ascend.so",
    "plugin/libmindspore_ascend.so.2",
    RESOURCES,
    "libmindspore_ops.so",
    "libmindspore_pynative.so",
];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    frameworks::run(&MINDSPORE, arguments)
}

fn prepare(version: &str, folder: &Path, simulated: &Path) -> Result<()> {
    let wanted = format!("mindspore=={version} numpy<2 setuptools pyelftools");
    venv::of(&frameworks::interpreter()?, &folder.join("venv"), &wanted, "this group")?;
    let lib = frameworks::packages(folder).join("mindspore/lib");
    let existing = |names: &[&str]| -> Vec<PathBuf> {
        names.iter().map(|name| lib.join(name)).filter(|path| path.is_file()).collect()
    };
    let mut roots = existing(&OPENED);
    for place in ["", "plugin/cpu"] {
        roots.extend(frameworks::libraries(&lib.join(place))?);
    }
    frameworks::generate(folder, simulated, &roots, &existing(&[RESOURCES]), &existing(&OPERATORS))?;
    // 2.7 takes the folder named `latest` above the library with `aclrtMalloc` for CANN's, later ones that above `lib64`.
    let cann = folder.join("cann/latest");
    frameworks::build_stand_ins(folder, simulated, &cann.join("lib64"))?;
    for part in ["opp", "opp_kernel"] {
        fs::create_dir_all(cann.join(part))?;
    }
    Ok(())
}
