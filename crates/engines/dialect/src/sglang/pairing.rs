//! Prefill on one SGLang, decode on another: both get the request at once, and find each other by
//! the prefill's bootstrap server and a room that is theirs alone.
//!
//! KV is on its way while the prompt is computed: prefill sends each chunk when it has computed it
//! (`--chunked-prefill-size`), which both being asked at once allows.
//!
//! Rooms are such that they lead to the rank that computes the prompt ([`sglang::room`]), and prefill
//! is told its rank too: otherwise it compares the room with
//! its rank of attention, which is 0 on all ranks that are plain copies, and refuses what is not for
//! the first. Source: SGLang 0.5.23, `CommonKVSender` and `_resolve_prefill_dp_rank`.
//!
//! The prefill's request lasts until its KV was fetched, so that dropping it frees the KV, whether
//! decode never came or went away. The engine sees within four seconds that nobody waits for the
//! answer (`SGLANG_REQUEST_STATE_WAIT_TIMEOUT`); by itself it would wait for decode for five minutes
//! (`SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT`). Source: SGLang 0.5.23, `TokenizerManager`.

use crate::{Connector, Fault, FirstToken, Hand, Manner, json};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use stator_handover::DpRank;
use stator_handover::sglang::{self, Bootstrap};

/// Advertisement of a prefill engine to decode engines.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Advert {
    pub(super) engine: Engine,
    /// The transfer backend.
    pub(super) connector: String,
    pub(super) bootstrap_host: String,
    pub(super) bootstrap_port: u16,
    /// Its data-parallel ranks, at least 1.
    #[serde(default = "one_rank")]
    pub(super) dp_size: u16,
}

/// Default for agents that do not report ranks.
fn one_rank() -> u16 {
    1
}

/// Keeps adverts of other engines out.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Engine {
    Sglang,
}

/// Pairs an engine with `own` and this rank of the engine that advertises `prefill`.
pub(super) fn pair(
    request: u64,
    prefill: &RawValue,
    rank: u16,
    own: Option<&Connector>,
) -> Result<Manner, Fault> {
    let theirs: Advert = serde_json::from_str(prefill.get())
        .map_err(|error| Fault::Unsupported(format!("the prefill's handover: {error}")))?;
    Connector::decodes_after(own, &theirs.connector)?;
    if rank >= theirs.dp_size {
        let ranks = theirs.dp_size;
        return Err(Fault::Unsupported(format!("rank {rank} of a prefill engine of {ranks}")));
    }
    let both = json::raw(&Bootstrap {
        bootstrap_host: theirs.bootstrap_host,
        bootstrap_port: theirs.bootstrap_port,
        bootstrap_room: room(request, DpRank { index: rank, count: theirs.dp_size }),
        disagg_prefill_dp_rank: (theirs.dp_size > 1).then_some(rank),
    });
    // What prefill chooses travels with the KV.
    Ok(Manner::Together {
        prefill: both.clone(),
        decode: both,
        first: FirstToken::Passed,
        // Chunks are sent as they are computed, and prefill answers when the last has arrived.
        prompt_first: false,
    })
}

/// A room for this rank, in 1..2^63: the rooms of different requests differ as long as fewer than
/// 2^63 / `rank.count` others were named between them.
fn room(request: u64, rank: DpRank) -> u64 {
    let places = i64::MAX.unsigned_abs() / u64::from(rank.count);
    sglang::room((request % places).max(1), rank)
}

