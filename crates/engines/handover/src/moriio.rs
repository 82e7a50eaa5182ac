//! MoRI-IO: what a prefill and a decode engine whose KV moves between AMD GPUs are told. Pure.
//!
//! In READ mode the hand-over is NIXL's, and so prefill's answer all that decode needs. In WRITE
//! mode prefill is told where decode is, and decode tells prefill which blocks are to be written:
//! in turn it learns from prefill's answer whom to tell, at once from the configuration.
//!
//! A decode engine that is asked at once makes room before it knows that anything will come, and
//! gives the room back never where prefill fails; in turn it is asked only where prefill has done
//! its part.
//!
//! Members are those of llm-d's sidecar, but for `is_request_leader`, which every decode engine is
//! told: whatever its rank, it is the only one that has the request. Ports that prefill's answer
//! does not name are those of prefill.
//!
//! No KV was moved for a test, for want of such GPUs: the shapes are those of the sources, and the
//! scheduler's half of vLLM's connector took them.
//!
//! Source: `pkg/sidecar/proxy/connector_nixlv2.go`, `dp_rank.go` and `MORIIO_README.md` of llm-d's
//! router, and `kv_connector/v1/moriio` of vLLM 0.32.0.

use crate::engine_request::{DpRank, EngineRequest, MissingParameters};
use serde::Serialize;
use serde_json::{Value, json};
use stator_body::Object;

/// Has the decode engine that is asked tell prefill of its blocks, whichever rank it is; by itself
/// only the rank does whose number is prefill's.
pub const LEADS: &str = "is_request_leader";

/// The parameters of a prefill request: in READ mode without a place.
#[derive(Debug, Serialize)]
pub struct Prefill<'a> {
    do_remote_decode: bool,
    do_remote_prefill: bool,
    transfer_id: &'a str,
    remote_engine_id: Option<()>,
    remote_block_ids: Option<()>,
    #[serde(flatten)]
    place: Option<DecodePlace<'a>>,
}

/// The place of the decode engine, for a prefill that writes.
#[derive(Debug, Serialize)]
pub struct DecodePlace<'a> {
    /// Name or address.
    pub remote_host: &'a str,
    /// Port for handshakes of the first rank.
    pub remote_handshake_port: u16,
    /// Port for notes of the first rank.
    pub remote_notify_port: u16,
    /// Data-parallel ranks.
    pub remote_dp_size: u16,
    /// Tensor-parallel ranks of each.
    pub tp_size: u16,
}

impl<'a> Prefill<'a> {
    /// Parameters for a prefill under this name. Other versions look for how the name begins: `tx`.
    pub fn new(transfer_id: &'a str, place: Option<DecodePlace<'a>>) -> Self {
        let (remote_engine_id, remote_block_ids) = (None, None);
        Self {
            do_remote_decode: true,
            do_remote_prefill: false,
            transfer_id,
            remote_engine_id,
            remote_block_ids,
            place,
        }
    }
}

/// Ports of an engine's first rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// For handshakes.
    pub handshake: u16,
    /// For notes that blocks were written or read.
    pub notify: u16,
}

/// The setup of both engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// Ports of the prefill engine.
    pub prefill: Ports,
    /// Ports of the decode engine.
    pub decode: Ports,
    /// Tensor-parallel ranks of each data-parallel rank.
    pub tensor_parallel: u16,
    /// Data-parallel ranks of all pods together.
    pub ranks: u16,
    /// Data-parallel ranks of each pod, if that was said.
    pub ranks_of_pod: Option<u16>,
}

/// The engines of a hand-over, by name or address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    /// The engine beside this proxy.
    pub own: String,
    /// The pods of the prefill engine in the order of their ranks, where it has several.
    pub prefill: Vec<String>,
    /// The pods of the decode engine.
    pub decode: Vec<String>,
}

/// The setup, hosts and name of one hand-over.
#[derive(Clone, Debug, Default)]
pub struct Meeting {
    /// The setup of both engines.
    pub setup: Setup,
    /// Their addresses.
    pub hosts: Hosts,
    /// The rank among those of all pods.
    pub rank: u16,
    /// The same for both engines, and nobody else's.
    pub transfer_id: String,
}

impl Setup {
    /// Ranks behind one port, at least 1.
    pub fn ranks_behind(self) -> u16 {
        self.ranks_of_pod.unwrap_or(self.ranks).max(1)
    }

    /// The rank behind its pod's port, where there are several.
    pub fn behind(self, rank: u16) -> Option<DpRank> {
        let count = self.ranks_behind();
        (self.ranks > 1).then_some(DpRank { index: rank % count, count })
    }
}

