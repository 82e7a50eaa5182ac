//! Self-description of an SGLang.

use super::pairing::{Advert, Engine};
use super::{EngineFacts, SaltField};
use crate::events::{publisher, replay, shifted};
use crate::http::Client;
use crate::{Connector, Description, EventSource, Fault, Pooling, Role, json};
use serde::Deserialize;
use serde_json::Value;

/// `/server_info`: the engine's flags, and values that it derived from them.
#[derive(Deserialize)]
struct ServerInfo {
    version: String,
    served_model_name: Option<String>,
    model_path: String,
    context_length: Option<u32>,
    page_size: Option<u32>,
    /// Capacity of each rank.
    max_total_num_tokens: Option<u32>,
    chunked_prefill_size: Option<i64>,
    dp_size: Option<u16>,
    #[serde(default)]
    lora_paths: Value,
    #[serde(default)]
    schedule_low_priority_values_first: bool,
    #[serde(default)]
    enable_weights_cpu_backup: bool,
    /// Event publisher over TCP; older versions do not report it.
    kv_events: Option<KvEvents>,
    /// The flag that configures the publisher, as JSON.
    kv_events_config: Option<String>,
    disaggregation_mode: Option<String>,
    disaggregation_transfer_backend: Option<String>,
    disaggregation_bootstrap_port: Option<u16>,
}

/// Publisher of rank 0; the other ranks use the following ports.
#[derive(Deserialize)]
struct KvEvents {
    publisher: Option<String>,
    endpoint_host: String,
    endpoint_port_base: u16,
    replay_endpoint_port_base: Option<u16>,
    #[serde(default)]
    topic: String,
}

/// Value of the flag: its endpoint may be a file on the engine's machine.
#[derive(Deserialize)]
struct EventsFlag {
    publisher: Option<String>,
    endpoint: String,
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: String,
}

/// `/model_info`.
#[derive(Deserialize)]
struct ModelInfo {
    is_generation: Option<bool>,
    architectures: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    max_model_len: Option<u32>,
    parent: Option<String>,
    id: String,
}

pub(super) async fn describe(
    client: &Client,
    given: Option<&Connector>,
) -> Result<(Description, EngineFacts), Fault> {
    let schema = async { Ok(client.schema().await) };
    let (info, models, schema, pooling) =
        tokio::try_join!(server_info(client), models(client), schema, pooling(client))?;
    let ranks = info.dp_size.unwrap_or(1).max(1);
    let connector = connector(&info, given);
    let base = models.data.iter().find(|model| model.parent.is_none());
    let needs_prefill = connector.as_ref().is_some_and(|own| !own.role.prefills());
    let handover = connector.as_ref().filter(|own| own.role.prefills());
    let handover = handover.map(|own| advert(&info, own, ranks, client.host())).transpose()?;
    // An adapter may stand in the flags, among the models, or in both.
    let mut adapters = adapters(&info.lora_paths);
    adapters.extend(models.data.iter().filter(|m| m.parent.is_some()).map(|m| m.id.clone()));
    adapters.sort_unstable();
    adapters.dedup();
    let pages = |tokens: u32| info.page_size.filter(|size| *size > 0).map(|size| tokens / size);
    let description = Description {
        version: format!("sglang {}", info.version),
        context_length: info.context_length.or_else(|| base.and_then(|b| b.max_model_len)),
        block_size: info.page_size,
        total_blocks: info.max_total_num_tokens.and_then(pages),
        batch_tokens: info.chunked_prefill_size.and_then(|size| u32::try_from(size).ok()),
        ranks,
        events: match &info.kv_events {
            Some(said) => events(said, ranks, client.host()),
            None => flagged(info.kv_events_config.as_deref(), ranks, client.host()),
        },
        adapters,
        handover: handover.map(|advert| json::raw(&advert)),
        needs_prefill,
        pooling,
        model: info.served_model_name.unwrap_or(info.model_path),
        ..Description::default()
    };
    let facts = EngineFacts {
        connector,
        low_priority_first: info.schedule_low_priority_values_first,
        keeps_weights: info.enable_weights_cpu_backup,
        salt: salt_field(&schema, pooling),
        pooling,
    };
    Ok((description, facts))
}

