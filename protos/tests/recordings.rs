//! What real engines published decodes to what a reference decoder read from the same bytes.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use stator_protos::kv_event::{
    Decoded, KvEvent, Medium, Removed, Stored, decode, decode_engine, encode,
};
use std::path::{Path, PathBuf};

/// Some short recordings, for tests that decode each of them thousands of times.
fn short_recordings() -> Vec<Vec<u8>> {
    let mut payloads: Vec<_> = recordings().into_iter().map(|(_, payload, _)| payload).collect();
    payloads.retain(|payload| payload.len() < 1200);
    assert!(payloads.len() > 40, "too few: {}", payloads.len());
    payloads.into_iter().step_by(5).collect()
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")
}

/// Every recorded payload with the line that describes it.
fn recordings() -> Vec<(PathBuf, Vec<u8>, Value)> {
    let root = fixtures().join("kv-events");
    let mut all = Vec::new();
    for folder in std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()) {
        let Ok(lines) = std::fs::read_to_string(folder.join("decoded.jsonl")) else { continue };
        for line in lines.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let file = folder.join(format!("{}.payload", line["file"].as_str().unwrap()));
            let payload = std::fs::read(&file).unwrap();
            all.push((file, payload, line));
        }
    }
    assert!(all.len() > 130, "recordings are missing: {}", all.len());
    all
}

fn hash(value: &Value) -> u64 {
    match value {
        Value::Object(bytes) => {
            let hex = bytes["bytes"].as_str().unwrap();
            assert_eq!(hex.len(), 64);
            u64::from_str_radix(&hex[48..], 16).unwrap()
        }
        number => number.as_u64().unwrap_or_else(|| number.as_i64().unwrap() as u64),
    }
}

fn hashes(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(hash).collect()
}

fn medium(event: &Value) -> Medium {
    assert_eq!(event["medium"], "GPU", "no other medium was recorded");
    Medium::Device
}

fn expected(event: &Value) -> KvEvent {
    match event["type"].as_str().unwrap() {
        "BlockStored" => KvEvent::Stored(Stored {
            hashes: hashes(&event["block_hashes"]),
            parent: Some(&event["parent_block_hash"]).filter(|p| !p.is_null()).map(hash),
            tokens: serde_json::from_value(event["token_ids"].clone()).unwrap(),
            block_size: serde_json::from_value(event["block_size"].clone()).unwrap(),
            medium: medium(event),
            lora_name: event.get("lora_name").and_then(Value::as_str).map(Into::into),
        }),
        "BlockRemoved" => KvEvent::Removed(Removed {
            hashes: hashes(&event["block_hashes"]),
            medium: medium(event),
        }),
        "AllBlocksCleared" => KvEvent::Cleared,
        kind => panic!("a kind that nobody recorded: {kind}"),
    }
}

#[test]
fn every_recording_decodes_to_what_was_published() {
    for (file, payload, line) in recordings() {
        let Decoded { batch, skipped } = decode(&payload).unwrap();
        let events: Vec<_> = line["payload"][1].as_array().unwrap().iter().map(expected).collect();
        assert_eq!(batch.events, events, "{}", file.display());
        // The JSON reader may be off by one unit in the last place.
        let timestamp_s = line["payload"][0].as_f64().unwrap();
        assert!((batch.timestamp_s - timestamp_s).abs() < 1e-5);
        assert_eq!(batch.rank.map(u64::from), line["payload"][2].as_u64());
        assert_eq!(skipped, 0);
    }
}

/// What stands beside the blocks: the salt, the keys of each block, the group and its kind.
type Details = (Option<String>, Vec<(u32, Option<String>)>, Option<u32>, Option<String>);

fn details(event: &Value) -> Details {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let blocks = event["extra_keys"].as_array().into_iter().flatten().enumerate();
    let keys = blocks.flat_map(|(block, keys)| {
        let keys = keys.as_array().into_iter().flatten();
        keys.map(move |key| (block as u32, text(key)))
    });
    let group = event["group_idx"].as_u64().map(|group| group as u32);
    (text(&event["cache_salt"]), keys.collect(), group, text(&event["kv_cache_spec_kind"]))
}

#[test]
fn every_recording_tells_what_its_blocks_depend_on() {
    let mut salted = 0;
    for (file, payload, line) in recordings() {
        let events = decode_engine(&payload).unwrap().events;
        let found = events.into_iter().map(|event| {
            let detail = event.detail;
            let keys = detail.extra_keys.iter();
            let keys = keys.map(|(block, key)| (block, key.map(str::to_owned))).collect();
            (detail.cache_salt, keys, detail.group, detail.spec_kind)
        });
        let expected: Vec<_> = line["payload"][1].as_array().unwrap().iter().map(details).collect();
        assert_eq!(found.collect::<Vec<Details>>(), expected, "{}", file.display());
        salted += expected.iter().filter(|(salt, ..)| salt.is_some()).count();
    }
    assert!(salted > 0, "no recording has a salt");
}

#[test]
fn every_recording_survives_our_own_encoding() {
    for (file, payload, _) in recordings() {
        let decoded = decode(&payload).unwrap();
        let mut again = Vec::new();
        let batch = &decoded.batch;
        encode(batch.timestamp_s, &batch.events, batch.rank, &mut again);
        assert_eq!(decode(&again).as_ref(), Ok(&decoded), "{}", file.display());
    }
}

#[test]
fn a_recording_cut_anywhere_is_refused() {
    for payload in short_recordings() {
        for length in 0..payload.len() {
            assert!(decode(&payload[..length]).is_err());
        }
    }
}

#[test]
fn a_recording_with_a_changed_byte_never_panics() {
    let mut refused = 0;
    for mut payload in short_recordings() {
        for at in 0..payload.len() {
            let honest = payload[at];
            for changed in [0x00, 0x7f, 0x81, 0x9f, 0xc0, 0xc1, 0xc6, 0xcf, 0xdb, 0xdd, 0xdf, 0xff]
            {
                payload[at] = changed;
                refused += u32::from(decode(&payload).is_err());
            }
            payload[at] = honest;
        }
    }
    assert!(refused > 0, "a frame of nothing but map heads is not a batch");
}
