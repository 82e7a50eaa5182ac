//! The JSON bodies of requests for vectors and scores, as they come.

use crate::json::{Json, Text};
use crate::object::client_object;
use crate::openai::body::AgentHints;
use crate::openai::fields::{OneOrMany, RawPrompt};

client_object! {
    /// The body of `/v1/embeddings`, `/pooling` and `/classify`.
    #[allow(missing_docs, reason = "the fields are the API's own, described at the checked types")]
    pub struct VectorBody<'a> {
        pub model: Option<Text<'a>>,
        pub input: Option<RawPrompt<'a>>,
        pub encoding_format: Option<Text<'a>>,
        pub dimensions: Option<i64>,
        pub task: Option<Text<'a>>,
        pub add_special_tokens: Option<bool>,
        pub use_activation: Option<bool>,
        pub normalize: Option<bool>,
        pub normalized: Option<bool>,
        pub cache_salt: Option<Text<'a>>,
        pub nvext: Option<PooledExtensions<'a>>,
    }
}

client_object! {
    /// The body of `/v1/rerank`.
    #[allow(missing_docs, reason = "the fields are the API's own, described at the checked types")]
    pub struct RankingBody<'a> {
        pub model: Option<Text<'a>>,
        pub query: Option<Text<'a>>,
        pub documents: Option<Vec<Json<'a>>>,
        pub top_n: Option<i64>,
        pub return_documents: Option<bool>,
        pub max_tokens_per_query: Option<i64>,
        pub max_tokens_per_doc: Option<i64>,
        pub use_activation: Option<bool>,
        pub cache_salt: Option<Text<'a>>,
        pub nvext: Option<PooledExtensions<'a>>,
    }
}

client_object! {
    /// The body of `/v1/score`, whose two sides have several names.
    #[allow(missing_docs, reason = "the fields are the API's own, described at the checked types")]
    pub struct ScoreBody<'a> {
        pub model: Option<Text<'a>>,
        pub text_1: Option<OneOrMany<'a>>,
        pub text_2: Option<OneOrMany<'a>>,
        pub queries: Option<OneOrMany<'a>>,
        pub documents: Option<OneOrMany<'a>>,
        pub items: Option<OneOrMany<'a>>,
        pub data_1: Option<OneOrMany<'a>>,
        pub data_2: Option<OneOrMany<'a>>,
        pub max_tokens_per_query: Option<i64>,
        pub max_tokens_per_doc: Option<i64>,
        pub use_activation: Option<bool>,
        pub cache_salt: Option<Text<'a>>,
        pub nvext: Option<PooledExtensions<'a>>,
    }
}

client_object! {
    /// `nvext`, as far as it is read here.
    pub struct PooledExtensions<'a> {
        /// A cache salt beside the request's own.
        pub cache_salt: Option<Text<'a>>,
        /// Hints of an agent about its request.
        pub agent_hints: Option<AgentHints<'a>>,
    }
}
