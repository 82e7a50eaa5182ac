//! Values with a mistake: the error names the key.

use super::{Helm, chart, examples, stem};

fn refusal(helm: &Helm, args: &[&str]) -> String {
    let chart = chart().display().to_string();
    let output = helm.run(&[&["template", "stator", &chart], args].concat());
    assert!(!output.status.success(), "{args:?} is accepted");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn helm_lints_the_chart_with_every_example() {
    let Some(helm) = Helm::installed() else { return };
    let chart = chart().display().to_string();
    helm.prints(&["lint", "--strict", "--quiet", &chart]);
    for example in examples() {
        let values = example.display().to_string();
        let told = helm.prints(&["lint", "--strict", &chart, "--values", &values]);
        assert!(told.contains("0 chart(s) failed"), "{}: {told}", stem(&example));
    }
}

#[test]
fn an_error_names_the_key() {
    let Some(helm) = Helm::installed() else { return };
    for (set, named) in [
        ("proxi.replicas=2", "proxi"),
        ("proxy.replica=2", "replica"),
        ("proxy.replicas=-1", "/proxy/replicas"),
        ("workers.a.engine=vllmm", "/workers/a/engine"),
        ("workers.a.gpu=1", "gpu"),
        ("workers.planner.gpus=1", "planner"),
        ("epp.pool.targetPorts={0}", "/epp/pool/targetPorts"),
        ("epp.gateway.create=true", "/epp/gateway/className"),
        ("workers.a.nodes=2", "missing properties 'engine', 'model'"),
        ("epp.modelServers.a.role=prefill", "missing property 'image'"),
        ("epp.modelServers.a.connector=nixl", "/epp/modelServers/a/connector"),
        ("epp.furtherPools[0].name=x", "missing properties 'namespace', 'port'"),
        ("operator.certManager.issuer.kind=Secret", "/operator/certManager/issuer/kind"),
        ("proxy.certManager.enabled=true", "/proxy/certManager/issuer/name"),
        ("planner.enabled=true", "/planner/models"),
        ("planner.scale.decode=x", "/planner/scale/decode"),
        ("requestTls.certManager.issuer.kind=Secret", "/requestTls/certManager/issuer/kind"),
    ] {
        let error = refusal(&helm, &["--set", set]);
        assert!(error.contains(named), "{set}: {error}");
    }
}

#[test]
fn all_errors_come_at_once() {
    let Some(helm) = Helm::installed() else { return };
    let error = refusal(&helm, &["--set", "logFormat=xml,proxy.service.port=0"]);
    assert!(error.contains("/logFormat") && error.contains("/proxy/service/port"), "{error}");
}
