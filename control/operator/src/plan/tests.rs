use super::*;
use crate::objects::ClusterApis;
use crate::translate::Substitutes;
use proptest::collection::vec;
use proptest::prelude::*;

fn settings() -> OperatorSettings {
    OperatorSettings::new(Substitutes::default())
}

fn graph(image: u8, prefill: i32, decode: i32) -> Value {
    let pod = |module: &str| {
        let command = json!(["python3", "-m", module]);
        let main = json!({ "name": "main", "image": format!("i{image}"), "command": command });
        json!({ "spec": { "containers": [main] } })
    };
    let component = |name: &str, replicas: i32, module: &str| json!({ "name": name, "type": name, "replicas": replicas, "podTemplate": pod(module) });
    json!({
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": { "name": "g", "namespace": "n", "uid": "u", "generation": 1 },
        "spec": { "components": [
            component("frontend", 1, "dynamo.frontend"),
            component("prefill", prefill, "dynamo.mocker"),
            component("decode", decode, "dynamo.mocker"),
        ] },
    })
}

/// The graph with an engine on several nodes for each copy that answers.
fn spanning(mut graph: Value, nodes: i32) -> Value {
    if nodes > 1 {
        graph["spec"]["components"][2]["multinode"] = json!({ "nodeCount": nodes });
    }
    graph
}

/// A cluster whose controllers act when they are told to.
#[derive(Default)]
struct SimulatedCluster {
    objects: BTreeMap<(String, String), Value>,
    clock: u64,
    apis: ClusterApis,
}

impl SimulatedCluster {
    fn observed(&self) -> ClusterView {
        let objects = self.objects.values().cloned().collect();
        ClusterView { objects, apis: self.apis, ..ClusterView::default() }
    }

    fn take(&mut self, step: &ObjectStep) {
        self.clock += 1;
        match step {
            ObjectStep::Delete(object) => drop(self.objects.remove(&key(object))),
            ObjectStep::Scale(..) => {}
            ObjectStep::Apply(object) => {
                let mut object = object.clone();
                let there = self.objects.get(&key(&object));
                let made = json!(format!("{:08}", self.clock));
                let made =
                    there.map_or(made, |there| there["metadata"]["creationTimestamp"].clone());
                object["metadata"]["creationTimestamp"] = made;
                if let Some(status) = there.and_then(|there| there.get("status")) {
                    object["status"] = status.clone();
                }
                // The status stays that of the generation before until the controller acts.
                let pod = |object: &Value| object["spec"]["template"].clone();
                let generation = |of: &Value| of["metadata"]["generation"].as_i64().unwrap_or(0);
                let is_other = there.is_none_or(|there| pod(there) != pod(&object));
                let generation = there.map_or(0, generation) + i64::from(is_other);
                object["metadata"]["generation"] = generation.into();
                self.objects.insert(key(&object), object);
            }
        }
    }

    /// Lets a workload have a share of its copies, in quarters.
    fn run(&mut self, at: usize, quarters: i64) {
        let is_workload =
            |of: &&mut Value| of["kind"] == "Deployment" || of["kind"] == "StatefulSet";
        let mut deployments: Vec<_> = self.objects.values_mut().filter(is_workload).collect();
        if deployments.is_empty() {
            return;
        }
        let at = at % deployments.len();
        let deployment = &mut deployments[at];
        let asked = deployment["spec"]["replicas"].as_i64().unwrap_or_default();
        let available = asked * quarters / 4;
        deployment["status"] = json!({
            "observedGeneration": deployment["metadata"]["generation"], "updatedReplicas": asked, "readyReplicas": available, "availableReplicas": available,
        });
    }

