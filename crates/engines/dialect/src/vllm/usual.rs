//! Events that repeat the one before except for their token ids: nearly all of a stream. The text
//! around the ids was parsed once and need not be again.

/// The bytes before and after the token ids of an event that carried nothing else.
#[derive(Debug, Default)]
pub(super) struct Usual {
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Usual {
    /// Remembers the text around `ids`, a part of `event` and all that it carries.
    pub(super) fn learn(&mut self, event: &[u8], ids: &str) {
        let start = ids.as_ptr().addr().wrapping_sub(event.as_ptr().addr());
        let after = start.wrapping_add(ids.len());
        if let (Some(before), Some(after)) = (event.get(..start), event.get(after..)) {
            self.before.clear();
            self.before.extend_from_slice(before);
            self.after.clear();
            self.after.extend_from_slice(after);
        }
    }

    /// Adds an event's ids to `tokens` and returns true if the event repeats the remembered text;
    /// otherwise adds nothing.
    pub(super) fn read(&self, event: &[u8], tokens: &mut Vec<u32>) -> bool {
        if self.before.is_empty() {
            return false;
        }
        let ids =
            event.strip_prefix(&*self.before).and_then(|rest| rest.strip_suffix(&*self.after));
        let had = tokens.len();
        let read = ids.and_then(|ids| read_ids(ids, tokens));
        if read.is_none() {
            tokens.truncate(had);
        }
        read.is_some()
    }
}

/// Reads an array of at least one number, without white space.
fn read_ids(array: &[u8], tokens: &mut Vec<u32>) -> Option<()> {
    let list = array.strip_prefix(b"[")?.strip_suffix(b"]")?;
    for digits in list.split(|byte| *byte == b',') {
        // No id has more; a leading zero is no JSON.
        let canonical = matches!(digits, [b'0'] | [b'1'..=b'9', ..]) && digits.len() <= 10;
        if !canonical || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let id = digits.iter().fold(0, |id, digit| id * 10 + u64::from(digit - b'0'));
        tokens.push(u32::try_from(id).ok()?);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::super::Decode;
    use super::*;
    use crate::answer::Decoder;
    use crate::testkit::ask;
    use crate::{Delta, Finish};
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn check(ids: &str) -> Option<Vec<u32>> {
        let facts = r#"{"a":[[7]],"b":null}"#;
        let mut usual = Usual::default();
        usual.learn(facts.as_bytes(), &facts[6..9]);
        let mut tokens = vec![1];
        let event = format!("{{\"a\":[{ids}],\"b\":null}}");
        match usual.read(event.as_bytes(), &mut tokens) {
            true => Some(tokens.split_off(1)),
            false => {
                assert_eq!(tokens, [1], "nothing was added");
                None
            }
        }
    }

    #[test]
    fn what_is_no_plain_array_of_ids_is_left_to_the_parser() {
        assert_eq!(check("[0,21,4294967295]"), Some(vec![0, 21, u32::MAX]));
        for ids in [
            "[]",
            "[1,]",
            "[01]",
            "[-1]",
            "[1.0]",
            "[1e2]",
            "[ 1]",
            "[1],[2]",
            "[4294967296]",
            "[99999999999]",
            "",
            "1",
        ] {
            assert_eq!(check(ids), None, "{ids}");
        }
    }

    #[test]
    fn nothing_is_usual_before_an_event_was_read() {
        let mut tokens = Vec::new();
        assert!(!Usual::default().read(b"[1]", &mut tokens));
    }

    /// An event with these ids, in one of several shapes.
    fn event() -> impl Strategy<Value = String> {
        let shapes = [
            r#"{"usage":null,"choices":[{"finish_reason":null,"token_ids":IDS,"logprobs":null}]}"#,
            r#"{"choices":[{"token_ids":IDS}]}"#,
            r#"{"prompt_token_ids":[9],"choices":[{"token_ids":IDS,"text":"\"token_ids\":[8]"}]}"#,
            r#"{"usage":{"prompt_tokens_details":{"cached_tokens":3}},"choices":[{"token_ids":IDS}]}"#,
            r#"{"choices":[]}"#,
        ];
        let ids = vec(any::<u32>(), 0..3).prop_map(|ids| serde_json::to_string(&ids).unwrap());
        (proptest::sample::select(shapes.to_vec()), ids)
            .prop_map(|(shape, ids)| shape.replace("IDS", &ids))
    }

    proptest! {
        /// A decoder that has seen others before reads each event as one that has seen none.
        #[test]
        fn what_was_learnt_changes_nothing_that_is_read(events in vec(event(), 0..20)) {
            let (mut decode, mut last) = (Decode::new(&ask(&[1])), None);
            for event in events {
                let (mut facts, mut alone) = (Delta::default(), Delta::default());
                prop_assert_eq!(decode.event(event.as_bytes(), &mut facts), Ok(()));
                Decode::new(&ask(&[1])).event(event.as_bytes(), &mut alone).unwrap();
                prop_assert_eq!(&facts.tokens, &alone.tokens);
                prop_assert_eq!(facts.cached_tokens, alone.cached_tokens);
                last = alone.tokens.last().copied().or(last);
            }
            let mut end = Delta::default();
            let stop = br#"{"choices":[{"token_ids":[],"finish_reason":"stop"}]}"#;
            prop_assert_eq!(decode.event(stop, &mut end), Ok(()));
            prop_assert_eq!(decode.end(&mut end), Ok(()));
            prop_assert_eq!(end.finish, Some(Finish::Stop(last)));
        }

        #[test]
        fn ids_are_what_a_parser_reads(ids in vec(any::<u32>(), 0..5)) {
            let json = serde_json::to_string(&ids).expect("numbers");
            prop_assert_eq!(check(&json), Some(ids).filter(|ids| !ids.is_empty()));
        }
    }
}
