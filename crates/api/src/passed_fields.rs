//! Fields that a body loses on its way to an engine which reads the body itself: refused by name, or
//! named to the client as ignored, unless somebody on the way has obeyed them.

use crate::field_notes::FieldNotes;
use crate::field_rules;
use crate::object::{MemberWeight, client_object};
use crate::openai::ApiError;
use crate::openai::body::parse_as;
use stator_body::{Api, EXTENSIONS, RemovedField, RemovedKind};

/// The edge that passes a body on.
#[derive(Clone, Copy, Debug, Default)]
pub struct PassingEdge<'a> {
    /// The API of the request, if its path is one's.
    pub api: Option<Api>,
    /// Fields that the edge, or one before it, has obeyed.
    pub obeyed: &'a [&'static str],
    /// Whether a proxy of ours sends the body, which has refused what is to be refused: all other
    /// fields are named.
    pub from_proxy: bool,
}

client_object! {
    /// A body, as far as its extensions go.
    struct ExtendedBody<'a> {
        nvext: Option<PassedExtensions<'a>>,
    }
}

client_object! {
    /// `nvext` of a body that passes.
    struct PassedExtensions<'a> {
        agent_hints: Option<PassedHints<'a>>,
    }
}

client_object! {
    /// `nvext.agent_hints` of a body that passes; the members are those that place a request.
    struct PassedHints<'a> {
        priority: Option<MemberWeight>,
        strict_priority: Option<MemberWeight>,
        osl: Option<MemberWeight>,
    }
}

const HINTS: &str = "nvext.agent_hints";

impl PassingEdge<'_> {
    /// Settles the fields that `body` loses; a form, which has no members, is an empty `body`.
    ///
    /// # Errors
    ///
    /// 400 with the name of the first field that is refused.
    pub fn settle<'f>(
        &self,
        body: &[u8],
        removed: impl IntoIterator<Item = &'f RemovedField>,
        notes: &FieldNotes,
    ) -> Result<(), ApiError> {
        removed.into_iter().try_for_each(|field| match field.name == EXTENSIONS {
            true if !body.is_empty() && !self.from_proxy => self.settle_extensions(body, notes),
            _ => self.settle_field(field, notes),
        })
    }

    fn settle_field(&self, field: &RemovedField, notes: &FieldNotes) -> Result<(), ApiError> {
        let name = &*field.name;
        if !field.asks || self.obeyed.contains(&name) {
            return Ok(());
        }
        if self.from_proxy {
            notes.ignore(name);
            return Ok(());
        }
        // Within the engine's parameters a field means the same as beside them.
        let last = name.rsplit('.').next().unwrap_or(name);
        if let Some(rule) = field_rules::find_passed(self.api, last) {
            return notes.obey(rule, name, MemberWeight::Full);
        }
        match field.kind {
            RemovedKind::Steering => Err(unsupported(name, "no client steers engines")),
            RemovedKind::Privileged => {
                Err(unsupported(name, "it passes where the operator names it, by pass-fields"))
            }
            RemovedKind::Unknown if notes.refuses_unknown() => {
                let message = format!(
                    "{name} is no field that goes on to engines; the operator may let it pass, by \
                     pass-fields"
                );
                let error = ApiError::bad_request(message).with_code("unknown_parameter");
                Err(error.with_param(name))
            }
            RemovedKind::Unknown => {
                notes.ignore(name);
                Ok(())
            }
        }
    }

    fn settle_extensions(&self, body: &[u8], notes: &FieldNotes) -> Result<(), ApiError> {
        let body: ExtendedBody<'_> = parse_as(body)?;
        let Some(extensions) = body.nvext else { return Ok(()) };
        for (name, weight) in extensions.strangers.iter() {
            self.settle_member(&format!("{EXTENSIONS}.{name}"), weight, notes)?;
        }
        let Some(hints) = extensions.agent_hints else { return Ok(()) };
        let placing = [hints.priority, hints.strict_priority, hints.osl];
        if let Some(weight) = placing.into_iter().flatten().max() {
            self.settle_member(HINTS, weight, notes)?;
        }
        for (name, weight) in hints.strangers.iter() {
            self.settle_member(&format!("{HINTS}.{name}"), weight, notes)?;
        }
        Ok(())
    }

    fn settle_member(
        &self,
        name: &str,
        weight: MemberWeight,
        notes: &FieldNotes,
    ) -> Result<(), ApiError> {
        if self.obeyed.contains(&name) {
            return Ok(());
        }
        match field_rules::find_passed(self.api, name) {
            Some(rule) => notes.obey(rule, name, weight),
            None if weight == MemberWeight::Null => Ok(()),
            None => notes.unknown(&name, [].into_iter()),
        }
    }
}

