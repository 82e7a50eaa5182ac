//! Prefill on one vLLM, decode on another: which connectors can, and what they may be told.
//!
//! An incomplete set of `kv_transfer_params` is an assertion in the engine's core and ends it
//! with all that runs in it, so nothing passes here that is not complete.
//!
//! A prefill that was aborted while it ran holds nothing. One that has ended holds its blocks for
//! decode, and nobody can ask its engine to free them: `abort_requests` passes over requests that
//! have ended. Only a decode engine can, which was told of them: it does where it has read them, and
//! where its request ends before it did. So whatever was handed over goes to a decode engine, also
//! where nobody waits for the answer any more. Where none hears of it, NIXL frees the blocks when
//! their lease ends (`kv_connector_extra_config.kv_lease_duration`, 30 s, extended by who is to read
//! them; counted in `vllm:nixl_num_kv_expired_reqs_total`), and Mooncake after
//! `VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT`, 480 s.
//!
//! NIXL that pushes is told nothing by which prefill could find who waits: it takes the request of
//! decode that has the name of its own, but for the random end that each engine gives it.
//!
//! No layer is on its way to decode before the whole prompt is computed: NIXL and Mooncake move a
//! request's blocks when it has ended in prefill, and of a storage decode is asked only then.
//!
//! Source: the scheduler and the connectors of vLLM 0.32.0.

use super::family::{Family, family};
use super::fields::{present, text};
use super::{EngineFacts, kept, moriio};
use crate::json;
use crate::{Ask, Connector, Fault, FirstToken, Hand, Manner};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use stator_handover::mooncake;

/// Advertisement of a prefill engine to decode engines.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Advert {
    pub(super) connector: String,
    /// Connectors talk to their own version only.
    pub(super) version: String,
    /// Tokens per KV block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) block_size: Option<u32>,
    /// Mooncake: where its bootstrap server is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bootstrap: Option<String>,
    /// Mooncake: the engine's id, one for each data-parallel rank, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) engines: Vec<String>,
    /// MoRI-IO: how it is set up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moriio: Option<moriio::Advert>,
}

/// Whether the connector finds its peers by a bootstrap server.
pub(super) fn has_bootstrap(connector: &str) -> bool {
    family(connector) == Ok(Family::Mooncake)
}

/// Pairs an engine of these `facts` with this rank of the engine that advertises
/// `prefill`.
pub(super) fn pair(
    request: u64,
    prefill: &RawValue,
    rank: u16,
    facts: &EngineFacts,
) -> Result<Manner, Fault> {
    let theirs: Advert = serde_json::from_str(prefill.get())
        .map_err(|error| Fault::Unsupported(format!("the prefill's handover: {error}")))?;
    let own = Connector::decodes_after(facts.connector.as_ref(), &theirs.connector)?;
    if let Some(version) = facts.version.as_ref().filter(|own| **own != theirs.version) {
        let theirs = &theirs.version;
        return Err(Fault::Unsupported(format!("versions: vllm {theirs} there, {version} here")));
    }
    match family(&own.name)? {
        Family::Nixl { reads } => Ok(in_turn(match facts.block_size {
            // What decode has no KV of within the last block it computes, whatever it is.
            Some(block_size) if reads && theirs.block_size == Some(block_size) => {
                FirstToken::Taken { block_size }
            }
            _ => FirstToken::Dropped,
        })),
        Family::Mooncake => together(request, &theirs, rank),
        Family::Storage | Family::Offloading => Ok(in_turn(FirstToken::Dropped)),
        Family::Moriio => set_up(facts)?.pair(request, theirs.moriio.as_ref()),
    }
}

/// The engine's MoRI-IO configuration.
fn set_up(facts: &EngineFacts) -> Result<&moriio::MoriioSetup, Fault> {
    let unknown = || Fault::Unsupported("the engine has not said how its MoRI-IO is set up".into());
    facts.moriio.as_ref().ok_or_else(unknown)
}

/// Prefill is told nothing of decode.
fn in_turn(first: FirstToken) -> Manner {
    Manner::InTurn { prefill: None, first }
}

/// Ranks have their own engines at one bootstrap server, and decode asks for that of the rank.
fn together(request: u64, theirs: &Advert, rank: u16) -> Result<Manner, Fault> {
    let Some(bootstrap) = &theirs.bootstrap else {
        return Err(Fault::Unsupported("the prefill engine has no bootstrap server".into()));
    };
    let Some(engine) = theirs.engines.get(usize::from(rank)) else {
        let engines = theirs.engines.len();
        let why = format!("rank {rank} is none of the {engines} at the bootstrap server");
        return Err(Fault::Unsupported(why));
    };
    let transfer_id = format!("stator-{request:016x}");
    Ok(Manner::Together {
        prefill: json::raw(&mooncake::prefill(&transfer_id)),
        decode: json::raw(&mooncake::decode(&transfer_id, engine, bootstrap)),
        first: FirstToken::Dropped,
        // Blocks are written where the prefill's request has finished.
        prompt_first: true,
    })
}

