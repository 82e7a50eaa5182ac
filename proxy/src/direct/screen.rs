//! What a client may not say to an engine: members of a body that steer the hand-over of KV. One
//! malformed set of them ends a vLLM with all its requests.
//!
//! Most bodies have none and are only searched, not read.

use super::object::Object;
use bytes::Bytes;
use memchr::memmem::Finder;
use std::sync::LazyLock;

/// Members that only pickers and proxies may set.
///
/// Source: request fields of vLLM 0.26, SGLang 0.5.23 and TensorRT-LLM 1.2.
const FORBIDDEN: [&str; 8] = [
    "kv_transfer_params",
    "ec_transfer_params",
    "disaggregated_params",
    "disagg_prefill_dp_rank",
    "routed_dp_rank",
    "data_parallel_rank",
    // Name the request in SGLang, and in vLLM where no header does: one could take another's, abort
    // it, or name the peers that connectors read from there. The header says it, and is made harmless.
    "rid",
    "request_id",
];
/// What the names of SGLang's members for the same begin with.
const FORBIDDEN_PREFIX: &str = "bootstrap_";
/// Members whose own members engines read as if they stood outside.
const CONTAINERS: [&str; 3] = ["sampling_params", "extra_args", "vllm_xargs"];
/// How deep containers stand in each other at most.
const DEPTH_MAX: u32 = 4;

/// Parts of those names, as few as find all of them.
static PARTS: LazyLock<[Finder<'static>; 6]> = LazyLock::new(|| {
    let parts =
        ["_transfer_params", "disagg", "_rank", "\"rid\"", "\"request_id\"", FORBIDDEN_PREFIX];
    parts.map(Finder::new)
});
/// An escape that may stand for a letter of a name; `4` to `7` follow where it does.
static ESCAPE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\\u00"));

/// A body without what a client may not say.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Screened {
    /// The body; the one that came, where nothing was removed.
    pub body: Bytes,
    /// Whether something was.
    pub changed: bool,
}

/// Why a body does not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// Engines read it, this proxy does not.
    #[error("the body must be UTF-8")]
    Encoding,
    /// It may hold what it must not, and cannot be read.
    #[error("the body must be a JSON object: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// Nobody nests that deep in good faith.
    #[error("parameters of the engine are nested deeper than {DEPTH_MAX}")]
    TooDeep,
}

/// Removes from a body what only pickers and proxies may say.
///
/// # Errors
///
/// Where it may be there and cannot be removed.
pub(crate) fn screen(body: Bytes) -> Result<Screened, Refusal> {
    if is_wide(&body) {
        return Err(Refusal::Encoding);
    }
    if !is_suspicious(&body) {
        return Ok(Screened { body, changed: false });
    }
    Ok(match strip(&body, DEPTH_MAX)? {
        Some(stripped) => Screened { body: stripped.into(), changed: true },
        None => Screened { body, changed: false },
    })
}

/// Whether the bytes are UTF-16 or UTF-32, which Python's reader of JSON takes as well.
fn is_wide(body: &[u8]) -> bool {
    let start = &body[..body.len().min(4)];
    start.contains(&0) || start.starts_with(&[0xFE, 0xFF]) || start.starts_with(&[0xFF, 0xFE])
}

/// Whether a forbidden name may stand in it.
fn is_suspicious(body: &[u8]) -> bool {
    let escapes_letter = |at: usize| matches!(body.get(at + 4), Some(b'4'..=b'7'));
    PARTS.iter().any(|part| part.find(body).is_some()) || ESCAPE.find_iter(body).any(escapes_letter)
}

/// The object without its forbidden members; `None` where it has none.
fn strip(body: &[u8], depth: u32) -> Result<Option<Vec<u8>>, Refusal> {
    let object = Object::parse(body)?;
    let mut edit = object.edit().remove(is_forbidden);
    for name in CONTAINERS {
        let Some(inner) = object.get(name).filter(|inner| inner.starts_with(b"{")) else {
            continue;
        };
        if depth == 0 {
            return Err(Refusal::TooDeep);
        }
        // Of containers with one name the last counts, and stands for all of them.
        if let Some(stripped) = strip(inner, depth - 1)? {
            edit = edit.set(name, stripped);
        }
    }
    Ok((!edit.is_empty()).then(|| edit.finish()))
}

