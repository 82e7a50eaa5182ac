//! The fields of a client's body that may reach an engine: one list, for everything that passes
//! bodies on. A field that is not on the list is removed, and an operator may add to the list.
//!
//! Start reading at [`FieldRules::screen`]; [`FieldRules::screen_body`] is for bodies of any kind.

use crate::cursor::Cursor;
use crate::edit::{Change, reshape};
use crate::fields::Fields;
use crate::form_error::FormError;
use crate::grpc::FrameError;
use crate::scan_error::ScanError;
use crate::screening::{RemovedKind, Screening};
use crate::span::{Member, Span};
use crate::strings::unquote;
use std::borrow::Cow;

/// Fields that pass, sorted.
///
/// Source: the public fields of OpenAI's, Anthropic's and Cohere's APIs, and the sampling, template, pooling
/// and scoring extras of vLLM 0.26, SGLang 0.5.23 and llama.cpp. An extra is left out where it runs
/// code of the client, reads a path, names other requests, or opens what an engine keeps to itself.
const ALLOWED: &[&str] = &[
    "activation",
    "add_generation_prompt",
    "add_special_tokens",
    "allowed_token_ids",
    "anthropic_version",
    "apply_softmax",
    "audio",
    "audio_data",
    "background",
    "bad_words",
    "best_of",
    "cache_hit_threshold",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "container",
    "context_management",
    "continue_final_message",
    "conversation",
    "data",
    "data_1",
    "data_2",
    "detokenize",
    "dimensions",
    "documents",
    "dry_allowed_length",
    "dry_base",
    "dry_multiplier",
    "dynatemp_exponent",
    "dynatemp_range",
    "ebnf",
    "echo",
    "embed_dtype",
    "embedding_types",
    "enable_thinking",
    "encoding_format",
    "endianness",
    "extra_key",
    "features",
    "frequency_penalty",
    "function_call",
    "functions",
    "grammar",
    "guided_choice",
    "guided_decoding_backend",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "guided_whitespace_pattern",
    "ignore_eos",
    "image_data",
    "images",
    "include",
    "include_reasoning",
    "include_stop_str_in_output",
    "input",
    "input_ids",
    "input_type",
    "inputs",
    "instruct",
    "instruction",
    "instructions",
    "item_first",
    "items",
    "json_schema",
    "label_token_ids",
    "language",
    "late_chunking",
    "length_penalty",
    "logit_bias",
    "logprob_start_len",
    "logprobs",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "max_tokens_per_doc",
    "max_tokens_per_query",
    "max_tool_calls",
    "mcp_servers",
    "media_io_kwargs",
    "messages",
    "metadata",
    "min_p",
    "min_tokens",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "mm_processor_kwargs",
    "modalities",
    "model",
    "moderation",
    "n",
    "n_predict",
    "no_stop_trim",
    "normalize",
    "output_compression",
    "output_config",
    "output_dimension",
    "output_format",
    "padding",
    "parallel_tool_calls",
    "partial_images",
    "prediction",
    "presence_penalty",
    "previous_response_id",
    "prompt",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "prompt_logprobs",
    "quality",
    "queries",
    "query",
    "reasoning",
    "reasoning_effort",
    "reasoning_format",
    "regex",
    "repeat_last_n",
    "repeat_penalty",
    "repetition_detection",
    "repetition_penalty",
    "response_format",
    "return_documents",
    "return_logprob",
    "return_text_in_logprobs",
    "return_token_ids",
    "return_token_strs",
    "return_tokens_as_token_ids",
    "safety_identifier",
    "sampling_params",
    "seed",
    "separate_reasoning",
    "service_tier",
    "size",
    "skip_special_tokens",
    "softmax",
    "spaces_between_special_tokens",
    "speed",
    "stop",
    "stop_regex",
    "stop_sequences",
    "stop_token_ids",
    "store",
    "stream",
    "stream_format",
    "stream_options",
    "stream_reasoning",
    "structured_outputs",
    "style",
    "suffix",
    "system",
    "task",
    "temperature",
    "text",
    "text_1",
    "text_2",
    "texts",
    "thinking",
    "thinking_budget",
    "thinking_token_budget",
    "title",
    "token_ids",
    "token_ids_logprob",
    "tokens",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_logprobs_num",
    "top_n",
    "top_p",
    "truncate",
    "truncate_prompt_tokens",
    "truncation",
    "truncation_side",
    "typical_p",
    "use_activation",
    "use_beam_search",
    "user",
    "verbosity",
    "video_data",
    "vllm_xargs",
    "voice",
    "web_search_options",
    "xtc_probability",
    "xtc_threshold",
];

