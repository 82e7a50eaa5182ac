//! Launch lines of engines on several nodes: flags that join the nodes of one engine, on the leader and
//! on the others, as Dynamo's operator adds them.
//!
//! The flags stand after `--` if agents start the engines; then those of the nodes without a server
//! follow the leader's.

use super::instance::Instance;
use super::label;
use super::provider::NodeSets;
use crate::kinds::common::Framework;
use crate::translate::Note;
use serde_json::{Value, json};

/// Ports at which the nodes of an engine meet.
const PORT: u16 = 29_500;
const RAY_PORT: u16 = 6379;
/// Version of the operator from which on vLLM's own processes span nodes; Ray before.
const MP_SINCE: [u32; 3] = [1, 0, 0];

/// Node of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum NodeKind {
    Leader,
    Worker,
}

/// Words by which a pod knows the leader of its engine and its own number.
struct NodeWords {
    leader: String,
    /// Number of a worker.
    rank: &'static str,
    /// The number inside the sum of a shell.
    term: &'static str,
}

impl NodeWords {
    fn of(of: &Instance, sets: NodeSets) -> Self {
        match sets {
            // StatefulSets give the variables that a LeaderWorkerSet gives.
            NodeSets::LeaderWorker | NodeSets::Stateful(_) => Self {
                leader: "$(LWS_LEADER_ADDRESS)".to_owned(),
                rank: "$(LWS_WORKER_INDEX)",
                term: "LWS_WORKER_INDEX",
            },
            NodeSets::Cliques => Self {
                leader: format!(
                    "$(GROVE_PCSG_NAME)-$(GROVE_PCSG_INDEX)-{}-ldr-0.$(GROVE_HEADLESS_SERVICE)",
                    of.component.to_lowercase()
                ),
                rank: "$((GROVE_PCLQ_POD_INDEX + 1))",
                term: "(GROVE_PCLQ_POD_INDEX + 1)",
            },
        }
    }
}

/// Way in which the nodes of one engine are joined.
#[derive(Clone, Copy, Debug, PartialEq)]
enum NodeJoin {
    /// vLLM's own processes.
    Mp,
    Ray,
    /// Ranks of data parallelism, so many on each node.
    Ranks(u64),
    Sglang,
}

/// Joins the main container of a node to the others of its engine, and returns whether the node takes
/// requests.
///
/// # Errors
///
/// The reason where the container stays as it was written.
pub(super) fn join(
    container: &mut Value,
    of: &Instance,
    node: NodeKind,
    sets: NodeSets,
) -> Result<bool, String> {
    let nodes = of.nodes();
    if of.framework == Some(Framework::Vllm) && is_mp(of) {
        let field = json!({ "fieldRef": { "fieldPath": "status.podIP" } });
        let variable = json!({ "name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": field });
        add_variable(container, variable);
    }
    let words = words(container);
    let join = match of.framework {
        Some(Framework::Vllm) => match vllm_join(of, &words, gpus(container)) {
            Some(join) => join,
            // One node has room for it.
            None => return Ok(true),
        },
        Some(Framework::Sglang) => NodeJoin::Sglang,
        Some(Framework::Trtllm) => return Err("TensorRT-LLM on several nodes needs MPI".to_owned()),
        None => return Err("several nodes need a backendFramework".to_owned()),
    };
    let NodeWords { leader, rank, term } = NodeWords::of(of, sets);
    let rank = if node == NodeKind::Leader { "0" } else { rank };
    let flags = match join {
        NodeJoin::Mp => {
            let end = if node == NodeKind::Leader { "" } else { " --headless" };
            format!(
                "--distributed-executor-backend mp --nnodes {nodes} --master-addr {leader} \
                 --master-port {PORT} --node-rank {rank}{end}"
            )
        }
        NodeJoin::Ranks(local) => format!(
            "--data-parallel-hybrid-lb --data-parallel-size-local {local} \
             --data-parallel-start-rank {} --data-parallel-address {leader} \
             --data-parallel-rpc-port 13445",
            start_rank(node, term, local)
        ),
        NodeJoin::Sglang => {
            format!("--dist-init-addr {leader}:{PORT} --nnodes {nodes} --node-rank {rank}")
        }
        NodeJoin::Ray => {
            join_ray(container, node, &leader);
            return Ok(node == NodeKind::Leader);
        }
    };
    let has_server = node == NodeKind::Leader || matches!(join, NodeJoin::Ranks(_));
    let flags = match is_agent(container) {
        true => give_agent(container, &flags, has_server),
        false => flags,
    };
    let is_sum = flags.contains("$((");
    add_flags(container, &flags, is_sum);
    Ok(has_server)
}

