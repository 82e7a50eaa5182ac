use super::*;
use proptest::{collection::vec, prelude::*, sample::select};
use stator_protos::hash::sequence_hashes;
use stator_protos::kv_event::decode_engine;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const OURS: NonZeroU32 = NonZeroU32::new(4).expect("not 0");

fn translator() -> Translator {
    Translator::new(OURS, 1000)
}

/// How often each of our blocks is there, by medium.
type Held = BTreeMap<(u64, Medium), u32>;

/// What an index makes of events.
fn follow(held: &mut Held, events: &[KvEvent]) {
    for event in events {
        match event {
            KvEvent::Stored(stored) => {
                assert!(stored.tokens.is_empty() && stored.block_size == OURS.get());
                for hash in &stored.hashes {
                    *held.entry((*hash, stored.medium)).or_default() += 1;
                }
            }
            KvEvent::Removed(removed) => {
                for hash in &removed.hashes {
                    let copies = held.get_mut(&(*hash, removed.medium)).expect("it is there");
                    *copies -= 1;
                    if *copies == 0 {
                        held.remove(&(*hash, removed.medium));
                    }
                }
            }
            KvEvent::Cleared => held.clear(),
        }
    }
}

fn held(blocks: impl IntoIterator<Item = (SequenceHash, Medium)>) -> Held {
    let mut held = Held::new();
    for (hash, medium) in blocks {
        *held.entry((hash.0, medium)).or_default() += 1;
    }
    held
}

fn stored(hashes: &[u64], parent: Option<u64>, tokens: &[u32], block_size: u32) -> EngineEvent {
    let stored = Stored {
        hashes: hashes.to_vec(),
        parent,
        tokens: tokens.to_vec(),
        block_size,
        medium: Medium::Device,
        lora_name: None,
    };
    EngineEvent { event: KvEvent::Stored(stored), detail: Detail::default() }
}

fn removed(hashes: &[u64], medium: Medium) -> EngineEvent {
    let event = KvEvent::Removed(Removed { hashes: hashes.to_vec(), medium });
    EngineEvent { event, detail: Detail::default() }
}

/// An event of a cache group, whose kind is told or not.
fn of(mut event: EngineEvent, group: u32, kind: Option<&str>) -> EngineEvent {
    event.detail.group = Some(group);
    event.detail.spec_kind = kind.map(Into::into);
    event
}

fn tokens(count: u32) -> Vec<u32> {
    (1..=count).collect()
}

fn sequence(tokens: &[u32], lora: Option<&str>, salt: Option<&str>) -> Vec<SequenceHash> {
    let mut out = Vec::new();
    sequence_hashes(tokens, OURS, HashSeed::new(lora, salt), &mut out);
    out
}

fn device(blocks: &[SequenceHash]) -> Held {
    held(blocks.iter().map(|block| (*block, Medium::Device)))
}

/// Translates events and checks what is then held, and what was skipped.
#[track_caller]
fn check(events: &[EngineEvent], expected: Held, skipped: SkipCounts) -> Vec<KvEvent> {
    let (mut translator, mut out) = (translator(), Vec::new());
    let found = translator.translate(events, &mut out);
    assert_eq!(found, skipped);
    let mut index = Held::new();
    follow(&mut index, &out);
    assert_eq!(index, expected, "what the index was told");
    assert_eq!(held(translator.blocks()), expected, "what the translator knows");
    out
}

fn blocks_skipped(blocks: u64) -> SkipCounts {
    SkipCounts { blocks, ..SkipCounts::default() }
}

#[test]
fn a_run_continues_where_its_parent_ends() {
    let ours = sequence(&tokens(12), None, None);
    let events =
        [stored(&[91, 92], None, &tokens(8), 4), stored(&[93], Some(92), &tokens(12)[8..], 4)];
    let out = check(&events, device(&ours), SkipCounts::default());
    let KvEvent::Stored(second) = &out[1] else { panic!("a stored event") };
    assert_eq!((second.parent, &second.hashes[..]), (Some(ours[1].0), &[ours[2].0][..]));
}

#[test]
fn a_larger_block_of_the_engine_is_several_of_ours() {
    let ours = sequence(&tokens(24), None, None);
    let events = [
        stored(&[91, 92], None, &tokens(16), 8),
        stored(&[93], Some(92), &tokens(24)[16..], 8),
        removed(&[92], Medium::Device),
    ];
    let left = [&ours[..2], &ours[4..]].concat();
    check(&events, device(&left), SkipCounts::default());
}

#[test]
fn a_block_size_that_does_not_fit_is_counted() {
    let events = [stored(&[91], None, &tokens(3), 3), stored(&[92], None, &tokens(6), 6)];
    check(&events, Held::new(), SkipCounts { block_sizes: 2, ..SkipCounts::default() });
}