/// Fields that only proxies and pickers set. No operator can let a client's copy pass: a malformed
/// hand-over ends a vLLM with all its requests, and a request's name lets one abort another's.
///
/// Source: request fields of vLLM 0.26, SGLang 0.5.23 and TensorRT-LLM 1.2.
const STEERING: &[&str] = &[
    "data_parallel_rank",
    "disagg_prefill_dp_rank",
    "disaggregated_params",
    "ec_transfer_params",
    "kv_transfer_params",
    // Both name the request where no header does: SGLang reads the first, vLLM the second.
    "request_id",
    "rid",
    "routed_dp_rank",
];
/// The beginning of the names of SGLang's fields for the hand-over of KV.
const STEERING_PREFIX: &str = "bootstrap_";

/// Fields that choose what an engine runs and in which order. They pass only where an operator names
/// them.
const PRIVILEGED: &[&str] = &[
    "custom_logit_processor",
    "custom_params",
    "logits_processors",
    "lora_path",
    "priority",
    "session_params",
];

/// Allowed fields whose own members engines read as parameters of the request. The members that
/// steer or are privileged are removed; the others are the engine's own extras.
const CONTAINERS: &[&str] = &["sampling_params", "vllm_xargs", "extra_args"];
/// Depth to which containers may be nested.
const DEPTH_MAX: usize = 4;

/// Fields that pass in forms, beside those of [`ALLOWED`].
///
/// Source: OpenAI's transcriptions, translations and edits of images, and vLLM 0.32.
const IN_FORMS: &[&str] = &[
    "chunking_strategy",
    "file",
    "hotwords",
    "image",
    "input_fidelity",
    "known_speaker_names",
    "known_speaker_references",
    "mask",
    "stream_continuous_usage_stats",
    "stream_include_usage",
    "timestamp_granularities",
    "to_language",
];

/// Field that proxies and pickers read, and that no engine needs.
pub const EXTENSIONS: &str = "nvext";
/// The name by which an operator lets every field pass that neither steers nor is privileged.
const ANY: &str = "*";

/// The rules for a client's fields: the list of this module and the fields that an operator adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldRules {
    named: Vec<String>,
}

/// A field that no operator may let pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} steers engines, and only proxies and pickers may set it")]
pub struct SteeringField(pub String);

