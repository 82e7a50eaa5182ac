//! Loads the model and builds the engines that the settings name.

use crate::config::{EngineSettings, OwnEngine};
use crate::kv::tiers::{TierOrder, WorkerTiers};
use crate::served_model::{LoadedEngine, LoadedModel, RuleMaker};
use anyhow::Context;
use serde::Deserialize;
use stator_engine::model_files::ModelFiles;
use stator_engine::sim::{self, SimOptions};
use stator_engine::{ModelInfo, cpu};
use stator_guide::GuideFactory;
use stator_model::Tokenizer;
use stator_protos::discovery::ModelRecord;
use stator_timing::{PRESETS, Timing};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Name of the model inside the binary.
const TINY_MODEL: &str = "stator-tiny";

/// Files that a proxy needs to speak for a model, where the model has them.
const PROXY_FILES: [&str; 7] = [
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Loads what the agent is to serve, and the tiers of its engines, as many as engines or none.
/// Blocks for as long as reading the weights takes.
///
/// # Errors
///
/// When the model's folder cannot be read or holds something that no engine here runs, or a tier
/// cannot be opened.
pub(crate) fn load(
    settings: &EngineSettings,
    tiers: Option<TierOrder>,
) -> anyhow::Result<(LoadedModel, Vec<WorkerTiers>)> {
    let files = files(settings.model.as_deref())?;
    let (info, engines, tiers) = match settings.kind {
        OwnEngine::Builtin => builtin(&files, settings, tiers)?,
        OwnEngine::Sim => {
            let (info, engines) = simulated(&files, settings)?;
            (info, engines, Vec::new())
        }
    };
    let rules = match settings.kind {
        OwnEngine::Builtin => guides(&files, &info),
        // Its tokens mean nothing.
        OwnEngine::Sim => None,
    };
    let fits = settings.options.total_blocks.saturating_mul(settings.options.block_size);
    let configured = settings.options.context_length.unwrap_or(u32::MAX);
    let loaded = LoadedModel {
        model: ModelRecord {
            name: name(settings),
            context_length: info.context_length.min(configured).min(fits),
            block_size: settings.options.block_size,
            vocab_size: info.vocab_size,
        },
        files: proxy_files(&files),
        engines,
        rules: rules.map(|guides| Arc::new(guides) as Arc<dyn RuleMaker>),
    };
    Ok((loaded, tiers))
}

/// The files that proxies ask for, by base name.
pub(crate) fn proxy_files(files: &ModelFiles) -> Vec<(String, Vec<u8>)> {
    let content = |name: &str| files.get(name).map(|bytes| (name.to_owned(), bytes.to_vec()));
    PROXY_FILES.iter().filter_map(|name| content(name)).collect()
}

fn files(dir: Option<&Path>) -> anyhow::Result<ModelFiles> {
    match dir {
        Some(dir) => ModelFiles::open(dir).context("model"),
        None => Ok(ModelFiles::embedded(tiny_model())),
    }
}

/// The model that is part of the binary.
fn tiny_model() -> &'static [(&'static str, &'static [u8])] {
    macro_rules! file {
        ($name:literal) => {
            ($name, include_bytes!(concat!("../tiny-model/", $name)))
        };
    }
    &[
        file!("chat_template.jinja"),
        file!("config.json"),
        file!("generation_config.json"),
        file!("model.safetensors"),
        file!("special_tokens_map.json"),
        file!("tokenizer.json"),
        file!("tokenizer_config.json"),
    ]
}

/// The name that was given, else the folder's.
fn name(settings: &EngineSettings) -> String {
    let folder = || {
        let dir = settings.model.as_ref()?;
        // `models/x/..` or `.` has no name of its own; the folder it leads to has.
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.clone());
        Some(dir.file_name()?.to_string_lossy().into_owned())
    };
    settings.model_name.clone().or_else(folder).unwrap_or_else(|| TINY_MODEL.into())
}

fn builtin(
    files: &ModelFiles,
    settings: &EngineSettings,
    tiers: Option<TierOrder>,
) -> anyhow::Result<(ModelInfo, Vec<LoadedEngine>, Vec<WorkerTiers>)> {
    let model = Arc::new(cpu::Model::load(files).context("model")?);
    let options = &settings.options;
    let engines = (0..settings.workers).map(|_| cpu::engine(model.clone(), options.clone()));
    let engines = engines.collect::<Result<Vec<_>, _>>()?;
    let (engines, tiers) = match tiers {
        Some(order) => order.connect(engines, options)?,
        None => (engines, Vec::new()),
    };
    let loaded = |engine| LoadedEngine {
        engine: Box::new(engine),
        total_blocks: options.total_blocks,
        computes: true,
    };
    Ok((model.info().clone(), engines.into_iter().map(loaded).collect(), tiers))
}