/// The fields of `kv_transfer_params` that are read; the rest is the connector's own.
#[derive(Deserialize)]
struct Params {
    #[serde(default)]
    do_remote_prefill: Option<bool>,
    #[serde(default)]
    do_remote_decode: Option<bool>,
    remote_block_ids: Option<Vec<Blocks>>,
    remote_engine_id: Option<String>,
    remote_request_id: Option<String>,
    remote_host: Option<String>,
    remote_port: Option<u16>,
    transfer_id: Option<String>,
    remote_bootstrap_addr: Option<String>,
}

/// Blocks of one KV cache group, or one block where versions know no groups.
#[derive(Deserialize)]
#[serde(untagged)]
enum Blocks {
    Group(#[allow(dead_code, reason = "only its shape counts")] Vec<u64>),
    Block(#[allow(dead_code, reason = "only its shape counts")] u64),
}

/// Whether what prefill says is of one KV cache group, so that a prompt's blocks are counted
/// alike everywhere.
pub(super) fn is_of_one_group(told: &RawValue) -> bool {
    let blocks = params(told).ok().and_then(|params| params.remote_block_ids).unwrap_or_default();
    let grouped = blocks.iter().any(|blocks| matches!(blocks, Blocks::Group(_)));
    blocks.len() == 1 || !(grouped || blocks.is_empty())
}

/// Refuses a hand that would harm an engine of these `facts`.
pub(super) fn check(hand: &Hand, facts: &EngineFacts) -> Result<(), Fault> {
    if matches!(hand, Hand::Whole | Hand::Canary) {
        return facts.moriio.as_ref().map_or(Ok(()), |own| own.check(hand));
    }
    let own = facts.connector.as_ref();
    let own = own.ok_or_else(|| Fault::Unsupported("the engine has no connector".into()))?;
    let family = family(&own.name)?;
    let (role, able) = match hand {
        Hand::Prefill(_) => ("prefill", own.role.prefills()),
        _ => ("decode", own.role.decodes()),
    };
    if !able {
        return Err(Fault::Unsupported(format!("the engine's connector does not {role}")));
    }
    match (family, hand) {
        (Family::Nixl { .. }, Hand::Prefill(None)) => Ok(()),
        (Family::Nixl { .. }, Hand::Decode(told)) => nixl_decode(&params(told)?),
        (Family::Mooncake, Hand::Prefill(Some(told))) => mooncake_prefill(&params(told)?),
        (Family::Mooncake, Hand::Decode(told)) => mooncake_decode(&params(told)?),
        (Family::Storage | Family::Offloading, Hand::Prefill(None)) => Ok(()),
        // It is told nothing, whatever was handed over.
        (Family::Storage, Hand::Decode(_)) => Ok(()),
        (Family::Offloading, Hand::Decode(told)) => kept::check(told),
        (Family::Moriio, _) => set_up(facts)?.check(hand),
        _ => Err(Fault::Invalid(format!("handover: {} works the other way", own.name))),
    }
}

/// A request by the name that prefill's has where that is how prefill finds who waits for its KV.
pub(super) fn in_name_of(facts: &EngineFacts, ask: Ask) -> Result<Ask, Fault> {
    let family = facts.connector.as_ref().and_then(|own| family(&own.name).ok());
    let (Some(Family::Nixl { reads: false }), Hand::Decode(told)) = (family, &ask.hand) else {
        return Ok(ask);
    };
    let theirs = params(told)?.remote_request_id.unwrap_or_default();
    let name = facts.target.endpoint.name_of(&theirs).map(str::to_owned);
    let unlike = || format!("handover: remote_request_id: {theirs:?} was not sent as decode's are");
    name.map(|id| Ask { id, ..ask }).ok_or_else(|| Fault::Invalid(unlike()))
}

fn params(told: &RawValue) -> Result<Params, Fault> {
    serde_json::from_str(told.get()).map_err(|error| Fault::Invalid(format!("handover: {error}")))
}

fn nixl_decode(params: &Params) -> Result<(), Fault> {
    wants_remote_prefill(params)?;
    present("remote_block_ids", params.remote_block_ids.as_ref().map(Vec::len))?;
    text("remote_engine_id", params.remote_engine_id.as_ref())?;
    text("remote_request_id", params.remote_request_id.as_ref())?;
    text("remote_host", params.remote_host.as_ref())?;
    present("remote_port", params.remote_port.map(usize::from))
}

fn mooncake_decode(params: &Params) -> Result<(), Fault> {
    wants_remote_prefill(params)?;
    text("transfer_id", params.transfer_id.as_ref())?;
    text("remote_engine_id", params.remote_engine_id.as_ref())?;
    text("remote_bootstrap_addr", params.remote_bootstrap_addr.as_ref())
}

fn mooncake_prefill(params: &Params) -> Result<(), Fault> {
    if params.do_remote_decode != Some(true) || params.do_remote_prefill == Some(true) {
        return Err(Fault::Invalid("handover: do_remote_decode is not what is asked for".into()));
    }
    text("transfer_id", params.transfer_id.as_ref())
}

fn wants_remote_prefill(params: &Params) -> Result<(), Fault> {
    if params.do_remote_prefill == Some(true) && params.do_remote_decode != Some(true) {
        return Ok(());
    }
    Err(Fault::Invalid("handover: do_remote_prefill is not what is asked for".into()))
}

#[cfg(test)]
mod tests;
