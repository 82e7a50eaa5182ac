//! Agents whose vLLM pools: vectors, rankings, scores and classes through the proxy.

use crate::agents::{Agent, proxy};
use crate::support::up_with;
use serde_json::{Value, json};
use stator_tests::http::Client;
use stator_tests::process::Process;
use stator_tests::stock::{Bed, Engine, MODEL, Role};
use std::path::Path;
use std::process::Command;

pub(crate) const TEXTS: [&str; 3] =
    ["def answer(self):", "import json", "A third text, and no Python."];
/// Names of the classes, in the order of their numbers.
const LABELS: [&str; 2] = ["dull", "bright"];
/// A vLLM computes with 8 bits behind the point, and not alike beside other prompts.
const HALF: f32 = 0.02;
/// The built-in engine and SGLang compute as `transformers` does.
pub(crate) const EXACT: f32 = 1e-4;

#[tokio::test]
async fn an_agents_vllm_makes_vectors_and_what_is_made_of_them() {
    let Some(bed) = Bed::find(Engine::Vllm) else { return };
    let home = tempfile::tempdir().unwrap();
    let (mut agent, _proxy, client) = pooling(&bed, home.path(), &converted("embed")).await;
    let profile = agent.record().await.profile;
    assert!(profile.embeds && profile.only_pools && !profile.classifies, "{profile:?}");

    let vectors = embeddings(&client, "/v1/embeddings").await;
    let worst = distance(&embeddings(&agent.engine, "/v1/embeddings").await, &vectors);
    assert!(worst < HALF, "{worst}");
    let expected = transformers(&bed.program().with_file_name("python"), bed.model());
    let worst = distance(&vectors, &expected);
    assert!(worst < HALF, "{worst}");
    let worst = distance(&built_in(&bed).await, &expected);
    assert!(worst < EXACT, "{worst}");

    let pooled = json!({"model": MODEL, "input": TEXTS});
    let pooled = asked(&client, "/pooling", &pooled).await;
    let pooled = pooled["data"].as_array().unwrap().iter().map(|item| floats(&item["data"]));
    let worst = distance(&pooled.collect::<Vec<_>>(), &vectors);
    assert!(worst < HALF, "{worst}");
    what_is_made_of_vectors_is_what_the_engine_makes(&client, &agent.engine).await;
    what_the_engine_does_not_do_is_refused(&client).await;
}

/// By the engine's own words beside ours.
async fn what_is_made_of_vectors_is_what_the_engine_makes(client: &Client, engine: &Client) {
    let [query, documents @ ..] = TEXTS;
    let ranking = json!({"model": MODEL, "query": query, "documents": documents});
    let scores = json!({"model": MODEL, "text_1": query, "text_2": documents});
    for (path, body, list, score) in [
        ("/v1/rerank", ranking, "results", "relevance_score"),
        ("/v1/score", scores, "data", "score"),
    ] {
        let [ours, theirs] = [asked(client, path, &body).await, asked(engine, path, &body).await];
        assert_eq!(ours["usage"]["prompt_tokens"], theirs["usage"]["prompt_tokens"], "{path}");
        let of = |reply: &Value| {
            let items = reply[list].as_array().unwrap().iter();
            let item = |item: &Value| (item["index"].as_u64().unwrap(), float(&item[score]));
            items.map(item).collect::<Vec<_>>()
        };
        let (ours, theirs) = (of(&ours), of(&theirs));
        assert_eq!((ours.len(), theirs.len()), (2, 2), "{path}");
        let close = |((one, ours), (other, theirs)): (&(u64, f32), &(u64, f32))| {
            one == other && (ours - theirs).abs() < HALF
        };
        assert!(ours.iter().zip(&theirs).all(close), "{path}: {ours:?}, {theirs:?}");
    }
}

