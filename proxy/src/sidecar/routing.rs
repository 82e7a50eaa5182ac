//! Headers by which an endpoint picker steers the sidecar.

use crate::upstream::target::{NoTarget, Target};
use http::HeaderMap;
use stator_api::openai::ApiError;
use stator_protos::header::KV_HOLDERS;
use stator_protos::holders;

/// Engines that may compute the prompt, the best first.
const PREFILLERS: &str = "x-prefiller-host-port";
/// Engines that may encode media.
pub(crate) const ENCODERS: &str = "x-encoder-hosts-ports";
/// The engine that has KV of the prompt's beginning.
pub(crate) const SOURCE: &str = "x-kv-cache-source-host-port";
/// The data-parallel rank that is to answer.
const RANK: &str = "x-data-parallel-host-port";
/// The engines that a picker names for a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Routing {
    /// Engines that may compute the prompt, the best first.
    pub prefillers: Vec<Target>,
    /// Engines that may encode media, the best first.
    pub encoders: Vec<Target>,
    /// The engine that has KV of the prompt's beginning.
    pub source: Option<Target>,
    /// Agents that lend KV of the prompt's beginning, the best first, with the blocks of each.
    pub holders: Vec<(Target, u32)>,
    /// The rank that is to answer.
    pub rank: Option<Target>,
}

impl Routing {
    /// Reads it from a request's headers. Of engines that only save work, those that are no
    /// `host:port` are passed over.
    ///
    /// # Errors
    ///
    /// 400 for what is no `host:port` among the others.
    pub(crate) fn read(headers: &HeaderMap) -> Result<Self, ApiError> {
        Ok(Self {
            prefillers: targets(headers, PREFILLERS)?,
            encoders: parts(headers, ENCODERS).into_iter().flatten().collect(),
            source: parts(headers, SOURCE).into_iter().next().and_then(Result::ok),
            holders: holders_of(headers),
            rank: targets(headers, RANK)?.into_iter().next(),
        })
    }
}

/// The agents that lend, of which those at no address are passed over.
fn holders_of(headers: &HeaderMap) -> Vec<(Target, u32)> {
    let Some(text) = headers.get(KV_HOLDERS).and_then(|value| value.to_str().ok()) else {
        return Vec::new();
    };
    let holders = holders::read(text).into_iter();
    holders.filter_map(|holder| Some((holder.address.parse().ok()?, holder.blocks))).collect()
}

/// All targets of a header.
fn targets(headers: &HeaderMap, name: &str) -> Result<Vec<Target>, ApiError> {
    let targets = parts(headers, name).into_iter().collect::<Result<_, _>>();
    targets.map_err(|error| {
        ApiError::bad_request(format!("{name}: {error}")).with_code("invalid_header")
    })
}

/// The elements of a header, which may be a list and may be repeated.
fn parts(headers: &HeaderMap, name: &str) -> Vec<Result<Target, NoTarget>> {
    let mut parts = Vec::new();
    for value in headers.get_all(name) {
        let text = String::from_utf8_lossy(value.as_bytes());
        let split = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.extend(split.map(str::parse));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    fn headers(values: &[(&'static str, &'static str)]) -> HeaderMap {
        let header =
            |(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        let mut headers = HeaderMap::new();
        for (name, value) in values.iter().copied().map(header) {
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn prefillers_are_a_list_and_may_be_repeated() {
        let read = |values: &[&'static str]| {
            let values: Vec<_> = values.iter().map(|value| (PREFILLERS, *value)).collect();
            Routing::read(&headers(&values))
                .map(|routing| routing.prefillers.iter().map(Target::to_string).collect::<Vec<_>>())
                .map_err(|error| error.status.as_u16())
        };
        assert_eq!(read(&[]), Ok(vec![]));
        assert_eq!(
            read(&["10.0.0.1:1, [fd00::1]:2", "h:3"]).map(|all| all.join(" ")),
            Ok("10.0.0.1:1 [fd00::1]:2 h:3".to_owned())
        );
        assert_eq!(read(&["10.0.0.1:1/path"]), Err(400));
    }

    #[test]
    fn agents_that_lend_are_a_list_with_blocks() {
        let text = "10.0.0.1:7010;blocks=40, nonsense;blocks=1, [fd00::1]:7010;blocks=8, h:1";
        let routing = Routing::read(&headers(&[(KV_HOLDERS, text)])).expect("it is read");
        let found = routing.holders.iter().map(|(target, blocks)| format!("{target} {blocks}"));
        assert_eq!(found.collect::<Vec<_>>(), ["10.0.0.1:7010 40", "[fd00::1]:7010 8"]);
    }

    #[test]
    fn engines_that_only_save_work_are_passed_over_where_they_are_no_targets() {
        let read = |name: &'static str, value: &'static str| {
            let routing = Routing::read(&headers(&[(name, value)])).expect("it is read");
            let found = routing.encoders.iter().chain(&routing.source);
            found.map(Target::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(read(ENCODERS, "10.0.0.1:1,nonsense, h:2"), "10.0.0.1:1 h:2");
        assert_eq!(read(SOURCE, "[fd00::1]:2"), "[fd00::1]:2");
        assert_eq!(read(SOURCE, "nonsense"), "");
    }
}
