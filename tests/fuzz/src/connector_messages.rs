//! Messages between an engine's shim and the agent are read or refused, and what is read is written
//! as it was.

use stator_kv::connector::wire::{AgentMessage, KEYS_MAX, ShimMessage};

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    if let Ok(message) = ShimMessage::decode(input) {
        let count = match &message {
            ShimMessage::Ask(ask) => ask.keys.len(),
            ShimMessage::Filled(filled) => filled.len(),
            ShimMessage::Touch(keys) => keys.len(),
            ShimMessage::Tokens(frame) => frame.blocks.len(),
            ShimMessage::Copy(order) => order.pairs.len(),
            _ => 0,
        };
        assert!(count <= KEYS_MAX);
        assert_eq!(message.encode(), input);
        // The two sides share no type.
        assert!(AgentMessage::decode(input).is_err());
    }
    if let Ok(message) = AgentMessage::decode(input) {
        assert_eq!(message.encode(), input);
    }
}
