//! Parsers of what clients and engines send to a proxy or a sidecar, for fuzz targets. Each
//! function feeds one parser, and panics where the parser breaks its promise.

use crate::sidecar::allow::{AllowList, Rule};
use crate::sidecar::chunks::Chunks;
use crate::sidecar::media::Media;
use crate::upstream::cached::CachedTokens;
use crate::upstream::passage::{Losses, Passage, RemovedFields};
use crate::upstream::target::Target;
use bytes::Bytes;
use serde_json::{Map, Value};
use stator_api::UnknownFields;
use stator_api::passed_fields::PassingEdge;
use stator_api::steering::{Steering, SteeringHeaders};
use stator_body::{Api, Object};
use stator_handover::moriio::Meeting;
use stator_handover::{Connector, Pair};
use std::num::NonZeroU32;

const APIS: [Api; 4] = [Api::ChatCompletions, Api::Completions, Api::Responses, Api::VllmGenerate];
const CONNECTORS: [Connector; 9] = [
    Connector::Nixlv2,
    Connector::SharedStorage,
    Connector::Lmcache,
    Connector::Sglang,
    Connector::Mooncake,
    Connector::Offloading,
    Connector::Moriio,
    Connector::MoriioWrite,
    Connector::MoriioParallel,
];
/// Largest priority of a request.
const PRIORITY_MAX: i32 = 100;

/// A body whose members are edited is the tree with the same changes.
pub fn object(body: &[u8]) {
    let Ok(object) = Object::parse(body) else { return };
    let edit = object.edit().set("model", "\"m\"").remove(|name| name == "stream");
    let edited = edit.finish();
    Object::parse(&edited).expect("an edited object is an object");
    let mut tree: Map<String, Value> = serde_json::from_slice(body).expect("both read alike");
    tree.insert("model".to_owned(), "m".into());
    tree.remove("stream");
    let again: Map<String, Value> = serde_json::from_slice(&edited).expect("it is an object");
    assert_eq!(again, tree);
}

/// A screened body has nothing left to remove.
pub fn screened(body: &[u8]) {
    let (passage, removed) = (Passage::default(), RemovedFields::default());
    let losses = Losses::new(PassingEdge::default(), UnknownFields::Ignore, &removed);
    let Ok(once) = passage.screen(Bytes::copy_from_slice(body), &losses) else { return };
    let again = passage.screen(once.clone(), &losses).expect("it was screened");
    assert_eq!(again, once);
}

/// The sidecar asks an engine for each chunk with an object, whatever the engine answered before.
pub fn chunks<'a>(body: &[u8], answers: impl IntoIterator<Item = &'a [u8]>) {
    let size = NonZeroU32::new(4).expect("it is not zero");
    let Ok(mut chunks) = Chunks::new(body, size) else { return };
    for answer in answers {
        Object::parse(&chunks.ask()).expect("the engine is asked with an object");
        match chunks.take(Bytes::copy_from_slice(answer)) {
            Ok(part) if !part.last => {}
            _ => return,
        }
    }
}

/// Each medium of a request is encoded by a request of its own.
pub fn media(body: &[u8]) {
    let Ok(object) = Object::parse(body) else { return };
    for api in APIS {
        let media = Media::find(api, &object);
        let requests: Vec<_> = media.requests().collect();
        assert_eq!(requests.len(), media.len());
        for request in &requests {
            Object::parse(request).expect("an encoder is asked with an object");
        }
    }
}

/// A target survives being printed, and no rule lets a cloud's metadata be called.
pub fn allow_list(text: &str) {
    if let Ok(target) = text.parse::<Target>() {
        assert_eq!(target.to_string().parse().as_ref(), Ok(&target));
    }
    if let Ok(rule) = text.parse::<Rule>() {
        let metadata = Target { host: "169.254.169.254".to_owned(), port: 80 };
        assert!(!AllowList::Some(vec![rule]).allows(&metadata));
    }
}

/// Decode is asked with an object or not at all, whatever prefill answers. A count of cached tokens
/// is replaced alike however the answer is cut.
pub fn hand_over(body: &[u8], answer: &[u8]) {
    if let Ok(request) = Object::parse(body) {
        let pair = Pair {
            id: 1,
            host: "::1".to_owned(),
            url_host: "[::1]".to_owned(),
            bootstrap_port: 1,
            p2p_port: 2,
            engine_id: "e".to_owned(),
            rank: None,
            meeting: Meeting::default(),
        };
        for connector in CONNECTORS {
            if let Ok(told) = connector.decode(&request, &pair, answer) {
                Object::parse(&told.body).expect("decode is asked with an object");
            }
        }
    }
    let Some(cached) = CachedTokens::of(answer) else { return };
    let passed = |size: usize| {
        let mut cached = cached.clone();
        let pieces = body.chunks(size).map(Bytes::copy_from_slice);
        let mut out: Vec<u8> = pieces.flat_map(|piece| cached.pass(piece)).collect();
        out.extend(cached.rest());
        out
    };
    assert_eq!(passed(body.len().max(1)), passed(3));
}

/// A request is steered within bounds, or refused with a fault of the client's.
pub fn steering(body: &[u8], labels: Option<&str>, ttl: Option<&str>, objective: Option<&str>) {
    match Steering::read(body, SteeringHeaders::written(labels, ttl, objective), PRIORITY_MAX) {
        Ok(steering) => {
            assert!((-PRIORITY_MAX..=PRIORITY_MAX).contains(&steering.priority));
            assert!(steering.ttl.is_none_or(|ttl| !ttl.is_zero()));
        }
        Err(error) => assert!(error.status.is_client_error()),
    }
}
