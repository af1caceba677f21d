//! `servers`: real servers and frameworks on `torch_npu`, traced, and held to their own books. See `docs/servers.md`.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use crate::{
    frameworks::{self, Framework},
    npu::{self, TORCH_NPU},
    project::{program, run as run_command},
};

const SERVERS: Framework = Framework {
    name: "the servers",
    group: "servers",
    variable: TORCH_NPU.variable,
    what: "name",
    versions: &["transformers", "ddp", "fsdp2", "deepspeed", "vllm"],
    is_version: |name| server(name).is_some(),
    // Each has the tests of its module.
    tests: |name| Some(format!("test(/^{name}::/)")),
    prepare,
};
/// The version of `torch_npu` that all of them use: the environment of `./x npu`, to which they add their packages.
const BASE: &str = "2.9.0.post9";

struct Server {
    name: &'static str,
    /// What pip is asked for, one call after the other, in words.
    packages: &'static [&'static str],
}

/// Versions are those that were tried together.
const ALL: [Server; 5] = [
    Server { name: "transformers", packages: &["transformers==4.57.6 psutil", "--no-deps accelerate==1.15.0"] },
    // torch's own.
    Server { name: "ddp", packages: &[] },
    Server { name: "fsdp2", packages: &[] },
    Server {
        name: "deepspeed",
        packages: &[
            "setuptools<81 wheel packaging psutil py-cpuinfo hjson ninja einops msgpack pydantic tqdm numpy<2",
            // Without operators of its own that a compiler of CUDA's would have to make.
            "--no-deps --no-build-isolation deepspeed==0.19.8",
        ],
    },
    Server {
        name: "vllm",
        packages: &[
            VLLM_BUILD,
            "--no-deps --no-build-isolation --no-binary vllm vllm==0.18.0",
            "--no-deps vllm-ascend==0.18.0",
            VLLM_NEEDS,
            // What these want of torch is another one, or CUDA's.
            "--no-deps xgrammar==0.1.34 apache-tvm-ffi==0.1.15.post2 torchvision==0.24.0 torchaudio==2.9.0 \
             compressed-tensors==0.13.0 depyf==0.20.0 triton==3.5.0",
        ],
    },
];
/// vLLM for Ascend is built from its source, without a device.
const VLLM_BUILD: &str =
    "transformers==4.57.6 psutil numpy<2 setuptools>=77,<81 setuptools-scm>=8 wheel packaging pybind11 cmake ninja";
/// For packages that are built from their source: vLLM for no device, `DeepSpeed` without compiled operators.
const VARIABLES: [(&str, &str); 3] =
    [("VLLM_VERSION_OVERRIDE", "0.18.0"), ("VLLM_TARGET_DEVICE", "empty"), ("DS_BUILD_OPS", "0")];
/// What vLLM and vllm-ascend name in their lists, but for torch, CUDA's and what only other models need.
const VLLM_NEEDS: &str = "numpy<2 transformers==4.57.6 aiohttp anthropic astor blake3 cachetools cbor2 cloudpickle decorator dill \
                          diskcache==5.6.3 einops fastapi[standard]<0.124 frozendict gguf ijson lark==1.2.2 llguidance>=1.3,<1.4 \
                          lm-format-enforcer==0.11.3 loguru mcp mistral_common[image] \
                          model-hosting-container-standards<1 msgpack msgspec numba openai<2.25 openai-harmony \
                          opencv-python-headless<=4.11.0.86 opentelemetry-api opentelemetry-exporter-otlp opentelemetry-sdk \
                          opentelemetry-semantic-conventions-ai outlines_core==0.2.11 pandas partial-json-parser pillow \
                          prometheus-fastapi-instrumentator prometheus_client protobuf py-cpuinfo pybase64 pydantic \
                          python-json-logger pyzmq quart requests scipy sentencepiece setproctitle tiktoken watchfiles";

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    frameworks::run(&SERVERS, arguments)
}

fn server(name: &str) -> Option<&'static Server> {
    ALL.iter().find(|server| server.name == name)
}

fn prepare(name: &str, folder: &Path, simulated: &Path) -> Result<()> {
    let server = server(name).with_context(|| format!("no server `{name}`"))?;
    let base = frameworks::prepared(&TORCH_NPU, BASE)?;
    install(server, folder, &base, simulated)?;
    let torch = frameworks::packages(&base);
    let own = frameworks::packages(folder).join("vllm_ascend");
    let own = if own.is_dir() { frameworks::libraries(&own)? } else { Vec::new() };
    let mut roots = npu::libraries(&torch)?;
    let mut operators = vec![npu::operators(&torch)];
    if !own.is_empty() {
        // vllm-ascend imports torch's compiler of graphs, which has libraries of its own.
        roots.extend(frameworks::libraries(&torch.join("torch_npu/dynamo/torchair/core"))?);
        roots.extend(own.iter().cloned());
        operators.extend(own);
    }
    frameworks::generate(folder, simulated, &roots, &[], &operators)?;
    frameworks::build_stand_ins(folder, simulated, &folder.join("lib"))?;
    npu::make_parts(folder)
}

/// An environment of its own, which sees the packages of the base.
fn install(server: &Server, folder: &Path, base: &Path, simulated: &Path) -> Result<()> {
    let (venv, done) = (folder.join("venv"), folder.join("installed"));
    let wanted = format!("{}\nin {}\n", server.packages.join("\n"), venv.display());
    if fs::read_to_string(&done).is_ok_and(|what| what == wanted) {
        return Ok(());
    }
    run_command(program(frameworks::interpreter()?).args(["-m", "venv", "--clear"]).arg(&venv))?;
    let base_packages = format!("{}\n", frameworks::packages(base).display());
    fs::write(frameworks::packages(folder).join("torch_npu.pth"), base_packages)?;
    // Some import torch while they are built.
    let libraries = format!("{}:{}", base.join("lib").display(), simulated.display());
    for packages in server.packages {
        let mut pip = program(venv.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]);
        pip.args(packages.split_whitespace()).env("LD_LIBRARY_PATH", &libraries).envs(VARIABLES);
        pip.env("ASCEND_HOME_PATH", base.join("cann")).env("ASCEND_OPP_PATH", base.join("cann/opp"));
        run_command(&mut pip)?;
    }
    fs::write(done, wanted)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{ALL, SERVERS};

    /// Each server is run when none is named, and no other.
    #[test]
    fn names() {
        assert_eq!(ALL.map(|server| server.name), SERVERS.versions);
        assert!((SERVERS.is_version)("transformers") && !(SERVERS.is_version)("2.9.0"));
    }
}
