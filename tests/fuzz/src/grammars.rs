//! Forms of answers become a guide or a reason, and a guide does not mind how its answer is cut into
//! tokens.
//!
//! An input is a form, then a zero byte, the kind of the form, and bytes that choose the tokens of an
//! answer. A text by itself is a grammar.

use crate::split;
use stator_guide::{Guide, GuideFactory};
use stator_protos::worker::guide::Form;
use std::sync::LazyLock;

/// Token that ends an answer.
pub(crate) const END: u32 = 256;
/// Token of two bytes, behind those of one byte and the end.
const PAIR: u32 = 257;
/// Its bytes.
const PAIR_BYTES: [u8; 2] = *b"ab";
/// Longest answer, in tokens: a mask takes milliseconds in a grammar near its limits.
pub(crate) const ANSWER_MAX: usize = 32;
/// Longest reason, in bytes: the limit and the words in front of it.
const REASON_MAX: usize = 500;

/// Compiles forms for tokens of one byte, [`END`] and [`PAIR`].
pub(crate) static FACTORY: LazyLock<GuideFactory> = LazyLock::new(|| {
    let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    tokens.extend([Vec::new(), PAIR_BYTES.to_vec()]);
    let special = vec![(END, "<|end|>".to_owned())];
    GuideFactory::new(tokens, special, &[END]).expect("a vocabulary")
});

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (text, steering) = split(input);
    let (kind, choices) = steering.split_first().unwrap_or((&0, &[]));
    let text = String::from_utf8_lossy(text).into_owned();
    let form = match kind % 4 {
        0 => Form::Grammar(text),
        1 => Form::Regex(text),
        2 => Form::JsonSchema(text),
        _ => Form::StructuralTag(text),
    };
    match FACTORY.compile(&form) {
        Ok(guide) => follow(guide, choices),
        Err(error) => {
            let reason = error.to_string();
            assert!(reason.len() <= REASON_MAX && !reason.contains('\n'), "{reason:?}");
        }
    }
}

/// Takes an answer of tokens that the guide allows.
fn follow(mut guide: Guide, choices: &[u8]) {
    for choice in choices.iter().take(ANSWER_MAX) {
        if guide.mask().allows(PAIR) {
            let (mut whole, mut cut) = (guide.clone(), guide.clone());
            whole.advance(PAIR);
            for byte in PAIR_BYTES {
                assert!(cut.mask().allows(byte.into()), "{byte} of a token that is allowed");
                cut.advance(byte.into());
            }
            let masks = [&whole, &cut].map(|guide| (0..=PAIR).map(|id| guide.mask().allows(id)));
            let [whole, cut] = masks.map(Iterator::collect::<Vec<_>>);
            // A grammar near its limits may end either answer.
            if whole.contains(&true) && cut.contains(&true) {
                assert_eq!(whole, cut);
            }
        }
        let tokens: Vec<u32> = allowed(&guide).collect();
        let Some(token) = tokens.get(usize::from(*choice) % tokens.len().max(1)) else { return };
        guide.advance(*token);
        if *token == END {
            return;
        }
    }
}

/// The tokens that a guide allows next, in order.
pub(crate) fn allowed(guide: &Guide) -> impl Iterator<Item = u32> {
    (0..=PAIR).filter(|id| guide.mask().allows(*id))
}