fn is_forbidden(name: &str) -> bool {
    FORBIDDEN.contains(&name) || name.starts_with(FORBIDDEN_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    fn check(body: &str) -> Result<String, String> {
        let screened = screen(Bytes::copy_from_slice(body.as_bytes()));
        let screened = screened.map_err(|error| error.to_string())?;
        assert_eq!(screened.changed, screened.body != body);
        Ok(String::from_utf8(screened.body.to_vec()).expect("it stays text"))
    }

    #[test]
    fn what_a_client_may_not_say_is_removed() {
        for name in FORBIDDEN.iter().chain(&["bootstrap_host", "bootstrap_port", "bootstrap_room"])
        {
            let body = format!(r#"{{"model":"m", "{name}":{{"do_remote_prefill":true}},"n":1}}"#);
            assert_eq!(check(&body).as_deref(), Ok(r#"{"model":"m","n":1}"#), "{name}");
        }
    }

    #[test]
    fn escapes_and_repetitions_hide_nothing() {
        let body = r#"{"kv_transfer\u005fparams":1,"a":2,"\u006Bv_transfer_params":3}"#;
        assert_eq!(check(body).as_deref(), Ok(r#"{"a":2}"#));
        let body = r#"{"\u0062\u006f\u006f\u0074strap\u005Froom":1}"#;
        assert_eq!(check(body).as_deref(), Ok("{}"));
    }

    #[test]
    fn parameters_of_parameters_are_looked_into() {
        let body = r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{}},"n":1}}"#;
        assert_eq!(check(body).as_deref(), Ok(r#"{"sampling_params":{"extra_args":{},"n":1}}"#));
        let body = r#"{"vllm_xargs":{"a":1,"kv_transfer_params":"x"}}"#;
        assert_eq!(check(body).as_deref(), Ok(r#"{"vllm_xargs":{"a":1}}"#));
        let deep = "{\"extra_args\":".repeat(6) + "{\"bootstrap_room\":1}" + &"}".repeat(6);
        assert!(check(&deep).is_err());
    }

    #[test]
    fn words_of_a_prompt_and_of_tools_stay() {
        for body in [
            r#"{"messages":[{"content":"what are kv_transfer_params? \"bootstrap_room\""}]}"#,
            r#"{"tools":[{"parameters":{"properties":{"bootstrap_host":{}}}}],"page_rank":1}"#,
            r#"{"prompt":"caf\u00e9 \u005f"}"#,
            r#"{"prompt":"\"rid\" of a grid","grid":1}"#,
            "not json at all",
            "",
        ] {
            assert_eq!(check(body).as_deref(), Ok(body));
        }
    }

    #[test]
    fn what_cannot_be_read_and_may_hold_them_is_refused() {
        // Python's reader takes all of these.
        let lenient = r#"{"kv_transfer_params":{},"temperature":NaN}"#;
        let marked = "\u{feff}{\"kv_transfer_params\":{}}";
        for body in [lenient, marked, r#"[{"kv_transfer_params":{}}]"#] {
            assert!(check(body).is_err(), "{body}");
        }
        let wide = |units: &[u16]| units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let text: Vec<u16> = "{\"kv_transfer_params\":{}}".encode_utf16().collect();
        let bodies: [Vec<u8>; 2] = [wide(&text), wide(&[&[0xFEFF], &text[..]].concat())];
        for body in bodies {
            assert!(matches!(screen(body.into()), Err(Refusal::Encoding)));
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let names = FORBIDDEN.into_iter().chain(CONTAINERS).chain(["bootstrap_x", "a"]);
        let names: Vec<_> = names.collect();
        let leaf = prop_oneof![Just(json!(1)), Just(json!("_rank")), Just(json!([{}]))];
        leaf.prop_recursive(3, 12, 4, move |inner| {
            let member = (proptest::sample::select(names.clone()), inner);
            vec(member, 0..4).prop_map(|members| {
                Value::Object(members.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
            })
        })
    }

    /// The obvious way.
    fn model(tree: &mut Map<String, Value>) {
        tree.retain(|name, _| {
            !FORBIDDEN.contains(&name.as_str()) && !name.starts_with("bootstrap_")
        });
        for (name, value) in tree {
            if let (true, Value::Object(inner)) = (CONTAINERS.contains(&name.as_str()), value) {
                model(inner);
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_tree(value in any_value()) {
            let Value::Object(mut tree) = value else { return Ok(()) };
            let body = serde_json::to_vec(&tree).expect("a tree can be written");
            let screened = screen(body.into()).expect("it is sound");
            model(&mut tree);
            let left: Value = serde_json::from_slice(&screened.body).expect("it stays sound");
            prop_assert_eq!(left, Value::Object(tree));
        }
    }
}
