//! A topic and a load report are refused, or survive the wire.

use stator_protos::load::Load;
use stator_protos::topic::Topic;

/// Runs the target.
pub(crate) fn run(frame: &[u8]) {
    if let Some(topic) = Topic::parse(frame) {
        assert_eq!(Topic::parse(topic.to_string().as_bytes()), Some(topic));
    }
    if let Ok(load) = Load::decode(frame) {
        let mut again = Vec::new();
        load.encode(&mut again);
        // Compared as text, because a load may hold a number that is none.
        let decoded = Load::decode(&again).expect("what we write, we read");
        assert_eq!(format!("{decoded:?}"), format!("{load:?}"));
    }
}
