//! Prefill on one vLLM, decode on another: which connectors can, and what they may be told.
//!
//! An incomplete set of `kv_transfer_params` is an assertion in the engine's core and ends it
//! with all that runs in it, so nothing passes here that is not complete.

use crate::json;
use crate::{Connector, Fault, Hand, Manner};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The connectors that are known, by how a request is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// Prefill answers with what decode is told.
    Nixl,
    /// Both are told the same, at once.
    Mooncake,
}

fn family(connector: &str) -> Result<Family, Fault> {
    match connector {
        "NixlConnector" | "NixlPushConnector" => Ok(Family::Nixl),
        "MooncakeConnector" => Ok(Family::Mooncake),
        _ => Err(Fault::Unsupported(format!("connector {connector:?} is none that is known"))),
    }
}

/// What an engine that prefills says of itself to those that decode.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Advert {
    pub(super) connector: String,
    /// Connectors talk to their own version only.
    pub(super) version: String,
    /// Mooncake: where its bootstrap server is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bootstrap: Option<String>,
    /// Mooncake: the engine's id, one for each data-parallel rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) engines: Vec<String>,
}

/// Whether the connector finds its peers by a bootstrap server.
pub(super) fn has_bootstrap(connector: &str) -> bool {
    family(connector) == Ok(Family::Mooncake)
}

/// How an engine with `own` does a request with the one that says `prefill`.
pub(super) fn pair(
    request: u64,
    prefill: &RawValue,
    own: Option<&Connector>,
    version: Option<&str>,
) -> Result<Manner, Fault> {
    let theirs: Advert = serde_json::from_str(prefill.get())
        .map_err(|error| Fault::Unsupported(format!("the prefill's handover: {error}")))?;
    let own = own.ok_or_else(|| Fault::Unsupported("this engine has no connector".into()))?;
    if !own.role.decodes() {
        return Err(Fault::Unsupported("this engine only computes prompts".into()));
    }
    if own.name != theirs.connector {
        let (own, theirs) = (&own.name, &theirs.connector);
        return Err(Fault::Unsupported(format!("connectors: {theirs} there, {own} here")));
    }
    if let Some(version) = version.filter(|version| *version != theirs.version) {
        let theirs = &theirs.version;
        return Err(Fault::Unsupported(format!("versions: vllm {theirs} there, {version} here")));
    }
    match family(&own.name)? {
        Family::Nixl => Ok(Manner::InTurn),
        Family::Mooncake => together(request, theirs),
    }
}

fn together(request: u64, theirs: Advert) -> Result<Manner, Fault> {
    #[derive(Serialize)]
    struct Params<'a> {
        do_remote_decode: bool,
        do_remote_prefill: bool,
        transfer_id: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        remote_engine_id: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        remote_bootstrap_addr: Option<&'a str>,
    }
    let ([engine], Some(bootstrap)) = (theirs.engines.as_slice(), &theirs.bootstrap) else {
        let engines = theirs.engines.len();
        let why = "one with a bootstrap server can be paired";
        return Err(Fault::Unsupported(format!("{engines} prefill engines at one place, {why}")));
    };
    let transfer_id = format!("stator-{request:016x}");
    let prefill = Params {
        do_remote_decode: true,
        do_remote_prefill: false,
        transfer_id: &transfer_id,
        remote_engine_id: None,
        remote_bootstrap_addr: None,
    };
    let decode = Params {
        do_remote_decode: false,
        do_remote_prefill: true,
        remote_engine_id: Some(engine),
        remote_bootstrap_addr: Some(bootstrap),
        ..prefill
    };
    Ok(Manner::Together { prefill: json::raw(&prefill), decode: json::raw(&decode) })
}

/// What is looked at of `kv_transfer_params`; the rest is the connector's own.
#[derive(Deserialize)]
struct Params {
    #[serde(default)]
    do_remote_prefill: Option<bool>,
    #[serde(default)]
    do_remote_decode: Option<bool>,
    remote_block_ids: Option<Vec<Blocks>>,
    remote_engine_id: Option<String>,
    remote_request_id: Option<String>,
    remote_host: Option<String>,
    remote_port: Option<u16>,
    transfer_id: Option<String>,
    remote_bootstrap_addr: Option<String>,
}

