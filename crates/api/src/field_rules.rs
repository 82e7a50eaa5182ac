//! The fields of each API that are not plain values of a request: who reads them, which of them change
//! nothing, and which are refused.
//!
//! Source: the parameters of the Python clients `openai` 3.52.0, `anthropic` 2.12.0 with its betas, and
//! `cohere` 7.3.1; Jina's reference; fields that vLLM, SGLang and NVIDIA Dynamo add.

use crate::object::MemberWeight;
use stator_body::Api;

/// Treatment of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Something reads it beside the API's own struct.
    Honoured,
    /// The field changes nothing, and a header of the answer names it.
    Ignored,
    /// A request that asks for something by it is refused.
    Refused,
}

/// The treatment of one field.
#[derive(Clone, Copy, Debug)]
pub struct FieldRule {
    /// The field, as it is written.
    pub name: &'static str,
    /// APIs that have it.
    apis: &'static [Api],
    /// The treatment.
    pub standing: Standing,
    /// The reason, for clients and the manual.
    pub why: &'static str,
    /// The least value that asks for something.
    pub(crate) asks_from: MemberWeight,
}

const CHAT: &[Api] = &[Api::ChatCompletions];
const BOTH: &[Api] = &[Api::ChatCompletions, Api::Completions];
const RESPONSES: &[Api] = &[Api::Responses];
const TEXTS: &[Api] =
    &[Api::ChatCompletions, Api::Completions, Api::Responses, Api::Messages, Api::CountTokens];
const OPENAI: &[Api] = &[Api::ChatCompletions, Api::Completions, Api::Responses];
const MESSAGES: &[Api] = &[Api::Messages, Api::CountTokens];
const TEXT: &[Api] =
    &[Api::ChatCompletions, Api::Completions, Api::Responses, Api::Messages, Api::CountTokens];
const VECTORS: &[Api] = &[Api::Embeddings, Api::Pooling, Api::Classify];
const RANKING: &[Api] = &[Api::Rerank];
const SCORES: &[Api] = &[Api::Rerank, Api::Score];
const POOLED: &[Api] = &[Api::Embeddings, Api::Pooling, Api::Classify, Api::Rerank, Api::Score];
const ALL: &[Api] = &[
    Api::ChatCompletions,
    Api::Completions,
    Api::Responses,
    Api::Messages,
    Api::CountTokens,
    Api::Embeddings,
    Api::Pooling,
    Api::Classify,
    Api::Rerank,
    Api::Score,
];

