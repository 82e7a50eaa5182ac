//! An engine's answer without the fields that tell of the hand-over of KV, while it goes by.
//!
//! A removed member becomes space, so that the length of the answer stays and no byte waits for
//! another, but for the name of a member that a chunk cuts in two.

use bytes::Bytes;

/// Members that clients get from no engine, and the beginnings of further names.
///
/// Source: answers of vLLM 0.26, SGLang 0.5.23 and TensorRT-LLM 1.2.
const INTERNAL: [&[u8]; 3] =
    [b"kv_transfer_params", b"ec_transfer_params", b"disaggregated_params"];
const INTERNAL_PREFIXES: [&[u8]; 3] = [b"bootstrap_", b"remote_", b"do_remote_"];
/// Containers that such a member stands in at most: the answer, its choices, one of these. Deeper
/// ones repeat what the client itself sent, like the parameters of its tools.
const DEPTH_MAX: u32 = 3;
/// Bytes that are held back at most where a chunk ends between two members or in a name.
const HELD_MAX: usize = 256;

/// Removes an engine's own fields from one answer.
#[derive(Debug)]
pub struct AnswerCleaner {
    /// Whether the answer comes as events, each of which has a line of its own.
    events: bool,
    /// The end of the last chunk, which may begin a member that is to be removed.
    held: Vec<u8>,
    state: State,
}

/// The place in the JSON text after the bytes that were read.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Open containers, and a bit for each of the innermost: set for objects.
    depth: u32,
    objects: u128,
    place: Place,
    /// Whether a name comes next.
    before_name: bool,
    /// Whether the next comma goes: the first member of its object was removed.
    drops_comma: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Between tokens.
    #[default]
    Between,
    /// Inside a string that stays.
    Text,
    /// Inside a member that goes, with its own containers and strings.
    Removed {
        depth: u32,
        in_text: bool,
        begun: bool,
    },
    /// After a backslash, in a string that stays or goes.
    Escape,
    RemovedEscape {
        depth: u32,
    },
}

/// A chunk while it is read.
struct Pass<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Ranges that become space, in order.
    blank: Vec<(usize, usize)>,
    /// The last comma, where only space has followed it, and the state before it.
    comma: Option<(usize, State)>,
}

impl AnswerCleaner {
    /// The cleaner of an answer with this `content-type`. None where the answer is no JSON, and so
    /// holds nothing that an engine tells other engines, or where it is `compressed` and passes as
    /// it is.
    pub fn of(content_type: &[u8], compressed: bool) -> Option<Self> {
        let events = content_type.starts_with(b"text/event-stream");
        let text = events || content_type.starts_with(b"application/json");
        (text && !compressed).then(|| Self::new(events))
    }

    /// A cleaner of one answer; `events` says whether the answer is an event stream.
    pub fn new(events: bool) -> Self {
        Self { events, held: Vec::new(), state: State::default() }
    }

    /// Takes the next chunk and returns what can be passed on.
    pub fn push(&mut self, chunk: Bytes) -> Bytes {
        let chunk = match self.held.is_empty() {
            true => chunk,
            false => [&std::mem::take(&mut self.held)[..], &chunk].concat().into(),
        };
        let mut pass = Pass { bytes: &chunk, at: 0, blank: Vec::new(), comma: None };
        let kept = self.read(&mut pass);
        let blank = pass.blank;
        self.held.extend_from_slice(&chunk[kept..]);
        if blank.is_empty() {
            return chunk.slice(..kept);
        }
        let mut cleaned = chunk[..kept].to_vec();
        for (start, end) in blank {
            cleaned[start..end].fill(b' ');
        }
        cleaned.into()
    }

    /// Ends the answer and returns what was held back.
    pub fn finish(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
    }