impl Meeting {
    /// Prefill's parameters. If decode is asked at once, ranks are those of one pod.
    pub fn prefill(&self, at_once: bool) -> Value {
        let Setup { decode, tensor_parallel, ranks, ranks_of_pod, .. } = self.setup;
        let rank = if at_once { self.rank % self.setup.ranks_behind() } else { self.rank };
        let place = DecodePlace {
            remote_host: &self.hosts.own,
            remote_handshake_port: decode.handshake,
            remote_notify_port: decode.notify,
            remote_dp_size: ranks,
            tp_size: tensor_parallel,
        };
        let mut told = json!(Prefill::new(&self.transfer_id, Some(place)));
        told["remote_port"] = Value::Null;
        // An agent asks a rank by its own address, and its prefill needs neither.
        told["remote_dp_rank"] = rank.into();
        told["remote_dp_rank_override"] = true.into();
        spread(&mut told, self.hosts.decode.clone(), ranks_of_pod);
        told
    }

    /// Decode's parameters beside a prefill at this host.
    pub fn decode_at_once(&self, host: &str, url_host: &str) -> Value {
        let Setup { prefill, tensor_parallel, ranks_of_pod, .. } = self.setup;
        let ranks = self.setup.ranks_behind();
        let mut told = json!({
            "do_remote_prefill": true,
            "do_remote_decode": false,
            "remote_engine_id": format!("{url_host}:{}", prefill.handshake),
            // Its own ones, which it makes room for itself.
            "remote_block_ids": [],
            "remote_host": host,
            "remote_port": prefill.handshake,
            "remote_handshake_port": prefill.handshake,
            "remote_notify_port": prefill.notify,
            "remote_dp_rank": self.rank % ranks,
            "remote_dp_rank_override": true,
            "remote_dp_size": ranks,
            (LEADS): true,
            "tp_size": tensor_parallel,
            "transfer_id": self.transfer_id,
        });
        // The one that computes this prompt is known already.
        let hosts = if self.hosts.prefill.is_empty() { vec![] } else { vec![host.to_owned()] };
        spread(&mut told, hosts, ranks_of_pod);
        told
    }

    /// Decode's request, after a prefill at this host answered with these parameters, and the rank
    /// that decodes.
    ///
    /// # Errors
    ///
    /// When it says neither on which of several pods' ranks it ran, nor can that be known.
    pub fn decode_in_turn(
        &self,
        host: &str,
        answer: &[u8],
    ) -> Result<EngineRequest, MissingParameters> {
        let said = Object::parse(answer).map_err(|_| MissingParameters::All)?;
        let Setup { prefill, ranks, ranks_of_pod, .. } = self.setup;
        let rank = self.prefilled_at(host, &said)?;
        let mut edit = said
            .edit()
            .set("remote_dp_rank", rank.to_string())
            .set("remote_dp_rank_override", "true")
            .set(LEADS, "true");
        let mut further = json!({
            "transfer_id": self.transfer_id,
            "remote_handshake_port": prefill.handshake,
            "remote_notify_port": prefill.notify,
            "remote_dp_size": ranks,
        });
        spread(&mut further, self.hosts.prefill.clone(), ranks_of_pod);
        // What prefill says itself counts; the configuration only fills the gaps.
        for name in FURTHER {
            if let (None, Some(value)) = (said.get(name), further.get(name)) {
                edit = edit.set(name, value.to_string());
            }
        }
        let rank = self.setup.behind(rank).map(|rank| rank.index);
        Ok(EngineRequest { body: edit.finish(), rank })
    }

    /// The rank that computed the prompt, as it says itself.
    fn prefilled_at(&self, host: &str, said: &Object<'_>) -> Result<u16, MissingParameters> {
        let Setup { ranks, .. } = self.setup;
        if ranks <= 1 {
            return Ok(0);
        }
        let rank = said.get("remote_dp_rank").and_then(|raw| serde_json::from_slice(raw).ok());
        if let Some(rank) = rank.filter(|rank| *rank < ranks) {
            return Ok(rank);
        }
        // It was asked for that of this number on its pod.
        let count = self.setup.ranks_behind();
        let pod = match self.hosts.prefill.iter().position(|it| it == host) {
            Some(pod) => u16::try_from(pod).unwrap_or(u16::MAX),
            None if count == ranks => 0,
            None => return Err(MissingParameters::Rank),
        };
        Ok(pod.saturating_mul(count).saturating_add(self.rank % count))
    }
}

/// Parameters that decode gets if prefill's answer lacks them.
const FURTHER: [&str; 6] = [
    "transfer_id",
    "remote_handshake_port",
    "remote_notify_port",
    "remote_dp_size",
    "remote_hosts",
    "remote_dp_size_local",
];

/// Says on which pods the ranks of the other engine are, where they are on several.
fn spread(told: &mut Value, hosts: Vec<String>, ranks_of_pod: Option<u16>) {
    if hosts.is_empty() {
        return;
    }
    told["remote_hosts"] = hosts.into();
    if let Some(ranks) = ranks_of_pod {
        told["remote_dp_size_local"] = ranks.into();
    }
}

#[cfg(test)]
#[path = "moriio_tests.rs"]
mod tests;
