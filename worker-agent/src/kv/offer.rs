//! Messages about KV between the agents of a pair, as JSON in the hand-over of their requests.

use serde::{Deserialize, Serialize};
use stator_kv::transfer::{FleetKey, ReaderIdentity, ReaderPurpose};
use std::fmt;

/// Bytes of a ticket's handle.
const HANDLE_BYTES: usize = 16;

/// The KV that an agent's engines compute, and the place where the agent hands it over: the hand-over
/// of its record.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KvOffer {
    /// [`stator_engine::transfer::KvForm::fingerprint`] of its engines.
    pub(crate) form: u64,
    /// Address of the transfer, `host:port`.
    pub(crate) transfer: String,
}

/// A decode worker's order to keep a prompt.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeepOrder {
    pub(crate) ticket: HandoverTicket,
    /// Time from the order on after which the decode worker wants the prompt no more, in milliseconds.
    pub(crate) within_ms: Option<u64>,
    /// Place of the first block that the decode worker lacks, if it reads blocks from there on while the
    /// prompt is still computed.
    pub(crate) push_from: Option<usize>,
}

/// A prefill worker's answer about a kept prompt.
#[derive(Debug, Serialize)]
pub(crate) struct KeptBlocks {
    pub(crate) blocks: usize,
}

/// The right to read one prompt, once. The decode worker draws it, so that it can give the prompt up
/// whether or not it heard of its end.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct HandoverTicket {
    /// Number of the prompt: the reader's at the transfer.
    pub(crate) handle: [u8; HANDLE_BYTES],
    /// Secret that makes the key of the transfer.
    token: [u8; 32],
}

impl HandoverTicket {
    /// A ticket that nobody else has.
    pub(crate) fn draw() -> Self {
        Self { handle: rand::random(), token: rand::random() }
    }

    /// The reader with this ticket, in a fleet of this key.
    pub(crate) fn reader(&self, fleet: &FleetKey) -> ReaderIdentity {
        let key = fleet.of_handover(&self.token);
        ReaderIdentity { instance: self.handle, purpose: ReaderPurpose::Handover, key }
    }
}

impl From<HandoverTicket> for String {
    fn from(ticket: HandoverTicket) -> Self {
        ticket.handle.iter().chain(&ticket.token).map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for HandoverTicket {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let wrong = "a ticket has 96 hexadecimal digits";
        let byte = |pair: &[u8; 2]| {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8)
        };
        let (pairs, rest) = text.as_bytes().as_chunks();
        let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        let bytes = bytes.filter(|_| rest.is_empty()).ok_or(wrong)?;
        let (handle, token) = bytes.split_first_chunk().ok_or(wrong)?;
        Ok(Self { handle: *handle, token: token.try_into().map_err(|_| wrong)? })
    }
}

/// Shows no secret.
impl fmt::Debug for HandoverTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandoverTicket(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_survives_its_way_as_json() {
        let ticket = HandoverTicket::draw();
        let order = KeepOrder { ticket, within_ms: Some(30_000), push_from: Some(7) };
        let json = serde_json::to_string(&order).unwrap();
        let further = ",\"within_ms\":30000,\"push_from\":7";
        assert_eq!(json.len(), "{\"ticket\":\"\"}".len() + 96 + further.len());
        let read: KeepOrder = serde_json::from_str(&json).unwrap();
        assert_eq!((read.ticket, read.within_ms, read.push_from), (ticket, Some(30_000), Some(7)));
        // Older agents name no time, and read nothing before the prompt's end.
        let json = json.replace(further, "");
        let read: KeepOrder = serde_json::from_str(&json).unwrap();
        assert_eq!((read.ticket, read.within_ms, read.push_from), (ticket, None, None));
        for wrong in [json.replace("\"}", "0\"}"), json.replace("\"}", "00\"}"), "{}".into()] {
            assert!(serde_json::from_str::<KeepOrder>(&wrong).is_err(), "{wrong}");
        }
        assert!(
            serde_json::from_str::<KeepOrder>(&format!("{{\"ticket\":\"{:ä>96}\"}}", "")).is_err()
        );
        assert!(!format!("{order:?}").contains(&json[11..20]));
    }

    /// An agent of before the transfer must not ask for prompts that it cannot fetch.
    #[test]
    fn an_offer_is_none_for_older_agents() {
        let offer = KvOffer { form: 1, transfer: "10.0.0.1:7010".into() };
        let json = serde_json::to_value(&offer).unwrap();
        assert_eq!(json, serde_json::json!({"form": 1, "transfer": "10.0.0.1:7010"}));
    }
}