    /// Reads a chunk and returns how much of it may go on.
    fn read(&mut self, pass: &mut Pass<'_>) -> usize {
        while let Some(&byte) = pass.bytes.get(pass.at) {
            if byte == b'\n' && self.events {
                // Events are apart from each other, whatever one of them holds.
                (self.state, pass.comma) = (State::default(), None);
                pass.at += 1;
                continue;
            }
            match self.state.place {
                Place::Between => {
                    if let Some(kept) = self.between(pass, byte) {
                        return kept;
                    }
                }
                Place::Text => self.text(pass),
                Place::Escape => {
                    self.state.place = Place::Text;
                    pass.at += 1;
                }
                Place::Removed { .. } | Place::RemovedEscape { .. } => self.removed(pass, byte),
            }
        }
        match pass.comma {
            Some((comma, before)) if pass.bytes.len() - comma < HELD_MAX => {
                self.state = before;
                comma
            }
            _ => pass.bytes.len(),
        }
    }

    /// Reads a byte between tokens, or a name. Returns where to stop if a name is cut in two.
    fn between(&mut self, pass: &mut Pass<'_>, byte: u8) -> Option<usize> {
        let state = &mut self.state;
        match byte {
            b'"' if state.before_name => return self.name(pass),
            b'"' => state.place = Place::Text,
            b'{' | b'[' => {
                state.depth += 1;
                state.objects = state.objects << 1 | u128::from(byte == b'{');
                state.before_name = byte == b'{' && state.depth <= DEPTH_MAX;
            }
            b'}' | b']' => {
                state.depth = state.depth.saturating_sub(1);
                state.objects >>= 1;
                (state.before_name, state.drops_comma, pass.comma) = (false, false, None);
            }
            b',' => {
                // The state before the comma is kept: if the member behind it goes, the comma goes too.
                let before = *state;
                state.before_name = state.objects & 1 == 1 && state.depth <= DEPTH_MAX;
                if std::mem::take(&mut state.drops_comma) {
                    pass.blank.push((pass.at, pass.at + 1));
                } else if state.before_name {
                    pass.comma = Some((pass.at, before));
                }
            }
            _ => {}
        }
        pass.at += 1;
        None
    }

    fn name(&mut self, pass: &mut Pass<'_>) -> Option<usize> {
        let start = pass.at;
        let (hold, before) = pass.comma.unwrap_or((start, self.state));
        let mut rest = &pass.bytes[start + 1..];
        if let Some(end) = memchr::memchr(b'\n', rest).filter(|_| self.events) {
            rest = &rest[..end];
            if name_length(rest).is_none() {
                // The event is broken; its end is read next.
                pass.at = start + 1 + end;
                return None;
            }
        }
        let Some(length) = name_length(rest) else {
            if pass.bytes.len() - hold < HELD_MAX {
                self.state = before;
                return Some(hold);
            }
            // No name that goes is so long.
            pass.comma = None;
            (self.state.before_name, self.state.place) = (false, Place::Text);
            pass.at += 1;
            return None;
        };
        let end = start + 1 + length;
        let is_first = pass.comma.take().is_none();
        self.state.before_name = false;
        if is_internal(&pass.bytes[start + 1..end]) {
            pass.blank.push((hold, end + 1));
            self.state.drops_comma = is_first;
            self.state.place = Place::Removed { depth: 0, in_text: false, begun: false };
        }
        pass.at = end + 1;
        None
    }

    /// Passes the text of a string.
    fn text(&mut self, pass: &mut Pass<'_>) {
        let rest = &pass.bytes[pass.at..];
        let stop = match self.events {
            true => memchr::memchr3(b'"', b'\\', b'\n', rest),
            false => memchr::memchr2(b'"', b'\\', rest),
        };
        let Some(stop) = stop else {
            pass.at = pass.bytes.len();
            return;
        };
        match rest[stop] {
            b'"' => self.state.place = Place::Between,
            b'\\' => self.state.place = Place::Escape,
            _ => {
                pass.at += stop;
                return;
            }
        }
        pass.at += stop + 1;
    }

