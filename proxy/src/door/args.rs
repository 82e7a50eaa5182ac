//! Settings of what clients may send, hold and wait for.

use super::address::Network;
use super::{DoorSettings, RequestLimits};
use crate::deadlines::Deadlines;
use clap::Args;
use std::time::Duration;

/// Default of `key-share-percent`, which limits nobody.
pub(crate) const KEY_SHARE_PERCENT: u8 = 100;

/// Limits on clients: what they may send, how much they may hold, and how long it may take.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "HTTP")]
pub struct DoorArgs {
    /// Largest request body, in bytes. Larger ones get 413.
    #[arg(long, env = "STATOR_MAX_BODY_BYTES", default_value_t = 32 << 20, value_name = "BYTES",
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub max_body_bytes: u64,

    /// Most bytes of request bodies held at once, of all requests together, at least
    /// --max-body-bytes. A request that finds no room within a second gets 503.
    #[arg(long, env = "STATOR_MAX_BODIES_BYTES", default_value_t = 1 << 30, value_name = "BYTES",
          value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub max_bodies_bytes: u64,

    /// Largest sum of header names and values, in bytes. Larger ones get 431.
    #[arg(long, env = "STATOR_MAX_HEADER_BYTES", default_value_t = 32 << 10, value_name = "BYTES",
          value_parser = clap::value_parser!(u64).range(256..=1 << 20))]
    pub max_header_bytes: u64,

    /// Requests answered at once. Further ones get 429.
    #[arg(long, env = "STATOR_MAX_CONCURRENT_REQUESTS", default_value_t = 8192, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_concurrent_requests: u32,

    /// Connections held at once. A few further ones are accepted for probes: they get answers to
    /// health, liveness and metrics, and 503 to everything else. The rest is closed.
    #[arg(long, env = "STATOR_MAX_CONNECTIONS", default_value_t = 16_384, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,

    /// Requests that one connection of HTTP/2 may have at once. A client learns the number when it
    /// connects, and waits with further requests.
    #[arg(long, env = "STATOR_MAX_STREAMS_PER_CONNECTION", default_value_t = 256, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_streams_per_connection: u32,

    /// Largest part of the connections, requests and bytes of bodies that one client address may
    /// hold, in percent. An IPv6 network of 64 bits counts as one address. Further connections are
    /// treated as past --max-connections, further requests get 429.
    #[arg(long, env = "STATOR_ADDRESS_SHARE_PERCENT", default_value_t = 50, value_name = "PERCENT",
          value_parser = clap::value_parser!(u8).range(1..=100))]
    pub address_share_percent: u8,

    /// Addresses or networks (ADDRESS/BITS) of gateways in front of this proxy, comma-separated:
    /// --address-share-percent does not apply to them, as many clients share their addresses.
    #[arg(long, env = "STATOR_TRUSTED_GATEWAYS", value_name = "NETWORK", value_delimiter = ',')]
    pub trusted_gateways: Vec<Network>,

    /// Largest part of the requests and bytes of bodies that one API key may hold, in percent.
    /// Further requests get 429.
    #[arg(long, env = "STATOR_KEY_SHARE_PERCENT", default_value_t = KEY_SHARE_PERCENT,
          value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub key_share_percent: u8,

    /// Longest time from the first byte of a request's head to its last, and for a handshake of
    /// TLS, in milliseconds. Slower requests get 408.
    #[arg(long, env = "STATOR_HEADER_TIMEOUT_MS", default_value_t = 10_000, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub header_timeout_ms: u64,

    /// Longest silence before a request on an open connection, in milliseconds; then the connection
    /// is closed. The default is that of nginx, above the 60 s after which load balancers
    /// usually close their side.
    #[arg(long, env = "STATOR_KEEP_ALIVE_TIMEOUT_MS", default_value_t = 75_000, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub keep_alive_timeout_ms: u64,

    /// Longest wait for the next part of a request body, in milliseconds. Slower ones get 408.
    #[arg(long, env = "STATOR_BODY_TIMEOUT_MS", default_value_t = 30_000, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub body_timeout_ms: u64,

    /// Longest time for a whole request body, in milliseconds. Slower ones get 408.
    #[arg(long, env = "STATOR_BODY_DEADLINE_MS", default_value_t = 300_000, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub body_deadline_ms: u64,

    /// Longest time for which a client may read nothing of an answer that is there, in
    /// milliseconds. After it the proxy closes the connection and aborts the request.
    #[arg(long, env = "STATOR_WRITE_TIMEOUT_MS", default_value_t = 30_000, value_name = "MS",
          value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub write_timeout_ms: u64,
}

impl DoorArgs {
    /// Checks the limits against each other; what is wrong joins `faults`.
    pub(crate) fn settings(&self, faults: &mut Vec<String>) -> DoorSettings {
        let (one, all) = (self.max_body_bytes, self.max_bodies_bytes);
        if all < one {
            faults.push(format!("max-bodies-bytes: {all} is less than max-body-bytes, {one}"));
        }
        let ms = Duration::from_millis;
        DoorSettings {
            limits: RequestLimits {
                header_bytes: self.max_header_bytes as usize,
                body_bytes: one as usize,
                body_timeout: ms(self.body_timeout_ms),
                body_deadline: ms(self.body_deadline_ms),
            },
            deadlines: Deadlines {
                head: ms(self.header_timeout_ms),
                idle: ms(self.keep_alive_timeout_ms),
                write: ms(self.write_timeout_ms),
            },
            connections_max: self.max_connections as usize,
            streams_max: self.max_streams_per_connection,
            requests_max: self.max_concurrent_requests as usize,
            bodies_bytes_max: all as usize,
            address_share_percent: self.address_share_percent,
            key_share_percent: self.key_share_percent,
            gateways: self.trusted_gateways.clone(),
        }
    }
}