    /// Changes an object as a person does. Those are known by the hash that the store takes away.
    fn edit(&mut self, at: usize) {
        let number = self.objects.len().max(1);
        let Some(object) = self.objects.values_mut().nth(at % number) else { return };
        if ["Deployment", "StatefulSet", COMPONENT].iter().any(|kind| object["kind"] == *kind) {
            object["spec"]["replicas"] = json!(0);
        }
        if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
            annotations.remove(APPLIED);
        }
    }

    fn lose(&mut self, at: usize) {
        let key = self.objects.keys().nth(at % self.objects.len().max(1)).cloned();
        key.map(|key| self.objects.remove(&key));
    }

    fn run_all(&mut self) {
        (0..self.objects.len()).for_each(|at| self.run(at, 4));
    }

    /// Generations of which both workers have a copy that is available.
    fn serving(&self) -> BTreeSet<String> {
        let mut all: BTreeMap<String, usize> = BTreeMap::new();
        let view = self.observed();
        let there = ObservedObjects::new(&view);
        for component in self.objects.values().filter(|object| object["kind"] == COMPONENT) {
            let Some(generation) = hash(component) else { continue };
            let readiness = there.readiness(&Instance::read(component).expect("a component"));
            let is_available = readiness.available.min(readiness.asked) > 0;
            *all.entry(generation.to_owned()).or_default() += usize::from(is_available);
        }
        all.into_iter()
            .filter(|(_, halves)| *halves == 2)
            .map(|(generation, _)| generation)
            .collect()
    }
}

fn settled(cluster: &mut SimulatedCluster, graph: &Value) -> DocumentPlan {
    let mut graph = graph.clone();
    for _ in 0..64 {
        let plan = plan_graph(&graph, &cluster.observed(), &settings()).expect("a graph");
        let is_updated = plan.status["state"] == "successful";
        let is_same = plan.status == graph["status"];
        if plan.steps.is_empty() && is_updated && is_same {
            return plan;
        }
        plan.steps.iter().for_each(|step| cluster.take(step));
        graph["status"] = plan.status;
        cluster.run_all();
    }
    panic!("it does not settle: {:?}", cluster.objects.keys());
}

#[test]
fn a_graph_settles_and_then_nothing_is_done() {
    let mut cluster = SimulatedCluster::default();
    let plan = settled(&mut cluster, &graph(1, 1, 2));
    let ready = &plan.status["conditions"][0];
    assert_eq!((&ready["type"], &ready["status"]), (&json!("Ready"), &json!("True")));
    assert_eq!(plan.status["components"]["decode"]["readyReplicas"], 2);
    assert_eq!(plan.components.len(), 3);
    let deployments = cluster.objects.keys().filter(|(kind, _)| kind == "Deployment");
    assert_eq!(deployments.count(), 3);
}

/// A wrong image takes nothing down: the old generation serves on.
#[test]
fn a_generation_that_never_starts_replaces_nothing() {
    let mut cluster = SimulatedCluster::default();
    settled(&mut cluster, &graph(1, 1, 1));
    let serving = cluster.serving();
    for _ in 0..20 {
        let plan = plan_graph(&graph(2, 1, 1), &cluster.observed(), &settings()).expect("a graph");
        plan.steps.iter().for_each(|step| cluster.take(step));
        assert_eq!(plan.status["rollingUpdate"]["phase"], "InProgress");
        assert_eq!(cluster.serving(), serving);
    }
}

#[test]
fn a_component_that_is_gone_goes_and_claims_stay() {
    let mut cluster = SimulatedCluster::default();
    let mut graph = graph(1, 1, 1);
    settled(&mut cluster, &graph);
    let claim = json!({ "kind": "PersistentVolumeClaim", "metadata": { "name": "models" } });
    cluster.objects.insert(key(&claim), claim.clone());
    graph["spec"]["components"].as_array_mut().expect("a list").remove(0);
    settled(&mut cluster, &graph);
    assert!(!cluster.objects.keys().any(|(_, name)| name == "g-frontend"));
    assert!(cluster.objects.contains_key(&key(&claim)));
}

