//! Copies of KV on a GPU: speed and right bytes. Prints that it was skipped where there is none.
//!
//! `cargo bench -p stator-cuda --bench gpu`
//!
//! `run.py` beside it runs all roles: it needs a GPU, PyTorch and CuPy, and takes about three
//! minutes. Roles other than `speed` are for it.

mod engine;
mod rig;
mod speed;
mod tiers;

use std::process::ExitCode;

fn main() -> ExitCode {
    match stator_cuda::probe() {
        Ok(report) if !report.devices.is_empty() => println!("probe: {report:?}"),
        Ok(_) => {
            println!("skipped: no CUDA device");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            println!("skipped: no CUDA driver: {error}");
            return ExitCode::SUCCESS;
        }
    }
    let arguments: Vec<_> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] | ["speed"] => speed::measure(),
        ["churn", seconds, what] => speed::churn(seconds, what),
        ["ipc", handle, bytes, seeds, event] => engine::exchange_ipc(handle, bytes, seeds, event),
        ["file", number, bytes, seeds] => engine::exchange_file(number, bytes, seeds),
        ["hold", handle, bytes, seed] => engine::hold(handle, bytes, seed),
        ["tiers", dir] => tiers::measure(dir.as_ref()),
        _ => {
            println!("unknown role: {words:?}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
