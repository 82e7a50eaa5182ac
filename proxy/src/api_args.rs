//! Flags of the API over a fleet: a proxy beside an engine leaves the API to the engine.

use crate::rates::RateLimits;
use crate::standalone::{PostgresPlace, StoreLimits};
use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Args, Command, ValueEnum};
use stator_api::UnknownFields;
use std::ffi::OsStr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Treatment of requests, whatever stands behind.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "HTTP")]
pub struct ApiArgs {
    /// Treatment of a request with a field that its API does not have, such as `temprature`. A
    /// field that would change the answer, and that is not implemented, is refused either way.
    #[arg(
        long,
        env = "STATOR_UNKNOWN_FIELDS",
        value_enum,
        default_value_t = UnknownFieldsArg::Refuse,
        value_name = "WHAT"
    )]
    pub unknown_fields: UnknownFieldsArg,

    /// Origins whose web pages may use the API, comma-separated, such as `https://example.org`; * for
    /// all. Without any, browsers keep pages of other origins from reading answers.
    #[arg(long, env = "STATOR_CORS_ORIGINS", value_name = "ORIGIN", value_delimiter = ',')]
    pub cors_origins: Vec<String>,

    /// Silence after which a stream gets a comment, in milliseconds, so that nobody on its way takes
    /// it for dead: during long prefills above all. Zero sends none. Default: 15 s.
    #[arg(long, env = "STATOR_STREAM_COMMENT_MS", default_value_t = STREAM_COMMENT_MS,
          value_name = "MS", value_parser = clap::value_parser!(u64).range(0..=86_400_000))]
    pub stream_comment_ms: u64,

    /// Requests that each API key may send in a minute; all clients together where there are no keys.
    /// Each proxy counts for itself. Default: no limit.
    #[arg(long, env = "STATOR_REQUESTS_PER_MINUTE", value_name = "COUNT")]
    pub requests_per_minute: Option<NonZeroU32>,

    /// Tokens, of prompts and answers together, that each API key may use in a minute; all clients
    /// together where there are no keys. A request is let in while there are some left. Tokens of
    /// engines that speak for themselves are not counted. Default: no limit.
    #[arg(long, env = "STATOR_TOKENS_PER_MINUTE", value_name = "COUNT")]
    pub tokens_per_minute: Option<NonZeroU32>,

    /// Port of KServe's open inference protocol over gRPC, on the address of the API; 0 picks a free
    /// one and logs it. It has no TLS. Default: none; the API's own port has the protocol as JSON.
    #[arg(long, env = "STATOR_KSERVE_GRPC_PORT", value_name = "PORT")]
    pub kserve_grpc_port: Option<u16>,

    /// Bytes of responses of `/v1/responses` that are kept in memory for clients that come back to
    /// them. Zero keeps none. When it is full, the tenant that holds most loses its oldest. Default:
    /// 256 MiB.
    #[arg(long, env = "STATOR_RESPONSES_MAX_BYTES", default_value_t = RESPONSES_MAX_BYTES,
          value_name = "BYTES", value_parser = clap::value_parser!(u64).range(0..=1 << 40))]
    pub responses_max_bytes: u64,

    /// Place of responses that are kept: `memory`; `sqlite:PATH` for a database of one process, from
    /// which the next one takes them up again; or `postgres://USER@HOST/DATABASE` for one that several
    /// proxies share.
    #[arg(
        long,
        env = "STATOR_RESPONSES_STORE",
        default_value = "memory",
        value_name = "WHERE",
        hide_env_values = true,
        value_parser = PlaceParser
    )]
    pub responses_store: ResponsesPlace,

    /// Number of responses that are kept.
    #[arg(long, env = "STATOR_RESPONSES_MAX", default_value_t = RESPONSES_MAX, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub responses_max: u32,

    /// Longest time for which a response is kept, in seconds. Default: a day.
    #[arg(long, env = "STATOR_RESPONSES_TTL_S", default_value_t = RESPONSES_TTL_S, value_name = "S",
          value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    pub responses_ttl_s: u64,
}

