//! Prefill on one TensorRT-LLM, decode on another.
//!
//! In turn the context server answers first, and decode is told what it said. Together both are
//! asked at once (`schedule_style` 1, "generation first"): decode is told where the context
//! server's transceiver is found, and asks it for the KV; the context server computes nothing
//! before that has come. The token that it chose travels beside the KV, and decode's answer begins
//! with it, unless it ends the answer: then no KV is sent, and decode would wait until its time is
//! over. Its logprob does not travel.
//!
//! Servers with the Python transceiver can do so. With `enable_pipelined_transfer` the KV is on
//! its way chunk by chunk while the prompt is computed; without, what is saved is a round trip.
//!
//! A number names the request on both servers. Source: TensorRT-LLM's main branch in 2026,
//! `serve/openai_disagg_service.py` and, in `_torch/disaggregation`, `transceiver.py`,
//! `native/auxiliary.py` and `orchestration/coordinator.py`.

use crate::{Connector, Fault, FirstToken, Manner, SharedRequest, json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// Numbers that name a shared request stay clear of those that engines count themselves.
const SHARED: u64 = 1 << 62;
/// Both halves are asked at once.
const GENERATION_FIRST: u8 = 1;

/// Advertisement of a prefill engine to decode engines.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Advert {
    engine: Engine,
    connector: String,
    /// Its transceiver's address, for asking both engines at once; older agents omit it.
    #[serde(flatten)]
    place: Option<Place>,
}

/// Keeps adverts of other engines out.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Engine {
    Trtllm,
}

/// Address of a context server's transceiver.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Place {
    ctx_info_endpoint: String,
    /// `None` where the server chooses the rank of each request, and decode asks all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ctx_dp_rank: Option<u32>,
}

impl Place {
    /// Reads the address from `GET /server_info`. `None` if it is missing, or if the transceiver
    /// takes leases, which this crate does not ask for.
    pub(super) fn of(server_info: &Value) -> Option<Self> {
        let params = server_info.get("disaggregated_params")?;
        let told = |name: &str| params.get(name).filter(|value| !value.is_null());
        if told("context_transceiver_lifecycle").is_some() {
            return None;
        }
        let endpoint = match told("ctx_info_endpoint")? {
            Value::Array(endpoints) => endpoints.first()?.as_str()?,
            endpoint => endpoint.as_str()?,
        };
        let ctx_dp_rank = match told("ctx_dp_rank") {
            Some(rank) => Some(u32::try_from(rank.as_u64()?).ok()?),
            None => None,
        };
        let ctx_info_endpoint = Some(endpoint).filter(|endpoint| !endpoint.is_empty())?.to_owned();
        Some(Self { ctx_info_endpoint, ctx_dp_rank })
    }
}

/// Parameters of a context server that is asked together with its generation server.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Context {
    /// In [`SHARED`]`..2^63`.
    pub(super) disagg_request_id: u64,
    /// [`GENERATION_FIRST`].
    pub(super) schedule_style: u8,
}

impl Context {
    /// Reads the parameters that a decode engine's agent sends with a prompt.
    ///
    /// # Errors
    ///
    /// [`Fault::Invalid`] where it is not as known.
    pub(super) fn read(told: &RawValue) -> Result<Self, Fault> {
        let invalid = |why: String| Fault::Invalid(format!("handover: {why}"));
        let told: Self =
            serde_json::from_str(told.get()).map_err(|error| invalid(error.to_string()))?;
        let Self { disagg_request_id: id, schedule_style: style } = told;
        if !(SHARED..2 * SHARED).contains(&id) {
            return Err(invalid(format!("disagg_request_id: {id} is not in 2^62..2^63")));
        }
        if style != GENERATION_FIRST {
            return Err(invalid(format!("schedule_style: {style} is not {GENERATION_FIRST}")));
        }
        Ok(told)
    }
}

/// Parameters of the generation server in the same case.
#[derive(Serialize)]
struct Generation {
    disagg_request_id: u64,
    ctx_request_id: u64,
    schedule_style: u8,
    #[serde(flatten)]
    place: Place,
}

