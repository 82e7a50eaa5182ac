//! An engine's answer comes to the same body, the same tokens and the same end wherever its bytes are
//! cut, and to no end by itself.

use crate::{cut, split};
use stator_dialect::{Ask, Hand, Kind, replay, replay_http};
use stator_protos::worker::Sampling;
use std::sync::Arc;

const KINDS: [Kind; 3] = [Kind::Vllm, Kind::Sglang, Kind::Trtllm];

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (text, control) = split(input);
    let pieces = cut(text, control);
    let cut_up = replay_http(pieces.iter().map(|piece| &piece[..])).ok();
    assert_eq!(replay_http([text]).ok(), cut_up);
    let ask = Ask {
        id: "a".into(),
        tokens: [1, 2, 3].into(),
        sampling: Arc::new(Sampling { logprobs: Some(1), ..Sampling::neutral() }),
        cache_salt: None,
        lora: None,
        priority: 0,
        rank: None,
        trace: None,
        kv_hint: None,
        hand: Hand::Whole,
    };
    for kind in KINDS {
        let whole = replay(kind, &ask, [text]);
        let cut = replay(kind, &ask, pieces.iter().map(|piece| &piece[..]));
        match (whole, cut) {
            (Ok(whole), Ok(cut)) => {
                let tokens = |deltas: &[stator_dialect::Delta]| {
                    deltas.iter().flat_map(|delta| delta.tokens.clone()).collect::<Vec<_>>()
                };
                assert_eq!(tokens(&whole), tokens(&cut));
                let finish = whole.last().expect("an answer has an end").finish;
                assert!(finish.is_some());
                assert_eq!(finish, cut.last().expect("an answer has an end").finish);
            }
            (whole, cut) => assert_eq!(whole.is_err(), cut.is_err(), "{whole:?} {cut:?}"),
        }
    }
}
