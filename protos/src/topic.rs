//! Topics of the event plane: which worker, which life of it, and what kind of message.
//!
//! A KV event topic reads `kv-events/<worker>/<rank>/<generation>`, so that a subscriber to the
//! stock topic `kv-events` receives it too, and a number can never be read as the continuation of
//! an earlier generation.

use crate::{Generation, WorkerId, WorkerRank};

/// Prefix of every KV event topic; vLLM's and SGLang's default topic.
pub const KV_EVENTS: &str = "kv-events";
/// Prefix of every load report topic.
pub const LOAD: &str = "load";

/// A parsed topic of a stator agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Topic {
    /// Content of the message.
    pub kind: TopicKind,
    /// Sender of the message.
    pub worker: WorkerRank,
    /// In which life.
    pub generation: Generation,
}

/// Content of a message on the event plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TopicKind {
    /// A numbered batch of KV events.
    KvEvents,
    /// A load report. It has no number of its own: its number frame is that of the worker's next
    /// batch, so that a subscriber notices what it lost before a silence.
    Load,
}

impl Topic {
    /// Reads a topic frame; `None` if it is not one of ours.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(frame).ok()?;
        let mut parts = text.split('/');
        let kind = match parts.next()? {
            KV_EVENTS => TopicKind::KvEvents,
            LOAD => TopicKind::Load,
            _ => return None,
        };
        let worker = WorkerId(hex(parts.next()?)?);
        let rank = parts.next()?.parse().ok()?;
        let generation = Generation(hex(parts.next()?)?);
        let topic = Self { kind, worker: WorkerRank { worker, rank }, generation };
        parts.next().is_none().then_some(topic)
    }
}

impl std::fmt::Display for Topic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            TopicKind::KvEvents => KV_EVENTS,
            TopicKind::Load => LOAD,
        };
        write!(f, "{kind}/{}/{}", self.worker, self.generation)
    }
}

fn hex(text: &str) -> Option<u64> {
    let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_survives_the_wire() {
        let worker = WorkerRank { worker: WorkerId(u64::MAX), rank: 3 };
        for kind in [TopicKind::KvEvents, TopicKind::Load] {
            let topic = Topic { kind, worker, generation: Generation(7) };
            assert_eq!(Topic::parse(topic.to_string().as_bytes()), Some(topic));
        }
    }

    #[test]
    fn foreign_and_malformed_topics_are_not_ours() {
        for text in [
            "",
            "kv-events",
            "kv@node@model",
            "kv-events/1/0/2",
            "load/zzzzzzzzzzzzzzzz/0/0000000000000001",
        ] {
            assert_eq!(Topic::parse(text.as_bytes()), None, "{text}");
        }
        let long = "kv-events/0000000000000001/0/0000000000000002/more";
        assert_eq!(Topic::parse(long.as_bytes()), None);
        assert_eq!(Topic::parse(&[0xff, 0xfe]), None);
    }
}
