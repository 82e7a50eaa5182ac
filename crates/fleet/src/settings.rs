//! Settings for following a fleet and for reaching its agents.

use stator_discovery::DiscoverySource;
use stator_runtime::dial::Dial;
use std::time::Duration;

/// Settings for finding and reaching the fleet.
#[derive(Clone, Debug)]
pub struct FleetSettings {
    /// Registry of the agents.
    pub discovery: DiscoverySource,
    /// Time between two looks at files; 200 ms by default.
    pub poll: Duration,
    /// Connections to agents.
    pub client: ClientSettings,
    /// Time for which a model stays known after its last agent has left; 10 minutes by default.
    pub model_linger: Duration,
}

impl FleetSettings {
    /// The default settings for agents that are found there.
    pub fn new(discovery: DiscoverySource) -> Self {
        Self {
            discovery,
            poll: Duration::from_millis(200),
            client: ClientSettings::default(),
            model_linger: Duration::from_secs(600),
        }
    }
}

/// Limits and timing of the connections to one agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSettings {
    /// Connections, each with one stream; 1 by default. More spread the work of very many tokens
    /// over more cores.
    pub links: usize,
    /// Requests that one connection may have running; 65536 by default.
    pub requests_max: usize,
    /// Largest frame taken, in bytes; 64 MiB by default. Only prompt logprobs come near it.
    pub frame_bytes_max: usize,
    /// Bytes of outputs that a request may leave unread behind the first of them; 16 MiB by
    /// default, which is the answer of a million tokens. The request of a reader that is further
    /// behind ends, so that a client that does not read holds neither memory nor its engine.
    pub unread_bytes_max: usize,
    /// Largest answer to a question taken, in bytes; 256 MiB by default. Only files of models come
    /// near it.
    pub answer_bytes_max: usize,
    /// Longest wait for a connection; 2 s by default.
    pub connect_timeout: Duration,
    /// Wait after the first failed attempt to connect; 50 ms by default. It doubles each time.
    pub backoff_min: Duration,
    /// Longest wait between attempts to connect; 1 s by default.
    pub backoff_max: Duration,
    /// Time between probes of a silent connection, and longest wait for a probe; 5 s by default.
    pub keepalive: Duration,
    /// Longest silence of an agent that has requests; 2 s by default. They then go on elsewhere.
    pub silence: Duration,
    /// Whether connections are over TLS; plain by default.
    pub dial: Dial,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            links: 1,
            requests_max: 65_536,
            frame_bytes_max: 64 << 20,
            unread_bytes_max: 16 << 20,
            answer_bytes_max: 256 << 20,
            connect_timeout: Duration::from_secs(2),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(1),
            keepalive: Duration::from_secs(5),
            silence: Duration::from_secs(2),
            dial: Dial::default(),
        }
    }
}
