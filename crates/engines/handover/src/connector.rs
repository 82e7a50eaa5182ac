//! The connectors by which KV goes from the engine that computes a prompt to the one that answers, and
//! the requests to both. Bodies in, bodies out.
//!
//! Source: llm-d's sidecar, and vLLM's and SGLang's connectors.

use crate::engine_request::{DpRank, EngineRequest, MissingParameters};
use crate::limits::one_token;
use crate::moriio::Meeting;
use crate::supplies::{KV_PARAMETERS, Supplies};
use crate::{mooncake, nixl, offloading, sglang};
use serde_json::{Value, json};
use stator_body::{Api, Object, ObjectEdit};

/// Connector that hands KV over between two engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Connector {
    /// vLLM's NixlConnector: prefill answers with parameters, and decode reads by them.
    Nixlv2,
    /// vLLM's connectors to a storage that both engines see: decode finds what prefill stored. A
    /// request with `cache_hit_threshold` asks decode first.
    SharedStorage,
    /// LMCache: as shared storage, whatever the request says.
    Lmcache,
    /// SGLang: both at once, who meet at the prefill engine's bootstrap server.
    Sglang,
    /// vLLM's MooncakeConnector: both at once, prefill writes.
    Mooncake,
    /// vLLM's offloading connector from peer to peer: decode reads by a common id.
    Offloading,
    /// vLLM's MoRIIOConnector in READ mode: as NIXL, but decode takes it that every prompt was
    /// computed elsewhere. With `moriio-write-mode`, in WRITE mode.
    Moriio,
    /// The same in WRITE mode: prefill is told where decode is.
    #[value(skip)]
    MoriioWrite,
    /// The same, both at once.
    #[value(skip)]
    MoriioParallel,
}

/// The order in which two engines are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Decode after prefill has answered.
    InTurn,
    /// Both, and decode waits for prefill by itself.
    AtOnce,
    /// Both, and decode's answer waits for prefill's too.
    Held,
}

/// The names and addresses of one request's hand-over.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Nobody else's.
    pub id: u128,
    /// The prefill engine's host, without brackets.
    pub host: String,
    /// The same as it stands in URLs.
    pub url_host: String,
    /// Port of the prefill engine's bootstrap server.
    pub bootstrap_port: u16,
    /// Port to which the prefill engine's peers connect.
    pub p2p_port: u16,
    /// The prefill engine's own name for itself; empty where the connector needs none.
    pub engine_id: String,
    /// The prefill engine's rank that computes the prompt, if this process chooses it.
    pub rank: Option<DpRank>,
    /// Addresses of MoRI-IO's engines; empty for other connectors.
    pub meeting: Meeting,
}

/// Share of a prompt that must be cached for decode to go on alone.
const THRESHOLD: &str = "cache_hit_threshold";

