//! Settings of streams, and the modes of a data plane.

use super::BodyBudget;

/// Limits and choices of the ext-proc server. The default is right for Envoy and its relatives in
/// full duplex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtProcSettings {
    /// Largest request body that is read for a decision, in bytes; a larger one is answered with
    /// 413. Default 64 MiB, which leaves room for images in prompts.
    pub max_body_bytes: usize,
    /// Limit on the bodies that all requests together hold until they are sent on; a request that
    /// finds no room waits a second, and is then answered with 503. Default 1 GiB.
    pub body_budget: BodyBudget,
    /// Most headers of a request; a request with more is answered with 431. Default 200.
    pub max_headers: usize,
    /// Largest head of a request, names and values together, in bytes; a larger one is answered
    /// with 431. Default 128 KiB.
    pub max_header_bytes: usize,
    /// Largest gRPC message from a data plane, in bytes; a larger one ends the stream with
    /// `RESOURCE_EXHAUSTED`. Default 4 MiB, as is usual for gRPC. Only data planes that buffer
    /// bodies send large messages; for them it should be as large as their buffers.
    pub max_message_bytes: usize,
    /// Largest body that is awaited from a data plane in `STREAMED` mode, in bytes; past it the
    /// request is decided by its headers, and its body is changed when it is whole. Default 1 MiB,
    /// the buffer of Envoy's connections: where the buffer is full, nothing more comes before we
    /// answer.
    pub max_streamed_bytes: usize,
    /// Most streams at once on one connection, default 100,000. Envoy itself opens no more than
    /// its circuit breaker for the cluster allows, 1,024 unless told otherwise.
    pub max_concurrent_streams: u32,
    /// Modes of data planes that name none. Default full duplex.
    pub assumed_modes: Modes,
    /// Whether a data plane's choice of endpoints is obeyed. Default yes.
    pub subset_filter: bool,
    /// Form of refusals.
    pub error_format: ErrorFormat,
}

/// Form of refusals, as clients see them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorFormat {
    /// A line of text, `inference error: <Code> - <message>`, as clients of the llm-d router
    /// expect.
    #[default]
    Plain,
    /// The JSON object of the OpenAI API.
    OpenAi,
}

/// Ways in which a data plane sends the two bodies of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes {
    /// The request's.
    pub request: BodyMode,
    /// The answer's.
    pub response: BodyMode,
    /// Whether bodies come before their head is answered. Always so in full duplex, whatever is
    /// said here: some data planes say no and do it all the same.
    pub eager: bool,
}

/// Way in which a data plane sends a body.
///
/// Source: `ProcessingMode.BodySendMode` of Envoy's ext-proc filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyMode {
    /// Not at all.
    None,
    /// In pieces, each of which waits for its answer.
    Streamed,
    /// In one message, when it is complete.
    Buffered,
    /// In one message, when it is complete or the data plane's buffer is full.
    BufferedPartial,
    /// In pieces; what we send takes the body's place.
    FullDuplex,
    /// In a way that we do not know.
    Unknown(i32),
}

impl Default for ExtProcSettings {
    fn default() -> Self {
        Self {
            max_body_bytes: 64 << 20,
            body_budget: BodyBudget::default(),
            max_headers: 200,
            max_header_bytes: 128 << 10,
            max_message_bytes: 4 << 20,
            max_streamed_bytes: 1 << 20,
            max_concurrent_streams: 100_000,
            assumed_modes: Modes::default(),
            subset_filter: true,
            error_format: ErrorFormat::default(),
        }
    }
}

impl Default for Modes {
    fn default() -> Self {
        Self { request: BodyMode::FullDuplex, response: BodyMode::FullDuplex, eager: true }
    }
}