#[test]
fn smaller_blocks_of_the_engine_make_up_ours() {
    let ours = sequence(&tokens(8), None, None);
    let each = |from: u64| -> Vec<u64> { (from..from + 8).collect() };
    let whole = || stored(&each(90), None, &tokens(8), 1);
    check(&[whole()], device(&ours), SkipCounts::default());
    check(&[whole(), removed(&[97], Medium::Device)], device(&ours[..1]), SkipCounts::default());
    let twos = stored(&[80, 81, 82], None, &tokens(6), 2);
    let rest = stored(&[83], Some(82), &tokens(8)[6..], 2);
    check(&[twos, rest], device(&ours), SkipCounts::default());
    let lost = stored(&[97], Some(96), &tokens(8)[7..], 1);
    check(&[lost], Held::new(), blocks_skipped(1));
}

#[test]
fn what_became_of_events_is_told_by_reason() {
    let mut translator = translator();
    let mut of_kind = |mut event: EngineEvent, kind: &str| {
        event.detail.spec_kind = Some(kind.to_owned());
        translator.translate(&[event], &mut Vec::new());
        translator.take_tally()
    };
    let reason = |kind: &'static str, reason| super::super::Counts::from([((kind, reason), 1)]);
    let tally = of_kind(stored(&[91], None, &tokens(4), 4), "mamba");
    assert_eq!(tally.stores, reason("mamba", Reason::UnsupportedCacheKind));
    let tally = of_kind(removed(&[91], Medium::Device), "new_kind");
    assert_eq!(tally.removals, reason("other", Reason::UnsupportedCacheKind));
    let tally = of_kind(stored(&[91], None, &tokens(6), 6), "full_attention");
    assert_eq!(tally.stores, reason("full_attention", Reason::InvalidBlockSize));
    let tally = of_kind(stored(&[92], Some(91), &tokens(4), 4), "full_attention");
    assert_eq!(tally.stores, reason("full_attention", Reason::UnknownParent));
    for _ in 0..2 {
        let tally = of_kind(stored(&[91], None, &tokens(4), 4), "full_attention");
        assert_eq!(tally, Tally::default());
    }
    let tally = of_kind(removed(&[91], Medium::Device), "full_attention");
    assert_eq!((tally.suppressed, tally.forwarded), (1, 0));
    let tally = of_kind(removed(&[91], Medium::Device), "full_attention");
    assert_eq!((tally.suppressed, tally.forwarded), (0, 1));
}

#[test]
fn what_follows_an_unknown_block_is_unknown() {
    let events = [stored(&[92, 93], Some(91), &tokens(8), 4), removed(&[92], Medium::Device)];
    check(&events, Held::new(), blocks_skipped(2));
}

#[test]
fn a_block_is_there_until_each_of_its_copies_is_gone() {
    let ours = sequence(&tokens(4), None, None);
    let twice = || stored(&[91], None, &tokens(4), 4);
    let gone = || removed(&[91], Medium::Device);
    check(&[twice(), twice(), gone()], device(&ours), SkipCounts::default());
    check(
        &[twice(), twice(), removed(&[91, 91, 91], Medium::Device)],
        Held::new(),
        SkipCounts::default(),
    );
}

#[test]
fn a_known_block_may_move_to_another_medium() {
    let ours = sequence(&tokens(8), None, None);
    let mut copy = stored(&[92, 99], None, &[], 4);
    let KvEvent::Stored(stored_event) = &mut copy.event else { panic!("a stored event") };
    stored_event.medium = Medium::Host;
    let events = [stored(&[91, 92], None, &tokens(8), 4), copy, removed(&[91, 92], Medium::Device)];
    check(&events, held([(ours[1], Medium::Host)]), blocks_skipped(1));
}

#[test]
fn nothing_is_left_after_a_clear() {
    let clear = EngineEvent { event: KvEvent::Cleared, detail: Detail::default() };
    let child = stored(&[92], Some(91), &tokens(4), 4);
    check(&[stored(&[91], None, &tokens(4), 4), clear, child], Held::new(), blocks_skipped(1));
}

#[test]
fn a_salt_named_by_the_engine_is_a_seed_and_one_name_means_one_block() {
    let mut salted = stored(&[91], None, &tokens(4), 4);
    salted.detail.cache_salt = Some("tenant".into());
    let child = stored(&[92], Some(91), &tokens(8)[4..], 4);
    let ours = sequence(&tokens(8), None, Some("tenant"));
    check(&[salted.clone(), child], device(&ours), SkipCounts::default());
    // The same name without the salt.
    let plain = stored(&[91], None, &tokens(4), 4);
    let ours = sequence(&tokens(4), None, None);
    check(&[salted.clone(), salted, plain], device(&ours), SkipCounts::default());
}

