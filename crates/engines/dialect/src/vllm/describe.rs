//! Self-description of a vLLM, collected from several of its endpoints.

use super::family::{self, Family};
use super::handover::{self, Advert};
use super::{Endpoint, EngineFacts, Target, moriio};
use crate::events::{self, shifted};
use crate::http::Client;
use crate::{Connector, Description, EventSource, Fault, Pooling, Role, json};
use ::http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

/// Default port of a Mooncake bootstrap server.
const BOOTSTRAP_PORT: u16 = 8998;

/// The connector that has several others side by side.
const SEVERAL: &str = "MultiConnector";

/// Longest wait for the configuration: on the first request the engine inspects its whole machine,
/// which takes seconds.
const SERVER_INFO_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct Version {
    version: String,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    /// The base model of an adapter.
    parent: Option<String>,
    max_model_len: Option<u32>,
}

/// `/kv_event_sources`, by rank.
type Sources = BTreeMap<u16, Publisher>;

#[derive(Clone, Deserialize)]
struct Publisher {
    #[serde(default)]
    enable_kv_cache_events: bool,
    #[serde(default)]
    publisher: Option<String>,
    endpoint: Option<String>,
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: String,
}

/// `/server_info?config_format=json`, development mode only; any part may be missing.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ServerInfo {
    vllm_config: Config,
    vllm_env: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    model_config: Option<ModelConfig>,
    scheduler_config: Option<Scheduler>,
    kv_transfer_config: Option<Transfer>,
    kv_events_config: Option<Publisher>,
    reasoning_config: Value,
    parallel_config: Value,
}

#[derive(Deserialize)]
struct ModelConfig {
    /// -1 is no limit.
    max_logprobs: Option<i64>,
}

#[derive(Deserialize)]
struct Scheduler {
    max_num_batched_tokens: Option<u32>,
}

#[derive(Clone, Deserialize)]
struct Transfer {
    kv_connector: Option<String>,
    kv_role: Option<String>,
    #[serde(default)]
    kv_connector_extra_config: Value,
}

impl Transfer {
    /// The connector by which this engine shares requests with others: of several that stand side by
    /// side the first that hands KV over, or else the first that is known.
    fn handing_over(&self) -> Self {
        if self.kv_connector.as_deref() != Some(SEVERAL) {
            return self.clone();
        }
        let several = self.kv_connector_extra_config["connectors"].clone();
        let several: Vec<Self> = serde_json::from_value(several).unwrap_or_default();
        let family = |one: &&Self| family::family(one.kv_connector.as_deref()?).ok();
        let hands_over = |one: &&Self| family(one).is_some_and(Family::hands_over);
        let known = several.iter().find(hands_over);
        known.or_else(|| several.iter().find(|one| family(one).is_some())).unwrap_or(self).clone()
    }
}

