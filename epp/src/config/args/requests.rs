//! Limits and choices of requests.

use super::values::{head_size, size};
use crate::exchange::Interest;
use crate::ext_proc;
use clap::{ArgAction, Args, ValueEnum};
use stator_api::UnknownFields;

/// Limits and choices of requests.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Requests")]
pub struct RequestArgs {
    /// Part of every answer that is watched: `auto` what the configuration needs, and all of it
    /// where it passes through the picker anyway, as full duplex has it; `headers`; `body`; `none`
    /// as `auto`, but ends streams with the request in full duplex too, which spares the cost of
    /// every token and loses answers that begin at the same moment.
    #[arg(long, env = "STATOR_RESPONSE_PATH", default_value = "auto", value_name = "PART")]
    pub response_path: ResponsePath,

    /// Largest request body, for example `64MiB`. Larger ones get 413.
    #[arg(long, env = "STATOR_MAX_BODY_BYTES", default_value = "64MiB", value_name = "SIZE",
          value_parser = size)]
    pub max_body_bytes: u64,

    /// Most bytes of request bodies that are held at once until they are sent on, of all requests
    /// together, at least --max-body-bytes. A request waits a second for room, then gets 503.
    #[arg(long, env = "STATOR_MAX_BODIES_BYTES", default_value = "1GiB", value_name = "SIZE",
          value_parser = size)]
    pub max_bodies_bytes: u64,

    /// Largest head of a request, names and values together, 1KiB to 16MiB. Larger ones get 431.
    #[arg(long, env = "STATOR_MAX_HEADER_BYTES", default_value = "128KiB", value_name = "SIZE",
          value_parser = head_size)]
    pub max_header_bytes: u64,

    /// Most headers of a request, 1 to 10000. Requests with more get 431.
    #[arg(long, env = "STATOR_MAX_HEADERS", default_value_t = 200, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub max_headers: u32,

    /// Largest body that is awaited where the data plane sends it in `STREAMED` mode, for example
    /// `1MiB`. Past it the request is decided by its headers, and its body is screened once it is
    /// whole. As large as the buffer of the data plane's connections, or less: once that is full,
    /// nothing more comes before an answer.
    #[arg(long, env = "STATOR_MAX_STREAMED_BYTES", default_value = "1MiB", value_name = "SIZE",
          value_parser = size)]
    pub max_streamed_bytes: u64,

    /// Further fields of request bodies that may reach an endpoint, comma-separated: `priority`,
    /// `lora_path`. Without this flag only the public fields of OpenAI and Anthropic, `nvext` and
    /// harmless extras of vLLM and SGLang do; others are refused, or removed, counted and named to
    /// the client, wherever the picker sees the body. `*` lets pass what is on no list. Fields that
    /// hand KV over or name requests never pass.
    #[arg(long, env = "STATOR_PASS_FIELDS", value_name = "NAME", value_delimiter = ',')]
    pub pass_fields: Vec<String>,

    /// Treatment of a request with a field that is on no list, such as `temprature`. A field that
    /// steers engines is refused either way.
    #[arg(long, env = "STATOR_UNKNOWN_FIELDS", value_enum, default_value_t, value_name = "WHAT")]
    pub unknown_fields: UnknownFieldsArg,

    /// Refuses requests whose bodies cannot be screened: 403 where the data plane keeps the body to
    /// itself (mode `NONE`, or more than its buffer in `BUFFERED_PARTIAL`), 415 for what is no
    /// JSON, form or known message. Without this flag such bodies pass and are counted.
    #[arg(long, env = "STATOR_REFUSE_UNSCREENED")]
    pub refuse_unscreened: bool,

    /// Lets requests name their endpoint, in `x-stator-worker-id` as answers do, or in NVIDIA
    /// Dynamo's headers: `x-dynamo-worker-instance-id`, `x-dynamo-dp-rank`,
    /// `x-dynamo-prefill-instance-id`, `x-dynamo-prefill-dp-rank` and their older names. No other
    /// endpoint gets the request then. Use this only if all clients are trusted. Without it these
    /// headers have no effect.
    #[arg(long, env = "STATOR_PINS")]
    pub pins: bool,

    /// Form of refusals. That of a field or a header is an error object of the request's API in
    /// either form.
    #[arg(long, env = "STATOR_ERROR_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub error_format: ErrorFormat,

    /// Sends all chosen endpoints, best first, to data planes that take a list.
    #[arg(long, env = "STATOR_FALLBACK_ENDPOINTS")]
    pub fallback_endpoints: bool,

    /// Sends every candidate's score in the dynamic metadata.
    #[arg(long, env = "STATOR_EMIT_ENDPOINT_SCORES", default_value_t = false,
          action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    pub emit_endpoint_scores: bool,

    /// Ignores the data plane's choice of endpoints.
    #[arg(long, env = "STATOR_DISABLE_ENDPOINT_SUBSET_FILTER", default_value_t = false,
          action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    pub disable_endpoint_subset_filter: bool,

    /// Keeps metrics of ext-proc streams.
    #[arg(long, env = "STATOR_ENABLE_GRPC_STREAM_METRICS", default_value_t = false,
          action = ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    pub enable_grpc_stream_metrics: bool,
}

/// Part of every answer that the picker watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ResponsePath {
    /// As much as the configuration needs.
    Auto,
    /// As `auto`, but answers in full duplex may be lost.
    None,
    /// Heads of answers at least.
    Headers,
    /// The whole answer.
    Body,
}

impl From<ResponsePath> for Interest {
    fn from(path: ResponsePath) -> Self {
        match path {
            ResponsePath::Auto | ResponsePath::None => Self::Nothing,
            ResponsePath::Headers => Self::Headers,
            ResponsePath::Body => Self::Body,
        }
    }
}

/// Values of `--unknown-fields`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum UnknownFieldsArg {
    /// The client gets 400 with the field's name.
    #[default]
    Refuse,
    /// The field goes no further, and the answer's header `x-stator-ignored` names it.
    Ignore,
}

impl From<UnknownFieldsArg> for UnknownFields {
    fn from(arg: UnknownFieldsArg) -> Self {
        match arg {
            UnknownFieldsArg::Refuse => Self::Refuse,
            UnknownFieldsArg::Ignore => Self::Ignore,
        }
    }
}

/// Form of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ErrorFormat {
    /// A line of text, as clients of llm-d expect.
    Text,
    /// The error object of the OpenAI API.
    Openai,
}

impl From<ErrorFormat> for ext_proc::ErrorFormat {
    fn from(format: ErrorFormat) -> Self {
        match format {
            ErrorFormat::Text => Self::Plain,
            ErrorFormat::Openai => Self::OpenAi,
        }
    }
}
