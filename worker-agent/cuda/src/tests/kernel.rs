//! The kernel: source and PTX belong together, and the source copies what the plan copies.

use super::plans::pairs_of;
use super::{model, not_run, pattern};
use crate::kernel::{KernelCall, PTX, PageKernel, THREADS};
use crate::layout::{KvLayout, PageOrder, PageShape, PageStrides};
use std::env;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const PAGES: u32 = 3;

fn kernels() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

#[test]
fn the_ptx_was_made_from_the_source() {
    let source = std::fs::read(kernels().join("pages.cu")).unwrap();
    let digest = ring::digest::digest(&ring::digest::SHA256, &source);
    let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let first = PTX.lines().next().unwrap();
    assert!(first.ends_with(&digest), "{first}: run kernels/build.py");
}

#[test]
fn the_compiler_makes_the_same_ptx_again() {
    let python = env::var_os("STATOR_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let mut build = Command::new(python);
    let output = build.arg(kernels().join("build.py")).arg("--check").output();
    let output = output.expect("Python starts");
    if output.status.code() == Some(3) {
        let missing = "Python has no packages of worker-agent/cuda/kernels/requirements.txt";
        not_run("the kernel's compiler", missing);
        return;
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_source_copies_what_the_model_copies() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("pages");
    let mut compiler = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-O1", "-Wall", "-Werror", "-fsanitize=undefined", "-fno-sanitize-recover"]);
    let Ok(done) = compiler.arg(kernels().join("pages_cpu.c")).arg("-o").arg(&program).output()
    else {
        not_run("the kernel on the processor", "no C compiler");
        return;
    };
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    use PageOrder::{Blhnc, Blnhc, Lbhnc, Lbnhc};
    let shapes = [(1, 1, 1, 16), (3, 2, 5, 32), (2, 8, 16, 256), (5, 1, 4, 48)];
    let orders = [(Lbhnc, Blhnc), (Blhnc, Lbhnc), (Lbnhc, Blhnc), (Blnhc, Blhnc), (Blhnc, Blhnc)];
    for (layers, heads, tokens, content_bytes) in shapes {
        let shape = PageShape { layers, heads, tokens, content_bytes };
        for (from, to) in orders {
            let layout = |order| KvLayout::packed(order, shape, PAGES).unwrap();
            check(&program, &layout(from), &with_gaps(layout(to)));
        }
    }
}

/// Shifts a layout's start and puts gaps between its pages, or layers.
fn with_gaps(layout: KvLayout) -> KvLayout {
    let PageStrides { layer, page, head, token } = layout.strides();
    let (layer, page) = if layer > page { (layer + 32, page) } else { (layer, page + 16) };
    let strides = PageStrides { layer, page, head, token };
    KvLayout::new(layout.shape(), layout.pages(), 48, strides).unwrap()
}

fn check(program: &PathBuf, from: &KvLayout, to: &KvLayout) {
    let kernel = PageKernel::new(from, to).unwrap().expect("multiples of 16");
    let pairs = [(2, 0), (0, 2)];
    let call = kernel.call(0, 0, &pairs_of(&pairs)).unwrap();
    let source = pattern(1, from.end());
    // The program wants sizes that are multiples of its alignment.
    let target_bytes = to.end().next_multiple_of(16);
    let source_bytes = source.len().next_multiple_of(16);
    let mut input = Vec::new();
    input.extend((source_bytes as u64).to_le_bytes());
    input.extend((target_bytes as u64).to_le_bytes());
    for number in [kernel.blocks(), THREADS, pairs.len() as u32] {
        input.extend(number.to_le_bytes());
    }
    input.extend(bytes_of(&call));
    input.extend(&source);
    input.resize(input.len() + source_bytes - source.len(), 0);
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // It reads all before it writes.
    child.stdin.take().expect("a pipe").write_all(&input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    let mut expected = vec![0; target_bytes];
    model((from, &source), (to, &mut expected), &pairs);
    assert!(output.stdout == expected, "{from:?} -> {to:?}");
}

/// The bytes of the parameters, as the driver takes them.
fn bytes_of(call: &KernelCall) -> Vec<u8> {
    let mut bytes = Vec::new();
    let KernelCall { from, to, from_page, to_page, from_step, to_step, count, units, pairs } = call;
    for number in [from, to, from_page, to_page].into_iter().chain(from_step).chain(to_step) {
        bytes.extend(number.to_le_bytes());
    }
    for number in count.iter().chain([units]).chain(pairs.as_flattened()) {
        bytes.extend(number.to_le_bytes());
    }
    assert_eq!(bytes.len(), size_of::<KernelCall>(), "the struct has no gaps");
    bytes
}