/// Factory of guides for answers; none for a model whose tokens have no known text.
fn guides(files: &ModelFiles, info: &ModelInfo) -> Option<GuideFactory> {
    /// The engine encodes nothing, so nothing is kept of what was encoded.
    const CACHE_MAX_BYTES: u64 = 0;
    let tokenizer = Tokenizer::new(&files.get("tokenizer.json")?, CACHE_MAX_BYTES);
    let tokenizer = tokenizer.map_err(|error| tracing::warn!(error, "no guided decoding")).ok()?;
    let tokens = (0..info.vocab_size).map(|id| tokenizer.token_bytes(id).into_owned()).collect();
    let guides = GuideFactory::new(tokens, tokenizer.special_tokens(), &info.eos_token_ids);
    guides.map_err(|error| tracing::warn!(%error, "no guided decoding")).ok()
}

fn simulated(
    files: &ModelFiles,
    settings: &EngineSettings,
) -> anyhow::Result<(ModelInfo, Vec<LoadedEngine>)> {
    let mut model = cpu::model_info(files).context("model")?;
    if let Some(context_length) = settings.options.context_length {
        // Nothing is computed, so a simulated model may be given any length.
        model.context_length = context_length;
    }
    let preset = &settings.sim.preset;
    let timing = match settings.sim.step {
        Some(step) => Timing::fixed(step),
        None => Timing::preset(preset).with_context(|| {
            let names: Vec<_> = PRESETS.iter().map(|preset| preset.name).collect();
            format!("sim-preset: {preset:?} is none of none, {}", names.join(", "))
        })?,
    };
    let answer_tokens = words(files, &model).into();
    let options =
        SimOptions { model: model.clone(), answer_tokens, timing, speedup: settings.sim.speedup };
    let engines = (0..settings.workers).map(|_| {
        Ok(LoadedEngine {
            engine: Box::new(sim::engine(options.clone(), settings.options.clone())?),
            total_blocks: settings.options.total_blocks,
            computes: false,
        })
    });
    Ok((model, engines.collect::<anyhow::Result<_>>()?))
}

/// Tokens that read as words of English, so that a simulated answer can be read; none where the
/// tokenizer's vocabulary is not written with leading spaces. They change no behaviour.
fn words(files: &ModelFiles, model: &ModelInfo) -> Vec<u32> {
    #[derive(Deserialize)]
    struct Tokenizer {
        model: Vocabulary,
    }
    #[derive(Deserialize)]
    struct Vocabulary {
        vocab: HashMap<String, u32>,
    }
    let Some(json) = files.get("tokenizer.json") else { return Vec::new() };
    let Ok(tokenizer) = serde_json::from_slice::<Tokenizer>(&json) else { return Vec::new() };
    let is_word = |token: &str| {
        let word = token.strip_prefix('Ġ').or_else(|| token.strip_prefix('▁'));
        word.is_some_and(|w| w.len() > 2 && w.bytes().all(|byte| byte.is_ascii_lowercase()))
    };
    let mut ids: Vec<u32> = tokenizer
        .model
        .vocab
        .into_iter()
        .filter(|(token, id)| *id < model.vocab_size && is_word(token))
        .map(|(_, id)| id)
        .collect();
    // In order, so that the same prompt has the same answer in every process.
    ids.sort_unstable();
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineArgs;
    use clap::{Args, Command, FromArgMatches};

    fn check(args: &[&str]) -> anyhow::Result<LoadedModel> {
        let command = EngineArgs::augment_args(Command::new("agent").no_binary_name(true));
        let args = EngineArgs::from_arg_matches(&command.try_get_matches_from(args)?)?;
        Ok(load(&EngineSettings::try_from(args)?, None)?.0)
    }

    #[test]
    fn the_tiny_model_needs_no_folder() {
        for kind in ["--engine=builtin", "--engine=sim"] {
            let loaded = check(&[kind, "--workers=3", "--total-blocks=64"]).unwrap();
            assert_eq!((loaded.model.name.as_str(), loaded.engines.len()), ("stator-tiny", 3));
            assert_eq!(loaded.model.context_length, 1024);
            let names: Vec<_> = loaded.files.iter().map(|(name, _)| name.as_str()).collect();
            assert!(names.contains(&"tokenizer.json") && !names.contains(&"model.safetensors"));
        }
    }

    #[test]
    fn a_simulated_model_may_be_given_any_context() {
        let loaded = check(&["--engine=sim", "--context-length=131072"]).unwrap();
        assert_eq!(loaded.model.context_length, 131_072);
    }

    #[test]
    fn simulated_answers_are_made_of_words() {
        let files = files(None).unwrap();
        let model = cpu::model_info(&files).unwrap();
        let ids = words(&files, &model);
        assert!(ids.len() > 100 && ids.iter().all(|id| *id < model.vocab_size), "{}", ids.len());
    }

    #[test]
    fn an_unknown_preset_is_refused_with_the_known_ones() {
        let error = check(&["--engine=sim", "--sim-preset=abacus"]).err().unwrap().to_string();
        assert!(error.contains("\"abacus\"") && error.contains("h100-llama-8b"), "{error}");
    }

    #[test]
    fn a_folder_gives_the_model_its_name_unless_one_is_given() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tiny-model");
        let model = format!("--model={dir}");
        assert_eq!(check(&["--engine=sim", &model]).unwrap().model.name, "tiny-model");
        let named = check(&["--engine=sim", &model, "--model-name=x"]).unwrap();
        assert_eq!(named.model.name, "x");
        assert!(check(&["--engine=sim", "--model=/nowhere"]).is_err());
    }
}
