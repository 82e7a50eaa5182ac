//! Names of pods, and the addresses that they have now: a pod that starts again has another one.
//!
//! A name is looked up when it is first asked for, and again once its address is old, while
//! requests go on with the old one; one that cannot be looked up keeps its last address.
//!
//! Source: `pkg/sidecar/proxy/resolver.go` of llm-d's router.

use crate::upstream::metadata::is_metadata;
use async_trait::async_trait;
use prometheus_client::metrics::counter::Counter;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Counts of name look-ups.
#[derive(Clone, Debug, Default)]
pub(crate) struct LookupCounts {
    /// Names that were looked up.
    pub found: Counter,
    /// Names whose address had changed.
    pub changed: Counter,
    /// Names that could not be looked up.
    pub failed: Counter,
}

/// Looks names up.
#[async_trait]
pub(crate) trait Lookup: Send + Sync {
    /// All addresses of a host.
    async fn addresses(&self, host: &str) -> std::io::Result<Vec<IpAddr>>;
}

/// As the machine does.
pub(crate) struct System;

#[async_trait]
impl Lookup for System {
    async fn addresses(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((host, 0)).await?.map(|found| found.ip()).collect())
    }
}

/// Age limit of addresses, and time limit of look-ups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameSettings {
    /// Age from which on one is looked up again.
    pub ttl: Duration,
    /// Longest wait for a lookup.
    pub timeout: Duration,
}

/// Names that have been asked for. As many as the configuration has.
#[derive(Clone)]
pub(crate) struct Names(Arc<Shared>);

struct Shared {
    lookup: Box<dyn Lookup>,
    settings: NameSettings,
    counts: LookupCounts,
    known: Mutex<HashMap<String, Known>>,
}

struct Known {
    /// None where it could never be looked up.
    address: Option<IpAddr>,
    at: Instant,
    /// Whether it is being looked up.
    is_asked: bool,
}

impl Names {
    pub(crate) fn new(
        lookup: impl Lookup + 'static,
        settings: NameSettings,
        counts: LookupCounts,
    ) -> Self {
        let (lookup, known) = (Box::new(lookup), Mutex::default());
        Self(Arc::new(Shared { lookup, settings, counts, known }))
    }