#[test]
fn an_adapter_has_the_last_word_on_numbers() {
    let mut cluster = SimulatedCluster::default();
    let mut graph = graph(1, 1, 1);
    graph["spec"]["components"][2]["scalingAdapter"] = json!({});
    settled(&mut cluster, &graph);
    let adapter = (ADAPTER.to_owned(), "g-decode".to_owned());
    cluster.objects.get_mut(&adapter).expect("an adapter")["spec"]["replicas"] = json!(5);
    let plan = settled(&mut cluster, &graph);
    assert_eq!(plan.status["components"]["decode"]["replicas"], 5);
    let (_, status) = plan.components.last().expect("the adapter's status");
    let selector = "nvidia.com/dynamo-component=decode,nvidia.com/dynamo-graph-deployment-name=g";
    assert_eq!(status, &json!({ "replicas": 5, "selector": selector }));
    assert_eq!(cluster.objects[&adapter]["spec"]["replicas"], 5);
}

#[test]
fn a_component_by_itself_has_its_objects_and_state() {
    let document = json!({
        "apiVersion": "nvidia.com/v1beta1",
        "kind": COMPONENT,
        "metadata": { "name": "c", "namespace": "n", "generation": 3 },
        "spec": { "type": "worker", "podTemplate": { "spec": { "containers": [{ "name": "main" }] } } },
    });
    let mut cluster = SimulatedCluster::default();
    let plan =
        plan_component(&document, &ClusterView::default(), &settings()).expect("a component");
    plan.steps.iter().for_each(|step| cluster.take(step));
    cluster.run_all();
    let plan = plan_component(&document, &cluster.observed(), &settings()).expect("a component");
    assert_eq!(plan.steps, []);
    assert_eq!(plan.status["observedGeneration"], 3);
    assert_eq!(plan.status["conditions"][0]["status"], "True");
}

/// Components whose pods have been asked to restart, and whether all are ready again.
fn restarted(cluster: &SimulatedCluster, id: &str) -> Vec<(String, bool)> {
    let deployments = cluster.objects.values().filter(|object| object["kind"] == "Deployment");
    let marked = deployments.filter(|of| {
        of["spec"]["template"]["metadata"]["annotations"]["nvidia.com/restartAt"] == id
    });
    let part = |of: &Value| of["metadata"]["labels"]["nvidia.com/dynamo-component"].to_string();
    let is_ready = |of: &Value| of["metadata"]["generation"] == of["status"]["observedGeneration"];
    let mut all: Vec<_> = marked.map(|of| (part(of).replace('"', ""), is_ready(of))).collect();
    all.sort();
    all
}

#[test]
fn components_restart_one_after_another_in_their_order() {
    let mut cluster = SimulatedCluster::default();
    let mut graph = graph(1, 1, 1);
    settled(&mut cluster, &graph);
    let before: Vec<_> = cluster.objects.keys().cloned().collect();
    let order = ["decode", "frontend", "prefill"];
    graph["spec"]["restart"] = json!({ "id": "one", "strategy": { "order": order } });
    for at in 0..order.len() {
        let mut plan = plan_graph(&graph, &cluster.observed(), &settings()).expect("a graph");
        let state = json!({
            "observedID": "one", "phase": "Restarting", "inProgress": [order[at]],
        });
        assert_eq!(plan.status["restart"], state);
        plan.steps.iter().for_each(|step| cluster.take(step));
        graph["status"] = plan.status.take();
        // Without news the next component waits.
        let again = plan_graph(&graph, &cluster.observed(), &settings()).expect("a graph");
        assert_eq!((again.steps, &again.status["restart"]), (Vec::new(), &state));
        let mut expected: Vec<_> =
            order[..=at].iter().map(|name| ((*name).to_owned(), *name != order[at])).collect();
        expected.sort();
        assert_eq!(restarted(&cluster, "one"), expected);
        cluster.run_all();
    }
    let plan = settled(&mut cluster, &graph);
    assert_eq!(plan.status["restart"], json!({ "observedID": "one", "phase": "Completed" }));
    let after: Vec<_> = cluster.objects.keys().cloned().collect();
    assert_eq!(after, before, "a restart makes no generation");
}

