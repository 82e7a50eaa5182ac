//! Connectors that keep a prompt's KV for others to find: in a storage that both engines see, or in
//! the host memory beside one of them. Prefill hands nothing over by itself.
//!
//! Nothing is pinned: KV stays until its room is needed. The ExampleConnector was run between two
//! vLLM 0.32.0 on CPUs, the others were not.
//!
//! Source: vLLM's ExampleConnector and LMCache's; for the offloading connector's tier between peers
//! llm-d's sidecar.

use super::family::{Family, family};
use super::fields::{present, text};
use crate::json;
use crate::{Ask, Connector, Fault, Hand};
use serde_json::value::RawValue;
use stator_handover::offloading::{self, Peer};
use stator_protos::worker::Sampling;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Port of the offloading connector for peers: that of rank 0, followed by the other ranks'.
///
/// Source: the default of llm-d's deployments.
const P2P_PORT: u16 = 7777;

/// Refuses a prompt that would crash the engine: vLLM 0.32's ExampleConnector takes a single token
/// for fewer than none.
pub(super) fn check_prompt(own: Option<&Connector>, tokens: &[u32]) -> Result<(), Fault> {
    const EXAMPLES: [&str; 2] = ["ExampleConnector", "SharedStorageConnector"];
    let example = own.is_some_and(|own| EXAMPLES.contains(&own.name.as_str()));
    if example && tokens.len() < 2 {
        let why = "the engine's connector dies of prompts of one token, 2 at least";
        return Err(Fault::Invalid(format!("prompt: {why}")));
    }
    Ok(())
}

/// Rewrites a request for a connector whose prefill hands nothing over by itself; also returns the
/// hand-over that stands in. `host` is the engine's.
pub(super) fn in_words_of(
    own: Option<&Connector>,
    ask: Ask,
    host: &str,
) -> (Ask, Option<Box<RawValue>>) {
    let family = own.and_then(|own| family(&own.name).ok());
    match (family, &ask.hand) {
        (Some(Family::Storage), Hand::Prefill(_)) => {
            // A request like any other, but for its length.
            let sampling = Sampling {
                max_tokens: 1,
                min_tokens: ask.sampling.min_tokens.min(1),
                prompt_logprobs: None,
                ..(*ask.sampling).clone()
            };
            let ask = Ask { hand: Hand::Whole, sampling: Arc::new(sampling), ..ask };
            (ask, Some(json::raw(&serde_json::Map::new())))
        }
        (Some(Family::Storage), Hand::Decode(_)) => (Ask { hand: Hand::Whole, ..ask }, None),
        (Some(Family::Offloading), Hand::Prefill(_)) => {
            let name = format!("{:032x}", random());
            let place = own.and_then(|own| own.bootstrap.as_deref()).and_then(host_of);
            let told = json::raw(&offloading::prefill(&name));
            let handed = offloading::decode(Peer {
                kv_request_id: name,
                remote_host: place.unwrap_or(host).trim_matches(['[', ']']).to_owned(),
                remote_port: P2P_PORT.saturating_add(ask.rank.unwrap_or(0)),
            });
            (Ask { hand: Hand::Prefill(Some(told)), ..ask }, Some(json::raw(&handed)))
        }
        _ => (ask, None),
    }
}

/// The host of `http://host:port`.
fn host_of(url: &str) -> Option<&str> {
    let (host, _) = url.strip_prefix("http://")?.rsplit_once(':')?;
    Some(host)
}

/// A random number, unlike that of any other agent.
fn random() -> u128 {
    let half = || u128::from(RandomState::new().hash_one(()));
    (half() << 64) | half()
}

/// Refuses a hand-over that a decode engine's offloading connector could not read KV by.
pub(super) fn check(told: &RawValue) -> Result<(), Fault> {
    let peer = offloading::read_decode(told.get())
        .map_err(|error| Fault::Invalid(format!("handover: {error}")))?;
    let peer = peer.ok_or_else(|| Fault::Invalid("handover: it names no prefill".into()))?;
    text("kv_request_id", Some(&peer.kv_request_id))?;
    text("remote_host", Some(&peer.remote_host))?;
    present("remote_port", Some(usize::from(peer.remote_port)))
}

