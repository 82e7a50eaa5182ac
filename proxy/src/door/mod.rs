//! The front door: how many connections, requests and bytes of bodies clients may hold, all
//! together and each.
//!
//! No single client closes it: what one address or one API key holds ends at its share. When all
//! places are taken a small reserve of connections stays, so that probes always get an answer.

mod address;
mod admission;
mod args;
mod descriptors;
mod metrics;

use address::{ClientAddress, Network};
pub(crate) use admission::Admission;
pub use args::DoorArgs;
pub(crate) use args::KEY_SHARE_PERCENT;
pub(crate) use metrics::DoorMetrics;

use crate::deadlines::Deadlines;
use metrics::Refusal;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use stator_api::space::Account;
use stator_runtime::log::Occurrences;
use stator_runtime::quota::{Hold, Quota, QuotaRefusal};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Connections beyond the limit that are accepted for probes.
const RESERVE: usize = 64;

/// Connections of the reserve that one client address may hold, so that nobody but many clients
/// together can take it.
const RESERVE_PER_ADDRESS: usize = 8;

/// Longest wait for a client of the reserve, in every phase: its places have to come free soon.
const RESERVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Least time between two log lines about connections that found no place.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// A stream that its client resets within this time counts as reset early: it costs a request's
/// work, and no place among those that run for long.
const EARLY_RESET: Duration = Duration::from_secs(1);

/// Streams that a connection's client may reset early. One that resets more, and most of what it
/// opens, is hung up on.
///
/// Source: the rule is that of Envoy against "rapid reset" (CVE-2023-44487), whose number is 500.
const EARLY_RESETS_MAX: u32 = 100;

/// Limits on a client's request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLimits {
    /// Most bytes of all header names and values.
    pub header_bytes: usize,
    /// Most bytes of a body.
    pub body_bytes: usize,
    /// Longest wait for the next part of a body.
    pub body_timeout: Duration,
    /// Longest time for a whole body.
    pub body_deadline: Duration,
}

/// Checked settings of a door.
#[derive(Clone, Debug)]
pub(crate) struct DoorSettings {
    pub limits: RequestLimits,
    pub deadlines: Deadlines,
    pub connections_max: usize,
    /// Requests that one connection of HTTP/2 may have at once.
    pub streams_max: u32,
    pub requests_max: usize,
    pub bodies_bytes_max: usize,
    pub address_share_percent: u8,
    pub key_share_percent: u8,
    /// Clients without a share of their own.
    pub gateways: Vec<Network>,
}

/// Limits on clients, and their present connections, requests and bodies.
pub(crate) struct Door {
    settings: DoorSettings,
    metrics: DoorMetrics,
    connections: Quota<ClientAddress>,
    reserve: Quota<ClientAddress>,
    requests: Quota<ClientAddress>,
    bodies: Quota<ClientAddress>,
    /// Requests and bytes of bodies of each API key.
    key_requests: Quota<Account>,
    key_bodies: Quota<Account>,
    turned_away: Mutex<Occurrences>,
}

/// A client whose connection was let in.
#[derive(Debug)]
pub(crate) struct Visitor {
    /// Owner of the share that the client's requests count for; `None` for gateways, which have
    /// none.
    address: Option<ClientAddress>,
    /// The exhausted limit because of which only probes are answered, if any.
    pub(crate) probes_only: Option<QuotaRefusal>,
    /// Streams of the connection that the client reset early.
    early_resets: AtomicU32,
    _place: Hold<ClientAddress>,
    _counted: Counted,
}