pub(super) async fn describe(
    client: &Client,
    given: Option<&Connector>,
) -> Result<(Description, EngineFacts), Fault> {
    // Asked at once: the configuration alone may take seconds.
    let (version, models, sources, metrics, info, endpoint, pooling) = tokio::try_join!(
        client.query_json::<Version>("/version"),
        client.query_json::<Models>("/v1/models"),
        client.query_optional::<Sources>("/kv_event_sources"),
        client.query("/metrics"),
        server_info(client),
        endpoint(client),
        pooling(client),
    )?;
    let version = version.version;
    let cache = cache_config(&String::from_utf8_lossy(&metrics));
    let ranks = cache.as_ref().map_or(1, |cache| cache.ranks);
    let config = &info.vllm_config;
    let transfer = config.kv_transfer_config.as_ref().map(Transfer::handing_over);
    let connector = transfer.as_ref().and_then(|said| connector(said, given));
    let connector = connector.or_else(|| given.cloned());
    let extra = transfer.as_ref().map_or(&Value::Null, |said| &said.kv_connector_extra_config);
    let set_up = (extra, &config.parallel_config);
    let moriio = moriio(client, connector.as_ref(), &version, set_up)?;
    let handover = match &connector {
        Some(own) if own.role.prefills() => {
            let (bootstrap, engines) = mooncake(client, own, &info).await?;
            Some(Advert {
                connector: own.name.clone(),
                version: version.clone(),
                block_size: cache.as_ref().map(|cache| cache.block_size),
                bootstrap,
                engines,
                moriio: moriio.as_ref().map(moriio::MoriioSetup::advert),
            })
        }
        _ => None,
    };
    let base = models.data.iter().find(|model| model.parent.is_none());
    let base = base.ok_or_else(|| Fault::Failed("/v1/models: no model is served".into()))?;
    let adapters = models.data.iter().filter(|model| model.parent.is_some());
    let sources = sources.unwrap_or_else(|| by_rank(config.kv_events_config.as_ref(), ranks));
    let description = Description {
        version: format!("vllm {version}"),
        model: base.id.clone(),
        context_length: base.max_model_len,
        block_size: cache.as_ref().map(|cache| cache.block_size),
        total_blocks: cache.as_ref().map(|cache| blocks(cache, pooling)),
        batch_tokens: config.scheduler_config.as_ref().and_then(|s| s.max_num_batched_tokens),
        ranks,
        events: sources.values().filter_map(|said| event_source(said, client.host())).collect(),
        adapters: adapters.map(|model| model.id.clone()).collect(),
        handover: handover.map(|advert| json::raw(&advert)),
        needs_prefill: moriio.as_ref().is_some_and(moriio::MoriioSetup::needs_prefill),
        pooling,
        bounds_thoughts: knows_thoughts(&config.reasoning_config),
        ..Description::default()
    };
    let max_logprobs = config.model_config.as_ref().and_then(|config| config.max_logprobs);
    let max_logprobs = max_logprobs.map(|max| u32::try_from(max).unwrap_or(u32::MAX));
    let bounds_thoughts = description.bounds_thoughts;
    let target =
        Target { endpoint, max_logprobs, unguided: is_unguided(&version), bounds_thoughts };
    let block_size = description.block_size;
    let version = Some(version);
    Ok((description, EngineFacts { target, connector, version, block_size, moriio, pooling }))
}

/// Whether the engine has the tokens of its markers of thoughts. A parser alone may not name them.
fn knows_thoughts(reasoning_config: &Value) -> bool {
    reasoning_config["_enabled"] == true || reasoning_config["_reasoning_end_token_ids"].is_array()
}

/// Whether the version is before 0.11, where the fields for the form of an answer have other names.
fn is_unguided(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().ok());
    matches!((numbers.next(), numbers.next()), (Some(Some(0)), Some(Some(..11))))
}

/// Configuration of an engine in development mode. Empty outside of that mode, for versions that
/// report it as text, and after a timeout; other questions find out whether the engine can be
/// reached.
async fn server_info(client: &Client) -> Result<ServerInfo, Fault> {
    let path = "/server_info?config_format=json";
    match client.query_within(SERVER_INFO_TIMEOUT, path).await {
        Ok(answer) => Ok(serde_json::from_slice(&answer).unwrap_or_default()),
        Err(Fault::Unsupported(_) | Fault::Unreachable(_)) => Ok(ServerInfo::default()),
        Err(fault) => Err(fault),
    }
}

/// Probes for an endpoint with a method that it does not take: an existing route says so, and
/// nothing happens.
async fn has(client: &Client, path: &str) -> Result<bool, Fault> {
    Ok(client.status(path).await? != StatusCode::NOT_FOUND)
}

/// The endpoint for token requests.
async fn endpoint(client: &Client) -> Result<Endpoint, Fault> {
    Ok(match has(client, Endpoint::Generate.path()).await? {
        true => Endpoint::Generate,
        false => Endpoint::Completions,
    })
}