/// Refuses the members of `nvext` by which a client would choose its worker, in a body that a picker
/// reads. A body that cannot be read has none.
///
/// # Errors
///
/// 400 with the name of the first.
pub fn refuse_pins(body: &[u8]) -> Result<(), ApiError> {
    let Ok(ExtendedBody { nvext: Some(extensions), .. }) = parse_as(body) else { return Ok(()) };
    for (name, weight) in extensions.strangers.iter() {
        let name = &*format!("{EXTENSIONS}.{name}");
        if let Some(rule) = field_rules::find_passed(None, name).filter(|rule| rule.is_pin()) {
            FieldNotes::default().obey(rule, name, weight)?;
        }
    }
    Ok(())
}

fn unsupported(name: &str, why: &str) -> ApiError {
    ApiError::unsupported(name, format!("{name} is not supported: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UnknownFields;
    use stator_body::{FieldRules, scan};

    const PROXY: &[&str] = &["priority", HINTS, "nvext.routing_constraints", "nvext.cache_salt"];

    /// The ignored fields of a body that passes, or the refused one.
    fn settled(
        api: Option<Api>,
        obeyed: &[&'static str],
        unknown: UnknownFields,
        body: &str,
    ) -> Result<String, String> {
        let fields = scan(body.as_bytes()).expect("a sound body");
        let screening = FieldRules::default().screen(body.as_bytes(), &fields);
        let screening = screening.expect("it is screened");
        let (edge, notes) =
            (PassingEdge { api, obeyed, from_proxy: false }, FieldNotes::new(unknown));
        let settled = edge.settle(body.as_bytes(), screening.fields(), &notes);
        settled.map_err(|error| error.param.expect("the field"))?;
        Ok(notes.ignored().unwrap_or_default())
    }

    #[track_caller]
    fn check(obeyed: &[&'static str], body: &str, expected: Result<&str, &str>) {
        let found = settled(Some(Api::Completions), obeyed, UnknownFields::Refuse, body);
        assert_eq!(found, expected.map(str::to_owned).map_err(str::to_owned), "{body}");
    }

    #[test]
    fn a_field_that_steers_is_refused_and_a_harmless_one_is_named() {
        for (body, expected) in [
            (r#"{"prompt":"a","user":"u"}"#, Ok("")),
            (r#"{"kv_transfer_params":{"a":1}}"#, Err("kv_transfer_params")),
            (r#"{"kv_transfer_params":null,"bootstrap_host":""}"#, Ok("")),
            (r#"{"bootstrap_room":0}"#, Err("bootstrap_room")),
            (r#"{"data_parallel_rank":0}"#, Err("data_parallel_rank")),
            (r#"{"lora_path":"/a"}"#, Err("lora_path")),
            (r#"{"vllm_xargs":{"a":1,"rid":"x"}}"#, Ok("vllm_xargs.rid")),
            (r#"{"vllm_xargs":{"bootstrap_x":1}}"#, Err("vllm_xargs.bootstrap_x")),
            (
                r#"{"request_id":"a","rid":"b","stream_interval":2}"#,
                Ok("request_id, rid, stream_interval"),
            ),
            (r#"{"made_up":0}"#, Err("made_up")),
            (r#"{"made_up":null}"#, Ok("")),
        ] {
            check(&[], body, expected);
            check(PROXY, body, expected);
        }
        check(&[], r#"{"priority":1}"#, Err("priority"));
        check(&[], r#"{"priority":0}"#, Ok(""));
        check(PROXY, r#"{"priority":1}"#, Ok(""));
    }

    #[test]
    fn extensions_are_obeyed_named_or_refused_one_by_one() {
        let hints = r#"{"nvext":{"agent_hints":{"priority":1,"speculative_prefill":true}}}"#;
        check(PROXY, hints, Ok("nvext.agent_hints.speculative_prefill"));
        check(&[], hints, Ok("nvext.agent_hints, nvext.agent_hints.speculative_prefill"));
        let constraints = r#"{"nvext":{"routing_constraints":{"required_taints":["a"]}}}"#;
        check(PROXY, constraints, Ok(""));
        check(&[], constraints, Ok("nvext.routing_constraints"));
        for (body, expected) in [
            (r#"{"nvext":null}"#, Ok("")),
            (r#"{"nvext":{"annotations":[],"token_data":[1]}}"#, Ok("nvext.token_data")),
            (r#"{"nvext":{"annotations":["token_ids"]}}"#, Err("nvext.annotations")),
            (r#"{"nvext":{"extra_fields":["timing"]}}"#, Err("nvext.extra_fields")),
            (r#"{"nvext":{"max_thinking_tokens":0}}"#, Err("nvext.max_thinking_tokens")),
            (r#"{"nvext":{"max_thinking_tokens":7}}"#, Err("nvext.max_thinking_tokens")),
            (r#"{"nvext":{"cache_control":{"type":"ephemeral"}}}"#, Err("nvext.cache_control")),
            (r#"{"nvext":{"dp_rank":0}}"#, Err("nvext.dp_rank")),
            (r#"{"nvext":{"backend_instance_id":7}}"#, Err("nvext.backend_instance_id")),
            (r#"{"nvext":{"greed_sampling":true}}"#, Err("nvext.greed_sampling")),
            (r#"{"nvext":{"made_up":1}}"#, Err("nvext.made_up")),
            (r#"{"nvext":7}"#, Err("nvext")),
        ] {
            check(&[], body, expected);
            check(PROXY, body, expected);
        }
    }

    #[test]
    fn a_picker_refuses_pins_and_nothing_else() {
        let refused = |body: &str| refuse_pins(body.as_bytes()).err().and_then(|it| it.param);
        for body in [
            r#"{"nvext":{"dp_rank":null,"do_not_queue":true,"agent_hints":{"osl":3}}}"#,
            r#"{"nvext":7}"#,
            "{}",
            "no JSON",
        ] {
            assert_eq!(refused(body), None, "{body}");
        }
        let body = r#"{"nvext":{"annotations":[],"prefill_dp_rank":0}}"#;
        assert_eq!(refused(body).as_deref(), Some("nvext.prefill_dp_rank"));
    }

    #[test]
    fn unknown_fields_are_named_where_they_are_ignored_and_those_that_steer_are_refused() {
        let ignore = |body: &str| settled(None, &[], UnknownFields::Ignore, body);
        let body = r#"{"made_up":1,"nvext":{"other":1},"request_id":"a"}"#;
        assert_eq!(ignore(body).as_deref(), Ok("made_up, nvext.other, request_id"));
        let steers = r#"{"made_up":1,"disaggregated_params":{"a":1}}"#;
        assert_eq!(ignore(steers), Err("disaggregated_params".to_owned()));
    }

    #[test]
    fn what_a_proxy_sends_is_named_and_not_refused() {
        let body = br#"{"kv_transfer_params":{"a":1},"rid":null,"lora_path":"/","made_up":1}"#;
        let fields = scan(body).expect("a sound body");
        let screening = FieldRules::default().screen(body, &fields).expect("it is screened");
        let obeyed = &["kv_transfer_params"];
        let edge = PassingEdge { api: None, obeyed, from_proxy: true };
        let notes = FieldNotes::default();
        edge.settle(body, screening.fields(), &notes).expect("nothing is refused");
        assert_eq!(notes.ignored().as_deref(), Some("lora_path, made_up"));
    }
}