    /// Reads a byte of a member that goes.
    fn removed(&mut self, pass: &mut Pass<'_>, byte: u8) {
        let (depth, in_text, begun) = match self.state.place {
            Place::Removed { depth, in_text, begun } => (depth, in_text, begun),
            Place::RemovedEscape { depth } => {
                self.state.place = Place::Removed { depth, in_text: true, begun: true };
                pass.remove_one();
                return;
            }
            _ => return,
        };
        let inside = |depth, in_text| Place::Removed { depth, in_text, begun: true };
        self.state.place = match byte {
            b'\\' if in_text => Place::RemovedEscape { depth },
            b'"' if in_text && depth == 0 => Place::Between,
            b'"' => inside(depth, !in_text),
            _ if in_text => inside(depth, true),
            b'{' | b'[' => inside(depth + 1, false),
            // What ends a number or a word belongs to the object around it.
            b'}' | b']' | b',' if depth == 0 => {
                self.state.place = Place::Between;
                return;
            }
            b'}' | b']' if depth == 1 => Place::Between,
            b'}' | b']' => inside(depth - 1, false),
            b' ' | b'\n' | b'\r' | b'\t' | b':' => Place::Removed { depth, in_text, begun },
            _ => inside(depth, false),
        };
        pass.remove_one();
    }
}

impl Pass<'_> {
    fn remove_one(&mut self) {
        match self.blank.last_mut().filter(|(_, end)| *end == self.at) {
            Some((_, end)) => *end += 1,
            None => self.blank.push((self.at, self.at + 1)),
        }
        self.at += 1;
    }
}

/// Bytes before the quote that ends a name; nothing where the quote is not there yet.
fn name_length(bytes: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let stop = from + memchr::memchr2(b'"', b'\\', bytes.get(from..)?)?;
        if bytes[stop] == b'"' {
            return Some(stop);
        }
        from = stop + 2;
    }
}