/// Every rule.
pub const RULES: &[FieldRule] = &[
    honoured(ALL, "priority", "urgency; smaller is sooner, as in vLLM"),
    ignored(BOTH, "user", "a name of the client's user"),
    ignored(BOTH, "safety_identifier", "a name of the client's user"),
    ignored(BOTH, "metadata", "notes of the client"),
    ignored(OPENAI, "prompt_cache_retention", "prefixes stay cached while there is room"),
    ignored(OPENAI, "prompt_cache_options.mode", "prefixes are cached without being asked"),
    ignored(OPENAI, "prompt_cache_options.ttl", "prefixes stay cached while there is room"),
    ignored(OPENAI, "prompt_cache_options.comparison_response_id", "usage says what was cached"),
    refused(OPENAI, "prompt_cache_options.prewarm", "a request without an answer has max_tokens 1"),
    ignored(CHAT, "prediction", "it makes an answer faster, never different"),
    ignored(OPENAI, "request_id", "the header x-request-id names a request"),
    ignored(OPENAI, "rid", "the header x-request-id names a request"),
    ignored(BOTH, "stream_interval", "tokens go out as they come"),
    ignored(BOTH, "spaces_between_special_tokens", "the model's tokenizer decides about spaces"),
    refused(OPENAI, "session_id", "the header x-session-id names a session"),
    refused(CHAT, "store", "answers are not stored; /v1/responses stores them"),
    refused(CHAT, "verbosity", "open models have no such parameter"),
    refused(BOTH, "moderation", "nothing here judges texts"),
    refused(CHAT, "chat_template_args", "the field is called chat_template_kwargs"),
    refused(BOTH, "length_penalty", "it belongs to beam search"),
    refused(BOTH, "early_stopping", "it belongs to beam search"),
    refused(BOTH, "logits_processors", "requests bring no code"),
    refused(BOTH, "custom_logit_processor", "requests bring no code"),
    refused(BOTH, "return_tokens_as_token_ids", "return_token_ids gives the ids"),
    refused(BOTH, "repetition_detection", "no engine here has it"),
    refused(ALL, "kv_transfer_params", "no client steers engines"),
    refused(ALL, "ec_transfer_params", "no client steers engines"),
    refused(ALL, "disaggregated_params", "no client steers engines"),
    refused(ALL, "vllm_xargs", "no client steers engines"),
    refused(ALL, "bootstrap_host", "no client steers engines"),
    numbered(ALL, "bootstrap_port", "no client steers engines"),
    numbered(ALL, "bootstrap_room", "no client steers engines"),
    numbered(ALL, "data_parallel_rank", NO_PIN),
    numbered(ALL, "routed_dp_rank", NO_PIN),
    numbered(ALL, "disagg_prefill_dp_rank", NO_PIN),
    refused(TEXTS, "watermarking", "answers have no watermark"),
    refused(TEXTS, "mm_processor_kwargs", "prompts are text"),
    refused(TEXTS, "media_io_kwargs", "prompts are text"),
    refused(TEXTS, "mm_payload", "prompts are text"),
    refused(TEXTS, "return_mm_kwargs", "prompts are text"),
    refused(BOTH, "return_prompt_text", "echo repeats the prompt of a completion"),
    refused(BOTH, "return_token_offsets", "/tokenize gives the tokens of a text"),
    refused(BOTH, "routed_experts_prompt_start", "answers do not name experts"),
    refused(BOTH, "logprob_token_ids", "top_logprobs gives those of the likeliest tokens"),
    refused(BOTH, "lora_path", "an adapter is asked for by its name in model"),
    refused(BOTH, "suffix", "models are not asked to fill gaps"),
    refused(BOTH, "audio", "answers are text"),
    refused(BOTH, "functions", "the field is called tools"),
    refused(BOTH, "function_call", "the field is called tool_choice"),
    refused(BOTH, "web_search_options", "nothing here searches"),
    refused(BOTH, "prompt_logprobs", "echo with logprobs gives those of a prompt"),
    refused(BOTH, "prompt_embeds", "prompts are text or token ids"),
    refused(BOTH, "use_beam_search", "answers are sampled"),
    refused(BOTH, "bad_words", "logit_bias keeps tokens out"),
    refused(BOTH, "allowed_token_ids", "a guide or logit_bias keeps tokens out"),
    refused(BOTH, "truncate_prompt_tokens", "a prompt that is too long is refused"),
    refused(BOTH, "truncation_side", "a prompt that is too long is refused"),
    refused(BOTH, "chat_template", "the model's own template counts"),
    ignored(BOTH, "stream_options.include_obfuscation", "chunks are not padded"),
    refused(CHAT, "messages[].audio", "prompts are text"),
    refused(CHAT, "messages[].function_call", "the member is called tool_calls"),
    refused(CHAT, "messages[].prefix", "the field is called continue_final_message"),
    ignored(CHAT, "messages[].refusal", "a message has content, or a refusal in its place"),
    ignored(CHAT, "messages[].annotations", NOTE),
    ignored(CHAT, "messages[].phase", NOTE),
    ignored(CHAT, "messages[].id", NOTE),
    ignored(CHAT, "messages[].reasoning_details", "reasoning_content has the thoughts"),
    ignored(CHAT, "messages[].thinking_blocks", "reasoning_content has the thoughts"),
    ignored(CHAT, "messages[].provider_specific_fields", NOTE),
    ignored(CHAT, "messages[].parsed", "content has what was parsed"),
    ignored(CHAT, "messages[].content[].prompt_cache_breakpoint", BREAKPOINT),
    ignored(CHAT, "messages[].content[].annotations", NOTE),
    ignored(CHAT, "messages[].content[].citations", NOTE),
    ignored(CHAT, "messages[].content[].id", NOTE),
    ignored(CHAT, "messages[].content[].index", NOTE),
    ignored(CHAT, "messages[].tool_calls[].extra_content", NOTE),
    ignored(CHAT, "messages[].tool_calls[].provider_specific_fields", NOTE),
    ignored(
        CHAT,
        "messages[].tool_calls[].function.parsed_arguments",
        "arguments has what was parsed",
    ),
    ignored(
        CHAT,
        "messages[].tool_calls[].cache_control",
        "a message or a part of it has the wish",
    ),
    ignored(CHAT, "tools[].defer_loading", DEFERRED),
    ignored(CHAT, "tools[].function.defer_loading", DEFERRED),
    honoured(ALL, "nvext.agent_hints", "urgency, the answer's expected length, the next turn"),
    ignored(ALL, "nvext.agent_hints.latency_sensitivity", "Dynamo has given it up for priority"),
    honoured(ALL, "nvext.routing_constraints", "labels that a worker must have"),
    refused(ALL, "nvext.annotations", "no events are added to a stream; usage has the counts"),
    refused(ALL, "nvext.extra_fields", "no fields are added to answers; headers name the worker"),
    refused(ALL, "nvext.greed_sampling", "ask with temperature 0"),
    refused(ALL, "nvext.use_raw_prompt", "/v1/completions takes prompts as they are"),
    refused(POOLED, "nvext.max_thinking_tokens", "vectors are made without thoughts"),
    numbered(ALL, "nvext.backend_instance_id", NO_PIN),
    numbered(ALL, "nvext.prefill_worker_id", NO_PIN),
    numbered(ALL, "nvext.decode_worker_id", NO_PIN),
    numbered(ALL, "nvext.dp_rank", NO_PIN),
    numbered(ALL, "nvext.prefill_dp_rank", NO_PIN),
    refused(ALL, "nvext.metadata_upload", "nothing is uploaded"),
    honoured(TEXT, "nvext.cache_control", "time for which the prompt stays cached"),
    refused(POOLED, "nvext.cache_control", "prompts of vectors are not pinned"),
    refused(ALL, "nvext.do_not_queue", "the header x-llm-d-inference-ttl bounds the wait"),
    refused(RESPONSES, "background_options", "the queue decides when work begins"),
    refused(RESPONSES, "access_programs", "it belongs to OpenAI's servers"),
    ignored(RESPONSES, "client_metadata", "notes of the client"),
    refused(RESPONSES, "context_management", "conversations are not compacted here"),
    refused(RESPONSES, "conversation", "conversations are not kept; previous_response_id is"),
    refused(RESPONSES, "image", "answers are text"),
    refused(RESPONSES, "moderation", "nothing here judges texts"),
    refused(RESPONSES, "personality", "instructions say how the model speaks"),
    refused(RESPONSES, "prompt", "prompts are not kept here"),
    refused(RESPONSES, "previous_input_messages", "input has the conversation"),
    refused(
        RESPONSES,
        "enable_response_messages",
        "a response has items, and no messages beside them",
    ),
    ignored(MESSAGES, "metadata", "a name of the client's user"),
    ignored(MESSAGES, "diagnostics", "it belongs to Anthropic's servers"),
    ignored(MESSAGES, "user_profile_id", "a name of the client's user"),
    refused(MESSAGES, "workspace_id", "an API key or the header x-tenant-id keeps clients apart"),
    ignored(MESSAGES, "betas", "the header anthropic-beta has them, and is ignored"),
    refused(MESSAGES, "container", "nothing runs code here"),
    refused(MESSAGES, "mcp_servers", "nothing here calls tools"),
    refused(MESSAGES, "inference_geo", "one fleet is in one place"),
    refused(MESSAGES, "billing_policy", "nothing is billed here"),
    refused(MESSAGES, "fallback_credit_token", "nothing is billed here"),
    refused(MESSAGES, "fallbacks", "the model that is named answers"),
    refused(MESSAGES, "compaction", "conversations are not compacted here"),
    refused(MESSAGES, "thread", "conversations are not kept here"),
    refused(MESSAGES, "output_format", "the field is called output_config.format"),
    ignored(POOLED, "user", "a name of the client's user"),
    ignored(POOLED, "request_id", "the header x-request-id names a request"),
    ignored(POOLED, "rid", "the header x-request-id names a request"),
    refused(POOLED, "truncate_prompt_tokens", "a text that is too long is refused"),
    refused(POOLED, "truncation_side", "a text that is too long is refused"),
    refused(POOLED, "mm_processor_kwargs", "inputs are text or token ids"),
    refused(POOLED, "media_io_kwargs", "inputs are text or token ids"),
    refused(POOLED, "padding", "inputs are not padded"),
    refused(VECTORS, "messages", "input takes texts and token ids"),
    refused(VECTORS, "add_generation_prompt", "no template is applied"),
    refused(VECTORS, "continue_final_message", "no template is applied"),
    refused(VECTORS, "chat_template", "no template is applied"),
    refused(VECTORS, "embed_dtype", "values are floats of 32 bits"),
    refused(VECTORS, "endianness", "bytes come little end first"),
    refused(VECTORS, "embedding_type", "the field is called encoding_format"),
    refused(VECTORS, "late_chunking", "each input is a prompt of its own"),
    refused(VECTORS, "return_multivector", "an input has one vector"),
    refused(VECTORS, "prompt_name", "nothing is put before a text"),
    refused(VECTORS, "truncate", "a text that is too long is refused"),
    refused(SCORES, "instruction", "nothing is put before a text"),
    refused(POOLED, "chat_template_kwargs", "no template is applied"),
    refused(RANKING, "rank_fields", "a document has one text"),
    refused(RANKING, "relevant_spans", "a document is ranked as a whole"),
    refused(RANKING, "max_chunks_per_doc", "a document is ranked as a whole"),
];

