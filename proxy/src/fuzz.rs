//! Parsers of what clients and engines send to a proxy or a sidecar, for fuzz targets. Each
//! function feeds one parser, and panics where the parser breaks its promise.

mod grpc;
mod packed;

pub use crate::standalone::responses::fuzz::{PostgresRow, SqliteRow, postgres_row, sqlite_row};
pub use grpc::grpc_call;
pub use packed::{packed_answer, packed_body};

use crate::rates::{ClientRates, RateLimits};
use crate::sidecar::allow::{AllowList, Rule};
use crate::sidecar::chunks::Chunks;
use crate::sidecar::media::Media;
use crate::standalone::listing::{Entry, list_for_anthropic};
use crate::standalone::query::Query;
use crate::standalone::responses::ResponseRoute;
use crate::standalone::route::Route;
use crate::upstream::cached::CachedTokens;
use crate::upstream::passage::{Losses, Passage, RemovedFields};
use crate::upstream::target::Target;
use bytes::Bytes;
use serde_json::{Map, Value};
use stator_api::UnknownFields;
use stator_api::openai::models::ModelEntry;
use stator_api::passed_fields::PassingEdge;
use stator_body::{Api, Object};
use stator_handover::moriio::Meeting;
use stator_handover::{Connector, Pair};
use std::num::NonZeroU32;
use std::time::{Duration, Instant, SystemTime};

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
/// Largest number of a query's parameter.
const NUMBER_MAX: usize = 100;

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

/// A query's parameters are read, named as ignored or refused by the client's fault. Whoever ignores
/// unknown ones reads what others read.
pub fn query(text: &str) {
    let id = "r";
    for route in [
        Route::Response(ResponseRoute::Retrieve(id)),
        Route::Response(ResponseRoute::InputItems(id)),
        Route::Models,
        Route::Health,
    ] {
        let known = route.parameters(true);
        let settled = |unknown| Query::settle(text, known, unknown);
        let lenient = match settled(UnknownFields::Ignore) {
            Ok((query, _)) => query,
            Err(error) => {
                assert!(error.status.is_client_error());
                settled(UnknownFields::Refuse).expect_err("nobody ignores it");
                continue;
            }
        };
        match settled(UnknownFields::Refuse) {
            Ok((strict, _)) => assert_eq!(format!("{strict:?}"), format!("{lenient:?}")),
            Err(error) => assert_eq!(error.code, Some("unknown_parameter")),
        }
        for name in known.unwrap_or_default() {
            assert!(*name == "include" || lenient.values(name).count() <= 1, "{name}");
            lenient.flag(name).err().inspect(|error| assert!(error.status.is_client_error()));
            let number = lenient.number(name, NUMBER_MAX);
            assert!(number.is_err() || number.is_ok_and(|it| it.is_none_or(|it| it <= NUMBER_MAX)));
        }
        let models = ["a", "b", "c"].map(|id| Entry {
            model: ModelEntry { id: id.to_owned(), created: 0, max_model_len: 0, is_text: true },
            parent: None,
        });
        if let Ok(page) = list_for_anthropic(&models, &lenient) {
            serde_json::from_slice::<Value>(&page).expect("a page is JSON");
        }
    }
}

/// A client within limits of `requests` and `tokens` in a minute is let in once it has waited as it
/// was told, and the headers say no more than the limits. Each step is a pause in seconds and the tokens
/// of a request.
pub fn rates(requests: u32, tokens: u32, steps: impl IntoIterator<Item = (u16, u32)>) {
    let [requests, tokens] = [requests, tokens].map(NonZeroU32::new);
    let Some(rates) = ClientRates::new(RateLimits { requests, tokens }) else { return };
    let mut now = Instant::now();
    let account = rates.account(None, now);
    for (pause, used) in steps {
        now += Duration::from_secs(pause.into());
        let mut waits = 0;
        while let Err(error) = account.take_request(now) {
            assert_eq!(error.status.as_u16(), 429);
            now += error.retry_after.expect("a time") + Duration::from_millis(1);
            waits += 1;
            // One limit may be reached behind the other.
            assert!(waits <= 2, "{error}");
        }
        account.take_tokens(used, now);
        for anthropic in [false, true] {
            let headers = account.headers(anthropic, now, SystemTime::UNIX_EPOCH);
            let limits = usize::from(requests.is_some()) + usize::from(tokens.is_some());
            assert_eq!(headers.len(), 3 * limits);
            for of in headers.chunks_exact(3) {
                let number = |at: usize| of[at].1.to_str().ok()?.parse::<u64>().ok();
                assert!(number(1).expect("a number") <= number(0).expect("a number"));
            }
        }
    }
}