/// Values that a server with the pooling runner makes of prompts: it has an endpoint for them alone.
async fn pooling(client: &Client) -> Result<Option<Pooling>, Fault> {
    if !has(client, super::pooled::PATH).await? {
        return Ok(None);
    }
    Ok(if has(client, "/v1/embeddings").await? {
        Some(Pooling::Vector)
    } else if has(client, "/classify").await? {
        Some(Pooling::Classes)
    } else {
        // A vector of each token, which nobody asks for.
        None
    })
}

/// The connector as the engine reports it, with the configured bootstrap address.
fn connector(said: &Transfer, given: Option<&Connector>) -> Option<Connector> {
    let name = said.kv_connector.clone()?;
    let role = match said.kv_role.as_deref() {
        Some("kv_producer") => Role::Prefill,
        Some("kv_consumer") => Role::Decode,
        _ => Role::Both,
    };
    let given = given.filter(|given| given.name == name);
    let bootstrap = given.and_then(|given| given.bootstrap.clone());
    Some(Connector { name, role, bootstrap })
}

/// MoRI-IO setup of the engine, if that is its connector.
fn moriio(
    client: &Client,
    connector: Option<&Connector>,
    version: &str,
    set_up: (&Value, &Value),
) -> Result<Option<moriio::MoriioSetup>, Fault> {
    let Some(own) = connector.filter(|own| family::family(&own.name) == Ok(Family::Moriio)) else {
        return Ok(None);
    };
    moriio::MoriioSetup::read(version, own.role, set_up, client.host())
        .map(Some)
        .map_err(Fault::Failed)
}

/// Bootstrap server of the engine's Mooncake connector, and the engine ids of its ranks, if that
/// is its connector.
async fn mooncake(
    client: &Client,
    own: &Connector,
    info: &ServerInfo,
) -> Result<(Option<String>, Vec<String>), Fault> {
    #[derive(Deserialize)]
    struct Registered {
        engine_id: String,
    }
    if !handover::has_bootstrap(&own.name) {
        return Ok((None, Vec::new()));
    }
    let bootstrap = own.bootstrap.clone().unwrap_or_else(|| {
        let port = &info.vllm_env["VLLM_MOONCAKE_BOOTSTRAP_PORT"];
        let port = port.as_u64().unwrap_or(u64::from(BOOTSTRAP_PORT));
        format!("http://{}:{port}", client.host())
    });
    let server = Client::new(&bootstrap, None)
        .map_err(|error| Fault::Failed(format!("bootstrap server: {error}")))?;
    let mut engines: BTreeMap<u16, Registered> = server.query_json("/query").await?;
    // Up to the first rank that has not registered yet: each has the place of its number.
    let registered = (0..).map_while(|rank| engines.remove(&rank));
    Ok((Some(bootstrap), registered.map(|engine| engine.engine_id).collect()))
}

/// Publisher of each rank, for versions that report the first alone.
fn by_rank(first: Option<&Publisher>, ranks: u16) -> Sources {
    let Some(first) = first else { return Sources::new() };
    let at = |rank: u16, endpoint: &Option<String>| {
        endpoint.as_deref().map(|endpoint| shifted(endpoint, rank))
    };
    let publisher = |rank| Publisher {
        endpoint: at(rank, &first.endpoint),
        replay_endpoint: at(rank, &first.replay_endpoint),
        ..first.clone()
    };
    (0..ranks).map(|rank| (rank, publisher(rank))).collect()
}

fn event_source(said: &Publisher, host: &str) -> Option<EventSource> {
    if !said.enable_kv_cache_events || said.publisher.as_deref() != Some("zmq") {
        return None;
    }
    Some(EventSource {
        endpoint: events::publisher(said.endpoint.as_deref()?, host)?,
        replay: said.replay_endpoint.as_deref().map(|endpoint| events::replay(endpoint, host)),
        topic: said.topic.clone(),
    })
}

