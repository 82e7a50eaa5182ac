//! A request, as far as its scheduling depends on it.

use stator_placement::{Adapter, Needs, Overlaps};
use stator_protos::WorkerRank;
use stator_protos::hash::SequenceHash;
use std::net::IpAddr;
use std::time::Duration;

/// A request whose body has been read. Borrowed from the request path for one decision.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    /// Identity, from `x-request-id` or made at the edge.
    pub id: &'a str,
    /// The model that will be asked for, after rewriting; empty if the body was not read.
    pub model: &'a str,
    /// The model that the client named.
    pub asked_model: &'a str,
    /// Headers that plug-ins may read.
    pub headers: HeaderView<'a>,
    /// Objective's priority: 0 without one, negative is sheddable.
    pub priority: i32,
    /// Flow of the request, for fairness.
    pub fairness_id: &'a str,
    /// The endpoints that the data plane allows; `None` is all.
    pub subset: Option<&'a Subset>,
    /// The prompt to compute.
    pub prompt: Prompt<'a>,
    /// Whether it is only worth sending to an endpoint that holds a part of its prompt.
    pub only_cached: bool,
    /// Most tokens of the answer, if limited.
    pub max_output_tokens: Option<u32>,
    /// Labels that it needs of every endpoint that takes part in it, or prefers.
    pub needs: Option<&'a Needs>,
    /// The LoRA adapter that it is for.
    pub adapter: Option<Adapter>,
    /// The session that it belongs to.
    pub session: Option<u64>,
    /// The endpoints that it names, if the operator lets requests do so.
    pub pins: EndpointPins,
    /// Tokens of the answer that the request counts for while it is in flight.
    pub expected_output_tokens: u64,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Bytes of the body.
    pub size_bytes: usize,
    /// Objective for the time to the first token.
    pub slo_ttft: Option<Duration>,
    /// Objective for the mean time between tokens.
    pub slo_tpot: Option<Duration>,
}

impl Request<'_> {
    /// Whether it needs something that some endpoints may lack.
    pub(crate) fn is_particular(&self) -> bool {
        self.needs.is_some() || self.adapter.is_some() || self.pins != EndpointPins::default()
    }
}

/// Endpoints that a request names, by their worker in the placement core or the one that their agent
/// knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointPins {
    /// The only one that may answer.
    pub answer: Option<WorkerRank>,
    /// The only other one that may compute the prompt.
    pub prefill: Option<WorkerRank>,
}

/// The prompt in the forms that plug-ins use; each is empty where it is not known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prompt<'a> {
    /// Tokens of the prompt: exact if `token_ids` is there, else estimated from its bytes.
    pub tokens: u32,
    /// The token ids, where there is a tokenizer or the client sent them.
    pub token_ids: Option<&'a [u32]>,
    /// Sequence hashes of its complete blocks, of the pool's block size, seeded by LoRA adapter
    /// and cache salt: over token ids, or over text where there are none.
    pub sequence: &'a [SequenceHash],
    /// Hashes of its blocks that came with the request, each of a block and all before it; by
    /// whoever is trusted to make them.
    pub given_hashes: &'a [u64],
    /// Blocks of the prompt that endpoints hold, if they were looked up, see
    /// [`crate::Prefixes::look_up`] and [`crate::Decision::holders`].
    pub overlaps: Option<&'a Overlaps>,
    /// The user's input as bytes, in pieces; equal beginnings of conversations have equal bytes.
    pub text: &'a [&'a [u8]],
    /// Images, audio and video of the prompt.
    pub multimodal: &'a [MultimodalItem],
    /// Salt that keeps this prompt's cache apart from others'.
    pub cache_salt: Option<&'a str>,
}

/// An image, a sound or a video of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultimodalItem {
    /// Hash of its content or address.
    pub hash: u64,
    /// Kind of the item: `image`, `audio` or `video`.
    pub modality: &'static str,
    /// Estimated size of its embedding.
    pub size_bytes: u64,
}

/// Headers of a request. Names are in lower case; the last value of a name counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeaderView<'a>(pub &'a [(&'a str, &'a str)]);

impl<'a> HeaderView<'a> {
    /// The value of a header, whose name is in lower case.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.0.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

/// The endpoints that a data plane allows for a request. Empty allows none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subset(pub Vec<SubsetEntry>);

/// One allowed address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubsetEntry {
    /// The address.
    pub ip: IpAddr,
    /// The port; `None` allows all ports of the address.
    pub port: Option<u16>,
}

impl Subset {
    /// Whether an endpoint's address is allowed.
    pub fn allows(&self, address: std::net::SocketAddr) -> bool {
        self.0.iter().any(|entry| {
            entry.ip == address.ip() && entry.port.is_none_or(|port| port == address.port())
        })
    }
}