#[test]
fn a_parallel_restart_takes_all_at_once_and_a_new_generation_ends_it() {
    let mut cluster = SimulatedCluster::default();
    settled(&mut cluster, &graph(1, 1, 1));
    let restart = json!({ "id": "one", "strategy": { "type": "Parallel" } });
    let mut wanted = graph(1, 1, 1);
    wanted["spec"]["restart"] = restart.clone();
    let plan = plan_graph(&wanted, &cluster.observed(), &settings()).expect("a graph");
    plan.steps.iter().for_each(|step| cluster.take(step));
    assert_eq!(restarted(&cluster, "one").len(), 3);
    let mut next = graph(2, 1, 1);
    next["spec"]["restart"] = restart;
    next["status"] = plan.status;
    let plan = settled(&mut cluster, &next);
    assert_eq!(plan.status["restart"], json!({ "observedID": "one", "phase": "Superseded" }));
    assert_eq!(plan.status["rollingUpdate"]["phase"], "Completed");
}

#[test]
fn what_somebody_else_changed_is_set_again() {
    let mut cluster = SimulatedCluster::default();
    let graph = graph(1, 1, 1);
    settled(&mut cluster, &graph);
    let wanted = cluster.objects.clone();
    cluster.edit(0);
    assert_ne!(cluster.objects, wanted);
    settled(&mut cluster, &graph);
    let spec = |all: &BTreeMap<_, Value>| -> Vec<Value> {
        all.values().map(|object| object["spec"].clone()).collect()
    };
    assert_eq!(spec(&cluster.objects), spec(&wanted));
}

#[test]
fn an_engine_on_several_nodes_has_sets_of_its_own_and_a_group() {
    let apis = ClusterApis { pod_groups: Some("v1beta1"), ..ClusterApis::default() };
    let mut cluster = SimulatedCluster { apis, ..SimulatedCluster::default() };
    let graph = spanning(graph(1, 1, 2), 3);
    let plan = settled(&mut cluster, &graph);
    assert_eq!(plan.status["components"]["decode"]["componentKind"], "StatefulSet");
    assert_eq!(plan.status["components"]["decode"]["readyReplicas"], 2);
    let names = |kind: &str| -> Vec<&Value> {
        cluster.objects.values().filter(|object| object["kind"] == kind).collect()
    };
    let (sets, groups) = (names("StatefulSet"), names("PodGroup"));
    assert_eq!((sets.len(), groups.len()), (4, 2));
    assert_eq!(groups[0]["apiVersion"], "scheduling.k8s.io/v1beta1");
    assert_eq!(groups[0]["spec"]["schedulingPolicy"]["gang"]["minCount"], 3);
    for set in sets {
        let group = &set["spec"]["template"]["spec"]["schedulingGroup"]["podGroupName"];
        assert!(groups.iter().any(|of| of["metadata"]["name"] == *group), "{group}");
    }
}

#[test]
fn an_engine_that_somebody_took_nodes_from_is_not_available() {
    let mut cluster = SimulatedCluster::default();
    let graph = spanning(graph(1, 1, 1), 3);
    settled(&mut cluster, &graph);
    let available = |cluster: &SimulatedCluster| {
        let plan = plan_graph(&graph, &cluster.observed(), &settings()).expect("a graph");
        plan.status["components"]["decode"]["availableReplicas"].clone()
    };
    assert_eq!(available(&cluster), 1);
    for left in [1, 0] {
        let mut sets = cluster.objects.iter_mut().filter(|(key, _)| key.1.ends_with("-wkr"));
        let (_, set) = sets.next().expect("the set of the workers");
        set["spec"]["replicas"] = json!(left);
        set["status"]["readyReplicas"] = json!(left);
        set["status"]["availableReplicas"] = json!(left);
        assert_eq!(available(&cluster), 0, "{left} of 2 workers");
    }
}