/// Fields of bodies that go on to engines which read them themselves, where nobody on the way has
/// obeyed them. They count before [`RULES`].
pub const PASSED: &[FieldRule] = &[
    refused(ALL, "priority", "engines get it where their operator lets it pass, by pass-fields"),
    ignored(ALL, "nvext.agent_hints", "such an engine's queue is its own"),
    ignored(ALL, "nvext.agent_hints.speculative_prefill", "nobody here knows the next turn"),
    ignored(ALL, "nvext.routing_constraints", "no picker has chosen the engine"),
    ignored(ALL, "nvext.token_data", "such an engine makes tokens of the prompt itself"),
    numbered(ALL, "nvext.max_thinking_tokens", "the field is called thinking_token_budget"),
    refused(ALL, "nvext.cache_control", "such an engine pins nothing for clients"),
];

/// The reason for which notes on earlier answers change nothing.
const NOTE: &str = "a note on an earlier answer, which no template shows";
/// The reason for which breakpoints of the cache change nothing.
const BREAKPOINT: &str = "prefixes are cached without being asked";
/// The reason for which no tool is loaded later.
const DEFERRED: &str = "all tools are shown from the beginning";
/// The reason for which no field names a worker.
const NO_PIN: &str =
    "no client chooses its worker; nvext.routing_constraints names labels that it must have";

