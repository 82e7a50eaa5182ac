//! Names of back-ends, right and wrong.

use super::*;
use proptest::prelude::*;

fn refused(text: &str, expected: &str) {
    assert_eq!(text.parse::<DiscoverySource>().unwrap_err().to_string(), expected);
}

#[test]
fn files_are_named_by_absolute_paths() {
    assert_eq!("file:///run/a%20b".parse(), Ok(DiscoverySource::Directory("/run/a b".into())));
    assert_eq!("static:///etc/agents".parse(), Ok(DiscoverySource::Static("/etc/agents".into())));
    refused("file://run", "path: \"run\" is not absolute; it begins with a third slash");
    refused("file:///a%2", "path: \"/a%2\" has a % without two hexadecimal digits");
}

#[test]
fn a_cluster_has_a_namespace_a_selector_and_what_tells_readiness() {
    let own = DiscoverySource::Kubernetes(KubernetesSource::default());
    assert_eq!("kubernetes://".parse(), Ok(own));
    let all = "kubernetes://n?selector=app%3Dengine,tier=gpu&readiness=endpointslices\
               &kubeconfig=/etc/kube&pod=a-1&uid=0-1";
    let expected = KubernetesSource {
        namespace: Some("n".into()),
        selector: Some("app=engine,tier=gpu".into()),
        readiness: Readiness::EndpointSlices,
        kubeconfig: Some("/etc/kube".into()),
        pod: Some(("a-1".into(), "0-1".into())),
    };
    assert_eq!(all.parse(), Ok(DiscoverySource::Kubernetes(expected)));
    refused("kubernetes://N", "namespace: \"N\" is not up to 63 of a-z 0-9 -");
    refused(
        "kubernetes://n?readiness=never",
        "readiness: \"never\" is neither pods nor endpointslices",
    );
    refused("kubernetes://n?pod=x", "uid: missing beside pod");
    refused("kubernetes://n?kubeconfig=x", "kubeconfig: \"x\" is not an absolute path");
}

#[test]
fn etcd_has_members_a_prefix_a_user_and_certificates() {
    let plain = EtcdSource {
        endpoints: vec!["a:1".into()],
        prefix: "/stator/v1".into(),
        user: None,
        password_file: None,
        tls: None,
    };
    assert_eq!("etcd://a:1".parse(), Ok(DiscoverySource::Etcd(plain.clone())));
    assert_eq!("etcd://a:1/".parse(), Ok(DiscoverySource::Etcd(plain)));
    let all = "etcd://me@a:1,[::1]:2/our/fleet/?password-file=/pw&ca=/ca&cert=/cert&key=/key";
    let expected = EtcdSource {
        endpoints: vec!["a:1".into(), "[::1]:2".into()],
        prefix: "/our/fleet".into(),
        user: Some("me".into()),
        password_file: Some("/pw".into()),
        tls: Some(EtcdTls { ca: "/ca".into(), identity: Some(("/cert".into(), "/key".into())) }),
    };
    assert_eq!(all.parse(), Ok(DiscoverySource::Etcd(expected)));
}

#[test]
fn faults_of_etcd_name_the_part() {
    refused("etcd://", "host: \"\" is not host:port");
    refused("etcd://a", "host: \"a\" is not host:port");
    refused("etcd://a:1,b:0", "host: \"b:0\" is not host:port");
    refused("etcd://::1:2", "host: \"::1:2\" is not host:port");
    refused(
        "etcd://me:secret@a:1",
        "user: a password does not belong here, but in STATOR_ETCD_PASSWORD or password-file",
    );
    refused("etcd://@a:1", "user: must not be empty before @");
    refused("etcd://a:1?cert=/c&ca=/a", "key: missing beside cert");
    refused("etcd://a:1?key=/k&ca=/a", "cert: missing beside key");
    refused("etcd://a:1?cert=/c&key=/k", "ca: missing beside cert and key");
    let many = ["a:1"; 17].join(",");
    refused(&format!("etcd://{many}"), "host: 17 members, limit 16");
}

#[test]
fn what_means_nothing_is_refused() {
    refused("/run", "url: \"/run\" has no scheme; file:///dir is one that has");
    refused("consul://a", "scheme: \"consul\" is not one of file, static, kubernetes or etcd");
    refused("file:///a?selector=x", "query: selector means nothing here");
    refused("kubernetes://n?selector=", "query: selector has no value");
    refused("kubernetes://n?selector=a&selector=b", "query: selector is given twice");
    refused(&format!("file:///{}", "a".repeat(5000)), "url: 5008 bytes, limit 4096");
}

#[test]
fn the_manifests_name_back_ends() {
    let manifests = [
        include_str!("../../../../../manifests/agents/agent.yaml"),
        include_str!("../../../../../manifests/agents/proxy.yaml"),
    ];
    for manifest in manifests {
        let flag = manifest.lines().find_map(|line| line.split_once("--discovery="));
        let (_, url) = flag.expect("it says where agents are");
        let source = url.replace("$(NAMESPACE)", "n").parse();
        assert!(matches!(source, Ok(DiscoverySource::Kubernetes(_))), "{url}: {source:?}");
    }
}

proptest! {
    /// Nothing that somebody types makes the parser panic, and what is percent-encoded comes back.
    #[test]
    fn any_text_is_taken_or_refused(text in "(file|etcd|static|kubernetes)://[ -~é]{0,40}") {
        let _ = text.parse::<DiscoverySource>();
    }

    #[test]
    fn any_path_can_be_named(path in "/[a-zé %?&]{0,20}") {
        let encoded: String = path.bytes().map(|byte| format!("%{byte:02x}")).collect();
        // The first slash must be there for the path to be one.
        prop_assert_eq!(format!("file://{encoded}").parse(), Ok(DiscoverySource::Directory(path.into())));
    }
}
