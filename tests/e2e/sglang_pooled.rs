//! Agents whose SGLang pools: vectors, rankings, scores and classes through the proxy.

use crate::vllm_pooled::{
    EXACT, TEXTS, asked, distance, embeddings, floats, pooling, transformers,
    what_the_engine_does_not_do_is_refused,
};
use serde_json::{Value, json};
use stator_tests::http::Client;
use stator_tests::stock::{Bed, Engine, MODEL};
use std::path::{Path, PathBuf};
use std::process::Command;

#[tokio::test]
async fn an_agents_sglang_makes_vectors_and_what_is_made_of_them() {
    let Some(bed) = Bed::find_among_all(Engine::Sglang, "an SGLang that pools") else { return };
    let home = tempfile::tempdir().unwrap();
    let (mut agent, _proxy, client) = pooling(&bed, home.path(), &["--is-embedding"]).await;
    let profile = agent.record().await.profile;
    assert!(profile.embeds && profile.only_pools && !profile.classifies, "{profile:?}");

    let vectors = embeddings(&client, "/v1/embeddings").await;
    for other in [
        embeddings(&agent.engine, "/v1/embeddings").await,
        transformers(&python(&bed), bed.model()),
    ] {
        let worst = distance(&vectors, &other);
        assert!(worst < EXACT, "{worst}");
    }
    let pooled = asked(&client, "/pooling", &json!({"model": MODEL, "input": TEXTS})).await;
    let pooled = pooled["data"].as_array().unwrap().iter().map(|item| floats(&item["data"]));
    let worst = distance(&pooled.collect::<Vec<_>>(), &vectors);
    assert!(worst < EXACT, "{worst}");
    rankings_and_scores_are_the_cosines_of(&vectors, &client).await;
    what_the_engine_does_not_do_is_refused(&client).await;
    // Nothing would keep one owner's prefixes from another's.
    let salted = json!({"model": MODEL, "input": TEXTS[0], "cache_salt": "secret"});
    let refused = client.post("/v1/embeddings", &salted).await;
    let error = refused.json()["error"].clone();
    assert!(error["message"].as_str().unwrap_or_default().contains("cache_salt"), "{error}");
    assert!(refused.status.is_client_error(), "{error}");
}

/// Rankings and scores of the first text against the others.
async fn rankings_and_scores_are_the_cosines_of(vectors: &[Vec<f32>], client: &Client) {
    let [query, documents @ ..] = TEXTS;
    let cosine = |n: usize| -> f32 { vectors[0].iter().zip(&vectors[n]).map(|(a, b)| a * b).sum() };
    let mut expected = [(0, cosine(1)), (1, cosine(2))];
    let scores = json!({"model": MODEL, "text_1": query, "text_2": documents});
    let scores = asked(client, "/v1/score", &scores).await;
    alike(&scores["data"], "score", &expected);
    let ranking = json!({"model": MODEL, "query": query, "documents": documents});
    let ranking = asked(client, "/v1/rerank", &ranking).await;
    expected.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    alike(&ranking["results"], "relevance_score", &expected);
}

fn alike(items: &Value, score: &str, expected: &[(u64, f32)]) {
    let items = items.as_array().unwrap();
    assert_eq!(items.len(), expected.len());
    for (item, (index, value)) in items.iter().zip(expected) {
        assert_eq!(item["index"], *index, "{items:?}");
        let said = item[score].as_f64().unwrap() as f32;
        assert!((said - value).abs() < EXACT, "{said}, {value}");
    }
}

#[tokio::test]
async fn an_agents_sglang_tells_classes_apart() {
    let Some(bed) = Bed::find_among_all(Engine::Sglang, "an SGLang that classifies") else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let (model, expected) = with_a_head(&bed, home.path());
    let bed = bed.with_model(model);
    let (mut agent, _proxy, client) = pooling(&bed, home.path(), &["--is-embedding"]).await;
    let profile = agent.record().await.profile;
    assert!(profile.classifies && profile.only_pools && !profile.embeds, "{profile:?}");
    let body = json!({"model": MODEL, "input": TEXTS});
    for (client, path) in [(&client, "/v1/classify"), (&agent.engine, "/v1/classify")] {
        let reply = asked(client, path, &body).await;
        let items = reply["data"].as_array().unwrap();
        let found: Vec<_> = items.iter().map(|item| floats(&item["probs"])).collect();
        let worst = distance(&found, &expected);
        assert!(worst < EXACT, "{worst}");
        let labels = expected.iter().map(|of| if of[0] > of[1] { "dull" } else { "bright" });
        assert!(items.iter().map(|item| &item["label"]).eq(labels), "{reply}");
    }
    let refused = client.post("/v1/embeddings", &body).await;
    assert_eq!(refused.status, 501, "{}", refused.json());
}

/// The model with a head for two classes, and the probabilities that `transformers` gives the texts.
fn with_a_head(bed: &Bed, home: &Path) -> (PathBuf, Vec<Vec<f32>>) {
    let copy = home.join("classes");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/engines/classes.py");
    let mut command = Command::new(python(bed));
    let ran = command.arg(script).arg(bed.model()).arg(&copy).args(TEXTS).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let lines = String::from_utf8(ran.stdout).unwrap();
    (copy, lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn python(bed: &Bed) -> PathBuf {
    bed.program().with_file_name("venv").join("bin/python")
}
