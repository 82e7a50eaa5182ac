//! SGLang: both engines are asked at once, and meet in a room at prefill's bootstrap server.
//!
//! Of several data-parallel ranks of the prefill engine, decode looks for the KV at the rank that is
//! left when the room is divided by their number, or at the rank that it is given.
//!
//! Source: SGLang 0.5.23, `CommonKVSender` and `_resolve_prefill_dp_rank`.

use crate::engine_request::DpRank;
use serde::{Deserialize, Serialize};
use serde_json::json;
use stator_body::ObjectEdit;

/// The fields that both requests get.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Bootstrap {
    /// Host of prefill's bootstrap server, without brackets.
    pub bootstrap_host: String,
    /// Port of prefill's bootstrap server.
    pub bootstrap_port: u16,
    /// 1 to 2^63 - 1.
    pub bootstrap_room: u64,
    /// The rank that computes the prompt, where prefill has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disagg_prefill_dp_rank: Option<u16>,
}

impl Bootstrap {
    /// Adds the fields to a request.
    pub fn add<'o, 'a>(&self, edit: ObjectEdit<'o, 'a>) -> ObjectEdit<'o, 'a> {
        let edit = edit
            .set("bootstrap_host", json!(self.bootstrap_host).to_string())
            .set("bootstrap_port", self.bootstrap_port.to_string())
            .set("bootstrap_room", self.bootstrap_room.to_string());
        match self.disagg_prefill_dp_rank {
            Some(rank) => edit.set("disagg_prefill_dp_rank", rank.to_string()),
            None => edit,
        }
    }
}

/// A room that leads to this rank, one for each place.
pub fn room(place: u64, rank: DpRank) -> u64 {
    place * u64::from(rank.count) + u64::from(rank.index)
}
