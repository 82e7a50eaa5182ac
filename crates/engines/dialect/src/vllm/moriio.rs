//! MoRI-IO: what two vLLMs are told whose KV moves between AMD GPUs.
//!
//! In READ mode decode reads the blocks that prefill's answer names. In WRITE mode prefill is told
//! where decode is; decode goes on from prefill's answer, by which it tells prefill which blocks are
//! to be written. Both are asked in turn, also where the first layers could be written while the
//! last ones are computed: a decode engine that has room made for KV that nobody sends gives it
//! back never, and a prefill engine after `kv_connector_extra_config.defer_timeout`, 60 s.
//!
//! A decode engine in READ mode takes it that the KV of every prompt comes from elsewhere, also of
//! one that it is told nothing about, and answers from whatever its blocks held before. So it is
//! asked for no request as a whole, and where prefill fails another pair has to do it.
//!
//! A request that lacks what its engine needs is an error in the engine's core and ends it.
//!
//! No KV was moved for a test, for want of such GPUs: the shapes are those of the source, and the
//! scheduler's half of the connector took them.
//!
//! Source: `kv_connector/v1/moriio` of vLLM 0.32.0, the first version that is known.

use super::fields::{present, text};
use crate::json;
use crate::{Ask, Fault, FirstToken, Hand, Manner, Role};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use stator_handover::moriio::{DecodePlace, LEADS, Prefill};
use std::collections::BTreeMap;
use std::fmt;

/// Port on which an engine listens by default.
const HANDSHAKE_PORT: u16 = 6301;
const NOTIFY_PORT: u16 = 61005;

/// The engine that moves the KV.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    /// Decode.
    Read,
    /// Prefill.
    Write,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
        })
    }
}

/// An engine's MoRI-IO configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MoriioSetup {
    mode: Mode,
    role: Role,
    /// Host at which its peers reach it, if known.
    host: Option<String>,
    handshake_port: u16,
    notify_port: u16,
    tensor_parallel: u16,
    ranks: u16,
}

/// MoRI-IO settings that a prefill engine advertises to decode engines.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Advert {
    mode: Mode,
    tensor_parallel: u16,
}

impl MoriioSetup {
    /// Reads it from an engine's configuration. `host` is where the engine was reached.
    ///
    /// # Errors
    ///
    /// Why it can have no part in a pair.
    pub(super) fn read(
        version: &str,
        role: Role,
        (extra, parallel): (&Value, &Value),
        host: &str,
    ) -> Result<Self, String> {
        if is_before_known(version) {
            return Err(format!(
                "MoRI-IO of vllm {version} is not known, of 0.32.0 and later it is"
            ));
        }
        if parallel.is_null() {
            let why = "the engine does not say how its MoRI-IO is set up";
            return Err(format!("{why}: it has to run with VLLM_SERVER_DEV_MODE=1"));
        }
        if role == Role::Both {
            return Err("MoRI-IO: kv_role is neither kv_producer nor kv_consumer".into());
        }
        let size = |name: &str| number(&parallel[name]).unwrap_or(1).max(1);
        let ranks = size("data_parallel_size");
        if size("data_parallel_size_local") != ranks {
            return Err("MoRI-IO: data-parallel ranks of several servers are not supported".into());
        }
        let port = |name: &str, usual| number(&extra[name]).filter(|it| *it > 0).unwrap_or(usual);
        let told = extra["host_ip"].as_str().filter(|host| !host.is_empty());
        // Others would look for it on their own machine.
        let reached = Some(host.trim_matches(['[', ']'])).filter(|host| !is_loopback(host));
        Ok(Self {
            mode: if is_true(&extra["read_mode"]) { Mode::Read } else { Mode::Write },
            role,
            host: told.or(reached).map(str::to_owned),
            handshake_port: port("handshake_port", HANDSHAKE_PORT),
            notify_port: port("notify_port", NOTIFY_PORT),
            tensor_parallel: size("tensor_parallel_size"),
            ranks,
        })
    }

    pub(super) fn advert(&self) -> Advert {
        Advert { mode: self.mode, tensor_parallel: self.tensor_parallel }
    }

    /// Whether the engine goes on from prompts of others, and computes none.
    pub(super) fn needs_prefill(&self) -> bool {
        self.mode == Mode::Read && self.role == Role::Decode
    }

    /// Pairs this decode engine with the prefill engine that advertises `theirs`.
    pub(super) fn pair(&self, request: u64, theirs: Option<&Advert>) -> Result<Manner, Fault> {
        let unsupported = |why: String| Err(Fault::Unsupported(format!("MoRI-IO: {why}")));
        let Some(theirs) = theirs else {
            return unsupported("the prefill engine does not say how it is set up".into());
        };
        let (mode, own) = (theirs.mode, self.mode);
        if mode != own {
            return unsupported(format!("{mode} mode there, {own} mode here"));
        }
        let (there, here) = (theirs.tensor_parallel.max(1), self.tensor_parallel);
        let pairs = match mode {
            Mode::Read => there % here == 0 || here % there == 0,
            // Each rank there writes to that of its number here.
            Mode::Write => there == here,
        };
        if !pairs {
            return unsupported(format!("tensor parallelism {there} there, {here} here"));
        }
        let place = match (mode, &self.host) {
            (Mode::Read, _) => None,
            (Mode::Write, Some(host)) => Some(self.place(host)),
            (Mode::Write, None) => {
                return unsupported(
                    "where is decode? kv_connector_extra_config.host_ip says".into(),
                );
            }
        };
        // Other versions look for its beginning.
        let transfer_id = format!("tx-stator-{request:016x}");
        let prefill = Prefill::new(&transfer_id, place);
        Ok(Manner::InTurn { prefill: Some(json::raw(&prefill)), first: FirstToken::Dropped })
    }