/// The bootstrap fields of a request to an engine with `own`.
pub(super) fn bootstrap(hand: &Hand, own: Option<&Connector>) -> Result<Option<Bootstrap>, Fault> {
    let (told, role, able) = match hand {
        Hand::Whole => return own.map_or(Ok(None), |own| Err(half(own))),
        Hand::Canary => return Ok(own.map(|_| nobody())),
        Hand::Prefill(None) => {
            return Err(Fault::Invalid("handover: prefill and decode are asked at once".into()));
        }
        Hand::Prefill(Some(told)) => (told, "prefill", own.is_some_and(|own| own.role.prefills())),
        Hand::Decode(told) => (told, "decode", own.is_some_and(|own| own.role.decodes())),
    };
    if !able {
        // It would not say so, but compute the request as if it had been asked for all of it.
        return Err(Fault::Unsupported(format!("the engine does not {role}")));
    }
    let told: Bootstrap = serde_json::from_str(told.get())
        .map_err(|error| Fault::Invalid(format!("handover: {error}")))?;
    let room = told.bootstrap_room;
    if !(1..=i64::MAX.unsigned_abs()).contains(&room) {
        return Err(Fault::Invalid(format!("bootstrap_room: {room} is not in 1..2^63")));
    }
    Ok(Some(told))
}

/// Why half of a pair does not do all of a request: the engine refuses it as one at fault, and it
/// is none for another engine.
fn half(own: &Connector) -> Fault {
    let part = if own.role.prefills() { "computes prompts" } else { "goes on from prompts" };
    Fault::Half(format!("the engine {part} of a pair, and nobody does the other part"))
}