impl Connector {
    /// Its name in configuration, metrics and traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nixlv2 => "nixlv2",
            Self::SharedStorage => "shared-storage",
            Self::Lmcache => "lmcache",
            Self::Sglang => "sglang",
            Self::Mooncake => "mooncake",
            Self::Offloading => "offloading",
            Self::Moriio => "moriio",
            Self::MoriioWrite => "moriio-write",
            Self::MoriioParallel => "moriio-parallel",
        }
    }

    /// The order of its two requests.
    pub fn order(self) -> Order {
        match self {
            Self::Sglang | Self::Mooncake => Order::AtOnce,
            Self::MoriioParallel => Order::Held,
            _ => Order::InTurn,
        }
    }

    /// Whether an engine in the role of decode computes a prompt that nobody handed over. SGLang's
    /// refuses it, and one that reads over MoRI-IO answers it from KV that is not there.
    ///
    /// Source: vLLM 0.32.0, `MoRIIOConnectorScheduler.get_num_new_matched_tokens`.
    pub fn decodes_alone(self) -> bool {
        !matches!(self, Self::Sglang | Self::Moriio)
    }

    /// Whether such an engine does not refuse it.
    pub fn answers_wrongly_alone(self) -> bool {
        self == Self::Moriio
    }

    /// Whether prefill's answer says how much of the prompt was cached, and decode does not know.
    pub fn counts_cached(self) -> bool {
        matches!(self, Self::Nixlv2 | Self::Moriio | Self::MoriioWrite)
    }

    /// Whether an engine that computes a prompt can pull KV from one that computed its beginning
    /// before; one of NIXL's or MoRI-IO's only where an offloading connector stands beside it.
    pub fn pulls(self, beside: bool) -> bool {
        let has_one = matches!(self, Self::Nixlv2 | Self::MoriioWrite | Self::MoriioParallel);
        self == Self::Offloading || has_one && beside
    }

    /// Whether a hand-over is good for one sequence only: reading it again reads blocks that may
    /// hold something else by then.
    pub fn is_used_once(self) -> bool {
        !matches!(self, Self::SharedStorage | Self::Lmcache | Self::Sglang)
    }

    /// Whether decode is to be asked first, and prefill only where it says that too little is
    /// there.
    pub fn asks_decode_first(self, request: &Object<'_>) -> bool {
        let threshold = request.get(THRESHOLD).filter(|raw| **raw != *b"null");
        self == Self::SharedStorage && threshold.is_some()
    }

    /// Decode's request without a hand-over, if it differs from the client's: with a threshold
    /// decode would give up.
    pub fn alone(self, request: &Object<'_>) -> Option<Vec<u8>> {
        self.asks_decode_first(request).then(|| request.edit().set(THRESHOLD, "0").finish())
    }

    /// Prefill's request, with its supplies.
    pub fn prefill(
        self,
        api: Api,
        request: &Object<'_>,
        pair: &Pair,
        supplies: &Supplies,
    ) -> EngineRequest {
        let edit = match self {
            Self::Sglang => rendezvous(request, pair),
            Self::SharedStorage => one_token(api, request).replace(THRESHOLD, "0"),
            _ => one_token(api, request),
        };
        let parameters = match self {
            Self::Nixlv2 | Self::Moriio => nixl::prefill(),
            Self::Mooncake => json!(mooncake::prefill(&transfer_id(pair))),
            Self::Offloading => offloading::prefill(&request_id(pair)),
            Self::MoriioWrite => pair.meeting.prefill(false),
            Self::MoriioParallel => pair.meeting.prefill(true),
            Self::SharedStorage | Self::Lmcache | Self::Sglang => Value::Null,
        };
        let body = supplies.add(edit, parameters).finish();
        EngineRequest { body, rank: pair.rank.map(|rank| rank.index) }
    }

    /// Decode's request; `answer` is prefill's, if the proxy has waited for it.
    ///
    /// # Errors
    ///
    /// [`MissingParameters`] where the answer lacks what decode needs.
    pub fn decode(
        self,
        request: &Object<'_>,
        pair: &Pair,
        answer: &[u8],
    ) -> Result<EngineRequest, MissingParameters> {
        let edit = request.edit();
        let parameters = match self {
            Self::Sglang => return Ok(rendezvous(request, pair).finish().into()),
            Self::SharedStorage => return Ok(edit.replace(THRESHOLD, "0").finish().into()),
            Self::Lmcache => return Ok(edit.finish().into()),
            // Passed on as it came: it belongs to the two engines.
            Self::Nixlv2 | Self::Moriio => parameters_of(answer)?.to_vec(),
            Self::MoriioWrite => {
                let told = pair.meeting.decode_in_turn(&pair.host, parameters_of(answer)?)?;
                let body = edit.set(KV_PARAMETERS, told.body).finish();
                return Ok(EngineRequest { body, ..told });
            }
            Self::MoriioParallel => {
                let told = pair.meeting.decode_at_once(&pair.host, &pair.url_host).to_string();
                let body = edit.set(KV_PARAMETERS, told).finish();
                return Ok(EngineRequest { body, rank: pair.rank.map(|rank| rank.index) });
            }
            Self::Mooncake => {
                let server = format!("http://{}:{}", pair.url_host, pair.bootstrap_port);
                let name = transfer_id(pair);
                json!(mooncake::decode(&name, &pair.engine_id, &server)).to_string().into()
            }
            Self::Offloading => {
                let peer = offloading::Peer {
                    kv_request_id: request_id(pair),
                    remote_host: pair.host.clone(),
                    remote_port: pair.p2p_port,
                };
                offloading::decode(peer).to_string().into()
            }
        };
        Ok(edit.set(KV_PARAMETERS, parameters).finish().into())
    }
}

/// The parameters in prefill's answer.
fn parameters_of(answer: &[u8]) -> Result<&[u8], MissingParameters> {
    let parameters = Object::parse(answer).ok().and_then(|answer| answer.get(KV_PARAMETERS));
    parameters.filter(|parameters| parameters.starts_with(b"{")).ok_or(MissingParameters::All)
}

/// The request for either side of a pair of SGLang engines. Prefill is told its rank too, because
/// otherwise ranks that are plain copies refuse what is not for the first.
fn rendezvous<'o, 'a>(request: &'o Object<'a>, pair: &Pair) -> ObjectEdit<'o, 'a> {
    let rank = pair.rank.unwrap_or(DpRank { index: 0, count: 1 });
    // 63 bits, less a margin: a client's request may be a batch, whose rooms are this one and the
    // next ones. An agent's requests are single, and its rooms have no margin.
    let place = ((pair.id as u64 >> 1) / u64::from(rank.count)) & !0xFFFF;
    let bootstrap = sglang::Bootstrap {
        bootstrap_host: pair.host.clone(),
        bootstrap_port: pair.bootstrap_port,
        bootstrap_room: sglang::room(place, rank),
        disagg_prefill_dp_rank: pair.rank.map(|rank| rank.index),
    };
    bootstrap.add(request.edit())
}

/// Whether decode's answer ended because the engine had too little of the prompt cached.
pub fn gave_up(answer: &[u8]) -> bool {
    let reason = b"\"cache_threshold\"";
    answer.windows(reason.len()).any(|window| window == reason)
}

fn transfer_id(pair: &Pair) -> String {
    format!("xfer-{:032x}", pair.id)
}

fn request_id(pair: &Pair) -> String {
    format!("{:032x}", pair.id)
}

#[cfg(test)]
#[path = "connector_tests.rs"]
mod tests;