fn vllm_join(of: &Instance, words: &[String], gpus: u64) -> Option<NodeJoin> {
    let number =
        |names: &[&str]| value(words, names).and_then(|text| text.parse().ok()).unwrap_or(1);
    let size: u64 = number(&["--tensor-parallel-size", "-tp", "--tp"])
        * number(&["--pipeline-parallel-size", "-pp", "--pp"]);
    let ranks: u64 = number(&["--data-parallel-size", "-dp", "--dp"]);
    let gpus = gpus.max(1);
    if size > gpus {
        return Some(if is_mp(of) { NodeJoin::Mp } else { NodeJoin::Ray });
    }
    (ranks * size > gpus).then(|| NodeJoin::Ranks((gpus / size).max(1)))
}

/// Whether vLLM's own processes span nodes, rather than Ray's.
fn is_mp(of: &Instance) -> bool {
    let origin = annotation(of, "dynamo-operator-origin-version");
    match annotation(of, "vllm-distributed-executor-backend").as_deref() {
        Some(said) => said == "mp",
        None => origin.is_some_and(|version| is_since(&version, MP_SINCE)),
    }
}

/// First rank of a node. The shell multiplies for the nodes after the first.
fn start_rank(node: NodeKind, term: &str, local: u64) -> String {
    match node {
        NodeKind::Leader => "0".to_owned(),
        NodeKind::Worker => format!("$(({term} * {local}))"),
    }
}

/// Starts Ray before the engine on the leader, and alone on the other nodes.
fn join_ray(container: &mut Value, node: NodeKind, leader: &str) {
    let line = match node {
        NodeKind::Leader => format!(
            "ray start --head --port={RAY_PORT} && {} --distributed-executor-backend ray",
            shell_line(container)
        ),
        NodeKind::Worker => format!("ray start --address={leader}:{RAY_PORT} --block"),
    };
    run_by_shell(container, line);
}

/// Whether a container runs an agent, which starts the engine.
fn is_agent(container: &Value) -> bool {
    container["command"] == json!(["stator"]) && container["args"][0] == "agent"
}

/// Makes an agent's command line one that the engine's flags can be added to, and returns them.
fn give_agent(container: &mut Value, flags: &str, has_server: bool) -> String {
    if let Some(args) = container["args"].as_array_mut() {
        if !has_server {
            args.insert(1, json!("--engine-follower"));
        }
        if !args.iter().any(|word| word == "--") {
            args.push(json!("--"));
        }
    }
    // The agent of a follower says so by itself.
    flags.replace(" --headless", "")
}

/// Adds flags to the command line that starts the engine.
fn add_flags(container: &mut Value, flags: &str, needs_shell: bool) {
    if needs_shell || is_shell(container) {
        let line = format!("{} {flags}", shell_line(container));
        return run_by_shell(container, line);
    }
    let mut args = container["args"].as_array().cloned().unwrap_or_default();
    args.extend(flags.split_whitespace().map(|word| json!(word)));
    container["args"] = args.into();
}

fn run_by_shell(container: &mut Value, line: String) {
    container["command"] = json!(["/bin/sh", "-c"]);
    container["args"] = json!([line]);
}

/// Whether the container's words are a shell's script.
fn is_shell(container: &Value) -> bool {
    let program = container["command"][0].as_str().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or(program);
    let words = container["command"].as_array().map_or(0, Vec::len);
    ["sh", "bash"].contains(&name) && words > 1
}

/// The container's words as a line of a shell.
fn shell_line(container: &Value) -> String {
    if is_shell(container) {
        return container["args"][0].as_str().unwrap_or_default().trim_end().to_owned();
    }
    let quoted = |word: &String| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,$()".contains(c);
        let is_bare = !word.is_empty() && word.chars().all(is_plain);
        if is_bare { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) }
    };
    words(container).iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// The words that start the engine: the container's own, or those of its shell's script.
fn words(container: &Value) -> Vec<String> {
    let lists = ["command", "args"].into_iter().filter_map(|name| container[name].as_array());
    let words = lists.flatten().filter_map(Value::as_str);
    if is_shell(container) {
        return words.flat_map(str::split_whitespace).map(str::to_owned).collect();
    }
    words.map(str::to_owned).collect()
}

/// The value of a flag, whose names are alike.
fn value<'w>(words: &'w [String], names: &[&str]) -> Option<&'w str> {
    words.iter().enumerate().find_map(|(at, word)| match word.split_once('=') {
        Some((name, value)) => names.contains(&name).then_some(value),
        None => names.contains(&word.as_str()).then(|| words.get(at + 1).map(String::as_str))?,
    })
}