    /// The address of a host, as text; a host that is an address is its own. None where the name
    /// was never found.
    pub(crate) async fn address(&self, host: &str) -> Option<String> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Some(ip.to_string());
        }
        let kept = {
            let mut known = self.0.known();
            known.get_mut(host).map(|kept| {
                let is_old = kept.address.is_none() || kept.at.elapsed() >= self.0.settings.ttl;
                let asks = is_old && !std::mem::replace(&mut kept.is_asked, is_old);
                (kept.address, asks)
            })
        };
        let address = match kept {
            None => self.0.look_up(host).await,
            Some((address, asks)) => {
                if asks {
                    let (shared, host) = (self.0.clone(), host.to_owned());
                    tokio::spawn(async move { shared.look_up(&host).await });
                }
                address
            }
        };
        address.map(|ip| ip.to_string())
    }

    /// The addresses of these hosts, in order.
    ///
    /// # Errors
    ///
    /// The first that has none.
    pub(crate) async fn addresses(&self, hosts: &[String]) -> Result<Vec<String>, String> {
        let mut addresses = Vec::with_capacity(hosts.len());
        for host in hosts {
            addresses.push(self.address(host).await.ok_or_else(|| host.clone())?);
        }
        Ok(addresses)
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look_up(&self, host: &str) -> Option<IpAddr> {
        let found = timeout(self.settings.timeout, self.lookup.addresses(host)).await;
        let mut found = found.ok().and_then(Result::ok).unwrap_or_default();
        found.retain(|ip| !is_metadata(*ip));
        let address = found.iter().find(|ip| ip.is_ipv4()).or(found.first()).copied();
        let mut known = self.known();
        let before = known.get(host).and_then(|known| known.address);
        match address {
            Some(_) => self.counts.found.inc(),
            None => self.counts.failed.inc(),
        };
        if before.is_some() && address.is_some_and(|now| before != Some(now)) {
            self.counts.changed.inc();
            tracing::info!(host, ?before, ?address, "a pod has another address");
        }
        let address = address.or(before);
        let now = Known { address, at: Instant::now(), is_asked: false };
        known.insert(host.to_owned(), now);
        address
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::testkit::soon;
    use tokio::sync::{mpsc, oneshot};

    type Answer = std::io::Result<Vec<IpAddr>>;

    /// Has a test answer.
    struct Scripted(mpsc::Sender<(String, oneshot::Sender<Answer>)>);

    #[async_trait]
    impl Lookup for Scripted {
        async fn addresses(&self, host: &str) -> Answer {
            let (answer, answered) = oneshot::channel();
            self.0.send((host.to_owned(), answer)).await.expect("the test goes on");
            answered.await.unwrap_or_else(|_| Err(std::io::ErrorKind::NotFound.into()))
        }
    }

    struct Bed {
        names: Names,
        counts: LookupCounts,
        asked: mpsc::Receiver<(String, oneshot::Sender<Answer>)>,
    }

    fn bed() -> Bed {
        let (send, asked) = mpsc::channel(1);
        let second = Duration::from_secs(1);
        let (settings, counts) =
            (NameSettings { ttl: 30 * second, timeout: 5 * second }, LookupCounts::default());
        let names = Names::new(Scripted(send), settings, counts.clone());
        Bed { names, counts, asked }
    }

    impl Bed {
        /// Asks for a name that has to be looked up, which gives these addresses.
        async fn first(&mut self, addresses: &[&str]) -> Option<String> {
            let names = self.names.clone();
            let asks = tokio::spawn(async move { names.address("pod.ns").await });
            self.answer(addresses).await;
            asks.await.expect("it ends")
        }

        async fn answer(&mut self, addresses: &[&str]) {
            let asked = soon("a lookup", self.asked.recv()).await;
            let (host, answer) = asked.expect("the names are there");
            assert_eq!(host, "pod.ns");
            let found = addresses.iter().map(|it| it.parse().expect("an address")).collect();
            answer.send(Ok(found)).expect("it is waited for");
        }

        async fn address(&self) -> Option<String> {
            self.names.address("pod.ns").await
        }

        /// Lets a lookup that was answered end.
        async fn ended(&self) {
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        }

        fn counted(&self) -> [u64; 3] {
            let LookupCounts { found, changed, failed } = &self.counts;
            [found, changed, failed].map(|count| count.get())
        }
    }

    fn some(address: &str) -> Option<String> {
        Some(address.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_is_believed_for_a_while_and_renewed_behind_requests() {
        let mut bed = bed();
        assert_eq!(bed.first(&["fd00::1", "10.0.0.1"]).await, some("10.0.0.1"));
        assert_eq!(bed.address().await, some("10.0.0.1"));
        tokio::time::advance(Duration::from_secs(30)).await;
        // Nobody waits for the lookup, and there is one at a time.
        assert_eq!(bed.address().await, some("10.0.0.1"));
        assert_eq!(bed.address().await, some("10.0.0.1"));
        bed.answer(&["10.0.0.2"]).await;
        bed.ended().await;
        assert_eq!(bed.address().await, some("10.0.0.2"));
        assert_eq!(bed.counted(), [2, 1, 0]);
        assert!(bed.asked.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_cannot_be_looked_up_keeps_its_address() {
        let mut bed = bed();
        bed.first(&["10.0.0.1"]).await;
        tokio::time::advance(Duration::from_secs(31)).await;
        assert_eq!(bed.address().await, some("10.0.0.1"));
        bed.answer(&[]).await;
        bed.ended().await;
        assert_eq!(bed.address().await, some("10.0.0.1"));
        assert_eq!(bed.counted(), [1, 0, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_was_never_found_is_waited_for_once() {
        let mut bed = bed();
        let names = bed.names.clone();
        let asks = tokio::spawn(async move { names.address("pod.ns").await });
        let (_, silent) = bed.asked.recv().await.expect("a lookup");
        // The clock goes on by itself where everybody waits.
        assert_eq!(asks.await.expect("it ends"), None);
        drop(silent);
        assert_eq!(bed.address().await, None);
        bed.answer(&["fd00::2"]).await;
        bed.ended().await;
        assert_eq!(bed.address().await, some("fd00::2"));
        assert_eq!(bed.counted(), [1, 0, 1]);
    }

    #[tokio::test]
    async fn addresses_are_their_own() {
        let bed = bed();
        let hosts = ["10.0.0.1", "fd00::1"].map(str::to_owned);
        assert_eq!(bed.names.addresses(&hosts).await, Ok(hosts.to_vec()));
        assert_eq!(bed.counted(), [0, 0, 0]);
    }
}
