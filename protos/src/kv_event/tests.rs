use super::*;
use proptest::{collection::vec, option, prelude::*, sample::select};
use rmp::encode as mp;

/// The payload `[1.5, [event], 0]` around one encoded event.
fn framed(event: &[u8]) -> Vec<u8> {
    let mut out = vec![0x93];
    mp::write_f64(&mut out, 1.5).unwrap();
    out.push(0x91);
    out.extend_from_slice(event);
    out.push(0);
    out
}

/// Encodes JSON-like text parts by hand, as an engine would.
fn strings(out: &mut Vec<u8>, texts: &[&str]) {
    for text in texts {
        mp::write_str(out, text).unwrap();
    }
}

#[track_caller]
fn check(event: &[u8], expected: Result<Option<KvEvent>, DecodeError>) {
    let decoded = decode(&framed(event)).map(|decoded| {
        assert_eq!(decoded.batch.rank, Some(0));
        assert_eq!(decoded.batch.events.len() + decoded.skipped as usize, 1);
        decoded.batch.events.into_iter().next()
    });
    assert_eq!(decoded, expected);
}

fn stored(hashes: &[u64], tokens: &[u32], block_size: u32) -> Stored {
    Stored {
        hashes: hashes.to_vec(),
        parent: None,
        tokens: tokens.to_vec(),
        block_size,
        medium: Medium::Device,
        lora_name: None,
    }
}

/// `["BlockStored", [hash], nil, [1, 2], 2, ...]` with `tail` behind.
fn positional(items: u8, tail: &[u8]) -> Vec<u8> {
    let mut event = vec![0x90 | items];
    strings(&mut event, &["BlockStored"]);
    event.extend_from_slice(&[0x91, 7, 0xc0, 0x92, 1, 2, 2]);
    event.extend_from_slice(tail);
    event
}

#[test]
fn an_array_may_end_after_the_block_size() {
    let expected = stored(&[7], &[1, 2], 2);
    check(&positional(5, &[]), Ok(Some(KvEvent::Stored(expected))));
}

#[test]
fn an_array_may_have_more_fields_than_are_known() {
    let mut tail = vec![0xc0];
    strings(&mut tail, &["CPU", "style-a"]);
    tail.extend_from_slice(&[0x91, 0xc0, 0]);
    let medium = Medium::Host;
    let expected = Stored { medium, lora_name: Some("style-a".into()), ..stored(&[7], &[1, 2], 2) };
    check(&positional(10, &tail), Ok(Some(KvEvent::Stored(expected))));
}

#[test]
fn an_adapter_with_only_a_number_is_a_namespace_too() {
    let expected = Stored { lora_name: Some("3".into()), ..stored(&[7], &[1, 2], 2) };
    check(&positional(6, &[3]), Ok(Some(KvEvent::Stored(expected))));
}

#[test]
fn an_array_of_removals_and_a_bare_clear_are_read() {
    let mut event = vec![0x92];
    strings(&mut event, &["BlockRemoved"]);
    event.extend_from_slice(&[0x92, 0xff, 0xcd, 1, 0]);
    let removed = Removed { hashes: vec![u64::MAX, 256], medium: Medium::Device };
    check(&event, Ok(Some(KvEvent::Removed(removed))));

    let mut event = vec![0x91];
    strings(&mut event, &["AllBlocksCleared"]);
    check(&event, Ok(Some(KvEvent::Cleared)));
}

#[test]
fn signed_and_unsigned_hashes_and_bytes_are_the_same_64_bits() {
    let hash = 0xfedc_ba98_7654_3210_u64;
    let (mut unsigned, mut signed, mut bytes) = (Vec::new(), Vec::new(), vec![0xc4, 32]);
    mp::write_u64(&mut unsigned, hash).unwrap();
    mp::write_i64(&mut signed, hash as i64).unwrap();
    bytes.extend_from_slice(&[0; 24]);
    bytes.extend_from_slice(&hash.to_be_bytes());
    for form in [unsigned, signed, bytes] {
        let mut event = vec![0x92];
        strings(&mut event, &["BlockRemoved"]);
        event.push(0x91);
        event.extend_from_slice(&form);
        let removed = Removed { hashes: vec![hash], medium: Medium::Device };
        check(&event, Ok(Some(KvEvent::Removed(removed))));
    }
}