pub(crate) async fn what_the_engine_does_not_do_is_refused(client: &Client) {
    let chat = json!({"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]});
    for (path, body, why) in [
        ("/v1/classify", json!({"model": MODEL, "input": "a"}), "has no head for classes"),
        ("/v1/chat/completions", chat, "has no engine that answers prompts"),
    ] {
        let refused = client.post(path, &body).await;
        let error = refused.json()["error"].clone();
        assert_eq!((refused.status.as_u16(), &error["param"]), (501, &json!("model")), "{error}");
        assert!(error["message"].as_str().unwrap().contains(why), "{error}");
    }
    let tokenized = json!({"model": MODEL, "prompt": TEXTS[0]});
    let tokenized = asked(client, "/tokenize", &tokenized).await;
    let pieces = json!({"model": MODEL, "tokens": tokenized["tokens"]});
    assert_eq!(asked(client, "/detokenize", &pieces).await["prompt"], TEXTS[0]);
}

#[tokio::test]
async fn an_agents_vllm_tells_classes_apart() {
    let Some(bed) = Bed::find_among_all(Engine::Vllm, "a vLLM that classifies") else { return };
    let home = tempfile::tempdir().unwrap();
    let bed = bed.with_model(with_a_head(bed.model(), home.path()));
    let (mut agent, _proxy, client) = pooling(&bed, home.path(), &converted("classify")).await;
    let profile = agent.record().await.profile;
    assert!(profile.classifies && profile.only_pools && !profile.embeds, "{profile:?}");
    let body = json!({"model": MODEL, "input": TEXTS});
    let [ours, theirs] = [
        asked(&client, "/v1/classify", &body).await,
        asked(&agent.engine, "/classify", &body).await,
    ];
    assert_eq!(ours["usage"]["prompt_tokens"], theirs["usage"]["prompt_tokens"]);
    for (ours, theirs) in [0, 1, 2].map(|at| (&ours["data"][at], &theirs["data"][at])) {
        assert_eq!(ours["index"], theirs["index"]);
        assert_eq!((&ours["label"], &ours["num_classes"]), (&theirs["label"], &json!(2)));
        assert!(LABELS.contains(&ours["label"].as_str().unwrap()));
        assert_eq!(floats(&ours["probs"]), floats(&theirs["probs"]));
    }
    let pooled = asked(&client, "/pooling", &body).await;
    assert_eq!(floats(&pooled["data"][1]["data"]), floats(&ours["data"][1]["probs"]));
    let refused = client.post("/v1/embeddings", &body).await;
    assert_eq!(refused.status, 501, "{}", refused.json());
}

/// Flags of a vLLM that converts its model to do `what`.
fn converted(what: &str) -> [&str; 4] {
    ["--runner", "pooling", "--convert", what]
}

/// An agent whose engine pools, by flags of the engine's, and a proxy.
pub(crate) async fn pooling(bed: &Bed, home: &Path, flags: &[&str]) -> (Agent, Process, Client) {
    let own = bed.engine().flags(Role::Aggregated, 1);
    let own = own.iter().map(String::as_str);
    let flags: Vec<_> = ["--"].into_iter().chain(flags.iter().copied()).chain(own).collect();
    let process = Agent::start_as(bed, home, ("pools", Role::Aggregated), (&flags, 1));
    let agent = Agent::ready(bed.engine(), process).await;
    let (proxy, client) = proxy(home, &[]).await;
    (agent, proxy, client)
}

/// The model with a head whose classes are two of its tokens.
fn with_a_head(model: &Path, home: &Path) -> std::path::PathBuf {
    let folder = home.join("classes");
    std::fs::create_dir(&folder).unwrap();
    for file in std::fs::read_dir(model).unwrap().map(|entry| entry.unwrap()) {
        std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["architectures"] = json!(["Qwen3ForSequenceClassification"]);
    config["classifier_from_token"] = json!(["a", "b"]);
    config["method"] = json!("no_post_processing");
    config["id2label"] = json!({"0": LABELS[0], "1": LABELS[1]});
    config["label2id"] = json!({LABELS[0]: 0, LABELS[1]: 1});
    std::fs::write(&path, config.to_string()).unwrap();
    folder
}

/// The vectors that a server makes of the texts.
pub(crate) async fn embeddings(client: &Client, path: &str) -> Vec<Vec<f32>> {
    let reply = asked(client, path, &json!({"model": MODEL, "input": TEXTS})).await;
    let vectors: Vec<_> =
        reply["data"].as_array().unwrap().iter().map(|item| floats(&item["embedding"])).collect();
    assert_eq!(vectors.len(), TEXTS.len());
    vectors
}

/// The vectors that the built-in engine makes with the same model.
async fn built_in(bed: &Bed) -> Vec<Vec<f32>> {
    let (model, name) =
        (format!("--model={}", bed.model().display()), format!("--model-name={MODEL}"));
    let up = up_with(Process::start(&["up", "--http-port=0", "--workers=1", &model, &name])).await;
    embeddings(&up.client, "/v1/embeddings").await
}

/// The vectors that `transformers` makes, which engines bring along.
pub(crate) fn transformers(python: &Path, model: &Path) -> Vec<Vec<f32>> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/engines/vectors.py");
    let ran = Command::new(python).arg(script).arg(model).args(TEXTS).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let lines = String::from_utf8(ran.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) async fn asked(client: &Client, path: &str, body: &Value) -> Value {
    let reply = client.post(path, body).await;
    let said = String::from_utf8_lossy(&reply.body).into_owned();
    assert_eq!(reply.status, 200, "{path}: {said}");
    reply.json()
}

pub(crate) fn float(value: &Value) -> f32 {
    value.as_f64().unwrap() as f32
}

pub(crate) fn floats(list: &Value) -> Vec<f32> {
    list.as_array().unwrap().iter().map(float).collect()
}

/// The largest difference between two values at one place.
pub(crate) fn distance(ours: &[Vec<f32>], theirs: &[Vec<f32>]) -> f32 {
    let shape = |vectors: &[Vec<f32>]| vectors.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(shape(ours), shape(theirs));
    let pairs = ours.iter().flatten().zip(theirs.iter().flatten());
    pairs.map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}
