//! Routes of requests.

use super::kserve::route::InferRoute;
use super::pages::Page;
use super::responses::ResponseRoute;
use http::Method;
use stator_api::Api;
use stator_api::openai::ApiError;

/// The route of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// Answer a conversation, or continue a text.
    Generate(Api),
    /// Count the tokens of a conversation.
    Count(Api),
    /// KServe's open inference protocol as JSON.
    Infer(InferRoute<'a>),
    /// Vectors of texts, or scores that are made of them.
    Pooled(Api),
    /// Something about a response that is kept.
    Response(ResponseRoute<'a>),
    /// All models.
    Models,
    /// One model, by name.
    Model(&'a str),
    /// Whether a model has a worker that takes requests.
    Ready(&'a str),
    /// Tokens of a text or a conversation.
    Tokenize,
    /// Text of tokens.
    Detokenize,
    /// The workers of every model at a glance.
    Fleet,
    /// Version of this program.
    Version,
    /// Whether requests are welcome.
    Health,
    /// Whether the process runs.
    Live,
    /// Metrics.
    Metrics,
    /// This API, described.
    OpenApi,
    /// A page for people: to chat, or to read what the API is. Or a file that one needs.
    Page(Page),
}

const INPUT_TOKENS: &str = "/v1/responses/input_tokens";
const GET: &str = "GET, HEAD";
const POST: &str = "POST";

impl<'a> Route<'a> {
    /// Finds the route.
    ///
    /// # Errors
    ///
    /// 404 for an unknown path, 405 for a known one with a method that it does not take.
    pub(crate) fn find(method: &Method, path: &'a str) -> Result<Self, ApiError> {
        let (route, allow) = match path {
            "/v1/models" => (Self::Models, GET),
            INPUT_TOKENS => (Self::Count(Api::Responses), POST),
            "/health" | "/ping" => (Self::Health, GET),
            "/fleet" => (Self::Fleet, GET),
            "/version" => (Self::Version, GET),
            "/tokenize" | "/v1/tokenize" => (Self::Tokenize, POST),
            "/detokenize" | "/v1/detokenize" => (Self::Detokenize, POST),
            "/live" => (Self::Live, GET),
            "/metrics" => (Self::Metrics, GET),
            "/openapi.json" => (Self::OpenApi, GET),
            _ => Self::of_path(method, path).ok_or_else(|| absent(method.as_str(), path))?,
        };
        match allow.split(", ").any(|allowed| allowed == method.as_str()) {
            true => Ok(route),
            false => Err(ApiError::method_not_allowed(method.as_str(), path, allow)),
        }
    }

    /// The route of a path that is an API's or holds a name, and its methods.
    fn of_path(method: &Method, path: &'a str) -> Option<(Self, &'static str)> {
        if let Some(route) = Self::of_api(path) {
            return Some((route, POST));
        }
        if let Some(page) = Page::at(path) {
            return Some((Self::Page(page), GET));
        }
        if let Some(name) = path.strip_prefix("/v1/models/").filter(|name| !name.is_empty()) {
            let route = match name.strip_suffix("/ready").filter(|name| !name.is_empty()) {
                Some(name) => Self::Ready(name),
                None => Self::Model(name),
            };
            return Some((route, GET));
        }
        if let Some(route) = InferRoute::find(path) {
            let allow = if route.is_call() { POST } else { GET };
            return Some((Self::Infer(route), allow));
        }
        let rest = path.strip_prefix("/v1/responses/").filter(|rest| !rest.is_empty())?;
        let (route, allow) = ResponseRoute::find(rest, method.as_str())?;
        Some((Self::Response(route), allow))
    }

    fn of_api(path: &str) -> Option<Self> {
        match Api::at(path)? {
            api @ (Api::ChatCompletions | Api::Completions | Api::Messages | Api::Responses) => {
                Some(Self::Generate(api))
            }
            api @ Api::CountTokens => Some(Self::Count(api)),
            api @ (Api::Embeddings | Api::Pooling | Api::Classify | Api::Rerank | Api::Score) => {
                Some(Self::Pooled(api))
            }
            _ => None,
        }
    }

    /// Whether a request of this route asks how the process does.
    pub(crate) fn is_probe(&self) -> bool {
        matches!(self, Self::Health | Self::Live | Self::Metrics)
    }

    /// The route's name in metrics: few values, whatever clients send.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Count(Api::Responses) => INPUT_TOKENS,
            Self::Generate(api) | Self::Count(api) | Self::Pooled(api) => api.path(),
            Self::Response(_) => "/v1/responses/{id}",
            Self::Infer(_) => "/v2",
            Self::Models => "/v1/models",
            Self::Model(_) => "/v1/models/{id}",
            Self::Ready(_) => "/v1/models/{id}/ready",
            Self::Tokenize => "/tokenize",
            Self::Detokenize => "/detokenize",
            Self::Fleet => "/fleet",
            Self::Version => "/version",
            Self::Health => "/health",
            Self::Live => "/live",
            Self::Metrics => "/metrics",
            Self::OpenApi => "/openapi.json",
            Self::Page(_) => "/",
        }
    }

    /// The parameters of its query; `None` where nobody looks at them: probes, metrics and pages.
    /// `for_anthropic` says whose shape the client reads where a route has two.
    pub(crate) fn parameters(&self, for_anthropic: bool) -> Option<&'static [&'static str]> {
        Some(match self {
            Self::Health
            | Self::Live
            | Self::Metrics
            | Self::OpenApi
            | Self::Page(_)
            | Self::Version => return None,
            Self::Response(ResponseRoute::Retrieve(_)) => {
                &["include", "stream", "starting_after", "include_obfuscation"]
            }
            Self::Response(ResponseRoute::InputItems(_)) => &["after", "include", "limit", "order"],
            Self::Models if for_anthropic => &["after_id", "before_id", "limit"],
            _ => &[],
        })
    }
}

