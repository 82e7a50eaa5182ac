//! Parsers of what other agents send, for fuzz targets. Each function feeds one parser, and panics
//! where the parser breaks its promise.

use crate::kv::offer::{KeepOrder, KvOffer};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// An order to keep a prompt and an offer of KV survive the wire, and no log shows a ticket.
pub fn hand_over(json: &[u8]) {
    check::<KvOffer>(json);
    if let Some(order) = check::<KeepOrder>(json) {
        let ticket = String::from(order.ticket);
        assert_eq!(ticket.len(), 96);
        assert!(!format!("{order:?}").contains(&ticket[..32]), "a ticket in a log");
    }
}

/// The message that these bytes are, if they are one.
fn check<M: Serialize + DeserializeOwned>(json: &[u8]) -> Option<M> {
    let message: M = serde_json::from_slice(json).ok()?;
    let written = serde_json::to_vec(&message).expect("a message can be written");
    let again: M = serde_json::from_slice(&written).expect("what we write, we read");
    assert_eq!(serde_json::to_vec(&again).expect("as before"), written);
    Some(again)
}
