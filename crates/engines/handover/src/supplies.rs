//! Supplies of third engines for the engine that computes a prompt, as request parameters. Pure.
//!
//! Source: vLLM's offloading and encoder-cache connectors, and llm-d's sidecar.

use crate::offloading::Peer;
use serde_json::{Value, json};
use stator_body::{Object, ObjectEdit};

/// The member of requests and answers that carries a hand-over of KV.
pub const KV_PARAMETERS: &str = "kv_transfer_params";
/// The member of requests and answers that carries a hand-over of encoded media.
pub const EC_PARAMETERS: &str = "ec_transfer_params";

/// The member of [`KV_PARAMETERS`] that names agents which lend KV. The module that an agent has its
/// engine load reads it.
const KV_LENDERS: &str = "stator_holders";

/// An engine that KV is pulled from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvSource {
    /// Nobody else's. Only the engine that pulls knows it.
    pub id: u128,
    /// Its host, without brackets.
    pub host: String,
    /// Port to which its peers connect.
    pub port: u16,
}

/// Supplies of third engines for the engine that computes a prompt.
#[derive(Clone, Debug, Default)]
pub struct Supplies {
    /// Engine that holds KV of the prompt's beginning.
    pub source: Option<KvSource>,
    /// Locations of its encoded media, as JSON.
    pub media: Option<Vec<u8>>,
    /// Agents that lend KV of the prompt's beginning, each an address and its leading blocks: the
    /// engine's own agent is told of them.
    pub holders: Vec<(String, u32)>,
}

impl Supplies {
    /// Whether third engines supply nothing: agents may still lend.
    pub fn is_empty(&self) -> bool {
        self.source.is_none() && self.media.is_none()
    }

    /// Adds them to a request that tells of its hand-over by `parameters`, which are null where
    /// there is none.
    pub fn add<'o, 'a>(
        &self,
        edit: ObjectEdit<'o, 'a>,
        mut parameters: Value,
    ) -> ObjectEdit<'o, 'a> {
        if let Some(source) = &self.source {
            parameters["remote_kv_source"] = json!(Peer {
                kv_request_id: format!("{:032x}", source.id),
                remote_host: source.host.clone(),
                remote_port: source.port,
            });
        }
        if !self.holders.is_empty() {
            parameters[KV_LENDERS] = json!(self.holders);
        }
        let edit = match parameters {
            Value::Null => edit,
            parameters => edit.set(KV_PARAMETERS, parameters.to_string()),
        };
        match &self.media {
            Some(media) => edit.set(EC_PARAMETERS, media.clone()),
            None => edit,
        }
    }

    /// The request for an engine that computes the prompt and answers it too.
    pub fn alone(&self, request: &Object<'_>) -> Vec<u8> {
        self.add(request.edit(), Value::Null).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(supplies: &Supplies, parameters: Value) -> Value {
        let object = Object::parse(br#"{"prompt":"a"}"#).expect("a sound object");
        let body = supplies.add(object.edit(), parameters).finish();
        serde_json::from_slice(&body).expect("it stays sound")
    }

    #[test]
    fn a_source_stands_beside_what_else_is_handed_over() {
        let source = KvSource { id: 7, host: "fd00::1".into(), port: 7777 };
        let told = json!({"kv_request_id": format!("{:032x}", 7), "remote_host": "fd00::1",
                          "remote_port": 7777});
        let supplies = Supplies { source: Some(source), ..Supplies::default() };
        let alone = json!({"prompt": "a", "kv_transfer_params": {"remote_kv_source": told}});
        assert_eq!(check(&supplies, Value::Null), alone);
        let both = check(&supplies, json!({"remote_decoder": {"kv_request_id": "x"}}));
        let expected = json!({"remote_decoder": {"kv_request_id": "x"}, "remote_kv_source": told});
        assert_eq!(both[KV_PARAMETERS], expected);
    }

    #[test]
    fn agents_that_lend_stand_beside_what_else_is_handed_over() {
        let holders = vec![("10.0.0.1:7010".to_owned(), 40), ("h:1".to_owned(), 8)];
        let supplies = Supplies { holders, ..Supplies::default() };
        let told = json!([["10.0.0.1:7010", 40], ["h:1", 8]]);
        let alone = json!({"prompt": "a", "kv_transfer_params": {"stator_holders": told}});
        assert_eq!(check(&supplies, Value::Null), alone);
        let both = check(&supplies, json!({"do_remote_decode": true}));
        let expected = json!({"do_remote_decode": true, "stator_holders": told});
        assert_eq!(both[KV_PARAMETERS], expected);
    }

    #[test]
    fn media_are_told_as_they_came_and_nothing_is_where_nothing_was() {
        let media = br#"{"hash":{"size_bytes":9007199254740993}}"#;
        let supplies = Supplies { media: Some(media.to_vec()), ..Supplies::default() };
        let object = Object::parse(br#"{"prompt":"a"}"#).expect("a sound object");
        let expected =
            br#"{"prompt":"a","ec_transfer_params":{"hash":{"size_bytes":9007199254740993}}}"#;
        assert_eq!(supplies.alone(&object), expected);
        assert_eq!(Supplies::default().alone(&object), br#"{"prompt":"a"}"#);
        assert!(Supplies::default().is_empty() && !supplies.is_empty());
    }
}