fn is_internal(name: &[u8]) -> bool {
    INTERNAL.contains(&name) || INTERNAL_PREFIXES.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// Passes an answer through in chunks that end at `cuts`.
    fn clean(answer: &str, events: bool, cuts: &[usize]) -> String {
        let mut cleaner = AnswerCleaner::new(events);
        let answer = Bytes::copy_from_slice(answer.as_bytes());
        let (mut out, mut at) = (Vec::new(), 0);
        for &cut in cuts.iter().chain([&answer.len()]) {
            out.extend_from_slice(&cleaner.push(answer.slice(at..cut.max(at))));
            at = cut.max(at);
        }
        out.extend_from_slice(&cleaner.finish());
        assert_eq!(out.len(), answer.len(), "the length stays");
        String::from_utf8(out).expect("it stays text")
    }

    #[track_caller]
    fn check(answer: &str, expected: &str) {
        for cut in 0..=answer.len() {
            for length in [0, 1, 7] {
                let cuts = [cut, (cut + length).min(answer.len())];
                let cleaned = clean(answer, false, &cuts);
                let squeezed: String = cleaned.split(' ').collect();
                assert_eq!(squeezed, expected, "cut at {cuts:?}");
            }
        }
    }

    #[test]
    fn an_engines_own_fields_go_wherever_chunks_end() {
        check(
            r#"{"id":"1","kv_transfer_params":{"remote_host":"10.0.0.1","b":[{"c":"}\""}]},"n":1}"#,
            r#"{"id":"1","n":1}"#,
        );
        check(r#"{"kv_transfer_params":null,"bootstrap_room":-12,"n":1}"#, r#"{"n":1}"#);
        check(r#"{"n":1,"kv_transfer_params":"a\\","remote_port":true}"#, r#"{"n":1}"#);
        check(r#"{"kv_transfer_params":[[],{}]}"#, "{}");
        check(r#"{"choices":[{"disaggregated_params":{},"i":0}]}"#, r#"{"choices":[{"i":0}]}"#);
        check(r#"[{"ec_transfer_params" : 1 , "n":1}]"#, r#"[{"n":1}]"#);
    }

    #[test]
    fn json_is_cleaned_and_nothing_else() {
        let of = |kind: &str, compressed| {
            AnswerCleaner::of(kind.as_bytes(), compressed).map(|cleaner| cleaner.events)
        };
        assert_eq!(of("application/json; charset=utf-8", false), Some(false));
        assert_eq!(of("text/event-stream", false), Some(true));
        assert_eq!((of("application/json", true), of("audio/wav", false)), (None, None));
    }

    #[test]
    fn all_else_stays_as_it_came() {
        for same in [
            r#"{"text":"\"kv_transfer_params\":{}","n":"kv_transfer_params"}"#,
            r#"{"tools":[{"parameters":{"properties":{"remote_host":{}}}}]}"#,
            r#"{"a":["kv_transfer_params","remote_host"],"":{}}"#,
            "not json, but text: \"kv_transfer_params\":1",
        ] {
            for cut in 0..=same.len() {
                assert_eq!(clean(same, false, &[cut]), same);
            }
        }
    }

    #[test]
    fn a_token_does_not_wait_and_is_not_copied() {
        let mut cleaner = AnswerCleaner::new(true);
        let chunk = Bytes::from_static(b"data: {\"choices\":[{\"delta\":{}}]}\n\n");
        let passed = cleaner.push(chunk.clone());
        assert_eq!((passed.len(), passed.as_ptr()), (chunk.len(), chunk.as_ptr()));
        let part = cleaner.push(Bytes::from_static(b"data: {\"id\":\"1\",\"kv_tra"));
        assert_eq!(part, &b"data: {\"id\":\"1\""[..]);
        let rest = cleaner.push(Bytes::from_static(b"nsfer_params\":1}\n\n"));
        assert_eq!(rest.trim_ascii_start(), b"}\n\n");
    }

    #[test]
    fn a_broken_event_does_not_spoil_the_next() {
        let answer = ": it is \"open\ndata: {\"a\ndata: {\"remote_x\":1}\n\ndata: [DONE]\n\n";
        let cleaned: String = clean(answer, true, &[]).replace(' ', "");
        assert_eq!(cleaned, ":itis\"open\ndata:{\"a\ndata:{}\n\ndata:[DONE]\n\n");
    }

    #[test]
    fn names_without_end_are_let_go() {
        let answer = format!("{{\"n\":1,\"{}\":1}}", "x".repeat(600));
        assert_eq!(clean(&answer, false, &[300, 400]), answer);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let names = ["kv_transfer_params", "bootstrap_room", "remote_host", "a", "n\"", ""];
        let leaf = prop_oneof![
            Just(json!(1.5e3)),
            Just(json!("},{\"\\")),
            Just(json!(null)),
            Just(json!([]))
        ];
        leaf.prop_recursive(4, 16, 4, move |inner| {
            let member = (proptest::sample::select(names.to_vec()), inner.clone());
            let object = vec(member, 0..4).prop_map(|members| {
                Value::Object(members.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
            });
            prop_oneof![object, vec(inner, 0..3).prop_map(Value::from)]
        })
    }

    /// Cleans a tree, in the obvious way.
    fn model(value: &mut Value, depth: u32) {
        match value {
            Value::Object(members) => {
                members.retain(|name, _| depth > DEPTH_MAX || !is_internal(name.as_bytes()));
                members.values_mut().for_each(|value| model(value, depth + 1));
            }
            Value::Array(items) => items.iter_mut().for_each(|item| model(item, depth + 1)),
            _ => {}
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_tree(
            mut values in vec(any_value(), 1..3),
            events in any::<bool>(),
            mut cuts in vec(any::<prop::sample::Index>(), 0..8),
        ) {
            if !events {
                values.truncate(1);
            }
            let texts: Vec<String> = values.iter().map(|value| match events {
                true => format!("data: {value}\n\n"),
                false => serde_json::to_string_pretty(value).expect("it can be written"),
            }).collect();
            let answer = texts.concat();
            let mut cuts: Vec<usize> =
                cuts.iter_mut().map(|cut| cut.index(answer.len() + 1)).collect();
            cuts.sort_unstable();
            let cleaned = clean(&answer, events, &cuts);
            let parts = cleaned.split("data: ").filter(|part| !part.is_empty());
            let left: Vec<Value> =
                parts.map(|part| serde_json::from_str(part).expect("it stays sound")).collect();
            values.iter_mut().for_each(|value| model(value, 1));
            prop_assert_eq!(left, values);
        }

        #[test]
        fn takes_any_bytes(chunks in vec(vec(any::<u8>(), 0..20), 0..8), events in any::<bool>()) {
            let mut cleaner = AnswerCleaner::new(events);
            let count: usize = chunks.iter().map(Vec::len).sum();
            let passed: usize = chunks.into_iter().map(|chunk| cleaner.push(chunk.into()).len()).sum();
            prop_assert_eq!(passed + cleaner.finish().len(), count);
        }
    }
}
