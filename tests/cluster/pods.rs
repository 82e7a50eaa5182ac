//! The testbed's own pods: what a cluster promises its users holds for them.

use serde_json::{Value, json};
use stator_tests::http::Client;
use stator_tests::nodes::{PodCluster, PodSpace};
use std::net::SocketAddr;
use std::time::Duration;

/// A Deployment of servers that say who they are, with everything that a pod may have.
fn deployment(space: &PodSpace<'_>) -> Value {
    let mut deployment = space.object("apps/v1", "Deployment", "echo");
    let labels = json!({ "app": "echo" });
    let field = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
    let health = json!({ "httpGet": { "path": "/health", "port": "http" } });
    let main = json!({
        "name": "main",
        "image": "registry.example/tests/echo:1",
        "args": ["$(PORT)"],
        "env": [
            { "name": "PORT", "value": "8000" },
            { "name": "VERSION", "value": "1" },
            { "name": "ADDRESS", "valueFrom": field("status.podIP") },
            { "name": "NODE", "valueFrom": field("spec.nodeName") },
            { "name": "KEY", "valueFrom": { "secretKeyRef": { "name": "keys", "key": "key" } } },
        ],
        "ports": [{ "name": "http", "containerPort": 8000 }],
        "startupProbe": { "tcpSocket": { "port": "http" }, "periodSeconds": 1 },
        "readinessProbe": { "httpGet": health["httpGet"], "periodSeconds": 1, "failureThreshold": 1 },
        "livenessProbe": health,
        "volumeMounts": [
            { "name": "settings", "mountPath": "/etc/settings" },
            { "name": "scratch", "mountPath": "/scratch" },
        ],
    });
    let writer = json!({
        "name": "writer",
        "image": "echo",
        "command": ["sh", "-c", "echo written > /scratch/file"],
        "volumeMounts": [{ "name": "scratch", "mountPath": "/scratch" }],
    });
    let sidecar = json!({
        "name": "sidecar",
        "image": "echo",
        "args": ["8001"],
        "restartPolicy": "Always",
        "startupProbe": { "exec": { "command": ["test", "-e", "/usr/local/bin/echo"] } },
    });
    deployment["spec"] = json!({
        "replicas": 2,
        "selector": { "matchLabels": labels },
        "template": { "metadata": { "labels": labels }, "spec": {
            "initContainers": [writer, sidecar],
            "containers": [main],
            "volumes": [
                { "name": "settings", "configMap": { "name": "settings" } },
                { "name": "scratch", "emptyDir": {} },
            ],
        } },
    });
    deployment
}

fn service(space: &PodSpace<'_>) -> Value {
    let mut service = space.object("v1", "Service", "echo");
    service["spec"] = json!({
        "selector": { "app": "echo" },
        "ports": [{ "port": 80, "targetPort": "http" }],
    });
    service
}

async fn get(address: SocketAddr, path: &str) -> String {
    let reply = Client::new(address).get(path).await;
    assert!(reply.status.is_success(), "{path}: {}", reply.status);
    String::from_utf8_lossy(&reply.body).into_owned()
}

#[tokio::test]
async fn a_deployment_comes_up_is_rolled_and_goes() {
    let Some(cluster) = PodCluster::shared().await else { return };
    let space = cluster.space().await;
    let mut deployment = deployment(&space);
    let api = &space.namespace.api;
    for (kind, name, data) in [("ConfigMap", "settings", "a"), ("Secret", "keys", "YQ==")] {
        let mut object = space.object("v1", kind, name);
        object["data"] = json!({ "key": data });
        api.apply(&object).await;
    }
    api.apply(&deployment).await;
    api.apply(&service(&space)).await;
    let endpoints = space.endpoints("echo", 2).await;
    let first = endpoints[0];
    assert_eq!(get(first, "/env/ADDRESS").await, first.ip().to_string());
    assert!(get(first, "/env/NODE").await.starts_with("node-"));
    for (path, expected) in [
        ("/env/VERSION", "1"),
        ("/env/KEY", "a"),
        ("/file/etc/settings/key", "a"),
        ("/file/scratch/file", "written\n"),
        ("/file/var/run/secrets/kubernetes.io/serviceaccount/namespace", &space.namespace.name),
    ] {
        assert_eq!(get(first, path).await, expected, "{path}");
    }
    assert_eq!(get(SocketAddr::new(first.ip(), 8001), "/").await, get(first, "/").await);

    // Another version takes over, pod by pod; all that answer are of it in the end.
    let old = pod_names(&space, &endpoints).await;
    deployment["spec"]["template"]["spec"]["containers"][0]["env"][1]["value"] = json!("2");
    api.apply(&deployment).await;
    api.until(&deployment, "all pods are new", |of| {
        let status = &of["status"];
        status["observedGeneration"] == of["metadata"]["generation"]
            && status["updatedReplicas"] == 2
            && status["availableReplicas"] == 2
            && status["replicas"] == 2
    })
    .await;
    space.pods("app=echo", "the old pods are gone", |pods| pods.len() == 2).await;
    for address in space.endpoints("echo", 2).await {
        assert_eq!(get(address, "/env/VERSION").await, "2");
        assert!(!old.contains(&get(address, "/").await));
    }
    api.delete(&deployment, Duration::ZERO).await;
    space.pods("app=echo", "no pods", <[Value]>::is_empty).await;
    assert!(space.log("echo").contains("ending"), "pods are asked to end: {}", space.log(""));
}

async fn pod_names(space: &PodSpace<'_>, endpoints: &[SocketAddr]) -> Vec<String> {
    let mut names = Vec::new();
    for address in endpoints {
        names.push(get(*address, "/").await);
    }
    let there = space.pods("app=echo", "the pods", |pods| pods.len() == names.len()).await;
    assert!(there.iter().all(|pod| names.iter().any(|name| pod["metadata"]["name"] == **name)));
    names
}

#[tokio::test]
async fn a_pod_is_taken_out_while_it_is_not_ready_and_started_again_where_it_ends() {
    let Some(cluster) = PodCluster::shared().await else { return };
    let space = cluster.space().await;
    let mut deployment = deployment(&space);
    let pod = &mut deployment["spec"]["template"]["spec"];
    for field in ["initContainers", "volumes"] {
        pod.as_object_mut().unwrap().remove(field);
    }
    let main = pod["containers"][0].as_object_mut().unwrap();
    for field in ["livenessProbe", "volumeMounts"] {
        main.remove(field);
    }
    main["env"].as_array_mut().unwrap().pop();
    space.namespace.api.apply(&deployment).await;
    space.namespace.api.apply(&service(&space)).await;
    let endpoints = space.endpoints("echo", 2).await;
    get(endpoints[0], "/unready").await;
    assert_eq!(space.endpoints("echo", 1).await, endpoints[1..]);
    get(endpoints[0], "/ready").await;
    assert_eq!(space.endpoints("echo", 2).await, endpoints);

    Client::new(endpoints[0]).try_get("/exit/3").await.expect_err("the server ends");
    let restarted = |pods: &[Value]| {
        pods.iter().any(|pod| {
            let main = &pod["status"]["containerStatuses"][0];
            main["restartCount"] == 1 && main["ready"] == true
        })
    };
    let pods = space.pods("app=echo", "the pod is started again", restarted).await;
    let main = pods.iter().map(|pod| &pod["status"]["containerStatuses"][0]);
    let ends: Vec<_> = main.map(|main| &main["lastState"]["terminated"]["exitCode"]).collect();
    assert!(ends.contains(&&json!(3)), "{ends:?}");
}