/// The place and the room in which an engine meets nobody: it takes it that its KV is there, or
/// was fetched. Source: `FAKE_BOOTSTRAP_HOST`, which its own warm-up and health check name.
fn nobody() -> Bootstrap {
    Bootstrap {
        bootstrap_host: "2.2.2.2".into(),
        bootstrap_port: 0,
        bootstrap_room: 0,
        disagg_prefill_dp_rank: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Role;
    use crate::testkit::raw;

    fn connector(role: Role) -> Connector {
        Connector { name: "mooncake".into(), role, bootstrap: None }
    }

    fn advert() -> Box<RawValue> {
        advert_of(1)
    }

    fn advert_of(dp_size: u16) -> Box<RawValue> {
        json::raw(&Advert {
            engine: Engine::Sglang,
            connector: "mooncake".into(),
            bootstrap_host: "10.0.0.1".into(),
            bootstrap_port: 8998,
            dp_size,
        })
    }

    fn alone(request: u64, prefill: &RawValue, own: Option<&Connector>) -> Result<Manner, Fault> {
        pair(request, prefill, 0, own)
    }

    #[test]
    fn both_halves_are_told_the_same_room() {
        let decode = connector(Role::Decode);
        for (request, room) in [(7, 7), (i64::MAX as u64 - 1, i64::MAX as u64 - 1), (1 << 63, 1)] {
            let manner = alone(request, &advert(), Some(&decode)).unwrap();
            let Manner::Together { prefill, decode: told, prompt_first: false, .. } = manner else {
                panic!("in turn")
            };
            assert_eq!(prefill.get(), told.get());
            let told = bootstrap(&Hand::Decode(told), Some(&decode)).unwrap().unwrap();
            assert_eq!((told.bootstrap_room, told.bootstrap_port), (room, 8998));
            let hand = Hand::Prefill(Some(prefill));
            assert_eq!(bootstrap(&hand, Some(&connector(Role::Prefill))), Ok(Some(told)));
        }
    }

    #[test]
    fn a_room_leaves_the_rank_that_computes_the_prompt_and_is_one_requests_alone() {
        let decode = connector(Role::Decode);
        let names = [0, 1, 2, 3, 7, 1 << 32, (1 << 62) - 1, 1 << 63, u64::MAX - 1, u64::MAX];
        for ranks in [1, 2, 3, 8, 16, u16::MAX] {
            for rank in [0, 1, ranks / 2, ranks - 1].into_iter().filter(|rank| *rank < ranks) {
                for request in names {
                    let told = pair(request, &advert_of(ranks), rank, Some(&decode));
                    let Ok(Manner::Together { decode: told, .. }) = told else {
                        panic!("{told:?}")
                    };
                    let told = bootstrap(&Hand::Decode(told), Some(&decode)).unwrap().unwrap();
                    assert_eq!(told.bootstrap_room % u64::from(ranks), u64::from(rank));
                    assert_eq!(told.disagg_prefill_dp_rank, (ranks > 1).then_some(rank));
                }
            }
        }
        // Requests that follow each other, whichever ranks compute their prompts.
        let rooms = (1..1000)
            .flat_map(|request| (0..3).map(move |index| room(request, DpRank { index, count: 3 })));
        assert_eq!(rooms.collect::<std::collections::HashSet<_>>().len(), 2997);
    }

    #[test]
    fn a_rank_that_there_is_not_is_not_asked() {
        let decode = connector(Role::Decode);
        let of_older_agents = raw(
            r#"{"engine":"sglang","connector":"mooncake","bootstrap_host":"h","bootstrap_port":1}"#,
        );
        assert!(pair(7, &of_older_agents, 0, Some(&decode)).is_ok());
        for (advert, rank) in [(of_older_agents, 1), (advert_of(2), 2), (advert_of(0), 0)] {
            let result = pair(7, &advert, rank, Some(&decode));
            assert!(matches!(result, Err(Fault::Unsupported(_))), "{rank}: {result:?}");
        }
    }

    #[test]
    fn engines_that_cannot_are_not_asked() {
        let unsupported = |result: Result<Manner, Fault>| {
            assert!(matches!(result, Err(Fault::Unsupported(_))), "{result:?}");
        };
        unsupported(alone(1, &advert(), None));
        unsupported(alone(1, &advert(), Some(&connector(Role::Prefill))));
        let other = Connector { name: "nixl".into(), ..connector(Role::Decode) };
        unsupported(alone(1, &advert(), Some(&other)));
        let nixl = raw(r#"{"connector":"mooncake","version":"0.32.0"}"#);
        unsupported(alone(1, &nixl, Some(&connector(Role::Decode))));
        let told = raw(r#"{"bootstrap_host":"h","bootstrap_port":1,"bootstrap_room":1}"#);
        for own in [None, Some(&connector(Role::Prefill))] {
            let result = bootstrap(&Hand::Decode(told.clone()), own);
            assert!(matches!(result, Err(Fault::Unsupported(_))), "{result:?}");
        }
    }

    #[test]
    fn half_of_a_pair_does_no_whole_request_and_proves_that_it_serves_all_the_same() {
        assert_eq!(bootstrap(&Hand::Whole, None), Ok(None));
        assert_eq!(bootstrap(&Hand::Canary, None), Ok(None));
        for role in [Role::Prefill, Role::Decode] {
            let own = connector(role);
            let refused = bootstrap(&Hand::Whole, Some(&own));
            assert!(matches!(refused, Err(Fault::Half(_))), "{refused:?}");
            let told = bootstrap(&Hand::Canary, Some(&own)).unwrap().unwrap();
            assert_eq!((&*told.bootstrap_host, told.bootstrap_room), ("2.2.2.2", 0));
        }
    }

    #[test]
    fn what_is_no_room_is_refused() {
        let own = connector(Role::Both);
        for told in [
            r#"{"bootstrap_host":"h","bootstrap_port":1,"bootstrap_room":0}"#,
            r#"{"bootstrap_host":"h","bootstrap_port":1,"bootstrap_room":9223372036854775808}"#,
            r#"{"bootstrap_host":"h","bootstrap_port":65536,"bootstrap_room":1}"#,
            r#"{"bootstrap_room":1}"#,
            "null",
        ] {
            let result = bootstrap(&Hand::Decode(raw(told)), Some(&own));
            assert!(matches!(result, Err(Fault::Invalid(_))), "{told}: {result:?}");
        }
        let in_turn = bootstrap(&Hand::Prefill(None), Some(&own));
        assert!(matches!(in_turn, Err(Fault::Invalid(_))));
    }
}
