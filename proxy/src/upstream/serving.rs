//! The paths of an engine that serve requests. All its other paths operate it: they load weights and
//! adapters, put it to sleep, reset its caches, profile it, run code on its workers or end it.

/// Paths that clients may ask for.
///
/// Source: the routes of OpenAI's, Anthropic's, Cohere's and Jina's APIs, and the serving routes of
/// vLLM 0.32 and SGLang 0.5.23.
const SERVING: [&str; 56] = [
    "/classify",
    "/cohere/v2/chat/render",
    "/detokenize",
    "/encode",
    "/generate",
    "/generative_scoring",
    "/get_load",
    "/get_model_info",
    "/health",
    "/health_generate",
    "/inference/v1/generate",
    "/invocations",
    "/load",
    "/metrics",
    "/model_info",
    "/ping",
    "/pooling",
    "/rerank",
    "/score",
    "/tokenize",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/chat/completions",
    "/v1/chat/completions/derender",
    "/v1/chat/completions/render",
    "/v1/classify",
    "/v1/completions",
    "/v1/completions/derender",
    "/v1/completions/render",
    "/v1/conversations",
    "/v1/detokenize",
    "/v1/embed",
    "/v1/embeddings",
    "/v1/images/edits",
    "/v1/images/generations",
    "/v1/images/variations",
    "/v1/loads",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/messages/render",
    "/v1/models",
    "/v1/moderations",
    "/v1/pooling",
    "/v1/rerank",
    "/v1/responses",
    "/v1/responses/render",
    "/v1/score",
    "/v1/tokenize",
    "/v1/videos",
    "/v2/chat",
    "/v2/embed",
    "/v2/rerank",
    "/version",
    "/vertex_generate",
    "/models",
];

/// Paths whose next segments name a model, a response, a conversation or a video.
const NAMED: [&str; 4] = ["/v1/models/", "/v1/responses/", "/v1/conversations/", "/v1/videos/"];

/// Whether a request of this path, without its query, is one of serving.
pub(crate) fn is_serving(path: &str) -> bool {
    let named = || NAMED.iter().any(|start| path.len() > start.len() && path.starts_with(start));
    SERVING.contains(&path) || named() && is_plain(path)
}

/// Whether every reader takes the path for the same: nothing is encoded, empty or relative.
pub(crate) fn is_plain(path: &str) -> bool {
    let segment = |segment: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:@+=,".contains(&byte);
        !segment.is_empty() && segment != "." && segment != ".." && segment.bytes().all(plain)
    };
    path == "/" || path.strip_prefix('/').is_some_and(|path| path.split('/').all(segment))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations of vLLM and SGLang.
    const OPERATIONS: [&str; 30] = [
        "/abort_requests",
        "/collective_rpc",
        "/continue_generation",
        "/destroy_weights_update_group",
        "/flush_cache",
        "/get_server_info",
        "/get_weights_by_name",
        "/init_weights_update_group",
        "/is_sleeping",
        "/load_lora_adapter",
        "/pause",
        "/pause_generation",
        "/release_memory_occupation",
        "/reset_encoder_cache",
        "/reset_mm_cache",
        "/reset_prefix_cache",
        "/resume",
        "/resume_memory_occupation",
        "/scale_elastic_ep",
        "/server_info",
        "/shutdown",
        "/sleep",
        "/start_profile",
        "/stop_profile",
        "/unload_lora_adapter",
        "/update_weights_from_disk",
        "/update_weights_from_tensor",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/wake_up",
    ];

    #[test]
    fn operations_are_no_paths_of_serving() {
        for path in OPERATIONS {
            assert!(!is_serving(path), "{path}");
            assert!(is_plain(path), "{path}");
        }
    }

    #[test]
    fn no_spelling_makes_an_operation_one_of_serving() {
        for path in [
            "",
            "/",
            "//v1/models",
            "/V1/models",
            "/v1/models/",
            "/v1/models/../../sleep",
            "/v1/models/./a",
            "/v1/models/%2e%2e/%2e%2e/sleep",
            "/v1/models/..%2fsleep",
            "/v1/models/..\\sleep",
            "/v1/models//sleep",
            "/v1/responses/a;b",
            "/%73leep",
            "/health/../sleep",
        ] {
            assert!(!is_serving(path), "{path}");
        }
        for path in [
            "/v1/models/org/name-1.5:lora",
            "/v1/responses/resp_1/cancel",
            "/v1/videos/video_1/content",
        ] {
            assert!(is_serving(path), "{path}");
        }
    }
}
