//! Settings of the feeds of engines' KV events.

use crate::scrape::{Mappings, ScrapeSettings};
use stator_events::subscribe::Subscription;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

/// Settings for finding engines' KV events, and bounds on what is kept of them.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// Port of rank 0's events, 5557 by default; rank r is at this plus r. `None`: the picker
    /// connects to no engine.
    pub port: Option<u16>,
    /// Address that engines connect to, `tcp://address:port`; none by default.
    pub bind: Option<String>,
    /// Port of rank 0's replays, if engines have one; rank r is at this plus r.
    pub replay_port: Option<u16>,
    /// Beginning of the topics of wanted messages; empty by default, which is every topic.
    pub topic: String,
    /// Tokens per block of our index. Engines whose blocks have a multiple of this or divide it are
    /// followed, others are not.
    pub block_size: NonZeroU32,
    /// Blocks of one rank of an engine that are known at once; 4 Mi by default. Further ones are
    /// ignored.
    pub blocks_max: usize,
    /// Engines' metrics pages, which tell how many ranks are behind one port, and which engine an
    /// endpoint has. `None`, the default: every endpoint is one rank.
    pub pages: Option<(ScrapeSettings, Mappings)>,
}

impl EngineSettings {
    /// The default settings for an index of such blocks.
    pub fn new(block_size: NonZeroU32) -> Self {
        Self {
            port: Some(5557),
            bind: None,
            replay_port: None,
            topic: String::new(),
            block_size,
            blocks_max: 1 << 22,
            pages: None,
        }
    }

    /// Events of a rank of the engine at this address; `None` if the picker does not connect to
    /// engines.
    pub(super) fn subscription(&self, ip: IpAddr, rank: u16) -> Option<Subscription> {
        let endpoint = zmq(ip, self.port?, rank);
        Some(Subscription { endpoint, prefixes: vec![self.topic.clone()], silence: None })
    }

    /// Address at which the rank repeats events, if it does.
    pub(super) fn replay_endpoint(&self, ip: IpAddr, rank: u16) -> Option<String> {
        Some(zmq(ip, self.replay_port?, rank))
    }
}

/// The address of a rank's socket; `port` is that of rank 0.
fn zmq(ip: IpAddr, port: u16, rank: u16) -> String {
    format!("tcp://{}", SocketAddr::new(ip, port.saturating_add(rank)))
}