const STREAM_COMMENT_MS: u64 = 15_000;
const RESPONSES_MAX_BYTES: u64 = 256 << 20;
const RESPONSES_MAX: u32 = 100_000;
const RESPONSES_TTL_S: u64 = 86_400;

/// Place of responses that are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ResponsesPlace {
    /// The process's memory.
    #[default]
    Memory,
    /// Memory, and an SQLite database that outlives the process.
    Sqlite(PathBuf),
    /// A PostgreSQL database that processes share, and memory. Boxed: it is large.
    Postgres(Box<PostgresPlace>),
}

impl FromStr for ResponsesPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("sqlite", path)) if !path.is_empty() => Ok(Self::Sqlite(path.into())),
            Some(("postgres" | "postgresql", _)) => Ok(Self::Postgres(Box::new(text.parse()?))),
            _ if text == "memory" => Ok(Self::Memory),
            _ => Err("it must be memory, sqlite:PATH or postgres://USER@HOST/DATABASE".to_owned()),
        }
    }
}

/// Reads a place for the command line. What is wrong is said without the value, which may have a
/// password.
#[derive(Clone)]
struct PlaceParser;

impl TypedValueParser for PlaceParser {
    type Value = ResponsesPlace;

    fn parse_ref(
        &self,
        command: &Command,
        _: Option<&Arg>,
        value: &OsStr,
    ) -> Result<ResponsesPlace, clap::Error> {
        let text = value.to_str().ok_or_else(|| "it is no text".to_owned());
        text.and_then(str::parse).map_err(|why| {
            let fault = format!("--responses-store: {why}\n");
            clap::Error::raw(ErrorKind::ValueValidation, fault).with_cmd(command)
        })
    }
}

/// Values of `--unknown-fields`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum UnknownFieldsArg {
    /// The client gets 400 with the field's name.
    #[default]
    Refuse,
    /// The answer's header `x-stator-ignored` names the field.
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

impl ApiArgs {
    /// Silence after which a stream gets a comment; none where it gets none.
    pub(crate) fn comment_pause(&self) -> Option<Duration> {
        (self.stream_comment_ms > 0).then(|| Duration::from_millis(self.stream_comment_ms))
    }

    /// Limits of each client in a minute.
    pub(crate) fn rate_limits(&self) -> RateLimits {
        RateLimits { requests: self.requests_per_minute, tokens: self.tokens_per_minute }
    }

    /// Bounds of responses that are kept.
    pub(crate) fn store_limits(&self) -> StoreLimits {
        StoreLimits {
            bytes: usize::try_from(self.responses_max_bytes).unwrap_or(usize::MAX),
            responses: self.responses_max as usize,
            ttl: Duration::from_secs(self.responses_ttl_s),
        }
    }

    /// Faults of flags that a proxy beside an engine cannot obey.
    pub(crate) fn faults_beside_an_engine(&self) -> impl Iterator<Item = String> {
        let flags = [
            (!self.cors_origins.is_empty(), "cors-origins"),
            (self.stream_comment_ms != STREAM_COMMENT_MS, "stream-comment-ms"),
            (self.requests_per_minute.is_some(), "requests-per-minute"),
            (self.tokens_per_minute.is_some(), "tokens-per-minute"),
            (self.kserve_grpc_port.is_some(), "kserve-grpc-port"),
            (self.responses_max_bytes != RESPONSES_MAX_BYTES, "responses-max-bytes"),
            (self.responses_store != ResponsesPlace::Memory, "responses-store"),
            (self.responses_max != RESPONSES_MAX, "responses-max"),
            (self.responses_ttl_s != RESPONSES_TTL_S, "responses-ttl-s"),
        ];
        let given = flags.into_iter().filter(|(is_given, _)| *is_given);
        given.map(|(_, flag)| format!("{flag}: the engine beside a sidecar answers requests"))
    }
}
