//! Metrics of the operator, `stator_operator_*`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use serde_json::Value;
use std::time::Duration;

/// Kind and namespace of a document.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub(crate) struct KindLabels {
    kind: String,
    namespace: String,
}

/// Webhook by its path.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub(crate) struct WebhookLabels {
    webhook: String,
}

/// Namespace of a lease.
#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
pub(crate) struct NamespaceLabels {
    namespace: String,
}

type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

/// All metrics. Cheap to clone.
#[derive(Clone)]
pub(crate) struct OperatorMetrics {
    passes: Family<KindLabels, Counter>,
    failures: Family<KindLabels, Counter>,
    durations: Durations<KindLabels>,
    documents: Family<KindLabels, Gauge>,
    edits: Family<KindLabels, Counter>,
    leading: Family<NamespaceLabels, Gauge>,
    reviews: Family<WebhookLabels, Counter>,
    denials: Family<WebhookLabels, Counter>,
    errors: Family<WebhookLabels, Counter>,
    review_durations: Durations<WebhookLabels>,
}

/// Milliseconds to a minute.
fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 3.0, 11))
}

impl OperatorMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            passes: Family::default(),
            failures: Family::default(),
            durations: Family::new_with_constructor(durations),
            documents: Family::default(),
            edits: Family::default(),
            leading: Family::default(),
            reviews: Family::default(),
            denials: Family::default(),
            errors: Family::default(),
            review_durations: Family::new_with_constructor(durations),
        };
        let registry = registry.sub_registry_with_prefix("stator_operator");
        for (name, help, counter) in [
            ("reconcile", "Looks at a document and its objects", &metrics.passes),
            ("reconcile_errors", "Looks at a document with a step that failed", &metrics.failures),
            (
                "edits_undone",
                "Objects that somebody else changed, and that were set again",
                &metrics.edits,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        for (name, help, counter) in [
            ("webhook_requests", "Reviews", &metrics.reviews),
            ("webhook_denials", "Documents that were refused", &metrics.denials),
            ("webhook_errors", "Reviews that could not be read in time", &metrics.errors),
        ] {
            registry.register(name, help, counter.clone());
        }
        registry.register("resources", "Documents that are operated", metrics.documents.clone());
        let help = "Whether this replica operates the namespace, 1 or 0";
        registry.register("leading", help, metrics.leading.clone());
        let help = "Time of a look at a document, with its steps";
        let seconds = metrics.durations.clone();
        registry.register_with_unit("reconcile_duration", help, Unit::Seconds, seconds);
        let seconds = metrics.review_durations.clone();
        registry.register_with_unit("webhook_duration", "Time of a review", Unit::Seconds, seconds);
        metrics
    }

    /// A look at a document.
    pub(crate) fn reconciled(&self, kind: &str, namespace: &str, is_done: bool, time: Duration) {
        let labels = kind_labels(kind, namespace);
        self.passes.get_or_create(&labels).inc();
        self.failures.get_or_create(&labels).inc_by(u64::from(!is_done));
        self.durations.get_or_create(&labels).observe(time.as_secs_f64());
    }

    /// The number of documents of a kind.
    pub(crate) fn counted(&self, kind: &str, namespace: &str, number: usize) {
        self.documents.get_or_create(&kind_labels(kind, namespace)).set(number as i64);
    }

    /// An object that somebody else changed.
    pub(crate) fn edited(&self, kind: &str, namespace: &str) {
        self.edits.get_or_create(&kind_labels(kind, namespace)).inc();
    }

    /// Whether this replica operates a namespace.
    pub(crate) fn led(&self, namespace: &str, is_leading: bool) {
        let labels = NamespaceLabels { namespace: namespace.to_owned() };
        self.leading.get_or_create(&labels).set(i64::from(is_leading));
    }

    /// A review and its answer; `None` where there is none.
    pub(crate) fn reviewed(&self, webhook: &str, answer: Option<&Value>, time: Duration) {
        let labels = WebhookLabels { webhook: webhook.trim_start_matches('/').to_owned() };
        self.reviews.get_or_create(&labels).inc();
        let is_denied = answer.is_some_and(|answer| answer["response"]["allowed"] == false);
        self.denials.get_or_create(&labels).inc_by(u64::from(is_denied));
        self.errors.get_or_create(&labels).inc_by(u64::from(answer.is_none()));
        self.review_durations.get_or_create(&labels).observe(time.as_secs_f64());
    }
}

fn kind_labels(kind: &str, namespace: &str) -> KindLabels {
    KindLabels { kind: kind.to_owned(), namespace: namespace.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn metrics_have_the_names_of_the_manual() {
        let mut registry = Registry::default();
        let metrics = OperatorMetrics::register(&mut registry);
        metrics.reconciled("DynamoModel", "n", false, Duration::from_millis(5));
        metrics.counted("DynamoModel", "n", 3);
        metrics.edited("Service", "n");
        metrics.led("n", true);
        let denial = json!({ "response": { "allowed": false } });
        metrics.reviewed("/validate", Some(&denial), Duration::from_millis(5));
        metrics.reviewed("/validate", None, Duration::from_millis(5));
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry).expect("a text");
        let labels = r#"{kind="DynamoModel",namespace="n"}"#;
        for line in [
            format!("stator_operator_reconcile_total{labels} 1"),
            format!("stator_operator_reconcile_errors_total{labels} 1"),
            format!("stator_operator_reconcile_duration_seconds_count{labels} 1"),
            format!("stator_operator_resources{labels} 3"),
            r#"stator_operator_edits_undone_total{kind="Service",namespace="n"} 1"#.to_owned(),
            r#"stator_operator_leading{namespace="n"} 1"#.to_owned(),
            r#"stator_operator_webhook_requests_total{webhook="validate"} 2"#.to_owned(),
            r#"stator_operator_webhook_denials_total{webhook="validate"} 1"#.to_owned(),
            r#"stator_operator_webhook_errors_total{webhook="validate"} 1"#.to_owned(),
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in {page}");
        }
    }
}