#[cfg(test)]
mod tests {
    use super::super::{EngineFacts, handover};
    use super::*;
    use crate::Role;
    use crate::testkit::{ask, raw};
    use serde_json::{Value, json};

    fn connector(name: &str) -> Connector {
        Connector { name: name.into(), role: Role::Both, bootstrap: None }
    }

    fn check_hand(hand: &Hand, own: &Connector) -> Result<(), Fault> {
        handover::check(
            hand,
            &EngineFacts { connector: Some(own.clone()), ..EngineFacts::default() },
        )
    }

    #[test]
    fn a_storage_is_told_nothing() {
        for name in ["ExampleConnector", "SharedStorageConnector", "LMCacheConnectorV1"] {
            let own = connector(name);
            let asked = Ask { hand: Hand::Prefill(None), ..ask(&[1, 2]) };
            let (asked, handed) = in_words_of(Some(&own), asked, "h");
            assert!(matches!(asked.hand, Hand::Whole) && asked.sampling.max_tokens == 1);
            let handed = handed.expect("decode is begun with something");
            let decode = Hand::Decode(handed);
            assert_eq!(check_hand(&decode, &own), Ok(()));
            let (asked, none) = in_words_of(Some(&own), Ask { hand: decode, ..ask(&[1]) }, "h");
            assert!(matches!(asked.hand, Hand::Whole) && none.is_none());
            assert_eq!(asked.sampling.max_tokens, 16);
        }
    }

    #[test]
    fn a_prompt_that_a_connector_dies_of_is_refused() {
        let refused =
            |name: &str, tokens: &[u32]| check_prompt(Some(&connector(name)), tokens).is_err();
        assert!(refused("ExampleConnector", &[1]) && !refused("ExampleConnector", &[1, 2]));
        assert!(!refused("NixlConnector", &[1]) && check_prompt(None, &[1]).is_ok());
    }

    #[test]
    fn offloading_tells_both_one_name_and_decode_where_it_is() {
        let mut own = connector("OffloadingConnector");
        let words = |own: &Connector| {
            let asked = Ask { hand: Hand::Prefill(None), rank: Some(1), ..ask(&[1]) };
            let (asked, handed) = in_words_of(Some(own), asked, "[fd00::1]");
            let Hand::Prefill(Some(told)) = asked.hand else { panic!("{:?}", asked.hand) };
            let tree = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).unwrap();
            (tree(&told), tree(&handed.expect("decode is told")))
        };
        let (told, handed) = words(&own);
        let from = &handed["remote_prefiller"];
        assert_eq!(told["remote_decoder"]["kv_request_id"], from["kv_request_id"]);
        assert_eq!((&from["remote_host"], &from["remote_port"]), (&json!("fd00::1"), &json!(7778)));
        assert_ne!(words(&own).0, told, "each request has its own");
        own.bootstrap = Some("http://10.0.0.1:8998".into());
        assert_eq!(words(&own).1["remote_prefiller"]["remote_host"], "10.0.0.1");
        let decode = |told: &Value| check_hand(&Hand::Decode(raw(&told.to_string())), &own);
        assert_eq!(decode(&handed), Ok(()));
        for (field, value) in
            [("kv_request_id", json!("")), ("remote_host", json!("")), ("remote_port", json!(0))]
        {
            let mut handed = handed.clone();
            handed["remote_prefiller"][field] = value;
            assert!(matches!(decode(&handed), Err(Fault::Invalid(_))), "{handed}");
            handed["remote_prefiller"].as_object_mut().unwrap().remove(field);
            assert!(matches!(decode(&handed), Err(Fault::Invalid(_))), "{handed}");
        }
        for other in [json!({}), told] {
            assert!(matches!(decode(&other), Err(Fault::Invalid(_))), "{other}");
        }
    }
}