impl Visitor {
    /// Counts a stream that the client reset, if that was early.
    pub(crate) fn note_reset(&self, after: Duration) {
        if after < EARLY_RESET {
            self.early_resets.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether too many of the streams that the client opened were reset early.
    pub(crate) fn resets_too_much(&self, opened: u32) -> bool {
        let early = self.early_resets.load(Ordering::Relaxed);
        early > EARLY_RESETS_MAX && early > opened / 2
    }
}

/// Counts a connection while it lives.
#[derive(Debug)]
struct Counted(Gauge);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Door {
    pub(crate) fn new(settings: DoorSettings, metrics: DoorMetrics) -> Self {
        let part = |whole: usize, percent: u8| {
            (whole / 100 * usize::from(percent)).max(whole * usize::from(percent) / 100).max(1)
        };
        let (by_address, by_key) = (settings.address_share_percent, settings.key_share_percent);
        let DoorSettings { connections_max, requests_max, bodies_bytes_max, .. } = settings;
        // A share in which the largest body has no room would forbid it.
        let bytes = |percent| part(bodies_bytes_max, percent).max(settings.limits.body_bytes);
        Self {
            connections: Quota::new(connections_max, part(connections_max, by_address)),
            reserve: Quota::new(RESERVE, RESERVE_PER_ADDRESS),
            requests: Quota::new(requests_max, part(requests_max, by_address)),
            bodies: Quota::new(bodies_bytes_max, bytes(by_address)),
            key_requests: Quota::new(usize::MAX, part(requests_max, by_key)),
            key_bodies: Quota::new(usize::MAX, bytes(by_key)),
            turned_away: Mutex::default(),
            settings,
            metrics,
        }
    }

    /// Warns where the system lets the process hold fewer connections than this door does.
    pub(crate) fn check_descriptors(&self) {
        descriptors::check(self.settings.connections_max);
    }

    /// Requests that one connection of HTTP/2 may have at once.
    pub(crate) fn streams_max(&self) -> u32 {
        self.settings.streams_max
    }

    pub(crate) fn limits(&self) -> &RequestLimits {
        &self.settings.limits
    }

    pub(crate) fn metrics(&self) -> &DoorMetrics {
        &self.metrics
    }

    /// Time that a client has for its handshake of TLS.
    pub(crate) fn handshake_limit(&self, client: &Visitor) -> Duration {
        self.deadlines(client).head
    }

    /// Time that a client has for each phase.
    pub(crate) fn deadlines(&self, client: &Visitor) -> Deadlines {
        let own = self.settings.deadlines;
        if client.probes_only.is_none() {
            return own;
        }
        let short = |limit: Duration| limit.min(RESERVE_TIMEOUT);
        Deadlines { head: short(own.head), idle: short(own.idle), write: short(own.write) }
    }

    /// Lets a connection from `address` in; `None` where not even a probe finds a place.
    pub(crate) fn enter(&self, address: IpAddr) -> Option<Visitor> {
        let is_gateway = self.settings.gateways.iter().any(|network| network.contains(address));
        let client = ClientAddress::of(address);
        let owner = (!is_gateway).then_some(client);
        let (place, probes_only) = match self.connections.take(owner, 1) {
            Ok(place) => (place, None),
            Err(why) => {
                self.turn_away(address, why);
                (self.reserve.take(Some(client), 1).ok()?, Some(why))
            }
        };
        self.metrics.connections.inc();
        let counted = Counted(self.metrics.connections.clone());
        let early_resets = AtomicU32::new(0);
        Some(Visitor {
            address: owner,
            probes_only,
            early_resets,
            _place: place,
            _counted: counted,
        })
    }

    fn turn_away(&self, address: IpAddr, why: QuotaRefusal) {
        let reason = match why {
            QuotaRefusal::Share { .. } => "address",
            QuotaRefusal::Limit { .. } => "limit",
        };
        self.metrics.connections_refused.get_or_create(&Refusal { reason }).inc();
        let count = self.turned_away.lock().note(Instant::now(), LOG_PERIOD);
        if let Some(count) = count {
            tracing::warn!(%address, %why, count, "connections found no place");
        }
    }

    /// The exhausted limit because of which the next request could not be served, if any.
    pub(crate) fn full(&self) -> Option<&'static str> {
        let used_up = |quota: &Quota<_>| quota.available() == 0;
        [
            ("connections", used_up(&self.connections)),
            ("requests", used_up(&self.requests)),
            ("bodies", used_up(&self.bodies)),
        ]
        .into_iter()
        .find_map(|(what, used_up)| used_up.then_some(what))
    }
}

#[cfg(test)]
mod tests;