#[test]
fn only_full_attention_of_one_group_is_indexed() {
    let ours = sequence(&tokens(4), None, None);
    let block = || stored(&[91], None, &tokens(4), 4);
    let events = [
        of(block(), 0, Some("sliding_window")),
        of(block(), 1, Some("full_attention")),
        of(block(), 2, Some("full_attention")),
        of(removed(&[91], Medium::Device), 0, None),
        of(removed(&[91], Medium::Device), 2, None),
    ];
    check(&events, device(&ours), SkipCounts { events: 4, ..SkipCounts::default() });
}

#[test]
fn removals_that_come_first_do_not_choose_the_group() {
    let ours = sequence(&tokens(8), None, None);
    let full = Some("full_attention");
    let events = [
        // Evictions come first in a batch, here after a gap, and name no kind.
        of(removed(&[81], Medium::Device), 1, None),
        of(stored(&[81], None, &tokens(4), 4), 1, Some("sliding_window")),
        of(stored(&[91, 92], None, &tokens(8), 4), 0, full),
        of(removed(&[92], Medium::Device), 1, None),
        of(removed(&[92], Medium::Device), 0, None),
    ];
    check(&events, device(&ours[..1]), SkipCounts { events: 2, ..SkipCounts::default() });
}

#[test]
fn there_is_room_for_so_many_blocks() {
    let mut translator = Translator::new(OURS, 2);
    let mut out = Vec::new();
    let events = [stored(&[91, 92, 93], None, &tokens(12), 4), stored(&[91], None, &tokens(4), 4)];
    assert_eq!(translator.translate(&events, &mut out), blocks_skipped(1));
    assert_eq!(translator.blocks().len(), 3);
}

fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/kv-events")
}

fn recordings(folder: &str) -> Vec<Vec<EngineEvent>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(recorded().join(folder))
        .expect("the recordings")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "payload"))
        .collect();
    files.sort();
    let read = |path: &PathBuf| std::fs::read(path).expect("a recording");
    files.iter().map(|path| decode_engine(&read(path)).expect("well-formed").events).collect()
}

/// What a recording leaves behind is what its own hashes, followed as they are, leave behind.
fn check_recording(folder: &str, block_size: u32) -> Translator {
    let block_size = NonZeroU32::new(block_size).expect("not 0");
    let mut translator = Translator::new(block_size, 1 << 20);
    let (mut theirs, mut index) = (BTreeMap::<u64, u32>::new(), 0i64);
    for events in recordings(folder) {
        let mut out = Vec::new();
        assert_eq!(translator.translate(&events, &mut out), SkipCounts::default(), "{folder}");
        for EngineEvent { event, .. } in &events {
            match event {
                KvEvent::Stored(stored) => {
                    stored.hashes.iter().for_each(|hash| *theirs.entry(*hash).or_default() += 1);
                }
                KvEvent::Removed(removed) => {
                    for hash in &removed.hashes {
                        *theirs.get_mut(hash).expect("it is there") -= 1;
                    }
                }
                KvEvent::Cleared => theirs.clear(),
            }
        }
        for event in &out {
            match event {
                KvEvent::Stored(stored) => index += stored.hashes.len() as i64,
                KvEvent::Removed(removed) => index -= removed.hashes.len() as i64,
                KvEvent::Cleared => index = 0,
            }
        }
    }
    assert_eq!(index, i64::from(theirs.values().sum::<u32>()), "{folder}");
    assert_eq!(translator.blocks().len() as i64, index, "{folder}");
    translator
}

#[test]
fn recordings_of_real_engines_are_followed_to_the_end() {
    let entries = std::fs::read_dir(recorded()).expect("the recordings");
    let folders = entries.map(|entry| entry.expect("an entry")).filter(|at| at.path().is_dir());
    let mut followed = 0;
    for folder in folders.map(|folder| folder.file_name().into_string().expect("a name")) {
        // In SGLang's longest one name stands for two blocks: see below.
        if folder != "sglang-0.5.23-main" {
            check_recording(&folder, if folder.starts_with("vllm-") { 32 } else { 16 });
            followed += 1;
        }
    }
    assert!(followed >= 13, "only {followed} recordings");
}

#[test]
fn a_recording_with_one_name_for_two_blocks_never_removes_what_is_not_there() {
    let mut translator = Translator::new(NonZeroU32::new(16).expect("not 0"), 1 << 20);
    let mut index = Held::new();
    for events in recordings("sglang-0.5.23-main") {
        let mut out = Vec::new();
        translator.translate(&events, &mut out);
        for event in &mut out {
            if let KvEvent::Stored(stored) = event {
                // The helper below is for our usual block size.
                assert_eq!(std::mem::replace(&mut stored.block_size, OURS.get()), 16);
            }
        }
        follow(&mut index, &out);
        assert_eq!(held(translator.blocks()), index);
    }
}

