//! Any file gives endpoints, each in its place and once, or all that is wrong with it.

use stator_epp_pool::PoolView;
use stator_epp_pool::fuzz::endpoints_file;

/// Runs the target.
pub(crate) fn run(content: &[u8]) {
    match endpoints_file(content) {
        Ok(view) => check(&view),
        Err(faults) => assert!(!faults.is_empty()),
    }
}

fn check(view: &PoolView) {
    assert!(view.synced && view.stale_since.is_none());
    assert!(view.endpoints.windows(2).all(|pair| pair[0].worker < pair[1].worker));
    let ports = |port: u16| view.target_ports.binary_search(&port).is_ok();
    assert!(view.endpoints.iter().all(|endpoint| ports(endpoint.address.port())));
}
