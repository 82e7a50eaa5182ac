use super::*;
use crate::tokenizer::{CACHE_MAX_BYTES, Tokenizer as ModelTokenizer};
use proptest::prelude::*;

const NAMES: [&str; 3] = ["llama3", "metaspace", "prepend"];

thread_local! {
    static TOKENIZERS: Vec<(ModelTokenizer, Tokenizer)> = NAMES
        .iter()
        .map(|name| {
            let path = format!("{}/fixtures/tokenizers/{name}.json", env!("CARGO_MANIFEST_DIR"));
            let json = std::fs::read(&path).expect(&path);
            (ModelTokenizer::new(&json, CACHE_MAX_BYTES).unwrap(), Tokenizer::from_bytes(&json).unwrap())
        })
        .collect();
}

/// The pieces of a text, `chunk` tokens at a time.
fn pieces(
    tokenizer: &ModelTokenizer,
    ids: &[u32],
    chunk: usize,
    skip_special: bool,
) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(tokenizer.decoder(), skip_special);
    let mut pieces: Vec<String> = Vec::new();
    for ids in ids.chunks(chunk) {
        pieces.push(String::new());
        detokenizer.push(ids, pieces.last_mut().unwrap());
    }
    pieces.push(String::new());
    detokenizer.finish(pieces.last_mut().unwrap());
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The pieces of a text's tokens are the text, and no piece has half a character.
    #[test]
    fn pieces_of_real_text_make_the_text(
        text in "(<s>|</s>|<\\|end\\|>|the |ing|日本|👍|é|[\\PC\\n]| ){0,24}",
        chunk in 1usize..4,
        skip_special in any::<bool>(),
    ) {
        TOKENIZERS.with(|all| {
            for ((tokenizer, general), name) in all.iter().zip(NAMES) {
                let ids = general.encode_fast(text.as_str(), true).unwrap().get_ids().to_vec();
                let expected = general.decode(&ids, skip_special).unwrap();
                let pieces = pieces(tokenizer, &ids, chunk, skip_special);
                prop_assert_eq!(pieces.concat(), expected.as_str(), "{}", name);
                if !expected.contains(REPLACEMENT) {
                    prop_assert!(pieces.iter().all(|piece| !piece.contains(REPLACEMENT)));
                }
            }
            Ok(())
        })?;
    }

    /// Any tokens of a byte-level model, however they tear characters apart.
    #[test]
    fn any_bytes_decode_as_all_at_once(
        ids in proptest::collection::vec(0u32..720, 0..40),
        chunk in 1usize..4,
        skip_special in any::<bool>(),
    ) {
        TOKENIZERS.with(|all| {
            let (tokenizer, general) = &all[0];
            let expected = general.decode(&ids, skip_special).unwrap();
            prop_assert_eq!(pieces(tokenizer, &ids, chunk, skip_special).concat(), expected);
            Ok(())
        })?;
    }

    /// Any tokens of a model with byte tokens, as far as those make characters.
    #[test]
    fn any_tokens_decode_as_all_at_once(ids in proptest::collection::vec(0u32..600, 0..24), skip_special in any::<bool>()) {
        TOKENIZERS.with(|all| {
            let (tokenizer, general) = &all[1];
            let expected = general.decode(&ids, skip_special).unwrap();
            if !expected.contains(REPLACEMENT) {
                prop_assert_eq!(pieces(tokenizer, &ids, 1, skip_special).concat(), expected);
            }
            Ok(())
        })?;
    }
}

#[test]
fn half_a_character_waits_for_the_other_half() {
    TOKENIZERS.with(|all| {
        for (tokenizer, general) in &all[1..] {
            let ids: Vec<u32> = ["a", "<0xE6>", "<0x97>", "<0xA5>", "<0xE6>"]
                .map(|token| general.token_to_id(token).unwrap())
                .into();
            assert_eq!(pieces(tokenizer, &ids, 1, true), ["a", "", "", "日", "", "\u{fffd}"]);
        }
    });
}

#[test]
fn tokens_that_never_make_a_character_are_not_held_for_ever() {
    TOKENIZERS.with(|all| {
        let (tokenizer, general) = &all[1];
        let wrong = general.token_to_id("<0xFF>").unwrap();
        let pieces = pieces(tokenizer, &[wrong; 100], 1, true);
        assert_eq!(pieces.concat(), "\u{fffd}".repeat(100));
        assert!(pieces[PENDING_MAX].len() + pieces[PENDING_MAX - 1].len() > 0);
    });
}
