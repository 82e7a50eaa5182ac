//! The query of a request's target: each parameter is read, named to the client as ignored, or
//! refused by name.

use stator_api::UnknownFields;
use stator_api::openai::ApiError;
use std::borrow::Cow;

/// Most parameters of a query; a target has its own bound in bytes.
const PARAMETERS_MAX: usize = 64;
/// Longest part of a name that an error repeats, in characters.
const NAME_MAX_CHARS: usize = 64;
/// Parameters that clients send whatever the route is: Azure's version of the API, and Anthropic's
/// sign of a client that tries new features.
const HARMLESS: [&str; 2] = ["api-version", "beta"];

/// Parameters that a route reads, as they were sent.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Settles the query of a request to a route with these parameters, and names what is ignored.
    /// A route whose parameters nobody looks at has nothing to settle.
    ///
    /// # Errors
    ///
    /// 400 for a parameter that the route does not have, unless unknown fields are ignored, and for
    /// one that is there twice.
    pub(crate) fn settle(
        query: &str,
        known: Option<&[&str]>,
        unknown: UnknownFields,
    ) -> Result<(Self, Option<String>), ApiError> {
        let Some(known) = known else {
            return Ok((Self(Vec::new()), None));
        };
        let (mut read, mut ignored) = (Vec::new(), Vec::new());
        let pairs = form_urlencoded::parse(query.as_bytes());
        for (at, (sent, value)) in pairs.enumerate() {
            if at == PARAMETERS_MAX {
                let message = format!("the query has more than {PARAMETERS_MAX} parameters");
                return Err(ApiError::bad_request(message));
            }
            let name = plain(&sent);
            let is_known = known.contains(&name);
            let is_list = name == "include";
            if is_known && !is_list && read.iter().any(|(known, _)| known == name) {
                let message = format!("{name} is in the query more than once");
                return Err(ApiError::invalid(name, message));
            }
            match (is_known, HARMLESS.contains(&name)) {
                (true, _) => read.push((name.to_owned(), value.into_owned())),
                (false, true) => ignored.push(name.to_owned()),
                (false, false) => {
                    let name: String = sent.chars().take(NAME_MAX_CHARS).collect();
                    if unknown == UnknownFields::Refuse {
                        return Err(stranger(&name, known));
                    }
                    ignored.push(name);
                }
            }
        }
        let ignored = (!ignored.is_empty()).then(|| ignored.join(", "));
        Ok((Self(read), ignored))
    }

    /// The value of a parameter; empty ones ask for nothing.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.values(name).next()
    }

    /// The values of a parameter that is a list.
    pub(crate) fn values<'q>(&'q self, name: &str) -> impl Iterator<Item = &'q str> {
        let named = self.0.iter().filter(move |(known, _)| known == name);
        named.map(|(_, value)| &**value).filter(|value| !value.is_empty())
    }

    /// Whether a flag is set.
    ///
    /// # Errors
    ///
    /// 400 for anything but `true` and `false`.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.value(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(ApiError::invalid(name, format!("{name} must be true or false"))),
        }
    }

    /// A number in a range.
    ///
    /// # Errors
    ///
    /// 400 for anything else.
    pub(crate) fn number(&self, name: &str, most: usize) -> Result<Option<usize>, ApiError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let number = value.parse().ok().filter(|number| (1..=most).contains(number));
        let invalid = || ApiError::invalid(name, format!("{name} must be in 1..={most}"));
        number.ok_or_else(invalid).map(Some)
    }

    #[cfg(test)]
    pub(crate) fn of_tests(query: &str) -> Self {
        Self(form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }
}

/// The name of a parameter without the brackets by which some clients mark lists.
fn plain(name: &str) -> &str {
    match name.split_once('[') {
        Some((plain, "]")) => plain,
        Some((plain, place)) => {
            let digits = place.strip_suffix(']').unwrap_or("x");
            if digits.bytes().all(|byte| byte.is_ascii_digit()) { plain } else { name }
        }
        None => name,
    }
}

fn stranger(name: &str, known: &[&str]) -> ApiError {
    let known: Cow<'_, str> = match known {
        [] => "it has none".into(),
        known => format!("it has {}", known.join(", ")).into(),
    };
    let message = format!("{name} is not a query parameter of this route; {known}");
    ApiError::bad_request(message).with_code("unknown_parameter").with_param(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standalone::responses::ResponseRoute;
    use crate::standalone::route::Route;
    use stator_api::Api;

    /// Parameters that a route reads, and the names of those that it ignores.
    type Settled = (Vec<(String, String)>, Option<String>);

    fn check(query: &str, route: Route<'_>) -> Result<Settled, String> {
        let settled = Query::settle(query, route.parameters(false), UnknownFields::Refuse);
        settled.map(|(query, ignored)| (query.0, ignored)).map_err(|error| error.message)
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn each_parameter_is_read_named_or_refused() {
        let retrieve = Route::Response(ResponseRoute::Retrieve("r"));
        let query = "stream=true&include[]=a.b&include%5B1%5D=c+d&api-version=7";
        let read = pairs(&[("stream", "true"), ("include", "a.b"), ("include", "c d")]);
        assert_eq!(check(query, retrieve), Ok((read, Some("api-version".into()))));
        let error = check("straem=true", retrieve).unwrap_err();
        assert_eq!(
            error,
            "straem is not a query parameter of this route; it has include, stream, starting_after, include_obfuscation"
        );
        let chat = Route::Generate(Api::ChatCompletions);
        assert_eq!(
            check("stream=true", chat).unwrap_err(),
            "stream is not a query parameter of this route; it has none"
        );
        assert_eq!(
            check("beta=true", Route::Generate(Api::Messages)),
            Ok((Vec::new(), Some("beta".into())))
        );
        assert_eq!(
            check("stream=true&stream=false", retrieve).unwrap_err(),
            "stream is in the query more than once"
        );
        assert_eq!(check("what=ever", Route::Health), Ok((Vec::new(), None)));
        let many = "beta=1&".repeat(65);
        assert_eq!(check(&many, chat).unwrap_err(), "the query has more than 64 parameters");
        let ignored = Query::settle("x=1", Some(&[]), UnknownFields::Ignore).unwrap().1;
        assert_eq!(ignored.as_deref(), Some("x"));
    }

    #[test]
    fn values_are_of_their_kind() {
        let query = Query::of_tests("stream=yes&limit=0&order=");
        assert_eq!(query.flag("stream").unwrap_err().message, "stream must be true or false");
        assert_eq!(query.number("limit", 9).unwrap_err().message, "limit must be in 1..=9");
        assert_eq!((query.value("order"), query.flag("absent").unwrap()), (None, false));
    }
}
