//! Place at which the API server finds the webhooks, and the owner of a definition's conversion.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// Annotation of a definition whose conversion an operator of ours has set: where it is.
pub(super) const CONVERSION: &str = "stator.dev/conversion";

/// Place of the webhooks, as the API server reaches them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WebhookPlace {
    /// Behind a Service.
    Service {
        /// Name of the Service.
        name: String,
        /// Namespace of the Service.
        namespace: String,
    },
    /// At an address of their own.
    Host(String),
}

/// Operator that converts a kind's documents.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConversionOwner {
    /// Nobody.
    Nobody,
    /// The operator at this place.
    Own,
    /// Another operator of ours, which converts the same way.
    Sibling(String),
    /// Another operator.
    Stranger(String),
}

impl WebhookPlace {
    /// The name that the certificate must be for.
    pub(super) fn host(&self) -> String {
        match self {
            Self::Service { name, namespace } => format!("{name}.{namespace}.svc"),
            Self::Host(host) => host.clone(),
        }
    }

    /// The way to a path of the webhooks that listen on `port`, trusting `bundle`. Without one,
    /// somebody else sets the certificates to trust.
    pub(super) fn client(&self, path: &str, port: u16, bundle: Option<&str>) -> Value {
        let mut client = match self {
            Self::Service { name, namespace } => json!({ "service": {
                "name": name, "namespace": namespace, "path": path, "port": 443,
            } }),
            Self::Host(host) => json!({ "url": format!("https://{host}:{port}{path}") }),
        };
        if let Some(bundle) = bundle {
            client["caBundle"] = BASE64_STANDARD.encode(bundle).into();
        }
        client
    }

    /// The place as the annotation of a definition has it.
    pub(super) fn mark(&self) -> String {
        match self {
            Self::Service { name, namespace } => format!("{namespace}/{name}"),
            Self::Host(host) => format!("https://{host}"),
        }
    }

    /// Whose the conversion of a definition is.
    pub(crate) fn owner(&self, definition: &Value) -> ConversionOwner {
        let conversion = &definition["spec"]["conversion"];
        if conversion["strategy"] != "Webhook" {
            return ConversionOwner::Nobody;
        }
        let client = &conversion["webhook"]["clientConfig"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let service = &client["service"];
        let found = match service.is_object() {
            true => format!("{}/{}", text(&service["namespace"]), text(&service["name"])),
            false => {
                let url = text(&client["url"]);
                url.rsplit_once(':').map(|(start, _)| start.to_owned()).unwrap_or(url)
            }
        };
        let marked = text(&definition["metadata"]["annotations"][CONVERSION]);
        // An operator that took the conversion over has left the annotation.
        match marked == found {
            false => ConversionOwner::Stranger(found),
            true if marked == self.mark() => ConversionOwner::Own,
            true => ConversionOwner::Sibling(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> WebhookPlace {
        WebhookPlace::Service { name: "a".to_owned(), namespace: "n".to_owned() }
    }

    fn definition(place: &WebhookPlace, mark: &str) -> Value {
        let webhook = json!({ "clientConfig": place.client("/convert", 9443, Some("ca")) });
        json!({
            "metadata": { "annotations": { CONVERSION: mark } },
            "spec": { "conversion": { "strategy": "Webhook", "webhook": webhook } },
        })
    }

    #[test]
    fn a_conversion_belongs_to_those_whom_mark_and_client_name() {
        let host = WebhookPlace::Host("10.0.0.1".to_owned());
        assert_eq!(place().owner(&json!({ "spec": {} })), ConversionOwner::Nobody);
        for own in [place(), host.clone()] {
            assert_eq!(own.owner(&definition(&own, &own.mark())), ConversionOwner::Own);
        }
        let sibling = ConversionOwner::Sibling("https://10.0.0.1".to_owned());
        assert_eq!(place().owner(&definition(&host, &host.mark())), sibling);
        let stranger = ConversionOwner::Stranger("n/a".to_owned());
        assert_eq!(place().owner(&definition(&place(), "")), stranger);
        assert_eq!(host.owner(&definition(&place(), &host.mark())), stranger);
    }

    #[test]
    fn clients_find_webhooks_by_service_or_address() {
        let expected = json!({
            "service": { "name": "a", "namespace": "n", "path": "/x", "port": 443 }, "caBundle": "Y2E=",
        });
        assert_eq!(place().client("/x", 9443, Some("ca")), expected);
        let host = WebhookPlace::Host("h".to_owned());
        assert_eq!(host.client("/x", 1, None), json!({ "url": "https://h:1/x" }));
        assert_eq!((place().host(), host.host()), ("a.n.svc".to_owned(), "h".to_owned()));
    }
}
