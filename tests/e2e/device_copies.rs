//! Workers that leave the copies of their KV to the agent, on machines without a GPU.

use crate::lifecycle::agent;
use std::path::Path;
use std::process::Command;

/// Exports memory that is nowhere, and says whether the agent copies.
const WORKER: &str = "
import logging, os, sys
from stator_device import Allocation, DeviceLink, Pages
from stator_link import hello

page = 65536
link = DeviceLink(sys.argv[1], hello(1, 0, 1, 16, page, 'engine', 'tiny'), logging.getLogger())
memory = Allocation(b'u' * 16, 4 * page, b'h' * 64, None, 0)
link.offer(memory, Pages(1, 1, 1, page, 4, (page,) * 4), 0)
link.start()
with link.lock:
    assert link.news.wait_for(lambda: link.is_exported is not None, 30), 'no answer'
print(link.is_exported, link.order(0, [(0, 0)]), bool(link.boot), flush=True)
os._exit(0)
";

/// Folder of the modules that engines load.
const SHIMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../worker-agent/kv/shims");

#[tokio::test]
async fn an_agent_without_a_device_tells_a_worker_to_copy_by_itself() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().display();
    std::fs::write(home.path().join("config.json"), r#"{"vocab_size":10000}"#).unwrap();
    let dir = format!("--discovery-dir={path}");
    // Its tiers are there while it waits for the engine.
    let (model, sockets) = (format!("--model={path}"), format!("--kv-socket-dir={path}"));
    let engine = ["--engine=trtllm", "--attach=http://127.0.0.1:1"];
    let mut process =
        agent(&dir, &[&engine[..], &[&model, &sockets, "--kv-host-gb=0.01"]].concat());
    process.event("engines reach the KV tiers here").await;
    let answer = worker(&home.path().join("kv.sock"));
    assert_eq!(answer, "False False True\n");
    let reason = process.event("a worker copies by itself").await["reason"].clone();
    assert!(reason.as_str().is_some_and(|reason| !reason.is_empty()), "{reason}");
}

fn worker(socket: &Path) -> String {
    let python = std::env::var("STATOR_TEST_PYTHON").expect("`tests/run` sets STATOR_TEST_PYTHON");
    let mut worker = Command::new(python);
    let output = worker.args(["-B", "-c", WORKER]).arg(socket).current_dir(SHIMS).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