/// Advertisement of an engine with `own`, if it prefills.
pub(super) fn advert(own: Option<&Connector>, place: Option<Place>) -> Option<Box<RawValue>> {
    let own = own.filter(|own| own.role.prefills())?;
    Some(json::raw(&Advert { engine: Engine::Trtllm, connector: own.name.clone(), place }))
}

/// Pairs an engine with `own` and the one that advertises `prefill`. `together` says whether both
/// may be asked at once.
pub(super) fn pair(
    shared: &SharedRequest,
    prefill: &RawValue,
    own: Option<&Connector>,
    together: bool,
) -> Result<Manner, Fault> {
    let theirs: Advert = serde_json::from_str(prefill.get())
        .map_err(|error| Fault::Unsupported(format!("the prefill's handover: {error}")))?;
    Connector::decodes_after(own, &theirs.connector)?;
    match theirs.place {
        // Decode would lack the first token's logprob.
        Some(place) if together && !shared.logprobs => Ok(at_once(number(shared.request), place)),
        // It is among what prefill hands over.
        _ => Ok(Manner::InTurn { prefill: None, first: FirstToken::Passed }),
    }
}

fn at_once(id: u64, place: Place) -> Manner {
    let schedule_style = GENERATION_FIRST;
    Manner::Together {
        prefill: json::raw(&Context { disagg_request_id: id, schedule_style }),
        decode: json::raw(&Generation {
            disagg_request_id: id,
            ctx_request_id: id,
            schedule_style,
            place,
        }),
        first: FirstToken::PassedUnlessLast,
        // Chunks may be on their way before it is computed.
        prompt_first: false,
    }
}

