//! Any file gives endpoints, each in its place and once, or all that is wrong with it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stator_epp_pool::PoolView;
use stator_epp_pool::file::{FileError, load};
use std::sync::LazyLock;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().build().expect("threads can be had"));
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| TempDir::new().expect("there is room"));

fuzz_target!(|content: &[u8]| {
    let path = FOLDER.path().join("endpoints");
    std::fs::write(&path, content).expect("there is room");
    match RUNTIME.block_on(load(&path)) {
        Ok(view) => check(&view),
        Err(FileError::Invalid { faults, .. }) => assert!(!faults.is_empty()),
        Err(FileError::Unreadable { .. }) => panic!("it was written"),
    }
});

fn check(view: &PoolView) {
    assert!(view.synced && view.stale_since.is_none());
    assert!(view.endpoints.windows(2).all(|pair| pair[0].worker < pair[1].worker));
    let ports = |port: u16| view.target_ports.binary_search(&port).is_ok();
    assert!(view.endpoints.iter().all(|endpoint| ports(endpoint.address.port())));
}