#[test]
fn a_recorded_adapter_has_blocks_of_its_own() {
    let translator = check_recording("vllm-0.32.0-lora", 32);
    let blocks = held(translator.blocks());
    for lora in [None, Some("style-a")] {
        let tokens: Vec<u32> = (100..196).collect();
        let mut ours = Vec::new();
        let size = NonZeroU32::new(32).expect("not 0");
        sequence_hashes(&tokens, size, HashSeed::new(lora, None), &mut ours);
        for block in ours {
            assert!(blocks.contains_key(&(block.0, Medium::Device)), "{lora:?}");
        }
    }
}

/// One thing that an engine does, as a model of it sees it.
#[derive(Clone, Debug)]
enum Op {
    /// Blocks `from..to` of a prompt.
    Store {
        prompt: usize,
        from: usize,
        to: usize,
        medium: Medium,
    },
    /// Copies, by their position among those that are there.
    Remove(Vec<prop::sample::Index>),
    Clear,
}

fn any_op() -> impl Strategy<Value = Op> {
    let medium = select(vec![Medium::Device, Medium::Host]);
    let store =
        (0usize..4, 0usize..4, 1usize..4, medium).prop_map(|(prompt, from, more, medium)| {
            Op::Store { prompt, from, to: (from + more).min(4), medium }
        });
    let remove = vec(any::<prop::sample::Index>(), 1..3).prop_map(Op::Remove);
    prop_oneof![6 => store, 4 => remove, 1 => Just(Op::Clear)]
}

/// Prompts that share beginnings, in blocks of eight tokens.
fn prompt(number: usize) -> (Vec<u32>, Option<&'static str>) {
    let mut tokens = tokens(32);
    match number {
        0 => (tokens, None),
        1 => (tokens, Some("salt")),
        2 => {
            tokens[12] = 99;
            (tokens, None)
        }
        _ => {
            tokens[30] = 99;
            (tokens, None)
        }
    }
}

/// The engine's name for a block of a prompt: any that tells prefixes apart.
fn name(number: usize, block: usize) -> u64 {
    let (tokens, salt) = prompt(number);
    let mut out = Vec::new();
    let size = NonZeroU32::new(8).expect("not 0");
    sequence_hashes(&tokens, size, HashSeed::new(Some("engine"), salt), &mut out);
    out[block].0
}

proptest! {
    /// Whatever an engine does, the index holds what its copies are, in our names.
    #[test]
    fn agrees_with_a_list_of_copies(ops in vec(any_op(), 1..40)) {
        let mut translator = translator();
        let mut copies: Vec<(u64, Vec<SequenceHash>, Medium)> = Vec::new();
        let mut index = Held::new();
        for op in ops {
            let event = match op {
                Op::Clear => {
                    copies.clear();
                    EngineEvent { event: KvEvent::Cleared, detail: Detail::default() }
                }
                Op::Remove(at) => {
                    if copies.is_empty() {
                        continue;
                    }
                    let (theirs, _, medium) = copies.remove(at[0].index(copies.len()));
                    removed(&[theirs, 12345], medium)
                }
                Op::Store { prompt: number, from, to, medium } => {
                    let (tokens, salt) = prompt(number);
                    let parent = from.checked_sub(1).map(|before| name(number, before));
                    let ours = sequence(&tokens, None, salt);
                    let theirs: Vec<_> = (from..to).map(|block| name(number, block)).collect();
                    let known = parent.is_none_or(|parent| copies.iter().any(|copy| copy.0 == parent));
                    if known {
                        for (block, theirs) in (from..to).zip(&theirs) {
                            let ours = ours[block * 2..][..2].to_vec();
                            copies.push((*theirs, ours, medium));
                        }
                    }
                    let mut event = stored(&theirs, parent, &tokens[from * 8..to * 8], 8);
                    event.detail.cache_salt = salt.map(Into::into);
                    let KvEvent::Stored(stored) = &mut event.event else { continue };
                    stored.medium = medium;
                    event
                }
            };
            let mut out = Vec::new();
            translator.translate(&[event], &mut out);
            follow(&mut index, &out);
            let blocks = copies.iter().flat_map(|(_, ours, medium)| ours.iter().map(|o| (*o, *medium)));
            let expected = held(blocks);
            prop_assert_eq!(&index, &expected);
            prop_assert_eq!(held(translator.blocks()), expected);
        }
    }
}

#[test]
fn one_name_for_two_blocks_of_one_event_leaves_the_later_one() {
    let events = [stored(&[7, 7], None, &tokens(8), 4)];
    let ours = sequence(&tokens(8), None, None);
    check(&events, device(&ours[1..]), SkipCounts::default());
}
