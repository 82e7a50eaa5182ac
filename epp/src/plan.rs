//! From what an `EndpointPickerConfig` says to the settings of those who do it.

use crate::config::EppSettings;
use stator_body::{ParserSet, parser};
use stator_engine_signals::fetch::TlsOptions;
use stator_epp_config::{Parser, Plan};
use stator_epp_plugins::settings::{EngineSpecs as Specs, HttpSource, Render, Scheme, Tokens};
use stator_epp_signals::scrape::{EngineSpecs, Mapping, Mappings, ScrapeSettings};
use stator_epp_signals::tokenizer::{RenderError, RenderSettings, Renderer};
use std::path::PathBuf;

/// How metrics pages are read; the flags say what the configuration leaves open.
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
    scrape.interval = source.interval.unwrap_or(scrape.interval);
    if source.scheme == Scheme::Https {
        scrape.tls = Some(tls(source).config()?);
    }
    for engine in &metrics.extractor.engines {
        mappings.add(&engine.name, mapping(engine)?);
    }
    mappings.set_label(&metrics.extractor.engine_label);
    mappings.set_default(&metrics.extractor.default_engine);
    Ok((scrape, mappings))
}

/// The parsers of a plan.
pub(crate) fn parsers(plan: &Plan) -> ParserSet {
    let named = plan.parsers.iter().filter_map(|known| parser(name(*known)).ok());
    ParserSet::new(named.collect())
}

fn name(parser: Parser) -> &'static str {
    match parser {
        Parser::OpenAi => "openai-parser",
        Parser::Anthropic => "anthropic-parser",
        Parser::VllmHttp => "vllmhttp-parser",
        Parser::SglangHttp => "sglanghttp-parser",
        Parser::VllmGrpc => "vllmgrpc-parser",
        Parser::VertexAi => "vertexai-parser",
        Parser::Passthrough => "passthrough-parser",
    }
}

/// The server that renders prompts, where the configuration names one.
///
/// # Errors
///
/// For addresses and certificates that cannot be used.
pub(crate) fn renderer(plan: &Plan) -> Result<Option<Renderer>, RenderError> {
    let Some(Tokens::Model { render: Some(render), .. }) = &plan.tokens else { return Ok(None) };
    let Render { url, timeout, ca_cert_path, client_cert, insecure_skip_verify, .. } = render;
    let tls = TlsOptions {
        insecure_skip_verify: *insecure_skip_verify,
        ca_path: ca_cert_path.as_ref().map(PathBuf::from),
        identity: identity(client_cert.as_ref()),
    };
    let settings =
        RenderSettings { url: url.clone(), timeout: *timeout, tls, ..RenderSettings::default() };
    Renderer::new(settings).map(Some)
}

/// The model whose tokenizer the configuration asks for, to run in this process.
pub(crate) fn tokenizer_model(plan: &Plan) -> Option<&str> {
    match &plan.tokens {
        Some(Tokens::Model { name, render: None }) => Some(name),
        _ => None,
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
    if let (Some(size), Some(blocks)) = (&engine.block_size, &engine.blocks) {
        mapping.cache.values = Some([size.parse()?, blocks.parse()?]);
    }
    Ok(mapping)
}