/// GPUs of a container: its limit, or its request.
fn gpus(container: &Value) -> u64 {
    let count = |bound: &str| {
        let count = &container["resources"][bound]["nvidia.com/gpu"];
        count.as_u64().or_else(|| count.as_str()?.parse().ok())
    };
    count("limits").or_else(|| count("requests")).unwrap_or(0)
}

fn annotation(of: &Instance, name: &str) -> Option<String> {
    let metadata = of.shape.pod_template.as_ref()?.0.get("metadata")?;
    metadata["annotations"][super::label(name)].as_str().map(str::to_owned)
}

fn is_since(version: &str, since: [u32; 3]) -> bool {
    let parts = version.split(['.', '-', '+']).take(3).map(|part| part.parse().unwrap_or(0));
    parts.collect::<Vec<u32>>()[..] >= since[..]
}

fn add_variable(container: &mut Value, variable: Value) {
    if let Some(env) = container["env"].as_array_mut()
        && !env.iter().any(|known| known["name"] == variable["name"])
    {
        env.push(variable);
    }
}

/// The templates of the pods of an engine's leader and of its workers.
pub(super) fn node_templates(
    of: &Instance,
    template: &Value,
    sets: NodeSets,
    notes: &mut Vec<Note>,
) -> [Value; 2] {
    let [mut leader, mut worker] = [template.clone(), template.clone()];
    // Cliques have names of their own for this.
    if sets != NodeSets::Cliques {
        leader["metadata"]["labels"]["role"] = "leader".into();
        worker["metadata"]["labels"]["role"] = "worker".into();
    }
    let joined = [
        join_nodes(&mut leader, of, NodeKind::Leader, sets),
        join_nodes(&mut worker, of, NodeKind::Worker, sets),
    ];
    // Both have the same reason.
    notes.extend(joined[0].as_ref().err().map(|why| unjoined(of, why)));
    if joined[1] == Ok(false)
        && let Some(labels) = worker["metadata"]["labels"].as_object_mut()
    {
        // A picker's pool has only pods that take requests.
        labels.remove(&label("dynamo-component-class"));
    }
    // Only the first node of a vLLM or an SGLang answers probes.
    if matches!(of.framework, Some(Framework::Vllm | Framework::Sglang)) {
        let containers = worker["spec"]["containers"].as_array_mut().into_iter().flatten();
        for main in containers.filter(|container| container["name"] == "main") {
            let main = main.as_object_mut().into_iter();
            main.for_each(|main| main.retain(|field, _| !field.ends_with("Probe")));
        }
    }
    [leader, worker]
}

/// Joins the engine of a pod to those of the other nodes, and returns whether the pod takes requests.
///
/// # Errors
///
/// The reason where it stays alone.
fn join_nodes(
    pod: &mut Value,
    of: &Instance,
    node: NodeKind,
    sets: NodeSets,
) -> Result<bool, String> {
    let containers = pod["spec"]["containers"].as_array_mut().into_iter().flatten();
    let mut mains = containers.filter(|container| container["name"] == "main");
    mains.next().map_or(Ok(true), |main| join(main, of, node, sets))
}

