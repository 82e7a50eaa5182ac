//! A request that other engines help with.

use crate::upstream::target::Target;
use bytes::Bytes;
use pingora::http::RequestHeader;
use pingora::upstreams::peer::HttpPeer;
use stator_body::Api;

/// A request that other engines are to help with.
pub(crate) struct Request<'a> {
    pub api: Api,
    /// The head for the engine that answers, without what steers.
    pub head: &'a RequestHeader,
    pub body: &'a Bytes,
    pub engine: &'a HttpPeer,
    /// Engine that computes its prompt, if another does.
    pub prefiller: Option<&'a Target>,
    /// Engines that may encode its media, the best first.
    pub encoders: &'a [Target],
    /// The engine that KV is to be pulled from.
    pub source: Option<&'a Target>,
    /// Agents that lend KV of its beginning to the engine that computes its prompt.
    pub holders: &'a [(Target, u32)],
}

impl Request<'_> {
    /// Label under which it is counted without an answer: `engine` or `handed_over`.
    pub(crate) fn way(&self) -> &'static str {
        let alone = self.prefiller.is_none() && self.encoders.is_empty() && self.source.is_none();
        if alone { "engine" } else { "handed_over" }
    }
}
