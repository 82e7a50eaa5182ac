//! Settings of how prompts become tokens.

use super::PluginSettings;
use super::media::{self, MediaEstimate};
use crate::context::BuildContext;
use crate::params::Params;
use stator_epp_scheduler::plugin::PluginParts;
use std::time::Duration;

/// Settings of `token-producer`.
#[derive(Clone, Debug, PartialEq)]
pub enum Tokens {
    /// Four bytes of text are a token, and media count for what they show.
    Estimate(MediaEstimate),
    /// A tokenizer of this model.
    Model {
        /// The model.
        name: String,
        /// A vLLM server that renders prompts, where one is configured; else the tokenizer runs
        /// in this process.
        render: Option<Render>,
    },
}

/// A vLLM server that renders prompts to tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Render {
    /// Its address.
    pub url: String,
    /// Longest wait for the tokens of a text.
    pub timeout: Duration,
    /// Longest wait for the tokens of a prompt with images.
    pub multimodal_timeout: Duration,
    /// Authorities to trust instead of the system's, as a PEM file.
    pub ca_cert_path: Option<String>,
    /// Certificate to show, and its key, as PEM files.
    pub client_cert: Option<(String, String)>,
    /// Whether any certificate will do.
    pub insecure_skip_verify: bool,
}

/// `token-producer`: with `modelName` prompts are tokenized, by the server that `vllm` names or
/// in this process; without, their tokens are estimated.
pub(crate) fn token_producer(params: &mut Params<'_>, context: &mut BuildContext) -> PluginParts {
    // Older configurations say so in words.
    params.choice("backend", &[("vllm", ()), ("estimate", ())]);
    let (renders, estimates) = (params.has("vllm"), params.has("estimate"));
    let model = params.text("modelName");
    let render = params.within("vllm", render);
    let media = params.within("estimate", media::estimate);
    if estimates && (renders || model.is_some()) {
        params.wrong("estimate", "cannot be there together with modelName or vllm");
    }
    if renders && model.is_none() {
        params.wrong("modelName", "is required with vllm");
    }
    let tokens = match model {
        Some(name) => Tokens::Model { name, render: renders.then_some(render) },
        None => Tokens::Estimate(media),
    };
    context.settle(PluginSettings::Tokens(tokens))
}

fn render(params: &mut Params<'_>) -> Render {
    let (cert, key) = (params.text("clientCertPath"), params.text("clientKeyPath"));
    if cert.is_some() != key.is_some() {
        params.wrong("clientCertPath", "needs clientKeyPath, and the other way round");
    }
    let url = params.text("url").unwrap_or_else(|| "http://localhost:8000".to_owned());
    if !url.starts_with("http://") && !url.starts_with("https://") {
        params.wrong("url", format!("{url:?} does not begin with http:// or https://"));
    }
    Render {
        url,
        timeout: params.duration("timeout", Duration::from_secs(5)),
        multimodal_timeout: params.duration("mmTimeout", Duration::from_secs(30)),
        ca_cert_path: params.text("caCertPath"),
        client_cert: cert.zip(key),
        insecure_skip_verify: params.flag("insecureSkipVerify", false),
    }
}