    fn place<'a>(&self, host: &'a str) -> DecodePlace<'a> {
        DecodePlace {
            remote_host: host,
            remote_handshake_port: self.handshake_port,
            remote_notify_port: self.notify_port,
            remote_dp_size: self.ranks,
            tp_size: self.tensor_parallel,
        }
    }

    /// Refuses a hand that would harm the engine or be answered wrongly.
    pub(super) fn check(&self, hand: &Hand) -> Result<(), Fault> {
        match hand {
            Hand::Whole if self.needs_prefill() => {
                let why = "the engine goes on from prompts of a pair, and nobody computes this one";
                Err(Fault::Half(why.into()))
            }
            Hand::Whole | Hand::Canary => Ok(()),
            Hand::Prefill(None) => Err(Fault::Invalid("handover: prefill is told nothing".into())),
            Hand::Prefill(Some(told)) => self.check_prefill(told),
            Hand::Decode(told) => self.check_decode(&members(told)?),
        }
    }

    fn check_prefill(&self, told: &RawValue) -> Result<(), Fault> {
        let told = members(told)?;
        asks(&told, "do_remote_decode", "do_remote_prefill")?;
        text("transfer_id", read::<String>(&told, "transfer_id").as_ref())?;
        for name in ["remote_engine_id", "remote_block_ids"] {
            // They are null, but have to be there.
            present(name, told.contains_key(name).then_some(1))?;
        }
        if self.mode == Mode::Write {
            check_place(&told)?;
            for name in ["remote_dp_size", "tp_size"] {
                present(name, read::<u16>(&told, name).map(usize::from))?;
            }
        }
        Ok(())
    }

    fn check_decode(&self, told: &Members) -> Result<(), Fault> {
        asks(told, "do_remote_prefill", "do_remote_decode")?;
        text("transfer_id", read::<String>(told, "transfer_id").as_ref())?;
        text("remote_engine_id", read::<String>(told, "remote_engine_id").as_ref())?;
        let blocks = read::<Vec<Vec<u64>>>(told, "remote_block_ids");
        let blocks = blocks.map(|groups| groups.iter().map(Vec::len).sum());
        present("remote_block_ids", blocks)?;
        check_place(told)
    }
}

/// `kv_transfer_params`, by name.
type Members = BTreeMap<String, Box<RawValue>>;

/// A request in MoRI-IO's words.
pub(super) fn in_words_of(own: Option<&MoriioSetup>, ask: Ask) -> Ask {
    let writes = own.is_some_and(|own| own.mode == Mode::Write);
    let told = match &ask.hand {
        Hand::Decode(told) if writes => members(told),
        _ => return ask,
    };
    let Ok(mut told) = told else { return ask };
    told.insert(LEADS.to_owned(), json::raw(&true));
    Ask { hand: Hand::Decode(json::raw(&told)), ..ask }
}

fn members(told: &RawValue) -> Result<Members, Fault> {
    serde_json::from_str(told.get()).map_err(|error| Fault::Invalid(format!("handover: {error}")))
}

fn read<T: for<'de> Deserialize<'de>>(told: &Members, name: &str) -> Option<T> {
    serde_json::from_str(told.get(name)?.get()).ok()
}

fn asks(told: &Members, wanted: &str, other: &str) -> Result<(), Fault> {
    match (read(told, wanted), read(told, other)) {
        (Some(true), None | Some(false)) => Ok(()),
        _ => Err(Fault::Invalid(format!("handover: {wanted} is not what is asked for"))),
    }
}

fn check_place(told: &Members) -> Result<(), Fault> {
    text("remote_host", read::<String>(told, "remote_host").as_ref())?;
    for name in ["remote_handshake_port", "remote_notify_port"] {
        let port = read::<Value>(told, name).and_then(|port| number(&port));
        present(name, port.map(usize::from))?;
    }
    Ok(())
}

/// A number, which the engine takes as text too.
fn number(value: &Value) -> Option<u16> {
    match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64().and_then(|number| number.try_into().ok()),
    }
}

/// As the engine reads it: the words of Python and JSON for true, or 1.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Bool(is) => *is,
        Value::String(text) => ["true", "1"].contains(&text.trim().to_lowercase().as_str()),
        value => value.as_u64() == Some(1),
    }
}

fn is_loopback(host: &str) -> bool {
    let ip = host.parse::<std::net::IpAddr>();
    ip.map_or(host == "localhost", |ip| ip.is_loopback() || ip.is_unspecified())
}

/// Whether decode engines of this version wait for KV of every request, and prefill engines die of
/// requests without a place; a version that has no number is a new one.
fn is_before_known(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().ok());
    matches!((numbers.next(), numbers.next()), (Some(Some(0)), Some(Some(..32))))
}

#[cfg(test)]
mod pair_tests;
#[cfg(test)]
mod tests;
