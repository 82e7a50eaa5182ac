//! Records as they come from outside: bounded, checked, and then believed.

use serde::Deserialize as _;
use stator_protos::discovery::AgentRecord;
use std::time::Duration;

/// Agents that are followed; further ones are ignored.
pub const AGENTS_MAX: usize = 4096;
/// Largest record; one with 1024 workers has 130 KB.
pub const RECORD_BYTES_MAX: usize = 16 << 20;
/// Most workers of one agent.
const WORKERS_MAX: usize = 65_536;
/// Lease of a record that does not say how long its lease is: an agent's default.
const LEASE_USUAL: Duration = Duration::from_secs(6);

/// The time for which a record that does not change vouches for its agent.
pub(crate) fn lease(record: &AgentRecord) -> Duration {
    match record.lease_ms {
        0 => LEASE_USUAL,
        length => Duration::from_millis(length),
    }
}

/// Reads the record of the agent under whose name it lies.
///
/// # Errors
///
/// The fault.
pub(crate) fn decode(bytes: &[u8], agent: &str) -> Result<AgentRecord, String> {
    if bytes.len() > RECORD_BYTES_MAX {
        return Err(format!("{} bytes, limit {RECORD_BYTES_MAX}", bytes.len()));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let record = AgentRecord::deserialize(&mut json).map_err(|error| error.to_string())?;
    json.end().map_err(|error| error.to_string())?;
    check(&record, agent)?;
    Ok(record)
}

/// As [`decode`], for a back-end that keeps leases itself: its word counts, not the record's.
///
/// # Errors
///
/// As [`decode`].
pub(crate) fn decode_unleased(bytes: &[u8], agent: &str) -> Result<AgentRecord, String> {
    let record = decode(bytes, agent)?;
    Ok(AgentRecord { lease_ms: u64::MAX, ..record })
}

fn check(record: &AgentRecord, agent: &str) -> Result<(), String> {
    let model = &record.model;
    if record.agent_id != agent {
        return Err(format!("agent_id: {:?} is not the record's name {agent:?}", record.agent_id));
    }
    if !(1..=65_536).contains(&model.block_size) {
        return Err(format!("model.block_size: {} is not in 1..=65536", model.block_size));
    }
    let limits = [("context_length", model.context_length), ("vocab_size", model.vocab_size)];
    // Engines that are asked over an API of their own have no tokens for others.
    let asked_in_text = !model.takes_tokens() && record.profile.api.is_some();
    for (field, value) in limits.into_iter().filter(|_| !asked_in_text) {
        if value == 0 {
            return Err(format!("model.{field}: 0 is below 1"));
        }
    }
    if record.workers.len() > WORKERS_MAX {
        return Err(format!("workers: {} entries, limit {WORKERS_MAX}", record.workers.len()));
    }
    Ok(())
}

/// A record for tests.
#[cfg(test)]
pub(crate) fn sample(agent: &str, lease_expires_unix_ms: u64) -> AgentRecord {
    use stator_protos::discovery::{ModelRecord, ProfileRecord};
    AgentRecord {
        agent_id: agent.into(),
        endpoint: "http://127.0.0.1:1".into(),
        serves_events: false,
        events_endpoint: "tcp://127.0.0.1:2".into(),
        replay_endpoint: "tcp://127.0.0.1:3".into(),
        model: ModelRecord { name: "m".into(), context_length: 64, block_size: 16, vocab_size: 10 },
        workers: vec![],
        accepting: true,
        profile: ProfileRecord::default(),
        lease_ms: 0,
        lease_expires_unix_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_protos::discovery::ApiRecord;

    fn refused(record: &AgentRecord, agent: &str, expected: &str) {
        let json = serde_json::to_vec(record).unwrap();
        assert_eq!(decode(&json, agent).unwrap_err(), expected);
    }

    #[test]
    fn absurd_records_are_refused() {
        let mut absurd = sample("a", 1);
        absurd.model.block_size = 0;
        refused(&absurd, "a", "model.block_size: 0 is not in 1..=65536");
        let mut mute = sample("a", 1);
        mute.model.vocab_size = 0;
        refused(&mute, "a", "model.vocab_size: 0 is below 1");
        refused(&sample("a", 1), "b", "agent_id: \"a\" is not the record's name \"b\"");
        let large = vec![b' '; RECORD_BYTES_MAX + 1];
        assert_eq!(decode(&large, "a").unwrap_err(), "16777217 bytes, limit 16777216");
        assert!(decode(b"{} {}", "a").is_err());
    }

    #[test]
    fn engines_with_an_api_of_their_own_need_no_tokens() {
        let mut record = sample("a", 1);
        let url = "http://127.0.0.1:4".into();
        let api = ApiRecord { url, model: "m".into(), takes_cache_salt: true };
        record.profile.api = Some(api);
        (record.model.vocab_size, record.model.context_length) = (0, 0);
        let json = serde_json::to_vec(&record).unwrap();
        assert_eq!(decode(&json, "a"), Ok(record.clone()));
        record.model.vocab_size = 10;
        refused(&record, "a", "model.context_length: 0 is below 1");
    }

    #[test]
    fn a_back_end_with_leases_of_its_own_has_the_last_word() {
        let json = serde_json::to_vec(&sample("a", 1)).unwrap();
        assert_eq!(decode(&json, "a"), Ok(sample("a", 1)));
        let unleased = AgentRecord { lease_ms: u64::MAX, ..sample("a", 1) };
        assert_eq!(decode_unleased(&json, "a"), Ok(unleased));
    }
}
