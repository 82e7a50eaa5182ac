//! What an SGLang says of itself.

use super::Learnt;
use super::pairing::{Advert, Engine};
use crate::events::publisher;
use crate::http::Client;
use crate::{Connector, Description, EventSource, Fault, Role, json};
use serde::Deserialize;
use serde_json::Value;

/// `/server_info`: its flags, and what came of them.
#[derive(Deserialize)]
struct ServerInfo {
    version: String,
    served_model_name: Option<String>,
    model_path: String,
    context_length: Option<u32>,
    page_size: Option<u32>,
    /// Of each rank.
    max_total_num_tokens: Option<u32>,
    chunked_prefill_size: Option<i64>,
    dp_size: Option<u16>,
    #[serde(default)]
    lora_paths: Value,
    #[serde(default)]
    schedule_low_priority_values_first: bool,
    #[serde(default)]
    enable_weights_cpu_backup: bool,
    kv_events: Option<KvEvents>,
    disaggregation_mode: Option<String>,
    disaggregation_transfer_backend: Option<String>,
    disaggregation_bootstrap_port: Option<u16>,
}

/// Where rank 0 publishes; the others are on the following ports.
#[derive(Deserialize)]
struct KvEvents {
    publisher: Option<String>,
    endpoint_host: String,
    endpoint_port_base: u16,
    replay_endpoint_port_base: Option<u16>,
    #[serde(default)]
    topic: String,
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
) -> Result<(Description, Learnt), Fault> {
    let (info, models) = tokio::try_join!(server_info(client), models(client))?;
    let ranks = info.dp_size.unwrap_or(1).max(1);
    let connector = connector(&info, given);
    let base = models.data.iter().find(|model| model.parent.is_none());
    let handover = connector.as_ref().filter(|own| own.role.prefills());
    let handover = handover.map(|own| advert(&info, own, client.host())).transpose()?;
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
        events: events(info.kv_events.as_ref(), ranks, client.host()),
        adapters,
        handover: handover.map(|advert| json::raw(&advert)),
        model: info.served_model_name.unwrap_or(info.model_path),
    };
    let learnt = Learnt {
        connector,
        low_priority_first: info.schedule_low_priority_values_first,
        keeps_weights: info.enable_weights_cpu_backup,
    };
    Ok((description, learnt))
}

/// Older versions have it at another place.
async fn server_info(client: &Client) -> Result<ServerInfo, Fault> {
    match client.query_optional("/server_info").await? {
        Some(info) => Ok(info),
        None => client.query_json("/get_server_info").await,
    }
}

async fn models(client: &Client) -> Result<Models, Fault> {
    client.query_json("/v1/models").await
}

/// Which half of a pair it is, if any; where others find it may be configured.
fn connector(info: &ServerInfo, given: Option<&Connector>) -> Option<Connector> {
    let role = match info.disaggregation_mode.as_deref() {
        Some("prefill") => Role::Prefill,
        Some("decode") => Role::Decode,
        _ => return None,
    };
    let name = info.disaggregation_transfer_backend.clone()?;
    Some(Connector { name, role, bootstrap: given.and_then(|given| given.bootstrap.clone()) })
}

fn advert(info: &ServerInfo, own: &Connector, host: &str) -> Result<Advert, Fault> {
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
    Ok(Advert { engine: Engine::Sglang, connector, bootstrap_host, bootstrap_port })
}

fn events(said: Option<&KvEvents>, ranks: u16, host: &str) -> Vec<EventSource> {
    let Some(said) = said.filter(|said| said.publisher.as_deref() == Some("zmq")) else {
        return Vec::new();
    };
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

/// Names in the shapes that the flag has had: `name=path`, a path, an object of either.
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
    fn adapters_are_found_in_every_shape() {
        assert_eq!(adapters(&json!(["a=/x", "/y", {"lora_name": "b"}, 7])), ["a", "/y", "b"]);
        assert_eq!(adapters(&json!({"a": "/x"})), ["a"]);
        assert_eq!(adapters(&Value::Null), [""; 0]);
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
        assert_eq!(events(Some(&said("collector")), 1, "h"), []);
        // There is no port for the second.
        assert_eq!(events(Some(&said("*")), 2, "h")[0].endpoint, "tcp://h:65535");
        assert_eq!(events(Some(&said("*")), 2, "h").len(), 1);
    }
}
