//! Bootstrap servers beside engines that compute prompts: the paths to ask, and the answers.

use serde_json::value::RawValue;
use stator_body::Object;
use std::collections::BTreeMap;

/// Path at which Mooncake's names its engines.
pub const QUERY: &str = "/query";
/// Path at which SGLang's names its ranks.
///
/// Source: SGLang 0.5.23, `CommonKVBootstrapServer`.
pub const ROUTE: &str =
    "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1";

/// The engines that a bootstrap server names, by rank.
///
/// Source: vLLM's MooncakeConnector, `{"0":{"engine_id":"…"}}` by data-parallel rank.
pub fn engines(answer: &[u8]) -> Vec<(u16, String)> {
    let ranks: BTreeMap<u16, &RawValue> = serde_json::from_slice(answer).unwrap_or_default();
    let engine = |raw: &RawValue| {
        let id = Object::parse(raw.get().as_bytes()).ok()?.get("engine_id")?;
        serde_json::from_slice(id).ok()
    };
    ranks.into_iter().filter_map(|(rank, raw)| Some((rank, engine(raw)?))).collect()
}

/// The ranks among which a prompt's room decides. Where SGLang balances them in another way, its
/// decode asks for itself.
pub fn data_parallel_size(answer: &[u8]) -> Option<u16> {
    let route = Object::parse(answer).ok()?;
    let follows = route.get("follow_bootstrap_room") == Some(b"true");
    let size = serde_json::from_slice(route.get("dp_size")?).ok();
    size.filter(|size| follows && *size > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bootstrap_server_names_engines_by_rank() {
        let answer = br#"{"1":{"engine_id":"b","worker_addr":{}},"0":{"engine_id":"a"},"2":{}}"#;
        assert_eq!(engines(answer), [(0, "a".to_owned()), (1, "b".to_owned())]);
        for answer in [&b""[..], b"[]", b"{}", b"{\"x\":1}"] {
            assert!(engines(answer).is_empty());
        }
    }

    #[test]
    fn ranks_are_those_among_which_the_room_decides() {
        let size = |answer: &str| data_parallel_size(answer.as_bytes());
        assert_eq!(size(r#"{"dp_size":2,"page_size":1,"follow_bootstrap_room":true}"#), Some(2));
        for answer in [
            "",
            "{}",
            r#"{"dp_size":2}"#,
            r#"{"dp_size":2,"follow_bootstrap_room":false}"#,
            r#"{"dp_size":0,"follow_bootstrap_room":true}"#,
            r#"{"dp_size":65536,"follow_bootstrap_room":true}"#,
        ] {
            assert_eq!(size(answer), None, "{answer}");
        }
    }
}
