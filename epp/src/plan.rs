//! From what an `EndpointPickerConfig` says to the settings of those who do it.

use crate::config::EppSettings;
use stator_body::{ParserSet, parser};
use stator_epp_config::{ParserKind, Plan};
use stator_epp_plugins::settings::{
    EngineSpecs as Specs, HttpSource, MediaEstimate, Render, Scheme, Tokens,
};
use stator_epp_signals::scrape::{EngineSpecs, Mapping, Mappings, ScrapeSettings};
use stator_epp_signals::tokenizer::{RenderError, RenderSettings, Renderer};
use stator_http::TlsOptions;
use std::path::PathBuf;

/// Settings for reading metrics pages; the flags fill what the configuration leaves open.
///
/// # Errors
///
/// For certificates and names of metrics that cannot be used.
pub(crate) fn scraping(settings: &EppSettings) -> anyhow::Result<(ScrapeSettings, Mappings)> {
    let (mut scrape, mut mappings) = (
        ScrapeSettings {
            interval: settings.scrape_interval,
            staleness: settings.staleness,
            ..ScrapeSettings::default()
        },
        Mappings::default(),
    );
    let Some(metrics) = &settings.plan.plan.metrics else { return Ok((scrape, mappings)) };
    let source = &metrics.source;
    scrape.path.clone_from(&source.path);
    scrape.port = source.port;
    scrape.by_labels = source.by_labels;
    // The configuration comes before the flag, as in the llm-d router.
    scrape.interval = source.interval.unwrap_or(scrape.interval);
    if source.scheme == Scheme::Https {
        scrape.tls = Some(tls(source).config()?);
    }
    for engine in &metrics.extractor.engines {
        mappings.add(&engine.name, mapping(engine)?);
    }
    if let Some(label) = &metrics.extractor.engine_label {
        mappings.set_label(label);
    }
    mappings.set_default(&metrics.extractor.default_engine);
    Ok((scrape, mappings))
}

/// The parsers of a plan.
pub(crate) fn parsers(plan: &Plan) -> ParserSet {
    let named = plan.parsers.iter().filter_map(|known| parser(known.name()).ok());
    ParserSet::new(named.collect())
}

/// Whether nothing is read but gRPC, which comes over HTTP/2 alone.
pub(crate) fn reads_grpc_alone(plan: &Plan) -> bool {
    let grpc = |known: &ParserKind| matches!(known, ParserKind::VllmGrpc | ParserKind::VertexAi);
    !plan.parsers.is_empty() && plan.parsers.iter().all(grpc)
}

/// The server that renders prompts, where the configuration names one.
///
/// # Errors
///
/// For addresses and certificates that cannot be used.
pub(crate) fn renderer(plan: &Plan) -> Result<Option<Renderer>, RenderError> {
    let Some(Tokens::Model { render: Some(render), .. }) = &plan.tokens else { return Ok(None) };
    let Render {
        url,
        timeout,
        multimodal_timeout,
        ca_cert_path,
        client_cert,
        insecure_skip_verify,
    } = render;
    let tls = TlsOptions {
        insecure_skip_verify: *insecure_skip_verify,
        ca_path: ca_cert_path.as_ref().map(PathBuf::from),
        identity: identity(client_cert.as_ref()),
    };
    let settings = RenderSettings {
        url: url.clone(),
        timeout: *timeout,
        media_timeout: *multimodal_timeout,
        tls,
        ..RenderSettings::default()
    };
    Renderer::new(settings).map(Some)
}

/// The model whose tokenizer the configuration asks for, to run in this process.
pub(crate) fn tokenizer_model(plan: &Plan) -> Option<&str> {
    match &plan.tokens {
        Some(Tokens::Model { name, render: None }) => Some(name),
        _ => None,
    }
}

/// Estimates of the tokens of media, for prompts that are measured as text.
pub(crate) fn media(plan: &Plan) -> MediaEstimate {
    match &plan.tokens {
        Some(Tokens::Estimate(media)) => *media,
        _ => MediaEstimate::default(),
    }
}

fn tls(source: &HttpSource) -> TlsOptions {
    TlsOptions {
        insecure_skip_verify: source.insecure_skip_verify,
        ca_path: source.ca_cert_path.as_ref().map(PathBuf::from),
        identity: identity(source.client_cert.as_ref()),
    }
}

fn identity(pair: Option<&(String, String)>) -> Option<(PathBuf, PathBuf)> {
    pair.map(|(certificate, key)| (certificate.into(), key.into()))
}

fn mapping(engine: &Specs) -> anyhow::Result<Mapping> {
    fn text(spec: &Option<String>) -> &str {
        spec.as_deref().unwrap_or_default()
    }
    let specs = EngineSpecs {
        waiting: text(&engine.waiting),
        running: text(&engine.running),
        kv_usage: text(&engine.kv_usage),
        lora: text(&engine.lora),
        cache: text(&engine.cache_info),
    };
    let mut mapping = specs.mapping()?;
    mapping.cache.label_names = [engine.block_size_label.clone(), engine.blocks_label.clone()];
    if let (Some(size), Some(blocks)) = (&engine.block_size, &engine.blocks) {
        mapping.cache.values = Some([size.parse()?, blocks.parse()?]);
    }
    Ok(mapping)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::configured;
    use stator_epp_scheduler::{Endpoint, Roles};
    use stator_protos::{WorkerId, WorkerRank};
    use std::sync::Arc;

    fn mappings(extractor: &str) -> Mappings {
        let text = format!(
            "{{apiVersion: llm-d.ai/v1alpha1, kind: EndpointPickerConfig, plugins: \
             [{{type: queue-scorer}}, {{type: core-metrics-extractor, parameters: {extractor}}}]}}"
        );
        let settings = configured(&["--pool-name=a"], &text);
        let settings = settings.unwrap_or_else(|error| panic!("{error}"));
        scraping(&settings).expect("the names of metrics are sound").1
    }

    fn labelled(key: &str, value: &str) -> Endpoint {
        Endpoint {
            worker: WorkerRank { worker: WorkerId(1), rank: 0 },
            uid: "1".into(),
            name: "pod-rank-0".into(),
            pod: "pod".into(),
            namespace: "default".into(),
            address: ([10, 0, 0, 1], 8000).into(),
            labels: Arc::new([(key.to_owned(), value.to_owned())].into()),
            roles: Roles::default(),
        }
    }

    #[test]
    fn engines_are_named_by_either_label_unless_one_is_configured() {
        let (new, old) = ("llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type");
        let check = |extractor: &str, key: &str, engine: &str| {
            assert_eq!(mappings(extractor).engine(&labelled(key, "sglang")), engine, "{key}");
        };
        check("{}", new, "sglang");
        check("{}", old, "sglang");
        check("{engineLabelKey: engine}", "engine", "sglang");
        check("{engineLabelKey: engine}", old, "vllm");
    }

    #[test]
    fn labels_of_the_cache_may_have_other_names() {
        let mappings = mappings(
            "{defaultEngine: mine, engineConfigs: [{name: mine, cacheInfoSpec: info, \
             cacheBlockSizeLabelName: tokens, cacheNumBlocksLabelName: count}]}",
        );
        let mut reader =
            stator_epp_signals::scrape::LoadReader::new(mappings.of(&labelled("a", "b")));
        let page = b"info{block_size=\"1\",tokens=\"32\",num_gpu_blocks=\"2\",count=\"900\"} 1\n";
        let load = reader.read(page).expect("nothing is missing");
        assert_eq!(load.cache.map(|cache| (cache.block_size, cache.blocks)), Some((32, 900)));
    }
}