#[test]
fn a_map_may_name_its_kind_last() {
    let mut event = vec![0x84];
    strings(&mut event, &["medium", "STORAGE", "news"]);
    event.extend_from_slice(&[0x81, 1, 2]);
    strings(&mut event, &["block_hashes"]);
    event.extend_from_slice(&[0x91, 0xc4, 9, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    strings(&mut event, &["type", "BlockRemoved"]);
    let removed = Removed { hashes: vec![258], medium: Medium::Disk };
    check(&event, Ok(Some(KvEvent::Removed(removed))));
}

#[test]
fn unknown_kinds_and_media_are_skipped_and_counted() {
    let mut event = vec![0x82];
    strings(&mut event, &["type", "BlockMoved", "block_hashes"]);
    event.push(0xc2);
    check(&event, Ok(None));

    let mut event = vec![0x93];
    strings(&mut event, &["BlockRemoved"]);
    event.extend_from_slice(&[0x91, 1]);
    strings(&mut event, &["TAPE"]);
    check(&event, Ok(None));

    let mut event = vec![0x92];
    strings(&mut event, &["BlockMoved"]);
    event.push(1);
    check(&event, Ok(None));
}

#[test]
fn fields_of_the_future_are_skipped_and_counted() {
    let skipped = |event: &[u8]| decode_engine(&framed(event)).unwrap().fields_skipped;
    // What comes after the last place that has a meaning: medium, name, keys, group, kind, window.
    let known = [0xc0; 7];
    assert_eq!(skipped(&positional(12, &known)), 0);
    assert_eq!(skipped(&positional(14, &[0xc0; 9])), 2);
    let map = |fields: &[&str]| {
        let mut event = vec![0x80 | (2 + fields.len() as u8)];
        strings(&mut event, &["type", "BlockRemoved", "block_hashes"]);
        event.extend_from_slice(&[0x91, 7]);
        for field in fields {
            strings(&mut event, &[field]);
            event.push(0xc0);
        }
        event
    };
    assert_eq!(skipped(&map(&["medium", "group_idx", "locality", "ownership"])), 0);
    assert_eq!(skipped(&map(&["medium", "tenant", "colour"])), 2);
    // Fields behind the rank are the batch's.
    let mut payload = framed(&map(&["tenant"]));
    payload[0] = 0x95;
    payload.extend_from_slice(&[0xc0, 0xc0]);
    assert_eq!(decode_engine(&payload).unwrap().fields_skipped, 3);
}

#[test]
fn what_is_no_event_is_refused() {
    let expected = "an array or a map";
    for event in [&[0xc0][..], &[5], &[0x90], &[0x91, 1], &[0xa1, b'x']] {
        check(event, Err(DecodeError::Unexpected { field: "event", expected }));
    }
    check(&[0x80], Err(DecodeError::Missing { field: "type" }));
}

#[test]
fn absurd_sizes_are_refused() {
    let with_block_size = |size: u32| {
        let mut event = positional(5, &[]);
        event.pop();
        mp::write_uint(&mut event, size.into()).unwrap();
        event
    };
    let zero = DecodeError::Unexpected { field: "block_size", expected: "at least 1" };
    check(&with_block_size(0), Err(zero));
    let (field, limit) = ("block_size", MAX_BLOCK_SIZE.into());
    check(&with_block_size(65_537), Err(DecodeError::TooLarge { field, size: 65_537, limit }));
    let unfilled = DecodeError::TokenCount { tokens: 2, blocks: 1, block_size: 65_536 };
    check(&with_block_size(65_536), Err(unfilled));

    let mut event = vec![0x92];
    strings(&mut event, &["BlockRemoved"]);
    event.extend_from_slice(&[0xdd, 0xff, 0xff, 0xff, 0xff, 1]);
    let (field, size, limit) = ("block_hashes", u32::MAX.into(), MAX_BLOCKS.into());
    check(&event, Err(DecodeError::TooLarge { field, size, limit }));
}

#[test]
fn a_lying_length_costs_no_memory() {
    let mut event = vec![0x92];
    strings(&mut event, &["BlockRemoved"]);
    mp::write_array_len(&mut event, MAX_BLOCKS).unwrap();
    let frame = framed(&event);
    assert_eq!(decode(&frame), Err(DecodeError::Truncated));

    let mut frame = vec![0x92, 0];
    mp::write_array_len(&mut frame, MAX_EVENTS).unwrap();
    assert_eq!(decode(&frame), Err(DecodeError::Truncated));
    let mut frame = vec![0x92, 0];
    mp::write_array_len(&mut frame, MAX_EVENTS + 1).unwrap();
    let (size, limit) = ((MAX_EVENTS + 1).into(), MAX_EVENTS.into());
    assert_eq!(decode(&frame), Err(DecodeError::TooLarge { field: "events", size, limit }));
}

#[test]
fn a_payload_above_the_limit_is_refused_unread() {
    let frame = vec![0; MAX_PAYLOAD_BYTES + 1];
    let (size, limit) = (frame.len() as u64, MAX_PAYLOAD_BYTES as u64);
    let field = "payload bytes";
    assert_eq!(decode(&frame), Err(DecodeError::TooLarge { field, size, limit }));
}

#[test]
fn a_batch_may_lack_the_rank_and_have_news_behind_it() {
    let expected = EventBatch { timestamp_s: 3.0, ..EventBatch::default() };
    for frame in [&[0x92, 3, 0x90][..], &[0x93, 3, 0x90, 0xc0], &[0x94, 3, 0x90, 0xc0, 0x91, 1]] {
        assert_eq!(decode(frame), Ok(Decoded { batch: expected.clone(), skipped: 0 }));
    }
    assert_eq!(decode(&[0x91, 3]), Err(DecodeError::Missing { field: "events" }));
    assert_eq!(decode(&[0x92, 3, 0x90, 1]), Err(DecodeError::TrailingBytes { bytes: 1 }));
}

/// The details of the one event of a payload.
fn detail(event: &[u8]) -> Detail {
    let mut batch = decode_engine(&framed(event)).expect("well-formed");
    assert_eq!(batch.events.len(), 1);
    batch.events.remove(0).detail
}

#[test]
fn both_encodings_tell_what_else_is_in_a_hash() {
    let mut tail = vec![0xc0, 0xc0, 0xc0];
    // [["salt", "style-a", ["image", 3]]]
    tail.extend_from_slice(&[0x91, 0x93]);
    strings(&mut tail, &["salt", "style-a"]);
    tail.push(0x92);
    strings(&mut tail, &["image"]);
    tail.extend_from_slice(&[3, 1]);
    strings(&mut tail, &["full_attention"]);
    let found = detail(&positional(11, &tail));
    let keys: Vec<_> = found.extra_keys.iter().collect();
    assert_eq!(keys, [(0, Some("salt")), (0, Some("style-a")), (0, None)]);
    assert_eq!((found.group, found.spec_kind.as_deref()), (Some(1), Some("full_attention")));

    let mut event = vec![0x86];
    strings(&mut event, &["type", "BlockStored", "block_hashes"]);
    event.extend_from_slice(&[0x91, 7]);
    strings(&mut event, &["token_ids"]);
    event.extend_from_slice(&[0x91, 1]);
    strings(&mut event, &["block_size"]);
    event.push(1);
    strings(&mut event, &["cache_salt", "tenant", "extra_keys"]);
    event.extend_from_slice(&[0x91, 0xc0]);
    let found = detail(&event);
    assert_eq!(found.cache_salt.as_deref(), Some("tenant"));

    let mut event = vec![0x85];
    strings(&mut event, &["type", "BlockStored", "block_hashes"]);
    event.extend_from_slice(&[0x90]);
    strings(&mut event, &["token_ids"]);
    event.extend_from_slice(&[0x90]);
    strings(&mut event, &["block_size"]);
    event.push(1);
    strings(&mut event, &["metadata"]);
    event.push(0x82);
    strings(&mut event, &["other", "x", "cache_salt", "tenant"]);
    assert_eq!(detail(&event).cache_salt.as_deref(), Some("tenant"));
    assert_eq!(detail(&event).extra_keys.iter().count(), 0);
}

#[test]
fn a_removal_tells_its_group() {
    let mut event = vec![0x94];
    strings(&mut event, &["BlockRemoved"]);
    event.extend_from_slice(&[0x91, 7]);
    strings(&mut event, &["GPU"]);
    event.push(2);
    assert_eq!(detail(&event).group, Some(2));
}

fn any_medium() -> impl Strategy<Value = Medium> {
    select(&Medium::ALL)
}

fn any_stored() -> impl Strategy<Value = KvEvent> {
    let lora_name = option::of("[a-z0-9-]{1,12}");
    let blocks = (vec(any::<u64>(), 0..6), 1u32..5, any::<bool>(), any::<u32>());
    (blocks, any::<Option<u64>>(), any_medium(), lora_name).prop_map(
        |((hashes, block_size, with_tokens, token), parent, medium, lora_name)| {
            let tokens = if with_tokens { hashes.len() * block_size as usize } else { 0 };
            let tokens = vec![token; tokens];
            KvEvent::Stored(Stored { hashes, parent, tokens, block_size, medium, lora_name })
        },
    )
}

fn any_event() -> impl Strategy<Value = KvEvent> {
    let removed = (vec(any::<u64>(), 0..6), any_medium())
        .prop_map(|(hashes, medium)| KvEvent::Removed(Removed { hashes, medium }));
    prop_oneof![4 => any_stored(), 3 => removed, 1 => Just(KvEvent::Cleared)]
}

proptest! {
    #[test]
    fn a_batch_survives_the_wire(
        timestamp_s in -1e12..1e12,
        events in vec(any_event(), 0..20),
        rank: Option<u32>,
        before in vec(any::<u8>(), 0..4),
    ) {
        let mut frame = before.clone();
        encode(timestamp_s, &events, rank, &mut frame);
        prop_assert_eq!(&frame[..before.len()], &before[..], "what was there stays");
        let decoded = decode(&frame[before.len()..]);
        let batch = EventBatch { timestamp_s, events, rank };
        prop_assert_eq!(decoded, Ok(Decoded { batch, skipped: 0 }));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300), as_event: bool) {
        let frame = if as_event { framed(&bytes) } else { bytes };
        if let Ok(decoded) = decode(&frame) {
            prop_assert!(decoded.batch.events.len() <= frame.len());
        }
    }

    #[test]
    fn a_changed_batch_never_panics(
        events in vec(any_event(), 1..5),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut frame = Vec::new();
        encode(1.0, &events, None, &mut frame);
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        if let Ok(decoded) = decode(&frame) {
            let EventBatch { timestamp_s, events, rank } = decoded.batch;
            let mut again = Vec::new();
            encode(timestamp_s, &events, rank, &mut again);
            prop_assert!(decode(&again).is_ok(), "what was read can be written");
        }
    }
}