/// KV cache as the metrics page reports it.
#[derive(Debug, PartialEq, Eq)]
struct CacheConfig {
    block_size: u32,
    /// Blocks of all ranks together: each rank's line has the sum.
    blocks: u32,
    ranks: u16,
}

/// The blocks of each rank. An encoder has no KV, and the engine reports a block in its place.
fn blocks(cache: &CacheConfig, pooling: Option<Pooling>) -> u32 {
    match cache.blocks / u32::from(cache.ranks) {
        0 | 1 if pooling.is_some() => 0,
        blocks => blocks,
    }
}

fn cache_config(metrics: &str) -> Option<CacheConfig> {
    let lines = metrics.lines().filter(|line| line.starts_with("vllm:cache_config_info{"));
    let lines: Vec<&str> = lines.collect();
    let engines: HashSet<&str> = lines.iter().filter_map(|line| label(line, "engine")).collect();
    let line = lines.first()?;
    Some(CacheConfig {
        block_size: label(line, "block_size")?.parse().ok()?,
        blocks: label(line, "num_gpu_blocks")?.parse().ok()?,
        ranks: u16::try_from(engines.len()).unwrap_or(u16::MAX).max(1),
    })
}

/// A label's value. Quotes inside of values are escaped, so that none looks like a label.
fn label<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = line;
    loop {
        let (before, after) = rest.split_once(name)?;
        let value = after.strip_prefix("=\"").filter(|_| before.ends_with(['{', ',']));
        if let Some(value) = value {
            return value.split('"').next();
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_shared_by_the_ranks_that_all_tell_the_sum() {
        let metrics = include_str!("../../fixtures/vllm-0.32.0/dp/cache_config_info.txt");
        let expected = CacheConfig { block_size: 32, blocks: 4096, ranks: 2 };
        assert_eq!(cache_config(metrics), Some(expected));
        assert_eq!(cache_config("# nothing"), None);
        assert_eq!(cache_config("vllm:cache_config_info{engine=\"0\"} 1"), None);
    }

    #[test]
    fn the_words_for_the_form_of_an_answer_came_with_a_version() {
        for version in ["0.10.2", "0.9.1.post1", "0.10.2rc1+cpu"] {
            assert!(is_unguided(version), "{version}");
        }
        for version in ["0.11.0", "0.32.0", "1.0.0", "dev", ""] {
            assert!(!is_unguided(version), "{version}");
        }
    }

    #[test]
    fn thoughts_are_known_by_their_tokens() {
        let config = |enabled: bool| {
            let ids = if enabled { serde_json::json!([7]) } else { Value::Null };
            serde_json::json!({"reasoning_parser": "openai_gptoss", "_enabled": enabled,
                "_reasoning_end_token_ids": ids})
        };
        assert!(knows_thoughts(&config(true)) && !knows_thoughts(&config(false)));
        assert!(!knows_thoughts(&Value::Null));
    }

    #[test]
    fn labels_are_found_by_their_whole_name() {
        let line = r#"m{mamba_block_size="1",hash_block_size="2",block_size="3",e="x\"y"} 1.0"#;
        assert_eq!(label(line, "block_size"), Some("3"));
        assert_eq!(label(line, "mamba_block_size"), Some("1"));
        assert_eq!(label(line, "size"), None);
    }

    #[test]
    fn versions_that_tell_one_publisher_have_the_others_on_the_next_ports() {
        let first = Publisher {
            enable_kv_cache_events: true,
            publisher: Some("zmq".into()),
            endpoint: Some("tcp://*:5557".into()),
            replay_endpoint: None,
            topic: "kv".into(),
        };
        let sources = by_rank(Some(&first), 2);
        let second = event_source(&sources[&1], "10.0.0.1").unwrap();
        assert_eq!(second.endpoint, "tcp://10.0.0.1:5558");
        assert_eq!(second.replay, None);
        let off = Publisher { enable_kv_cache_events: false, ..first };
        assert_eq!(event_source(&off, "h"), None);
    }
}
