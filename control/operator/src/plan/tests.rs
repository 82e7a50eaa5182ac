use super::*;
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

/// A cluster whose controllers act when they are told to.
#[derive(Default)]
struct SimulatedCluster {
    objects: BTreeMap<(String, String), Value>,
    clock: u64,
}

impl SimulatedCluster {
    fn observed(&self) -> Vec<Value> {
        self.objects.values().cloned().collect()
    }

    fn take(&mut self, step: &ObjectStep) {
        self.clock += 1;
        match step {
            ObjectStep::Delete(object) => drop(self.objects.remove(&key(object))),
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
                self.objects.insert(key(&object), object);
            }
        }
    }

    /// Lets a Deployment have a share of its copies, in quarters.
    fn run(&mut self, at: usize, quarters: i64) {
        let mut deployments: Vec<_> =
            self.objects.values_mut().filter(|object| object["kind"] == "Deployment").collect();
        if deployments.is_empty() {
            return;
        }
        let at = at % deployments.len();
        let deployment = &mut deployments[at];
        let asked = deployment["spec"]["replicas"].as_i64().unwrap_or_default();
        let available = asked * quarters / 4;
        deployment["status"] = json!({
            "updatedReplicas": asked, "readyReplicas": available, "availableReplicas": available,
        });
    }

    fn run_all(&mut self) {
        (0..self.objects.len()).for_each(|at| self.run(at, 4));
    }

    /// Generations of which both workers have a copy that is available.
    fn serving(&self) -> BTreeSet<String> {
        let mut all: BTreeMap<String, usize> = BTreeMap::new();
        for component in self.objects.values().filter(|object| object["kind"] == COMPONENT) {
            let Some(generation) = hash(component) else { continue };
            let workload = ("Deployment".to_owned(), key(component).1);
            let readiness = WorkloadReadiness::of(self.objects.get(&workload));
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
    for _ in 0..64 {
        let plan = plan_graph(graph, &cluster.observed(), &settings()).expect("a graph");
        let is_updated = plan.status["state"] == "successful";
        if plan.steps.is_empty() && is_updated {
            return plan;
        }
        plan.steps.iter().for_each(|step| cluster.take(step));
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
    let plan = plan_component(&document, &[], &settings()).expect("a component");
    plan.steps.iter().for_each(|step| cluster.take(step));
    cluster.run_all();
    let plan = plan_component(&document, &cluster.observed(), &settings()).expect("a component");
    assert_eq!(plan.steps, []);
    assert_eq!(plan.status["observedGeneration"], 3);
    assert_eq!(plan.status["conditions"][0]["status"], "True");
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
}

fn event() -> impl Strategy<Value = ClusterEvent> {
    prop_oneof![
        1 => (1..4u8, 1..6, 1..6).prop_map(|(image, p, d)| ClusterEvent::Change(image, p, d)),
        3 => any::<u32>().prop_map(ClusterEvent::Pass),
        4 => (0..12usize, 0..=4i64).prop_map(|(at, quarters)| ClusterEvent::Run(at, quarters)),
    ]
}

proptest! {
    // A case takes a tenth of a second.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_happens_it_settles_and_a_serving_generation_stays(events in vec(event(), 0..60)) {
        let mut cluster = SimulatedCluster::default();
        let mut wanted = graph(1, 1, 1);
        for event in events {
            match event {
                ClusterEvent::Change(image, prefill, decode) => wanted = graph(image, prefill, decode),
                ClusterEvent::Run(at, quarters) => cluster.run(at, quarters),
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
                }
            }
        }
        settled(&mut cluster, &wanted);
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