/// Objects of another kind would end pods that run.
#[test]
fn a_graph_that_runs_stays_with_the_objects_that_it_has() {
    let mut cluster = SimulatedCluster::default();
    let graph = spanning(graph(1, 1, 1), 2);
    settled(&mut cluster, &graph);
    cluster.apis =
        ClusterApis { clique_sets: true, leader_worker_sets: true, pod_groups: Some("v1beta1") };
    let plan = plan_graph(&graph, &cluster.observed(), &settings()).expect("a graph");
    assert_eq!(plan.steps, []);
}

#[test]
fn a_graph_becomes_cliques_where_grove_is_there() {
    let apis = ClusterApis { clique_sets: true, ..ClusterApis::USUAL };
    let mut cluster = SimulatedCluster { apis, ..SimulatedCluster::default() };
    let graph = spanning(graph(1, 2, 1), 2);
    let plan = plan_graph(&graph, &cluster.observed(), &settings()).expect("a graph");
    plan.steps.iter().for_each(|step| cluster.take(step));
    assert!(!cluster.objects.keys().any(|(kind, _)| kind == "Deployment" || kind == COMPONENT));
    let set = &cluster.objects[&("PodCliqueSet".to_owned(), "g".to_owned())];
    let names = |list: &str| -> Vec<&str> {
        let parts = set["spec"]["template"][list].as_array().expect("a list").iter();
        parts.filter_map(|part| part["name"].as_str()).collect()
    };
    assert_eq!(names("cliques"), ["frontend", "prefill", "decode-ldr", "decode-wkr"]);
    assert_eq!(names("podCliqueScalingGroups"), ["decode"]);

    // What Grove makes of it is scaled by itself, and says how many there are.
    let part = |kind: &str, name: &str, replicas: i32| {
        let status = json!({ "readyReplicas": 1, "availableReplicas": 1, "updatedReplicas": 1 });
        json!({ "kind": kind, "metadata": { "name": name }, "spec": { "replicas": replicas }, "status": status })
    };
    let mut view = cluster.observed();
    view.cliques = vec![
        part("PodClique", "g-0-frontend", 1),
        part("PodClique", "g-0-prefill", 1),
        part("PodCliqueScalingGroup", "g-0-decode", 1),
    ];
    let plan = plan_graph(&graph, &view, &settings()).expect("a graph");
    let scaled: Vec<_> =
        plan.steps.iter().map(|step| (step.word(), key(step.object()).1)).collect();
    assert_eq!(scaled, [("scale", "g-0-prefill".to_owned())]);
    view.cliques[1]["spec"]["replicas"] = json!(2);
    view.cliques[1]["status"] = json!({ "readyReplicas": 2, "updatedReplicas": 2 });
    let plan = plan_graph(&graph, &view, &settings()).expect("a graph");
    assert_eq!((plan.steps.len(), &plan.status["state"]), (0, &json!("successful")));
    assert_eq!(plan.status["components"]["decode"]["componentKind"], "PodCliqueScalingGroup");
}

#[test]
fn a_graph_says_what_its_pods_lack() {
    let mut cluster = SimulatedCluster::default();
    let graph = graph(1, 1, 1);
    let plan = plan_graph(&graph, &cluster.observed(), &settings()).expect("a graph");
    plan.steps.iter().for_each(|step| cluster.take(step));
    let mut view = cluster.observed();
    let message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.";
    view.waiting = vec![json!({
        "metadata": { "labels": { "nvidia.com/selector": "g-frontend" } },
        "status": { "conditions": [{ "type": "PodScheduled", "status": "False", "message": message }] },
    })];
    let plan = plan_graph(&graph, &view, &settings()).expect("a graph");
    let said = plan.status["conditions"][0]["message"].as_str().expect("a text").to_owned();
    let expected = format!("g-frontend: 0 of 1 available, no node for a pod: {message}");
    assert!(said.contains(&expected), "{said}");
}

