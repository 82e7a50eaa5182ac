//! The client's model name in place of the worker's, while a response goes by.

use crate::strings::write_string;
use bytes::Bytes;
use memchr::memmem::Finder;

const KEY: &[u8] = b"\"model\":";

/// Replaces `"model":"<worker's name>"`, also with a space after the colon, by the client's name.
///
/// The text of an answer is never touched, because its quotes are escaped. A name that is split
/// over chunks is found: the end of a chunk that may be its beginning is held back until the next
/// chunk or [`finish`](Self::finish). Everything else is passed on without a copy.
pub struct ModelNameRewriter {
    finder: Finder<'static>,
    /// Members to find and their replacements: without the space, and with it.
    members: [(Vec<u8>, Bytes); 2],
    /// The end of what came that may begin a member; shorter than the longest of them.
    held: Vec<u8>,
}

/// Comparison of bytes with the members to find.
enum Match<'a> {
    /// They begin with this member.
    Whole(&'a (Vec<u8>, Bytes)),
    /// They are the beginning of a member.
    Beginning,
    /// Neither.
    None,
}

impl ModelNameRewriter {
    /// A rewriter of one response, from the name the worker uses to the name the client used.
    pub fn new(worker: &str, client: &str) -> Self {
        let members = [&b""[..], b" "].map(|space| {
            let member = |name: &str| {
                let mut member = [KEY, space].concat();
                write_string(name, &mut member);
                member
            };
            (member(worker), Bytes::from(member(client)))
        });
        Self { finder: Finder::new(KEY), members, held: Vec::new() }
    }

    /// Takes the next chunk and appends what can be passed on to `out`.
    pub fn push(&mut self, chunk: Bytes, out: &mut Vec<Bytes>) {
        let Some(mut at) = self.resolve_held(&chunk, out) else { return };
        let mut done = at;
        while let Some(found) = self.finder.find(&chunk[at..]) {
            at += found;
            match self.compare(&chunk[at..], &[]) {
                Match::Whole((from, to)) => {
                    pass_on(out, chunk.slice(done..at));
                    out.push(to.clone());
                    at += from.len();
                    done = at;
                }
                Match::Beginning => break,
                Match::None => at += KEY.len(),
            }
        }
        let hold = self.beginning_in(&chunk[done..]).map_or(chunk.len(), |found| done + found);
        self.held.extend_from_slice(&chunk[hold..]);
        pass_on(out, chunk.slice(done..hold));
    }

    /// Ends the response: what was held back is passed on.
    pub fn finish(&mut self, out: &mut Vec<Bytes>) {
        pass_on(out, Bytes::from(std::mem::take(&mut self.held)));
    }

    /// Decides about what was held back; returns where in `chunk` to go on, or nothing where all
    /// of it is held back, too.
    fn resolve_held(&mut self, chunk: &Bytes, out: &mut Vec<Bytes>) -> Option<usize> {
        let held = std::mem::take(&mut self.held);
        for start in memchr::memchr_iter(b'"', &held) {
            match self.compare(&held[start..], chunk) {
                Match::Whole((from, to)) => {
                    pass_on(out, Bytes::copy_from_slice(&held[..start]));
                    out.push(to.clone());
                    return Some(from.len() - (held.len() - start));
                }
                Match::Beginning => {
                    pass_on(out, Bytes::copy_from_slice(&held[..start]));
                    self.held = [&held[start..], chunk].concat();
                    return None;
                }
                Match::None => {}
            }
        }
        pass_on(out, held.into());
        Some(0)
    }

    /// The first place from which `bytes` are the beginning of a member.
    fn beginning_in(&self, bytes: &[u8]) -> Option<usize> {
        // The member with the space is the longer one.
        let from = (bytes.len() + 1).saturating_sub(self.members[1].0.len());
        memchr::memchr_iter(b'"', &bytes[from..])
            .map(|at| from + at)
            .find(|&at| matches!(self.compare(&bytes[at..], &[]), Match::Beginning))
    }

