//! Settings of traces, from the standard environment variables.
//!
//! Only those variables that the SDK does not read itself, or reads too late to turn everything
//! off. Sampling (`OTEL_TRACES_SAMPLER`), batching (`OTEL_BSP_…`), limits, headers and timeouts are
//! the SDK's.
//!
//! Source: OpenTelemetry environment variable specification, and that of the OTLP exporter.

use super::TraceError;

const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];

/// Destination of traces, and the service's name in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceSettings {
    /// The collector, as a URL.
    pub endpoint: String,
    /// `service.name`; None where the environment names it, which the SDK reads.
    pub service: Option<String>,
}

impl TraceSettings {
    /// From the variables that `get` finds; None where traces are off. `service` is the name of
    /// the service where the environment has none.
    ///
    /// # Errors
    ///
    /// For a protocol other than gRPC.
    pub(crate) fn from_env(
        service: &str,
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, TraceError> {
        // The specification treats an empty variable as one that is not set.
        let get = |name: &str| get(name).filter(|value| !value.trim().is_empty());
        let is = |name: &str, word: &str| {
            get(name).is_some_and(|value| value.trim().eq_ignore_ascii_case(word))
        };
        if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
            return Ok(None);
        }
        let Some(endpoint) = ENDPOINTS.into_iter().find_map(get) else { return Ok(None) };
        let protocol = PROTOCOLS.into_iter().find_map(|name| Some((name, get(name)?)));
        if let Some((variable, value)) = protocol.filter(|(_, value)| value.trim() != "grpc") {
            return Err(TraceError::Protocol { variable, value });
        }
        let attributes = get("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        let named = get("OTEL_SERVICE_NAME").is_some()
            || attributes.split(',').any(|pair| pair.trim().starts_with("service.name="));
        Ok(Some(Self { endpoint, service: (!named).then(|| service.to_owned()) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(env: &[(&str, &str)]) -> Result<Option<TraceSettings>, String> {
        let get = |name: &str| {
            env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        TraceSettings::from_env("stator-proxy", get).map_err(|error| error.to_string())
    }

    const COLLECTOR: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");

    #[test]
    fn traces_are_on_only_where_a_collector_is_named() {
        assert_eq!(check(&[]), Ok(None));
        assert_eq!(check(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), Ok(None));
        assert_eq!(check(&[COLLECTOR, ("OTEL_SDK_DISABLED", "True")]), Ok(None));
        assert_eq!(check(&[COLLECTOR, ("OTEL_TRACES_EXPORTER", "none")]), Ok(None));
        let endpoint = |env: &[_]| check(env).unwrap().unwrap().endpoint;
        assert_eq!(endpoint(&[COLLECTOR, ("OTEL_SDK_DISABLED", "false")]), COLLECTOR.1);
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4317");
        assert_eq!(endpoint(&[COLLECTOR, own]), own.1);
    }

    #[test]
    fn the_name_of_the_service_is_ours_unless_the_environment_has_one() {
        let service = |more| check(&[COLLECTOR, more]).unwrap().unwrap().service;
        assert_eq!(service(("OTEL_SERVICE_NAME", "")).as_deref(), Some("stator-proxy"));
        let other = ("OTEL_RESOURCE_ATTRIBUTES", "zone=a,my.service.name=x");
        assert_eq!(service(other).as_deref(), Some("stator-proxy"));
        assert_eq!(service(("OTEL_SERVICE_NAME", "edge")), None);
        assert_eq!(service(("OTEL_RESOURCE_ATTRIBUTES", "zone=a, service.name=edge")), None);
    }

    #[test]
    fn a_protocol_that_is_not_spoken_is_refused_by_name() {
        let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        let error = check(&[COLLECTOR, http]).unwrap_err();
        assert_eq!(
            error,
            "OTEL_EXPORTER_OTLP_PROTOCOL: \"http/protobuf\" is not supported, only \"grpc\" is"
        );
        // The variable for traces counts, not the one for everything.
        let own = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc");
        assert!(check(&[COLLECTOR, http, own]).unwrap().is_some());
        // Where there is no collector, nobody cares how it would be spoken to.
        assert_eq!(check(&[http]), Ok(None));
    }
}
