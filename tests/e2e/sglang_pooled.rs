//! Agents whose SGLang pools: vectors, rankings and scores through the proxy.

use crate::vllm_pooled::{
    EXACT, TEXTS, asked, distance, embeddings, floats, pooling, transformers,
    what_the_engine_does_not_do_is_refused,
};
use serde_json::{Value, json};
use stator_tests::http::Client;
use stator_tests::stock::{Bed, Engine, MODEL, all_engines};

#[tokio::test]
async fn an_agents_sglang_makes_vectors_and_what_is_made_of_them() {
    if !all_engines("an SGLang that pools") {
        return;
    }
    let Some(bed) = Bed::find(Engine::Sglang) else { return };
    let home = tempfile::tempdir().unwrap();
    let (mut agent, _proxy, client) = pooling(&bed, home.path(), &["--is-embedding"]).await;
    let profile = agent.record().await.profile;
    assert!(profile.embeds && profile.only_pools && !profile.classifies, "{profile:?}");

    let vectors = embeddings(&client, "/v1/embeddings").await;
    for other in [
        embeddings(&agent.engine, "/v1/embeddings").await,
        transformers(&bed.program().with_file_name("venv").join("bin/python"), bed.model()),
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