    /// Compares `first` followed by `second` with the members.
    fn compare(&self, first: &[u8], second: &[u8]) -> Match<'_> {
        for member in &self.members {
            let mut bytes = first.iter().chain(second);
            let differs = member.0.iter().find_map(|wanted| match bytes.next() {
                None => Some(Match::Beginning),
                Some(byte) if byte != wanted => Some(Match::None),
                Some(_) => None,
            });
            match differs {
                None => return Match::Whole(member),
                Some(Match::None) => {}
                Some(found) => return found,
            }
        }
        Match::None
    }
}

fn pass_on(out: &mut Vec<Bytes>, piece: Bytes) {
    if !piece.is_empty() {
        out.push(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Passes a response through in chunks that end at `cuts`.
    fn rewrite(response: &[u8], cuts: &[usize]) -> Vec<u8> {
        let mut rewriter = ModelNameRewriter::new("org/base", "cli\"ent");
        let (mut out, mut at) = (Vec::new(), 0);
        let response = Bytes::copy_from_slice(response);
        for &cut in cuts.iter().chain([&response.len()]) {
            rewriter.push(response.slice(at..cut.max(at)), &mut out);
            at = cut.max(at);
        }
        rewriter.finish(&mut out);
        out.concat()
    }

    #[track_caller]
    fn check(response: &str, expected: &str) {
        for cut in 0..=response.len() {
            for length in 0..=3 {
                let cuts = [cut, (cut + length).min(response.len())];
                let rewritten = rewrite(response.as_bytes(), &cuts);
                assert_eq!(String::from_utf8_lossy(&rewritten), expected, "cut at {cuts:?}");
            }
        }
    }

    #[test]
    fn the_name_is_replaced_wherever_chunks_end() {
        check(
            r#"data: {"id":"1","model":"org/base","choices":[]}"#,
            r#"data: {"id":"1","model":"cli\"ent","choices":[]}"#,
        );
        check(
            r#"{"model": "org/base"}{"model":"org/base"}"#,
            r#"{"model": "cli\"ent"}{"model":"cli\"ent"}"#,
        );
    }

    #[test]
    fn other_names_and_texts_stay() {
        for same in [
            r#"{"model":"org/base2"}"#,
            r#"{"model":"org/bas"#,
            r#"{"text":"\"model\":\"org/base\""}"#,
            r#"{"model":  "org/base"}"#,
            r#"{"model":null,"models":"org/base""#,
        ] {
            check(same, same);
        }
    }

    #[test]
    fn what_needs_no_change_is_not_copied() {
        let chunk = Bytes::from_static(b"data: {\"choices\":[]}\n\n");
        let mut out = Vec::new();
        ModelNameRewriter::new("a", "b").push(chunk.clone(), &mut out);
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].as_ptr(), chunk.as_ptr());
    }

    /// Replaces from left to right in the whole response.
    fn replaced(response: &str) -> String {
        for (at, _) in response.char_indices() {
            for space in ["", " "] {
                let from = format!("\"model\":{space}\"org/base\"");
                if let Some(rest) = response[at..].strip_prefix(&from) {
                    let to = format!("\"model\":{space}\"cli\\\"ent\"");
                    return response[..at].to_owned() + &to + &replaced(rest);
                }
            }
        }
        response.to_owned()
    }

    proptest! {
        /// However a response is cut, the outcome is that of replacing in the whole.
        #[test]
        fn cuts_make_no_difference(
            pieces in prop::collection::vec(prop::sample::select(vec![
                "\"model\":\"org/base\"", "\"model\": \"org/base\"", "\"model\":", "\"mod", "\"",
                "org/base\"", " ", "el\":\"org/base\"", "\"model\":\"org/base", ",",
            ]), 0..12),
            mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let response = pieces.concat();
            let mut cuts: Vec<usize> =
                cuts.iter_mut().map(|cut| cut.index(response.len() + 1)).collect();
            cuts.sort_unstable();
            let expected = replaced(&response);
            let rewritten = rewrite(response.as_bytes(), &cuts);
            prop_assert_eq!(String::from_utf8_lossy(&rewritten), expected);
        }
    }
}