/// Blocks of one KV cache group, or one block where versions know no groups.
#[derive(Deserialize)]
#[serde(untagged)]
enum Blocks {
    Group(#[allow(dead_code, reason = "only its shape counts")] Vec<u64>),
    Block(#[allow(dead_code, reason = "only its shape counts")] u64),
}

/// Refuses a hand that would harm an engine with `own`.
pub(super) fn check(hand: &Hand, own: Option<&Connector>) -> Result<(), Fault> {
    let own = own.ok_or_else(|| Fault::Unsupported("the engine has no connector".into()))?;
    let family = family(&own.name)?;
    let (role, able) = match hand {
        Hand::Whole => return Ok(()),
        Hand::Prefill(_) => ("prefill", own.role.prefills()),
        Hand::Decode(_) => ("decode", own.role.decodes()),
    };
    if !able {
        return Err(Fault::Unsupported(format!("the engine's connector does not {role}")));
    }
    match (family, hand) {
        (Family::Nixl, Hand::Prefill(None)) => Ok(()),
        (Family::Nixl, Hand::Decode(told)) => nixl_decode(&params(told)?),
        (Family::Mooncake, Hand::Prefill(Some(told))) => mooncake_prefill(&params(told)?),
        (Family::Mooncake, Hand::Decode(told)) => mooncake_decode(&params(told)?),
        _ => Err(Fault::Invalid(format!("handover: {} works the other way", own.name))),
    }
}

fn params(told: &RawValue) -> Result<Params, Fault> {
    serde_json::from_str(told.get()).map_err(|error| Fault::Invalid(format!("handover: {error}")))
}

fn nixl_decode(params: &Params) -> Result<(), Fault> {
    wants_remote_prefill(params)?;
    present("remote_block_ids", params.remote_block_ids.as_ref().map(Vec::len))?;
    text("remote_engine_id", params.remote_engine_id.as_ref())?;
    text("remote_request_id", params.remote_request_id.as_ref())?;
    text("remote_host", params.remote_host.as_ref())?;
    present("remote_port", params.remote_port.map(usize::from))
}

fn mooncake_decode(params: &Params) -> Result<(), Fault> {
    wants_remote_prefill(params)?;
    text("transfer_id", params.transfer_id.as_ref())?;
    text("remote_engine_id", params.remote_engine_id.as_ref())?;
    text("remote_bootstrap_addr", params.remote_bootstrap_addr.as_ref())
}

fn mooncake_prefill(params: &Params) -> Result<(), Fault> {
    if params.do_remote_decode != Some(true) || params.do_remote_prefill == Some(true) {
        return Err(Fault::Invalid("handover: do_remote_decode is not what is asked for".into()));
    }
    text("transfer_id", params.transfer_id.as_ref())
}

fn wants_remote_prefill(params: &Params) -> Result<(), Fault> {
    if params.do_remote_prefill == Some(true) && params.do_remote_decode != Some(true) {
        return Ok(());
    }
    Err(Fault::Invalid("handover: do_remote_prefill is not what is asked for".into()))
}

fn text(field: &str, value: Option<&String>) -> Result<(), Fault> {
    present(field, value.map(String::len))
}

/// Whether the field is there and not empty, or not zero.
fn present(field: &str, size: Option<usize>) -> Result<(), Fault> {
    match size {
        Some(1..) => Ok(()),
        Some(0) => Err(Fault::Invalid(format!("handover: {field} is empty"))),
        None => Err(Fault::Invalid(format!("handover: {field} is missing"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Role;
    use crate::testkit::raw;
    use serde_json::{Value, json};

    fn connector(name: &str, role: Role) -> Connector {
        Connector { name: name.into(), role, bootstrap: None }
    }

    fn told() -> Value {
        let answer =
            include_str!("../../fixtures/vllm-0.32.0/pd-nixl/19-generate-prefill.response.json");
        serde_json::from_str::<Value>(answer).unwrap()["kv_transfer_params"].take()
    }

    fn decode(told: &Value) -> Result<(), Fault> {
        let own = connector("NixlConnector", Role::Decode);
        check(&Hand::Decode(raw(&told.to_string())), Some(&own))
    }

    #[test]
    fn a_recorded_handover_passes() {
        assert_eq!(decode(&told()), Ok(()));
    }

    #[test]
    fn an_incomplete_handover_never_reaches_an_engine() {
        let killers = [
            json!({"do_remote_prefill": true}),
            json!({"do_remote_prefill": true, "remote_block_ids": [[1, 2, 3]]}),
            json!({"do_remote_prefill": true, "do_remote_decode": false}),
            json!({"x": 1}),
            json!({}),
            json!([]),
            json!(null),
        ];
        for killer in killers {
            assert!(matches!(decode(&killer), Err(Fault::Invalid(_))), "{killer}");
        }
        let needed = [
            "do_remote_prefill",
            "remote_block_ids",
            "remote_engine_id",
            "remote_request_id",
            "remote_host",
            "remote_port",
        ];
        for field in needed {
            for value in [json!(null), json!([]), json!(""), json!(0), json!({"a": 1})] {
                let mut told = told();
                told[field] = value;
                assert!(matches!(decode(&told), Err(Fault::Invalid(_))), "{told}");
            }
            let mut told = told();
            told.as_object_mut().unwrap().remove(field);
            assert!(matches!(decode(&told), Err(Fault::Invalid(_))), "{told}");
        }
    }

    #[test]
    fn an_engine_without_the_role_is_not_asked() {
        let told = raw(&told().to_string());
        let producer = connector("NixlConnector", Role::Prefill);
        let consumer = connector("MooncakeConnector", Role::Decode);
        let unsupported = |hand: &Hand, own: Option<&Connector>| {
            assert!(matches!(check(hand, own), Err(Fault::Unsupported(_))), "{hand:?}");
        };
        unsupported(&Hand::Decode(told.clone()), Some(&producer));
        unsupported(&Hand::Prefill(Some(told.clone())), Some(&consumer));
        unsupported(&Hand::Decode(told.clone()), None);
        unsupported(&Hand::Prefill(None), Some(&connector("OtherConnector", Role::Both)));
        assert_eq!(check(&Hand::Prefill(None), Some(&producer)), Ok(()));
    }

    #[test]
    fn equal_connectors_of_equal_versions_pair() {
        let nixl = json!({"connector": "NixlConnector", "version": "0.32.0"}).to_string();
        let check = |own: &Connector, version, theirs: &str| {
            pair(7, &raw(theirs), Some(own), Some(version))
        };
        let own = connector("NixlConnector", Role::Both);
        assert!(matches!(check(&own, "0.32.0", &nixl), Ok(Manner::InTurn)));
        assert!(matches!(check(&own, "0.31.0", &nixl), Err(Fault::Unsupported(_))));
        assert!(matches!(check(&own, "0.32.0", "{}"), Err(Fault::Unsupported(_))));
        let other = connector("MooncakeConnector", Role::Both);
        assert!(matches!(check(&other, "0.32.0", &nixl), Err(Fault::Unsupported(_))));
        let producer = connector("NixlConnector", Role::Prefill);
        assert!(matches!(check(&producer, "0.32.0", &nixl), Err(Fault::Unsupported(_))));
        assert!(matches!(pair(7, &raw(&nixl), None, None), Err(Fault::Unsupported(_))));
    }

    #[test]
    fn mooncake_is_told_both_halves_and_accepts_them() {
        let own = connector("MooncakeConnector", Role::Both);
        let advert = Advert {
            connector: "MooncakeConnector".into(),
            version: "0.32.0".into(),
            bootstrap: Some("http://10.0.0.1:8998".into()),
            engines: vec!["988f444d".into()],
        };
        let manner = pair(10, &json::raw(&advert), Some(&own), Some("0.32.0")).unwrap();
        let Manner::Together { prefill, decode } = manner else { panic!("in turn") };
        let expected = json!({
            "do_remote_decode": false, "do_remote_prefill": true,
            "transfer_id": "stator-000000000000000a", "remote_engine_id": "988f444d",
            "remote_bootstrap_addr": "http://10.0.0.1:8998",
        });
        assert_eq!(serde_json::from_str::<Value>(decode.get()).unwrap(), expected);
        assert_eq!(check(&Hand::Prefill(Some(prefill.clone())), Some(&own)), Ok(()));
        assert_eq!(check(&Hand::Decode(decode.clone()), Some(&own)), Ok(()));
        // Each half is the other's death.
        assert!(check(&Hand::Prefill(Some(decode)), Some(&own)).is_err());
        assert!(check(&Hand::Decode(prefill), Some(&own)).is_err());
        let many = Advert { engines: vec!["a".into(), "b".into()], ..advert };
        assert!(pair(10, &json::raw(&many), Some(&own), None).is_err());
    }
}
