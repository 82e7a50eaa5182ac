//! Tenants: the prompts of two of them share no cached prefix.
//!
//! The picker writes the cache salt of a tenant into the body, so that endpoints keep prefixes apart
//! whatever stands beside them, and names the prompt's blocks by it, as they do. The header goes on
//! for a proxy behind the picker, whose responses belong to tenants; a sidecar keeps the salt.

use crate::exchange::RequestHead;
use stator_api::openai::ApiError;
use stator_api::{salts, space};
use stator_body::{Editor, Field, Input, ParsedBody, extension_salt};
use stator_protos::hash::name_hash;
use stator_protos::header::TENANT_ID;

/// Member of `nvext` that endpoints read before their own field.
const EXTENSION: &str = "cache_salt";

/// The cache salt of a tenant's request, where its body can take one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TenantSalt {
    /// The salt: 32 hexadecimal digits.
    pub text: String,
    field: Field,
    /// Whether `nvext` has a salt, which would go before the field.
    pub is_extended: bool,
}

/// The tenant that a request names.
///
/// # Errors
///
/// 400 for a header that cannot be meant.
pub(crate) fn tenant(head: &RequestHead) -> Result<Option<&str>, ApiError> {
    let named = head.headers.iter().filter(|(name, _)| *name == TENANT_ID);
    space::tenant_of(named.map(|(_, value)| value))
}

/// A number for a session that a request names. Sessions of two tenants are two sessions.
pub(crate) fn session(tenant: Option<&str>, name: &str) -> u64 {
    match tenant {
        None => name_hash(name),
        // With its length, so that no tenant and session look like others.
        Some(tenant) => name_hash(&format!("{} {tenant}{name}", tenant.len())),
    }
}

impl TenantSalt {
    /// The salt of a tenant's request; none if its body has no prompt, or was not read.
    ///
    /// # Errors
    ///
    /// 400 for a salt of the client's that cannot be meant, and for a prompt in a gRPC message, which has no
    /// place for a salt.
    pub(crate) fn of(
        tenant: &str,
        parsed: &ParsedBody,
        body: &[u8],
    ) -> Result<Option<Self>, ApiError> {
        let json = parsed.json(body).filter(|(json, _)| json.len() == body.len());
        if json.is_none() && !matches!(parsed.input, Input::Opaque) {
            return Err(unsalted_call());
        }
        let field = parsed.api.and_then(space::salt_field);
        let (Some(field), Some((json, fields))) = (field, json) else { return Ok(None) };
        let own = fields.raw(json, field).map(|raw| salts::own(field, raw)).transpose()?.flatten();
        let extension = extension_salt(json, fields);
        let is_extended = extension.is_some();
        let extension = extension.map(salts::extension).transpose()?.flatten();
        let text = space::tenant_salt(tenant, own.as_deref(), extension.as_deref());
        Ok(Some(Self { text, field, is_extended }))
    }

    /// Writes the salt into the body.
    pub(crate) fn write(&self, editor: &mut Editor<'_>) {
        editor.set_string(self.field, &self.text);
        if self.is_extended {
            // Hexadecimal digits need no escape.
            editor.merge(Field::Nvext, EXTENSION, format!("\"{}\"", self.text));
        }
    }
}

fn unsalted_call() -> ApiError {
    let message =
        format!("{TENANT_ID}: a gRPC call has no place for the salt that keeps tenants apart");
    ApiError::invalid(TENANT_ID, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stator_body::{ParseOutcome, ParserSet, parser};

    /// The body of a tenant's request as it goes on, and whether it was salted at all.
    fn salted(path: &str, body: &'static str) -> Option<String> {
        let parser = parser("openai-parser").expect("it is known");
        let parsed = match ParserSet::new(vec![parser]).parse(path, body.as_bytes()) {
            Ok(ParseOutcome::Request(parsed)) => parsed,
            other => panic!("{other:?}"),
        };
        let salt = TenantSalt::of("blue", &parsed, body.as_bytes()).expect("it can be meant")?;
        let mut editor = parsed.editor(body.as_bytes()).expect("it is JSON");
        salt.write(&mut editor);
        Some(String::from_utf8(editor.finish().apply(body.as_bytes())).expect("it is text"))
    }

    #[test]
    fn the_same_session_of_two_tenants_is_two() {
        let sessions = [(None, "s"), (Some("a"), "s"), (Some("b"), "s"), (Some("bs"), "")];
        let sessions = sessions.map(|(tenant, name)| session(tenant, name));
        let all: std::collections::HashSet<_> = sessions.into_iter().collect();
        assert_eq!(all.len(), sessions.len());
    }

    #[test]
    fn a_prompt_gets_its_tenants_salt_in_each_place_where_endpoints_look() {
        let blue = space::tenant_salt("blue", None, None);
        let narrow = space::tenant_salt("blue", Some("s"), Some("e"));
        let completions = "/v1/completions";
        assert_eq!(
            salted(completions, r#"{"model":"m","prompt":"p"}"#),
            Some(format!(r#"{{"model":"m","prompt":"p","cache_salt":"{blue}"}}"#))
        );
        let body = r#"{"model":"m","prompt":"p","cache_salt":"s","nvext":{"cache_salt":"e"}}"#;
        let expected = body.replace("\"s\"", &format!("\"{narrow}\""));
        let expected = expected.replace("\"e\"", &format!("\"{narrow}\""));
        assert_eq!(salted(completions, body), Some(expected));
        let image = r#"{"model":"m","prompt":"p"}"#;
        assert_eq!(salted("/v1/images/generations", image), None, "it has no prefix");
    }
    #[test]
    fn a_prompt_in_a_call_of_a_tenant_is_refused() {
        let call = ParsedBody {
            api: None,
            model: "m".to_owned(),
            stream: false,
            max_output_tokens: None,
            cache_salt: None,
            input: Input::Tokens(vec![1]),
        };
        let refused = TenantSalt::of("blue", &call, b"message").expect_err("it has a prompt");
        assert_eq!((refused.status.as_u16(), refused.param.as_deref()), (400, Some("x-tenant-id")));
        let unread = ParsedBody { input: Input::Opaque, ..call };
        assert_eq!(TenantSalt::of("blue", &unread, b"message"), Ok(None));
    }
}
