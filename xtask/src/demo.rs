//! `demo`: a simulated Ascend program, traced for real; and the recording of real `torch_npu`, which is part of the program.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::{
    arch::Arch,
    build, frameworks, npu,
    project::{as_root, is_root, program, root, run as run_command, target, tool},
    sim,
};

/// The recording is part of every program that is built.
const MAX_BYTES: u64 = 200 << 10;
/// `torch_npu` of the recording.
const VERSION: &str = "2.9.0.post9";
/// Traces the program of the recording, at places that are no places of this machine; the mounts are gone with the namespace. `$1`: `torch_npu`
/// on stand-ins, `$2`: the simulated libraries, `$3`: the program, `$4`: the tracer; `$5` and `$6` get the capture and its findings.
const SCRIPT: &str = "set -e
mount -t tmpfs none /srv
mkdir -p /srv/npu /srv/cann /srv/job
mount --bind \"$1\" /srv/npu
mount --bind \"$2\" /srv/cann
cp \"$3\" /srv/job/train.py
cp \"$4\" /srv/memscope-bpf
cd /srv/job
export LD_LIBRARY_PATH=/srv/npu/lib:/srv/cann/lib ASCEND_HOME_PATH=/srv/npu/cann ASCEND_OPP_PATH=/srv/npu/cann/opp
export ASCEND_SIM_CONTENT=1 ASCEND_SIM_CAPACITY_MB=32768 OMP_NUM_THREADS=1
/srv/memscope-bpf run --quiet --no-progress --call-stack=python -o out -- /srv/npu/venv/bin/python -B -W ignore train.py
cp out/*.capture \"$5\"
/srv/memscope-bpf replay out/*.capture --json -o again > \"$6\"
";

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let host = Arch::host();
    build::run()?;
    sim::build(host)?;
    if matches!(arguments, [only] if only == "--record") {
        return record();
    }
    run_command(as_root(tool()).arg("demo").arg("--sim").arg(sim::folder(host)).args(arguments))
}

/// Traces a real training program on the stand-ins.
fn record() -> Result<()> {
    ensure!(is_root(), "a recording is made as root: sudo would change the environment");
    let bench = frameworks::prepared(&npu::TORCH_NPU, VERSION)?;
    let place = target().join("demo");
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place).with_context(|| format!("failed to create `{}`", place.display()))?;
    let (capture, findings) = (place.join("torch.capture"), place.join("findings.json"));
    let mut unshare = program("unshare");
    unshare.args(["--mount", "sh", "-c", SCRIPT, "sh"]).arg(&bench).arg(sim::folder(Arch::host()));
    unshare.arg(root().join("memscope-user/demo/train.py")).arg(tool());
    run_command(unshare.args([&capture, &findings]))?;
    let size_bytes = fs::metadata(&capture)?.len();
    ensure!(size_bytes <= MAX_BYTES, "the recording has {size_bytes} bytes, more than {MAX_BYTES}");
    let said = fs::read_to_string(&findings).context("no findings")?;
    ensure!(!said.contains(&*root().to_string_lossy()), "the recording has paths of this machine");
    let to = root().join("memscope-user/demo/torch.capture");
    fs::copy(&capture, &to).with_context(|| format!("failed to write `{}`", to.display()))?;
    eprintln!("{size_bytes} bytes in {}", to.display());
    Ok(())
}