const fn rule(
    apis: &'static [Api],
    name: &'static str,
    standing: Standing,
    why: &'static str,
) -> FieldRule {
    FieldRule { name, apis, standing, why, asks_from: MemberWeight::Full }
}

const fn honoured(apis: &'static [Api], name: &'static str, why: &'static str) -> FieldRule {
    rule(apis, name, Standing::Honoured, why)
}

const fn ignored(apis: &'static [Api], name: &'static str, why: &'static str) -> FieldRule {
    rule(apis, name, Standing::Ignored, why)
}

const fn refused(apis: &'static [Api], name: &'static str, why: &'static str) -> FieldRule {
    rule(apis, name, Standing::Refused, why)
}

/// A refused field whose zero asks for something too: it names the first of some, or is a bound.
const fn numbered(apis: &'static [Api], name: &'static str, why: &'static str) -> FieldRule {
    FieldRule { asks_from: MemberWeight::Empty, ..rule(apis, name, Standing::Refused, why) }
}

impl FieldRule {
    /// Whether the field names a worker.
    pub(crate) fn is_pin(&self) -> bool {
        self.why == NO_PIN
    }
}

/// The rules of one API.
pub fn of(api: Api) -> impl Iterator<Item = &'static FieldRule> {
    RULES.iter().filter(move |rule| rule.apis.contains(&api))
}

/// The rule for a field of one API.
pub(crate) fn find(api: Api, name: &str) -> Option<&'static FieldRule> {
    of(api).find(|rule| rule.name == name)
}

/// The rule for a field of a body that passes; of an API without rules the rule that any has counts.
pub(crate) fn find_passed(api: Option<Api>, name: &str) -> Option<&'static FieldRule> {
    let has_name = |rule: &&FieldRule| rule.name == name;
    let known = api.filter(|api| of(*api).next().is_some());
    let rule = match known {
        Some(api) => find(api, name),
        None => RULES.iter().find(has_name),
    };
    PASSED.iter().find(has_name).or(rule)
}
