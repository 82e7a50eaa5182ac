//! Routes of requests.

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
    /// API that this proxy serves for no model, and that engines may serve themselves.
    Engine(Api),
    /// All models.
    Models,
    /// One model, by name.
    Model(&'a str),
    /// Whether requests are welcome.
    Health,
    /// Whether the process runs.
    Live,
    /// Metrics.
    Metrics,
    /// This API, described.
    OpenApi,
}

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
            "/health" => (Self::Health, GET),
            "/live" => (Self::Live, GET),
            "/metrics" => (Self::Metrics, GET),
            "/openapi.json" => (Self::OpenApi, GET),
            _ => match (Self::of_api(path), path.strip_prefix("/v1/models/")) {
                (Some(route), _) => (route, POST),
                (None, Some(name)) if !name.is_empty() => (Self::Model(name), GET),
                _ => return Err(ApiError::unknown_route(method.as_str(), path)),
            },
        };
        match allow.split(", ").any(|allowed| allowed == method.as_str()) {
            true => Ok(route),
            false => Err(ApiError::method_not_allowed(method.as_str(), path, allow)),
        }
    }

    fn of_api(path: &str) -> Option<Self> {
        match Api::at(path)? {
            api @ (Api::ChatCompletions | Api::Completions | Api::Messages) => {
                Some(Self::Generate(api))
            }
            api @ Api::CountTokens => Some(Self::Count(api)),
            api @ (Api::Embeddings | Api::Responses) => Some(Self::Engine(api)),
            _ => None,
        }
    }

    /// The route's name in metrics: few values, whatever clients send.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Generate(api) | Self::Count(api) | Self::Engine(api) => api.path(),
            Self::Models => "/v1/models",
            Self::Model(_) => "/v1/models/{id}",
            Self::Health => "/health",
            Self::Live => "/live",
            Self::Metrics => "/metrics",
            Self::OpenApi => "/openapi.json",
        }
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
        assert_eq!(check("POST", "/v1/messages/count_tokens"), Ok("/v1/messages/count_tokens"));
        assert_eq!(check("GET", "/v1/messages"), Err(405));
        assert_eq!(check("HEAD", "/health"), Ok("/health"));
        assert_eq!(check("DELETE", "/v1/models"), Err(405));
        assert_eq!(check("GET", "/v1/models/org/name"), Ok("/v1/models/{id}"));
        assert_eq!(check("GET", "/v1/models/"), Err(404));
        assert_eq!(check("GET", "/"), Err(404));
        assert_eq!(check("BREW", "/coffee"), Err(404));
    }
}
