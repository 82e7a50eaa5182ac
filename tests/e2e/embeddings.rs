//! Vectors of texts, and what is made of them.

use crate::support::{MODEL, chat, official_client, text, up};
use serde_json::{Value, json};

#[tokio::test]
async fn the_official_client_is_content_with_embeddings() {
    for pooling in ["--pooling=last", "--pooling=mean"] {
        let up = up(&["--workers=2", pooling]).await;
        official_client("embeddings_client.py", &up).await;
    }
}

#[tokio::test]
async fn many_inputs_pass_few_places() {
    let up = up(&["--workers=2", "--active-requests-threshold=1"]).await;
    let texts: Vec<_> = (0..100).map(|number| format!("Number {number}")).collect();
    let body = json!({"model": MODEL, "input": texts});
    let answer = up.client.post("/v1/embeddings", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.json());
    let data = answer.json()["data"].as_array().expect("a list").clone();
    assert_eq!(data.len(), 100);
    let alone = json!({"model": MODEL, "input": texts[57]});
    let alone = up.client.post("/v1/embeddings", &alone).await.json();
    assert_eq!(data[57]["embedding"], alone["data"][0]["embedding"]);
}

#[tokio::test]
async fn a_chat_is_the_same_beside_embeddings() {
    let up = up(&["--workers=1"]).await;
    let ask =
        async || text(&up.client.post("/v1/chat/completions", &chat("Hello", 40)).await.json());
    let alone = ask().await;
    let body =
        json!({"model": MODEL, "input": (0..60).map(|n| format!("Text {n}")).collect::<Vec<_>>()});
    let (beside, embedded) = tokio::join!(ask(), up.client.post("/v1/embeddings", &body));
    assert_eq!((beside, embedded.status.as_u16()), (alone, 200));
}

#[tokio::test]
async fn what_a_model_does_not_do_is_refused_by_name() {
    let up = up(&["--workers=1"]).await;
    let body = json!({"model": MODEL, "input": "a"});
    for path in ["/classify", "/v1/classify"] {
        let refused = up.client.post(path, &body).await;
        let error = refused.json()["error"].clone();
        assert_eq!((refused.status.as_u16(), &error["param"]), (501, &json!("model")), "{error}");
        assert_eq!(error["message"], "the model \"stator-tiny\" has no head for classes");
    }
    let unknown = up.client.post("/v1/embeddings", &json!({"model": "x", "input": "a"})).await;
    assert_eq!(unknown.status, 404);
    let noted: Value = json!({"model": MODEL, "input": "a", "user": "u"});
    let answer = up.client.post("/v1/embeddings", &noted).await;
    assert_eq!(answer.headers["x-stator-ignored"], "user");
}