/// The request field that separates prefixes, by the schema of `/generate`, or of `/encode`.
fn salt_field(schema: &Value, pooling: Option<Pooling>) -> SaltField {
    let input = if pooling.is_some() { "EmbeddingReqInput" } else { "GenerateReqInput" };
    let Some(known) = schema.pointer(&format!("/components/schemas/{input}/properties")) else {
        // Requests for vectors have no such field as far as is known.
        return if pooling.is_some() { SaltField::Missing } else { SaltField::default() };
    };
    match (known.get("cache_salt"), known.get("extra_key")) {
        (Some(_), _) => SaltField::CacheSalt,
        (None, Some(_)) => SaltField::ExtraKey,
        (None, None) => SaltField::Missing,
    }
}

/// Reads the flags; older versions have them at another path.
async fn server_info(client: &Client) -> Result<ServerInfo, Fault> {
    match client.query_optional("/server_info").await? {
        Some(info) => Ok(info),
        None => client.query_json("/get_server_info").await,
    }
}

/// Values that the server makes of prompts, if it answers none; older versions say so at another
/// path.
async fn pooling(client: &Client) -> Result<Option<Pooling>, Fault> {
    let info = match client.query_optional::<ModelInfo>("/model_info").await? {
        Some(info) => Some(info),
        None => client.query_optional("/get_model_info").await?,
    };
    let Some(info) = info.filter(|info| info.is_generation == Some(false)) else { return Ok(None) };
    let classifies = |name: &String| name.ends_with("ForSequenceClassification");
    Ok(Some(match info.architectures.iter().flatten().any(classifies) {
        true => Pooling::Classes,
        false => Pooling::Vector,
    }))
}

async fn models(client: &Client) -> Result<Models, Fault> {
    client.query_json("/v1/models").await
}

/// The engine's role in a pair, if it has one; the bootstrap address may be configured.
fn connector(info: &ServerInfo, given: Option<&Connector>) -> Option<Connector> {
    let role = match info.disaggregation_mode.as_deref() {
        Some("prefill") => Role::Prefill,
        Some("decode") => Role::Decode,
        _ => return None,
    };
    let name = info.disaggregation_transfer_backend.clone()?;
    Some(Connector { name, role, bootstrap: given.and_then(|given| given.bootstrap.clone()) })
}

fn advert(info: &ServerInfo, own: &Connector, dp_size: u16, host: &str) -> Result<Advert, Fault> {
    let port = info.disaggregation_bootstrap_port;
    let at_host = || port.map(|port| (host.to_owned(), port));
    let configured = own.bootstrap.as_deref().and_then(|place| {
        let place = place.trim_start_matches("http://").trim_end_matches('/');
        let (host, port) = place.rsplit_once(':')?;
        Some((host.to_owned(), port.parse().ok()?))
    });
    let (bootstrap_host, bootstrap_port) = configured.or_else(at_host).ok_or_else(|| {
        Fault::Failed("/server_info: disaggregation_bootstrap_port is missing".into())
    })?;
    let connector = own.name.clone();
    Ok(Advert { engine: Engine::Sglang, connector, bootstrap_host, bootstrap_port, dp_size })
}

fn events(said: &KvEvents, ranks: u16, host: &str) -> Vec<EventSource> {
    if said.publisher.as_deref() != Some("zmq") {
        return Vec::new();
    }
    let at = |base: u16, rank: u16| {
        let port = base.checked_add(rank)?;
        publisher(&format!("tcp://{}:{port}", said.endpoint_host), host)
    };
    let source = |rank| {
        Some(EventSource {
            endpoint: at(said.endpoint_port_base, rank)?,
            replay: said.replay_endpoint_port_base.and_then(|base| at(base, rank)),
            topic: said.topic.clone(),
        })
    };
    (0..ranks).filter_map(source).collect()
}