/// Why a body cannot be screened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScreenError {
    /// Parameters of the engine stand too deep in one another.
    #[error("parameters of the engine are nested deeper than {DEPTH_MAX}")]
    TooDeep,
    /// The body has more top-level fields than are kept.
    #[error("the body has more than {0} fields")]
    TooManyFields(usize),
    /// The body says that it is JSON, or says nothing, and is no JSON object.
    #[error("the body is no JSON object: {0}")]
    Json(#[from] ScanError),
    /// The body is a form that readers may take for different ones.
    #[error(transparent)]
    Form(#[from] FormError),
    /// The body of a known gRPC method is no message.
    #[error("invalid or unsupported gRPC payload: {0}")]
    Grpc(#[from] FrameError),
}

impl FieldRules {
    /// The rules with further fields that may pass; `*` stands for all that are on no list.
    ///
    /// # Errors
    ///
    /// [`SteeringField`] for a field that no client may set.
    pub fn new(named: &[String]) -> Result<Self, SteeringField> {
        match named.iter().find(|name| steers(name)) {
            Some(name) => Err(SteeringField(name.clone())),
            None => Ok(Self { named: named.to_vec() }),
        }
    }

    /// The rules for bodies that a proxy or picker may read next: `nvext` passes too.
    #[must_use]
    pub fn with_extensions(mut self) -> Self {
        self.named.push(EXTENSIONS.to_owned());
        self
    }

    /// Finds the fields of a scanned body that must not reach an engine.
    ///
    /// # Errors
    ///
    /// [`ScreenError`] for a body that nobody sends in good faith.
    pub fn screen(&self, body: &[u8], fields: &Fields) -> Result<Screening, ScreenError> {
        let mut screening = Screening::default();
        let all = fields.all().map_err(ScreenError::TooManyFields)?;
        for member in all {
            let name = name_of(body, member);
            if !self.allows(&name) {
                screening.note(&name, kind_of(&name), Some(member.value.of(body)));
                screening.removed.push(*member);
            } else if CONTAINERS.contains(&&*name) {
                let inner = self.screen_inner(body, member.value, &name, &mut screening)?;
                screening.inner.extend(inner);
            }
        }
        Ok(screening)
    }

    /// Finds the changes of the container `path` that stands at `span`, where it is an object.
    fn screen_inner(
        &self,
        body: &[u8],
        span: Span,
        path: &str,
        screening: &mut Screening,
    ) -> Result<Vec<Change>, ScreenError> {
        if body[span.start] != b'{' {
            return Ok(Vec::new());
        }
        // No container has a dot in its name.
        if path.matches('.').count() >= DEPTH_MAX {
            return Err(ScreenError::TooDeep);
        }
        let mut members = Vec::new();
        // The body was scanned, so the object is sound.
        let _ = Cursor::at(&body[..span.end], span.start).object(1, |member| members.push(member));
        let (mut removed, mut changes) = (Vec::new(), Vec::new());
        for member in members {
            let name = name_of(body, &member);
            let kind = kind_of(&name);
            let privileged = kind == RemovedKind::Privileged && !self.names(&name);
            if privileged || kind == RemovedKind::Steering {
                screening.note(&format!("{path}.{name}"), kind, Some(member.value.of(body)));
                removed.push(member);
            } else if CONTAINERS.contains(&&*name) {
                let path = format!("{path}.{name}");
                changes.extend(self.screen_inner(body, member.value, &path, screening)?);
            }
        }
        changes.extend(reshape(body, span, &mut removed, Vec::new()));
        Ok(changes)
    }

    /// Whether a field that stands at the top of a body passes.
    pub(crate) fn allows(&self, name: &str) -> bool {
        let is_unknown = || !steers(name) && !PRIVILEGED.contains(&name) && name != EXTENSIONS;
        ALLOWED.binary_search(&name).is_ok() || self.names(name) || self.names(ANY) && is_unknown()
    }

    /// Whether a field of a form passes. What it holds cannot be looked into as in JSON.
    pub(crate) fn allows_in_form(&self, name: &str) -> bool {
        IN_FORMS.contains(&name) || !CONTAINERS.contains(&name) && self.allows(name)
    }

    /// Whether fields pass that are on no list and have no name.
    pub(crate) fn allows_unknown(&self) -> bool {
        self.names(ANY)
    }

    fn names(&self, name: &str) -> bool {
        self.named.iter().any(|named| named == name)
    }
}

fn steers(name: &str) -> bool {
    STEERING.contains(&name) || name.starts_with(STEERING_PREFIX)
}

/// The kind of a field that does not pass.
pub(crate) fn kind_of(name: &str) -> RemovedKind {
    match name {
        name if steers(name) => RemovedKind::Steering,
        name if PRIVILEGED.contains(&name) => RemovedKind::Privileged,
        _ => RemovedKind::Unknown,
    }
}

fn name_of<'a>(body: &'a [u8], member: &Member) -> Cow<'a, str> {
    let key = Span { start: member.key_start, end: member.key_end }.of(body);
    // A key of a scanned body is a sound string; what is no text is on no list.
    unquote(key).unwrap_or_default()
}

#[cfg(test)]
#[path = "allow_tests.rs"]
mod tests;
