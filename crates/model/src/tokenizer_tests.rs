use super::*;
use proptest::prelude::*;

const NAMES: [&str; 6] = ["llama3", "qwen2", "gpt2", "other", "metaspace", "prepend"];

fn json(name: &str) -> Vec<u8> {
    let path = format!("{}/fixtures/tokenizers/{name}.json", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).expect(&path)
}

thread_local! {
    /// One of each kind, and the library's own beside it.
    static TOKENIZERS: Vec<(Tokenizer, General)> = NAMES
        .iter()
        .map(|name| {
            let mut tokenizer = Tokenizer::new(&json(name), CACHE_MAX_BYTES).unwrap();
            // Everything is looked for in the cache, so that short texts test it too.
            tokenizer.cached_min_bytes = 1;
            (tokenizer, General::from_bytes(json(name)).unwrap())
        })
        .collect();
}

fn encode_general(general: &General, text: &str, add_special_tokens: bool) -> Vec<u32> {
    general.encode_fast(text, add_special_tokens).unwrap().get_ids().to_vec()
}

/// Text with special tokens, parts of them, and what they treat in special ways.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("<|start|>".to_owned()),
        Just("<|end|>".to_owned()),
        Just("<|end|>of".to_owned()),
        Just("<think>".to_owned()),
        Just("<mask>".to_owned()),
        Just("</s>".to_owned()),
        Just("<s>".to_owned()),
        Just("[X]".to_owned()),
        Just("<|".to_owned()),
        "[ \\n\\ta-f'sS]{0,8}",
        "[\\PC\\n]{0,4}",
        "the [a-z]{1,6} in(g|ly) [0-9]{1,5}",
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// With texts that share parts in any order, every answer is the library's.
    #[test]
    fn agrees_with_the_library_whatever_was_encoded_before(texts in proptest::collection::vec(text(), 1..4), special in any::<bool>()) {
        TOKENIZERS.with(|all| {
            for ((tokenizer, general), name) in all.iter().zip(NAMES) {
                for text in texts.iter().chain([&texts.concat(), &texts[0]]) {
                    let expected = encode_general(general, text, special);
                    prop_assert_eq!(tokenizer.encode(text, special).unwrap(), expected, "{}: {:?}", name, text);
                }
            }
            Ok(())
        })?;
    }
}

#[test]
fn known_kinds_take_the_fast_path() {
    TOKENIZERS.with(|all| {
        let fast: Vec<bool> = all.iter().map(|(tokenizer, _)| tokenizer.is_fast()).collect();
        assert_eq!(fast, [true, true, true, false, false, false]);
    });
}

#[test]
fn a_part_that_was_seen_is_found_again() {
    let tokenizer = Tokenizer::new(&json("llama3"), CACHE_MAX_BYTES).unwrap();
    let shared = "the order of things ".repeat(50);
    tokenizer.encode(&format!("<|start|>{shared}<|end|>one"), false).unwrap();
    tokenizer.cache.run_pending_tasks();
    assert_eq!(tokenizer.cache.entry_count(), 1);
    tokenizer.encode(&format!("<|start|>{shared}<|end|>two"), false).unwrap();
    tokenizer.cache.run_pending_tasks();
    assert_eq!(tokenizer.cache.entry_count(), 1);
}

#[test]
fn the_cache_keeps_within_its_bound() {
    let tokenizer = Tokenizer::new(&json("llama3"), 100_000).unwrap();
    for at in 0..200 {
        tokenizer.encode(&format!("{at} {}", "word ".repeat(400)), false).unwrap();
    }
    tokenizer.cache.run_pending_tasks();
    assert!(tokenizer.cache.weighted_size() <= 100_000, "{}", tokenizer.cache.weighted_size());
    assert!(tokenizer.cache.entry_count() > 0);
}

#[test]
fn special_tokens_go_around_texts_only_where_asked() {
    let tokenizer = Tokenizer::new(&json("llama3"), CACHE_MAX_BYTES).unwrap();
    let start = tokenizer.token_to_id("<|start|>").unwrap();
    assert_eq!(tokenizer.encode("", true).unwrap(), [start]);
    assert_eq!(tokenizer.encode("", false).unwrap(), [0u32; 0]);
    assert_eq!(tokenizer.encode("<|start|>", true).unwrap(), [start, start]);
}

#[test]
fn single_tokens_have_bytes() {
    TOKENIZERS.with(|all| {
        let (byte_level, general) = &all[0];
        let id = general.token_to_id("Ġthe").unwrap();
        assert_eq!(&*byte_level.token_bytes(id), b" the");
        let (sentencepiece, general) = &all[4];
        let bytes =
            |token| sentencepiece.token_bytes(general.token_to_id(token).unwrap()).into_owned();
        assert_eq!((bytes("<0xE6>"), bytes("▁")), (vec![0xe6], b" ".to_vec()));
        assert!(byte_level.token_bytes(u32::MAX).is_empty());
    });
}
