//! The APIs that clients and engines speak, and the paths on which they are called.

use http::Method;

/// An API of requests: what a body means follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    /// OpenAI's chat completions.
    ChatCompletions,
    /// OpenAI's completions.
    Completions,
    /// OpenAI's responses.
    Responses,
    /// OpenAI's conversations.
    Conversations,
    /// OpenAI's embeddings.
    Embeddings,
    /// vLLM's vectors.
    Pooling,
    /// vLLM's classes of texts.
    Classify,
    /// Jina's, Cohere's and vLLM's ranking of documents.
    Rerank,
    /// vLLM's similarity of texts.
    Score,
    /// OpenAI's image generations.
    Images,
    /// OpenAI's speech.
    Speech,
    /// Anthropic's messages.
    Messages,
    /// Anthropic's token counting.
    CountTokens,
    /// vLLM's `/inference/v1/generate`.
    VllmGenerate,
    /// SGLang's `/generate`.
    SglangGenerate,
    /// vLLM's gRPC `Generate`.
    GrpcGenerate,
    /// vLLM's gRPC `Embed`.
    GrpcEmbed,
}

/// A group of APIs that one parser of the picker reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiFamily {
    /// OpenAI's APIs.
    OpenAi,
    /// Anthropic's APIs.
    Anthropic,
    /// vLLM's own API over HTTP.
    Vllm,
    /// SGLang's own API over HTTP.
    Sglang,
    /// vLLM's engine service over gRPC.
    VllmGrpc,
    /// Vertex AI's predictions over gRPC, which carry bodies of OpenAI's APIs.
    VertexAi,
}

use ApiFamily::{Anthropic, OpenAi, Sglang, VertexAi, Vllm, VllmGrpc};

/// A path on which an API is called, by POST.
struct ApiPath {
    family: ApiFamily,
    /// The whole path on a server; none if clients of the API itself do not call it.
    whole: Option<&'static str>,
    /// The end by which the picker knows the path, whatever a gateway puts before it.
    ending: &'static str,
    api: Api,
}

/// Every path and its API.
///
/// Source: the paths of OpenAI's, Anthropic's, vLLM's and SGLang's servers; the endings of the llm-d
/// router's parsers.
const PATHS: [ApiPath; 27] = [
    whole(OpenAi, "/v1/chat/completions", "/chat/completions", Api::ChatCompletions),
    ending(OpenAi, "/chat/completions/render", Api::ChatCompletions),
    whole(OpenAi, "/v1/completions", "/completions", Api::Completions),
    ending(OpenAi, "/completions/render", Api::Completions),
    whole(OpenAi, "/v1/responses", "/responses", Api::Responses),
    whole(OpenAi, "/v1/conversations", "/conversations", Api::Conversations),
    whole(OpenAi, "/v1/embeddings", "/embeddings", Api::Embeddings),
    whole(OpenAi, "/pooling", "/pooling", Api::Pooling),
    whole(OpenAi, "/v1/pooling", "/v1/pooling", Api::Pooling),
    whole(OpenAi, "/v1/classify", "/v1/classify", Api::Classify),
    whole(OpenAi, "/classify", "/classify", Api::Classify),
    whole(OpenAi, "/v1/rerank", "/v1/rerank", Api::Rerank),
    whole(OpenAi, "/rerank", "/rerank", Api::Rerank),
    whole(OpenAi, "/v2/rerank", "/v2/rerank", Api::Rerank),
    whole(OpenAi, "/v1/score", "/v1/score", Api::Score),
    whole(OpenAi, "/score", "/score", Api::Score),
    whole(OpenAi, "/v1/images/generations", "/images/generations", Api::Images),
    whole(OpenAi, "/v1/audio/speech", "/audio/speech", Api::Speech),
    whole(Anthropic, "/v1/messages", "/v1/messages", Api::Messages),
    whole(Anthropic, "/v1/messages/count_tokens", "/v1/messages/count_tokens", Api::CountTokens),
    whole(Vllm, "/inference/v1/generate", "/inference/v1/generate", Api::VllmGenerate),
    whole(Sglang, "/generate", "/generate", Api::SglangGenerate),
    whole(VllmGrpc, VLLM_GENERATE, VLLM_GENERATE, Api::GrpcGenerate),
    whole(VllmGrpc, VLLM_EMBED, VLLM_EMBED, Api::GrpcEmbed),
    ending(VertexAi, "PredictionService/ChatCompletions", Api::ChatCompletions),
    ending(VertexAi, "PredictionService/RawPredict", Api::Responses),
    ending(VertexAi, "PredictionService/StreamRawPredict", Api::Responses),
];
const VLLM_GENERATE: &str = "/vllm.grpc.engine.VllmEngine/Generate";
const VLLM_EMBED: &str = "/vllm.grpc.engine.VllmEngine/Embed";

const fn whole(family: ApiFamily, whole: &'static str, ending: &'static str, api: Api) -> ApiPath {
    ApiPath { family, whole: Some(whole), ending, api }
}

const fn ending(family: ApiFamily, ending: &'static str, api: Api) -> ApiPath {
    ApiPath { family, whole: None, ending, api }
}

/// An API found by the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiMatch {
    /// The API.
    pub api: Api,
    /// The end of the path that names the API.
    pub ending: &'static str,
}

impl Api {
    /// The API that a request calls; none for a path that is no API's, or another method than POST.
    pub fn find(method: &Method, path: &str) -> Option<Self> {
        Self::at(path).filter(|_| method == Method::POST)
    }

    /// The API on a path, whatever the method.
    pub fn at(path: &str) -> Option<Self> {
        PATHS.iter().find(|known| known.whole == Some(path)).map(|known| known.api)
    }

    /// The path on which clients call the API.
    pub fn path(self) -> &'static str {
        let known = PATHS.iter().filter(|known| known.api == self);
        known.filter_map(|known| known.whole).next().expect("every API has a path")
    }

    /// The API of some families whose ending of `path` is the longest.
    pub fn by_ending(families: &[ApiFamily], path: &str) -> Option<ApiMatch> {
        let known = PATHS.iter().filter(|known| families.contains(&known.family));
        let ends = known.filter(|known| path.ends_with(known.ending));
        let longest = ends.max_by_key(|known| known.ending.len())?;
        Some(ApiMatch { api: longest.api, ending: longest.ending })
    }
}

impl ApiFamily {
    /// Ends of the paths on which the family's APIs are called.
    pub fn endings(self) -> impl Iterator<Item = &'static str> {
        PATHS.iter().filter(move |known| known.family == self).map(|known| known.ending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_paths_and_methods_decide() {
        let find = |path| Api::find(&Method::POST, path);
        assert_eq!(find("/v1/chat/completions"), Some(Api::ChatCompletions));
        assert_eq!(find("/v1/messages"), Some(Api::Messages));
        assert_eq!(find("/v1/messages/count_tokens"), Some(Api::CountTokens));
        assert_eq!(find("/v1/chat/completions/render"), None);
        assert_eq!(find("/chat/completions"), None);
        assert_eq!(Api::find(&Method::GET, "/v1/responses"), None);
        assert_eq!(Api::at("/v1/responses"), Some(Api::Responses));
    }

    #[test]
    fn every_api_leads_back_to_itself() {
        for known in &PATHS {
            assert_eq!(Api::at(known.api.path()), Some(known.api));
            assert!(known.whole.is_none_or(|path| Api::at(path) == Some(known.api)));
            let found = Api::by_ending(&[known.family], &format!("/x{}", known.ending));
            assert_eq!(found, Some(ApiMatch { api: known.api, ending: known.ending }));
        }
    }
}
