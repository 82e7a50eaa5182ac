//! The body of an answer as its client gets it.

use crate::headers::Headers;
use bytes::Bytes;
use stator_body::{AnswerCleaner, ModelNameRewriter};

/// Changes the body of one answer while it goes by. The default changes nothing.
#[derive(Default)]
pub(crate) struct AnswerEdit {
    cleaner: Option<AnswerCleaner>,
    rewriter: Option<ModelNameRewriter>,
}

impl AnswerEdit {
    /// Removes what the engine of an answer with this head tells other engines.
    pub(crate) fn clean(&mut self, head: &Headers) {
        let kind = head.get("content-type").unwrap_or_default();
        let compressed = head.get("content-encoding").is_some();
        self.cleaner = AnswerCleaner::of(kind.as_bytes(), compressed);
    }

    /// Gives the client back the name of the model that it asked for.
    pub(crate) fn rename(&mut self, target: &str, asked: &str) {
        self.rewriter = Some(ModelNameRewriter::new(target, asked));
    }

    /// Takes the next piece, `end` with the last, and appends what the client gets in its place.
    pub(crate) fn push(&mut self, mut piece: Bytes, end: bool, out: &mut Vec<Bytes>) {
        let mut rest = Bytes::new();
        if let Some(cleaner) = &mut self.cleaner {
            piece = cleaner.push(piece);
            if end {
                rest = cleaner.finish();
            }
        }
        let Some(rewriter) = &mut self.rewriter else {
            out.push(piece);
            out.extend(Some(rest).filter(|rest| !rest.is_empty()));
            return;
        };
        rewriter.push(piece, out);
        rewriter.push(rest, out);
        if end {
            rewriter.finish(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer as its client gets it, in one piece where it came in one.
    fn edited(kind: &str, pieces: &[&'static str], renames: bool) -> String {
        let mut edit = AnswerEdit::default();
        edit.clean(&[("content-type", kind)].into_iter().collect());
        if renames {
            edit.rename("target", "asked");
        }
        let mut out = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            edit.push(Bytes::from_static(piece.as_bytes()), at + 1 == pieces.len(), &mut out);
        }
        String::from_utf8(out.concat()).expect("it stays text")
    }

    #[test]
    fn an_answer_loses_its_engines_own_fields_and_has_the_clients_name() {
        let json = [r#"{"model":"target","kv_trans"#, r#"fer_params":{"remote_host":"h"},"n":1}"#];
        let squeezed = |answer: String| answer.replace(' ', "");
        let own = squeezed(edited("application/json", &json, true));
        assert_eq!(own, r#"{"model":"asked","n":1}"#);
        let cleaned = edited("application/json", &json, false);
        assert_eq!(cleaned.len(), json.concat().len(), "the length stays");
        assert_eq!(squeezed(cleaned), r#"{"model":"target","n":1}"#);
        let events = ["data: {\"bootstrap_room\":1,\"n\":1}\n\n", "data: [DONE]\n\n"];
        let cleaned = squeezed(edited("text/event-stream", &events, false));
        assert_eq!(cleaned, "data:{\"n\":1}\n\ndata:[DONE]\n\n");
    }

    #[test]
    fn other_answers_stay() {
        let json = [r#"{"model":"target","kv_transfer_params":1}"#];
        assert_eq!(edited("application/octet-stream", &json, false), json[0]);
        assert_eq!(edited("application/grpc", &json, false), json[0]);
    }

    #[test]
    fn what_is_held_back_comes_with_the_end() {
        let cut = [r#"{"n":1,"kv_"#, ""];
        assert_eq!(edited("application/json", &cut, false), cut[0]);
        assert_eq!(edited("application/json", &cut, true), cut[0]);
    }
}