/// Event sources from the flag: rank 0 as written, the others by their ports. A file has one
/// publisher.
fn flagged(flag: Option<&str>, ranks: u16, host: &str) -> Vec<EventSource> {
    let flag = flag.and_then(|flag| serde_json::from_str::<EventsFlag>(flag).ok());
    let Some(flag) = flag.filter(|flag| flag.publisher.as_deref() == Some("zmq")) else {
        return Vec::new();
    };
    let at = |rank| {
        Some(EventSource {
            endpoint: publisher(&shifted(&flag.endpoint, rank), host)?,
            replay: flag.replay_endpoint.as_deref().map(|at| replay(&shifted(at, rank), host)),
            topic: flag.topic.clone(),
        })
    };
    let ranks = if flag.endpoint.starts_with("ipc://") { 1 } else { ranks };
    (0..ranks).filter_map(at).collect()
}

/// Adapter names from the flag's shapes: `name=path`, a path, or an object of either.
fn adapters(said: &Value) -> Vec<String> {
    let name = |entry: &Value| match entry {
        Value::String(entry) => Some(entry.split('=').next().unwrap_or(entry).to_owned()),
        entry => entry["lora_name"].as_str().map(str::to_owned),
    };
    match said {
        Value::Array(entries) => entries.iter().filter_map(name).collect(),
        Value::Object(entries) => entries.keys().cloned().collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_field_of_a_salt_is_found_where_the_server_describes_one() {
        let field = |properties: Value| {
            let input = json!({"GenerateReqInput": {"properties": properties}});
            salt_field(&json!({"components": {"schemas": input}}), None)
        };
        assert_eq!(field(json!({"extra_key": {}, "cache_salt": {}})), SaltField::CacheSalt);
        assert_eq!(field(json!({"extra_key": {}, "rid": {}})), SaltField::ExtraKey);
        assert_eq!(field(json!({"rid": {}})), SaltField::Missing);
        assert_eq!(salt_field(&Value::Null, None), SaltField::CacheSalt);
        // The field of one kind of request says nothing of the other kind.
        let both = json!({"GenerateReqInput": {"properties": {"cache_salt": {}}},
            "EmbeddingReqInput": {"properties": {"rid": {}}}});
        let both = json!({"components": {"schemas": both}});
        assert_eq!(salt_field(&both, Some(Pooling::Vector)), SaltField::Missing);
        assert_eq!(salt_field(&Value::Null, Some(Pooling::Vector)), SaltField::Missing);
    }

    #[test]
    fn adapters_are_found_in_every_shape() {
        assert_eq!(adapters(&json!(["a=/x", "/y", {"lora_name": "b"}, 7])), ["a", "/y", "b"]);
        assert_eq!(adapters(&json!({"a": "/x"})), ["a"]);
        assert_eq!(adapters(&Value::Null), [""; 0]);
    }

    #[test]
    fn a_flag_names_the_ranks_by_their_ports_and_files_once() {
        let check = |flag: &str| {
            let sources = flagged(Some(flag), 2, "h").into_iter();
            sources.map(|source| (source.endpoint, source.replay)).collect::<Vec<_>>()
        };
        let ranks = check(
            r#"{"publisher":"zmq","endpoint":"tcp://*:5577","replay_endpoint":"tcp://*:5597"}"#,
        );
        let at = |port: u16| format!("tcp://h:{port}");
        assert_eq!(ranks, [(at(5577), Some(at(5597))), (at(5578), Some(at(5598)))]);
        let file = check(r#"{"publisher":"zmq","endpoint":"ipc:///x"}"#);
        assert_eq!(file, [("ipc:///x".to_owned(), None)]);
        for none in [r#"{"publisher":"null","endpoint":"ipc:///x"}"#, "{}", "null", "x"] {
            assert_eq!(check(none), [], "{none}");
        }
        assert_eq!(flagged(None, 1, "h"), []);
    }

    #[test]
    fn a_publisher_that_connects_elsewhere_is_no_source() {
        let said = |host: &str| KvEvents {
            publisher: Some("zmq".into()),
            endpoint_host: host.into(),
            endpoint_port_base: 65535,
            replay_endpoint_port_base: None,
            topic: "kv".into(),
        };
        assert_eq!(events(&said("collector"), 1, "h"), []);
        // There is no port for the second.
        assert_eq!(events(&said("*"), 2, "h")[0].endpoint, "tcp://h:65535");
        assert_eq!(events(&said("*"), 2, "h").len(), 1);
    }
}
