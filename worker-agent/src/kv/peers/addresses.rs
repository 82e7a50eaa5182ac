//! Addresses of agents that hold KV, by the names under which requests tell of them.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};

/// Names that are remembered; beyond them all are forgotten.
const NAMES_MAX: usize = 256;
/// Time after which a name is looked up again.
const FRESH: Duration = Duration::from_secs(60);
/// Longest time of a look-up.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Addresses by name. A name that is not known yet is looked up for the next request that tells of it:
/// none waits for it.
pub(super) struct HolderAddresses {
    runtime: Handle,
    names: Arc<Mutex<FxHashMap<String, NamedHolder>>>,
}

/// Address of a holder that is known by name, as far as it is resolved.
#[derive(Clone, Copy, Debug)]
struct NamedHolder {
    /// None as long as it is not known.
    address: Option<SocketAddr>,
    /// Time of the last look-up.
    asked: Instant,
}

impl HolderAddresses {
    /// Looks names up on `runtime`.
    pub(super) fn new(runtime: Handle) -> Self {
        Self { runtime, names: Arc::default() }
    }

    /// The address of `host:port`, if it is known.
    pub(super) fn find(&self, name: &str) -> Option<SocketAddr> {
        if let Ok(address) = name.parse() {
            return Some(address);
        }
        let now = Instant::now();
        let mut names = self.names.lock();
        let known = names.get(name).copied();
        if known.is_none_or(|known| now >= known.asked + FRESH) {
            if names.len() >= NAMES_MAX {
                names.clear();
            }
            let address = known.and_then(|known| known.address);
            names.insert(name.to_owned(), NamedHolder { address, asked: now });
            self.look_up(name.to_owned());
        }
        known?.address
    }

    /// The name that was found to have an address, by which requests tell of it.
    pub(super) fn name_of(&self, address: SocketAddr) -> String {
        let names = self.names.lock();
        let mut named = names.iter().filter(|(_, known)| known.address == Some(address));
        named.next().map_or_else(|| address.to_string(), |(name, _)| name.clone())
    }

    fn look_up(&self, name: String) {
        let names = self.names.clone();
        self.runtime.spawn(async move {
            let found = timeout(LOOKUP_TIMEOUT, lookup_host(&name)).await;
            let found = found.ok().and_then(Result::ok).and_then(|mut found| found.next());
            if found.is_none() {
                tracing::debug!(name, "the address of a holder of KV is not known");
            }
            // It may have been forgotten meanwhile.
            if let Some(known) = names.lock().get_mut(&name) {
                known.address = found;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_is_known_after_it_was_looked_up() {
        let addresses = HolderAddresses::new(Handle::current());
        assert_eq!(addresses.find("10.0.0.1:7"), "10.0.0.1:7".parse().ok());
        assert_eq!(addresses.find("localhost:7"), None);
        let known = async {
            while addresses.find("localhost:7").is_none() {
                tokio::task::yield_now().await;
            }
        };
        timeout(LOOKUP_TIMEOUT, known).await.expect("it is looked up");
        let found = addresses.find("localhost:7").unwrap();
        assert!(found.ip().is_loopback());
        assert_eq!(addresses.name_of(found), "localhost:7");
        assert_eq!(addresses.name_of("10.0.0.1:7".parse().unwrap()), "10.0.0.1:7");
    }

    #[tokio::test]
    async fn names_are_bounded() {
        let addresses = HolderAddresses::new(Handle::current());
        for number in 0..=NAMES_MAX {
            addresses.find(&format!("no name {number}"));
        }
        assert_eq!(addresses.names.lock().len(), 1);
    }
}