fn unjoined(of: &Instance, why: &str) -> Note {
    Note {
        component: of.component.clone(),
        container: "main".to_owned(),
        subject: "multinode".to_owned(),
        message: format!("its nodes are not joined: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(framework: &str, annotations: Value) -> Instance {
        let document = json!({
            "metadata": { "name": "c" },
            "spec": {
                "backendFramework": framework,
                "multinode": { "nodeCount": 2 },
                "podTemplate": { "metadata": { "annotations": annotations } },
            },
        });
        Instance::read(&document).expect("a component")
    }

    const SETS: NodeSets = NodeSets::LeaderWorker;

    fn check(of: &Instance, args: &[&str], node: NodeKind, expected: &str) {
        check_in(SETS, of, args, node, expected);
    }

    fn check_in(sets: NodeSets, of: &Instance, args: &[&str], node: NodeKind, expected: &str) {
        let mut container = json!({
            "command": ["python3", "-m", "m"],
            "args": args,
            "env": [],
            "resources": { "limits": { "nvidia.com/gpu": "4" } },
        });
        join(&mut container, of, node, sets).expect("it is known");
        let found = match container["command"][0] == "/bin/sh" {
            true => container["args"][0].as_str().unwrap_or_default().to_owned(),
            false => words(&container)[3..].join(" "),
        };
        assert_eq!(found, expected, "{args:?}");
    }

    #[test]
    fn a_large_vllm_spans_its_nodes_by_its_own_processes() {
        let origin = json!({ "nvidia.com/dynamo-operator-origin-version": "1.5.0" });
        let of = instance("vllm", origin);
        let common = "--distributed-executor-backend mp --nnodes 2 --master-addr $(LWS_LEADER_ADDRESS) --master-port 29500";
        let args = ["--tensor-parallel-size", "8"];
        let leader = format!("{} {common} --node-rank 0", args.join(" "));
        check(&of, &args, NodeKind::Leader, &leader);
        let worker = format!("-tp=8 {common} --node-rank $(LWS_WORKER_INDEX) --headless");
        check(&of, &["-tp=8"], NodeKind::Worker, &worker);
        check(&of, &["--tensor-parallel-size", "4"], NodeKind::Worker, "--tensor-parallel-size 4");
    }

    #[test]
    fn an_older_graph_or_one_that_says_so_uses_ray() {
        for annotations in [
            json!({ "nvidia.com/vllm-distributed-executor-backend": "ray" }),
            json!({ "nvidia.com/dynamo-operator-origin-version": "0.9.1" }),
            json!({}),
        ] {
            let of = instance("vllm", annotations);
            let leader = "ray start --head --port=6379 && python3 -m m --tp 8 'a b' --distributed-executor-backend ray";
            check(&of, &["--tp", "8", "a b"], NodeKind::Leader, leader);
            let worker = "ray start --address=$(LWS_LEADER_ADDRESS):6379 --block";
            check(&of, &["--tp", "8"], NodeKind::Worker, worker);
        }
    }

    #[test]
    fn ranks_of_a_vllm_are_divided_among_nodes() {
        let of = instance("vllm", json!({}));
        let rest = |start: &str| {
            format!(
                "--data-parallel-hybrid-lb --data-parallel-size-local 2 --data-parallel-start-rank {start} --data-parallel-address $(LWS_LEADER_ADDRESS) --data-parallel-rpc-port 13445"
            )
        };
        let args = ["--data-parallel-size", "4", "-tp", "2"];
        check(&of, &args, NodeKind::Leader, &format!("{} {}", args.join(" "), rest("0")));
        let line = format!("python3 -m m {} {}", args.join(" "), rest("$((LWS_WORKER_INDEX * 2))"));
        check(&of, &args, NodeKind::Worker, &line);
    }

    #[test]
    fn agents_start_the_nodes_of_an_engine() {
        let of = instance("sglang", json!({}));
        let agent = |node: NodeKind| {
            let mut container = json!({ "command": ["stator"], "args": ["agent", "--model=m"] });
            join(&mut container, &of, node, SETS).expect("it is known");
            words(&container).join(" ")
        };
        let flags = "-- --dist-init-addr $(LWS_LEADER_ADDRESS):29500 --nnodes 2 --node-rank";
        assert_eq!(agent(NodeKind::Leader), format!("stator agent --model=m {flags} 0"));
        let follower =
            format!("stator agent --engine-follower --model=m {flags} $(LWS_WORKER_INDEX)");
        assert_eq!(agent(NodeKind::Worker), follower);
    }

    #[test]
    fn sglang_meets_at_its_leader_and_others_stay_as_they_are() {
        let of = instance("sglang", json!({}));
        let line = "--tp 8 --dist-init-addr $(LWS_LEADER_ADDRESS):29500 --nnodes 2 --node-rank $(LWS_WORKER_INDEX)";
        check(&of, &["--tp", "8"], NodeKind::Worker, line);
        let mut script = json!({ "command": ["/bin/sh", "-c"], "args": ["exec sglang --tp 8\n"] });
        join(&mut script, &of, NodeKind::Leader, SETS).expect("it is known");
        let expected = "exec sglang --tp 8 --dist-init-addr $(LWS_LEADER_ADDRESS):29500 --nnodes 2 --node-rank 0";
        assert_eq!(script["args"], json!([expected]));
        let number = "--dist-init-addr $(GROVE_PCSG_NAME)-$(GROVE_PCSG_INDEX)-c-ldr-0.$(GROVE_HEADLESS_SERVICE):29500 --nnodes 2 --node-rank";
        check_in(NodeSets::Cliques, &of, &[], NodeKind::Leader, &format!("{number} 0"));
        let line = format!("python3 -m m {number} $((GROVE_PCLQ_POD_INDEX + 1))");
        check_in(NodeSets::Cliques, &of, &[], NodeKind::Worker, &line);
        let of = instance("trtllm", json!({}));
        assert!(join(&mut script, &of, NodeKind::Leader, SETS).is_err());
    }
}