/// Parts of clients' APIs that are not here: beginnings of their paths.
const ABSENT: [&str; 20] = [
    "/v1/assistants",
    "/v1/audio",
    "/v1/batches",
    "/v1/conversations",
    "/v1/evals",
    "/v1/files",
    "/v1/fine_tuning",
    "/v1/images",
    "/v1/messages/batches",
    "/v1/moderations",
    "/v1/realtime",
    "/v1/responses/compact",
    "/v1/threads",
    "/v1/uploads",
    "/v1/vector_stores",
    "/v1/videos",
    "/v1/chat/completions/",
    // Cohere's.
    "/v1/embed",
    "/v2/chat",
    "/v2/embed",
];

/// The error for a path that is not served: 501 for a part of an API that is known to be absent.
fn absent(method: &str, path: &str) -> ApiError {
    let is_under = |start: &&&str| {
        path.strip_prefix(**start)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || start.ends_with('/'))
    };
    match ABSENT.iter().find(is_under) {
        Some(part) => ApiError::not_implemented(part.trim_end_matches('/')),
        None => ApiError::unknown_route(method, path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &str, path: &str) -> Result<&'static str, u16> {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        Route::find(&method, path).map(|route| route.label()).map_err(|e| e.status.as_u16())
    }

    #[test]
    fn paths_and_methods_are_told_apart() {
        assert_eq!(check("POST", "/v1/chat/completions"), Ok("/v1/chat/completions"));
        assert_eq!(check("GET", "/v1/chat/completions"), Err(405));
        assert_eq!(check("POST", "/v1/embeddings"), Ok("/v1/embeddings"));
        for path in ["/v1/rerank", "/rerank", "/v2/rerank"] {
            assert_eq!(check("POST", path), Ok("/v1/rerank"), "{path}");
        }
        assert_eq!(check("POST", "/score"), Ok("/v1/score"));
        assert_eq!(check("POST", "/classify"), Ok("/v1/classify"));
        assert_eq!(check("GET", "/pooling"), Err(405));
        assert_eq!(check("POST", "/v1/messages/count_tokens"), Ok("/v1/messages/count_tokens"));
        assert_eq!(check("GET", "/v1/messages"), Err(405));
        assert_eq!(check("POST", "/v1/responses"), Ok("/v1/responses"));
        assert_eq!(check("POST", "/v1/responses/input_tokens"), Ok("/v1/responses/input_tokens"));
        for (method, path) in [
            ("GET", "/v1/responses/r"),
            ("DELETE", "/v1/responses/r"),
            ("POST", "/v1/responses/r/cancel"),
            ("GET", "/v1/responses/r/input_items"),
        ] {
            assert_eq!(check(method, path), Ok("/v1/responses/{id}"), "{path}");
        }
        assert_eq!(check("PUT", "/v1/responses/r"), Err(405));
        assert_eq!(check("GET", "/v1/models/org/name/ready"), Ok("/v1/models/{id}/ready"));
        assert_eq!(check("POST", "/tokenize"), Ok("/tokenize"));
        assert_eq!(check("GET", "/ping"), Ok("/health"));
        for path in [
            "/v1/files",
            "/v1/files/f",
            "/v1/batches",
            "/v1/messages/batches",
            "/v1/chat/completions/c",
            "/v2/embed",
        ] {
            assert_eq!(check("POST", path), Err(501), "{path}");
        }
        assert_eq!(check("POST", "/v1/filesystem"), Err(404));
        assert_eq!(check("GET", "/v1/responses/r/other"), Err(404));
        assert_eq!(check("HEAD", "/health"), Ok("/health"));
        assert_eq!(check("DELETE", "/v1/models"), Err(405));
        assert_eq!(check("GET", "/v1/models/org/name"), Ok("/v1/models/{id}"));
        assert_eq!(check("GET", "/v1/models/"), Err(404));
        for (method, path) in [
            ("GET", "/v2"),
            ("GET", "/v2/health/ready"),
            ("GET", "/v2/models/org/name/ready"),
            ("POST", "/v2/models/org/name/versions/1/infer"),
        ] {
            assert_eq!(check(method, path), Ok("/v2"), "{path}");
        }
        assert_eq!(check("GET", "/v2/models/m/infer"), Err(405));
        assert_eq!(check("GET", "/v2/models/"), Err(404));
        assert_eq!(check("POST", "/v2/repository/index"), Err(404));
        assert_eq!(check("GET", "/"), Ok("/"));
        assert_eq!(check("GET", "/docs"), Ok("/"));
        assert_eq!(check("GET", "/page"), Err(404));
        assert_eq!(check("BREW", "/coffee"), Err(404));
    }
}