/// Something that happens to a cluster.
#[derive(Clone, Debug)]
enum ClusterEvent {
    /// The graph gets another image and other numbers.
    Change(u8, i32, i32),
    /// A pass of the operator, of whose steps those fail that the bits say.
    Pass(u32),
    /// A Deployment has a share of its copies, in quarters.
    Run(usize, i64),
    /// A restart is asked for, of all at once or one after another.
    Restart(u8, bool),
    /// Somebody changes an object.
    Edit(usize),
    /// Somebody deletes an object.
    Lose(usize),
}

fn event() -> impl Strategy<Value = ClusterEvent> {
    prop_oneof![
        1 => (1..4u8, 1..6, 1..6).prop_map(|(image, p, d)| ClusterEvent::Change(image, p, d)),
        3 => any::<u32>().prop_map(ClusterEvent::Pass),
        4 => (0..12usize, 0..=4i64).prop_map(|(at, quarters)| ClusterEvent::Run(at, quarters)),
        1 => (0..3u8, any::<bool>()).prop_map(|(id, all)| ClusterEvent::Restart(id, all)),
        1 => (0..64usize).prop_map(ClusterEvent::Edit),
        1 => (0..64usize).prop_map(ClusterEvent::Lose),
    ]
}

proptest! {
    // A case takes a tenth of a second.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_happens_it_settles_and_a_serving_generation_stays(
        events in vec(event(), 0..60),
        nodes in 1..3,
    ) {
        let apis = ClusterApis { pod_groups: Some("v1beta1"), ..ClusterApis::default() };
        let mut cluster = SimulatedCluster { apis, ..SimulatedCluster::default() };
        let mut wanted = spanning(graph(1, 1, 1), nodes);
        for event in events {
            match event {
                ClusterEvent::Change(image, prefill, decode) => {
                    let next = spanning(graph(image, prefill, decode), nodes);
                    wanted["spec"]["components"] = next["spec"]["components"].clone();
                }
                ClusterEvent::Run(at, quarters) => cluster.run(at, quarters),
                ClusterEvent::Restart(id, all) => {
                    let kind = if all { "Parallel" } else { "Sequential" };
                    let strategy = json!({ "type": kind });
                    wanted["spec"]["restart"] = json!({ "id": format!("r{id}"), "strategy": strategy });
                }
                ClusterEvent::Edit(at) => cluster.edit(at),
                ClusterEvent::Lose(at) => cluster.lose(at),
                ClusterEvent::Pass(failing) => {
                    let plan = plan_graph(&wanted, &cluster.observed(), &settings()).expect("a graph");
                    let serving = cluster.serving();
                    for (at, step) in plan.steps.iter().enumerate() {
                        if failing >> (at % 32) & 1 == 0 {
                            cluster.take(step);
                        }
                        let left = cluster.serving().intersection(&serving).count();
                        prop_assert!(serving.is_empty() || left > 0, "{step:?}");
                    }
                    // The status may be lost, too.
                    if failing >> 31 == 0 {
                        wanted["status"] = plan.status;
                    }
                }
            }
        }
        let plan = settled(&mut cluster, &wanted);
        if wanted["spec"]["restart"].is_object() {
            let phase = plan.status["restart"]["phase"].as_str();
            prop_assert!(matches!(phase, Some("Completed" | "Superseded")), "{phase:?}");
        }
        let workers = cluster.objects.values().filter(|object| object["kind"] == COMPONENT);
        let generations: BTreeSet<_> = workers.filter_map(hash).collect();
        prop_assert_eq!(generations.len(), 1);
        for worker in cluster.objects.values().filter(|object| object["kind"] == "Deployment") {
            let pod = &worker["spec"]["template"];
            let generation = &pod["metadata"]["labels"]["nvidia.com/dynamo-worker-hash"];
            if let Some(generation) = generation.as_str() {
                let args = pod["spec"]["containers"][0]["args"].to_string();
                let finds = format!("nvidia.com/dynamo-worker-hash={generation}\"");
                prop_assert!(args.contains(&finds), "{args}");
            }
        }
    }
}