/// The number of a request with this name: those of different requests differ as long as fewer than
/// 2^62 others were named between them.
pub(super) fn number(request: u64) -> u64 {
    request % SHARED + SHARED
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Role;
    use crate::testkit::raw;
    use serde_json::json;

    fn connector(role: Role) -> Connector {
        Connector { name: "NIXL".into(), role, bootstrap: None }
    }

    fn place(ctx_dp_rank: Option<u32>) -> Place {
        Place { ctx_info_endpoint: "tcp://10.0.0.1:5000".into(), ctx_dp_rank }
    }

    fn shared(request: u64) -> SharedRequest {
        SharedRequest { request, rank: 0, logprobs: false }
    }

    fn check(shared: &SharedRequest, place: Option<Place>, together: bool) -> Manner {
        let prefill = advert(Some(&connector(Role::Prefill)), place).unwrap();
        pair(shared, &prefill, Some(&connector(Role::Decode)), together).unwrap()
    }

    #[test]
    fn both_halves_are_told_the_same_number() {
        for (request, id) in [(0, 1 << 62), (7, (1 << 62) + 7), (u64::MAX, (1 << 63) - 1)] {
            let manner = check(&shared(request), Some(place(Some(3))), true);
            let Manner::Together { prefill, decode, first, prompt_first: false } = manner else {
                panic!("{manner:?}")
            };
            assert_eq!(first, FirstToken::PassedUnlessLast);
            let expected = format!(r#"{{"disagg_request_id":{id},"schedule_style":1}}"#);
            assert_eq!(prefill.get(), expected);
            assert_eq!(Context::read(&prefill).unwrap().disagg_request_id, id);
            let numbers = format!(r#""disagg_request_id":{id},"ctx_request_id":{id}"#);
            let place = r#""ctx_info_endpoint":"tcp://10.0.0.1:5000","ctx_dp_rank":3"#;
            assert_eq!(decode.get(), format!(r#"{{{numbers},"schedule_style":1,{place}}}"#));
        }
        let Manner::Together { decode, .. } = check(&shared(7), Some(place(None)), true) else {
            panic!("in turn")
        };
        assert!(!decode.get().contains("ctx_dp_rank"), "{decode}");
    }

    #[test]
    fn where_anything_is_missing_it_is_in_turn() {
        let in_turn =
            |manner| matches!(manner, Manner::InTurn { prefill: None, first: FirstToken::Passed });
        assert!(in_turn(check(&shared(7), None, true)));
        assert!(in_turn(check(&shared(7), Some(place(None)), false)));
        let logprobs = SharedRequest { logprobs: true, ..shared(7) };
        assert!(in_turn(check(&logprobs, Some(place(None)), true)));
        // What agents say that know no other manner.
        let old = raw(r#"{"engine":"trtllm","connector":"NIXL"}"#);
        let own = connector(Role::Both);
        assert!(in_turn(pair(&shared(7), &old, Some(&own), true).unwrap()));
        let new = advert(Some(&own), None).unwrap();
        assert_eq!(new.get(), old.get());
    }

    #[test]
    fn agents_of_old_understand_what_is_said_now() {
        #[derive(Debug, Deserialize, PartialEq)]
        struct Old {
            engine: Engine,
            connector: String,
        }
        for rank in [None, Some(0)] {
            let advert = advert(Some(&connector(Role::Both)), Some(place(rank))).unwrap();
            let old: Old = serde_json::from_str(advert.get()).unwrap();
            assert_eq!(old, Old { engine: Engine::Trtllm, connector: "NIXL".into() });
            let new: Advert = serde_json::from_str(advert.get()).unwrap();
            assert_eq!(new.place, Some(place(rank)));
        }
        assert!(advert(Some(&connector(Role::Decode)), Some(place(None))).is_none());
        assert!(advert(None, None).is_none());
    }

    #[test]
    fn engines_that_cannot_are_not_asked() {
        let advert = advert(Some(&connector(Role::Prefill)), Some(place(None))).unwrap();
        let other = Connector { name: "UCX".into(), ..connector(Role::Decode) };
        for own in [None, Some(&connector(Role::Prefill)), Some(&other)] {
            let result = pair(&shared(7), &advert, own, true);
            assert!(matches!(result, Err(Fault::Unsupported(_))), "{result:?}");
        }
        let sglang = raw(r#"{"engine":"sglang","connector":"NIXL"}"#);
        let result = pair(&shared(7), &sglang, Some(&connector(Role::Decode)), true);
        assert!(matches!(result, Err(Fault::Unsupported(_))), "{result:?}");
    }

    #[test]
    fn a_place_is_read_however_versions_tell_it() {
        let check = |params: Value| Place::of(&json!({ "disaggregated_params": params }));
        let endpoint = "tcp://10.0.0.1:5000";
        for (params, expected) in [
            (json!({"ctx_dp_rank": 0, "ctx_info_endpoint": [endpoint]}), Some(place(Some(0)))),
            (json!({"ctx_dp_rank": null, "ctx_info_endpoint": [endpoint, "b"]}), Some(place(None))),
            (json!({"ctx_info_endpoint": endpoint}), Some(place(None))),
            (
                json!({"ctx_info_endpoint": endpoint, "context_transceiver_lifecycle": null}),
                Some(place(None)),
            ),
            (
                json!({"ctx_info_endpoint": endpoint, "context_transceiver_lifecycle": {"v": 1}}),
                None,
            ),
            (json!({"ctx_dp_rank": 0, "ctx_info_endpoint": null}), None),
            (json!({"ctx_dp_rank": 0, "ctx_info_endpoint": []}), None),
            (json!({"ctx_dp_rank": 0, "ctx_info_endpoint": ""}), None),
            (json!({"ctx_dp_rank": 0, "ctx_info_endpoint": 7}), None),
            (json!({"ctx_dp_rank": -1, "ctx_info_endpoint": endpoint}), None),
            (json!({}), None),
            (json!(null), None),
        ] {
            assert_eq!(check(params.clone()), expected, "{params}");
        }
        assert_eq!(Place::of(&json!({})), None);
        assert_eq!(Place::of(&json!([])), None);
    }

    #[test]
    fn what_names_no_request_is_refused() {
        for told in [
            r#"{"disagg_request_id":1,"schedule_style":1}"#,
            r#"{"disagg_request_id":9223372036854775808,"schedule_style":1}"#,
            r#"{"disagg_request_id":4611686018427387904,"schedule_style":0}"#,
            r#"{"disagg_request_id":4611686018427387904}"#,
            "{}",
            "null",
        ] {
            let read = Context::read(&raw(told));
            assert!(matches!(read, Err(Fault::Invalid(_))), "{told}: {read:?}");
        }
    }
}
