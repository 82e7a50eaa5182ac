use super::answer::answer;
use super::*;
use crate::delta::Identity;
use serde_json::{Value, json};

fn check(api: Api, body: &Value) -> Result<PooledForm, (u16, String)> {
    let body = body.to_string();
    let request = read(api, api.path(), body.as_bytes(), &FieldNotes::default());
    let refused = |error: ApiError| (error.status.as_u16(), error.param.unwrap_or_default());
    request.map(|request| request.form).map_err(refused)
}

/// The answer for these vectors.
fn answered(form: &PooledForm, vectors: &[&[f32]]) -> Result<Value, String> {
    let identity = Identity { id: "7", created: 9, model: "m" };
    let vectors = vectors.iter().map(|vector| vector.to_vec()).collect();
    let body = answer(form, &identity, vectors, 5).map_err(|error| error.message)?;
    Ok(serde_json::from_slice(&body).expect("JSON"))
}

#[test]
fn inputs_come_in_four_shapes() {
    let texts = |texts: &[&'static str]| {
        texts.iter().map(|text| Prompt::Text((*text).into())).collect::<Vec<_>>()
    };
    let cases = [
        (json!("a"), texts(&["a"])),
        (json!(["a", "b"]), texts(&["a", "b"])),
        (json!([1, 2]), vec![Prompt::Tokens(vec![1, 2])]),
        (json!([[1], [2, 3]]), vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]),
    ];
    for (input, expected) in cases {
        let body = json!({"model": "m", "input": input}).to_string();
        let request = read(Api::Embeddings, "", body.as_bytes(), &FieldNotes::default());
        let inputs = request.expect("a request").inputs;
        assert_eq!(inputs.into_iter().map(|input| input.prompt).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn what_is_wrong_with_a_request_for_vectors_is_named() {
    let many: Vec<u32> = (0..=INPUTS_MAX as u32).collect();
    let many: Vec<_> = many.into_iter().map(|id| [id]).collect();
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": many}), "input"),
        (json!({"input": "a", "encoding_format": "int8"}), "encoding_format"),
        (json!({"input": "a", "dimensions": 0}), "dimensions"),
        (json!({"input": "a", "task": "reward"}), "task"),
        (json!({"input": "a", "dimension": 3}), "dimension"),
        (json!({"input": "a", "truncate_prompt_tokens": 3}), "truncate_prompt_tokens"),
        (json!({"input": "a", "normalized": false}), "normalized"),
        (json!({"input": "a", "cache_salt": ""}), "cache_salt"),
        (json!({"input": "a", "nvext": {"annotatons": [1]}}), "nvext.annotatons"),
    ] {
        assert_eq!(check(Api::Embeddings, &body), Err((400, param.to_owned())), "{body}");
    }
}

#[test]
fn values_without_their_activation_are_refused_and_with_it_are_usual() {
    for (api, body) in [
        (Api::Embeddings, json!({"input": "a"})),
        (Api::Classify, json!({"input": "a"})),
        (Api::Rerank, json!({"query": "a", "documents": ["b"]})),
        (Api::Score, json!({"text_1": "a", "text_2": "b"})),
    ] {
        let with = |value: bool| {
            let mut body = body.clone();
            body["use_activation"] = json!(value);
            check(api, &body)
        };
        assert_eq!(with(true), check(api, &body));
        assert_eq!(with(false), Err((400, "use_activation".to_owned())));
    }
}

#[test]
fn vectors_are_written_with_unit_length() {
    let form = |body: Value| check(Api::Embeddings, &body).expect("a request");
    let floats = form(json!({"input": "a"}));
    let written = answered(&floats, &[&[3.0, 4.0], &[0.0, 0.0]]).expect("an answer");
    let expected = json!({
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.6, 0.8]},
            {"object": "embedding", "index": 1, "embedding": [0, 0]},
        ],
        "model": "m",
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    });
    assert_eq!(close(&written), close(&expected));
    let base64 = form(json!({"input": "a", "encoding_format": "base64"}));
    let written = answered(&base64, &[&[0.0, -2.0]]).expect("an answer");
    // 0.0 and -1.0, little end first.
    assert_eq!(written["data"][0]["embedding"], "AAAAAAAAgL8=");
    let short = form(json!({"input": "a", "dimensions": 1}));
    let written = answered(&short, &[&[3.0, 4.0]]).expect("an answer");
    assert_eq!(written["data"][0]["embedding"], json!([1]));
    let long = form(json!({"input": "a", "dimensions": 3}));
    let refusal = answered(&long, &[&[3.0, 4.0]]).expect_err("there are two");
    assert_eq!(refusal, "dimensions is 3, the model's vectors have 2");
    let pooled = check(Api::Pooling, &json!({"input": "a", "task": "embed"})).expect("a request");
    let written = answered(&pooled, &[&[0.0, 2.0]]).expect("an answer");
    assert_eq!(written["id"], "pool-7");
    assert_eq!(written["data"], json!([{"object": "pooling", "index": 0, "data": [0, 1]}]));
}

/// A value whose numbers are rounded, as text.
fn close(value: &Value) -> String {
    match value {
        Value::Number(number) => format!("{:.4}", number.as_f64().unwrap_or(f64::NAN)),
        Value::Array(items) => format!("{:?}", items.iter().map(close).collect::<Vec<_>>()),
        Value::Object(members) => {
            format!(
                "{:?}",
                members.iter().map(|(key, value)| (key, close(value))).collect::<Vec<_>>()
            )
        }
        other => other.to_string(),
    }
}

#[test]
fn documents_are_ranked_by_their_angle_to_the_query() {
    let body = json!({
        "model": "m", "query": "q", "documents": ["far", {"text": "near"}, "between"], "top_n": 2,
    });
    let form = check(Api::Rerank, &body).expect("a request");
    let vectors: [&[f32]; 4] = [&[1.0, 0.0], &[0.0, 7.0], &[9.0, 0.0], &[1.0, 1.0]];
    let written = answered(&form, &vectors).expect("an answer");
    assert_eq!(written["id"], "rerank-7");
    let results = written["results"].as_array().expect("a list");
    assert_eq!(results.len(), 2);
    assert_eq!(results[0], json!({"index": 1, "document": {"text": "near"}, "relevance_score": 1}));
    assert_eq!(
        (&results[1]["index"], &results[1]["document"]["text"]),
        (&json!(2), &json!("between"))
    );
    assert!(
        (results[1]["relevance_score"].as_f64().expect("a number") - 0.5f64.sqrt()).abs() < 1e-6
    );
    // Cohere's path gives no documents back unless they are asked for.
    let body = body.to_string();
    let request = read(Api::Rerank, "/v2/rerank", body.as_bytes(), &FieldNotes::default());
    let PooledForm::Ranking(form) = request.expect("a request").form else { panic!("a ranking") };
    assert_eq!(form, RankingForm { top_n: Some(2), documents: None });
    for (body, param) in [
        (json!({"documents": ["a"]}), "query"),
        (json!({"query": "a"}), "documents"),
        (json!({"query": "a", "documents": []}), "documents"),
        (json!({"query": "a", "documents": ["a", {"image": "b"}]}), "documents[1]"),
        (json!({"query": "a", "documents": ["a"], "max_tokens_per_doc": -1}), "max_tokens_per_doc"),
        (json!({"query": "a", "documents": ["a"], "rank_fields": ["text"]}), "rank_fields"),
    ] {
        assert_eq!(check(Api::Rerank, &body), Err((400, param.to_owned())), "{body}");
    }
}

#[test]
fn texts_of_rankings_and_scores_are_cut_where_it_is_asked_for() {
    let limits = |api: Api, mut body: Value| {
        body["max_tokens_per_query"] = json!(3);
        // Zero is no limit.
        body["max_tokens_per_doc"] = json!(0);
        let body = body.to_string();
        let request = read(api, api.path(), body.as_bytes(), &FieldNotes::default());
        let inputs = request.expect("a request").inputs.into_iter();
        inputs.map(|input| input.tokens_max).collect::<Vec<_>>()
    };
    let ranking = json!({"query": "a", "documents": ["b", "c"]});
    assert_eq!(limits(Api::Rerank, ranking), [Some(3), None, None]);
    let scores = json!({"text_1": "a", "text_2": ["b", "c"]});
    assert_eq!(limits(Api::Score, scores), [Some(3), None, None]);
}

#[test]
fn scores_are_of_one_and_many_or_of_as_many() {
    let pairs = |body: Value| match check(Api::Score, &body) {
        Ok(PooledForm::Scores { pairs }) => Ok(pairs),
        Ok(other) => panic!("{other:?}"),
        Err((status, param)) => Err(format!("{status} {param}")),
    };
    assert_eq!(pairs(json!({"text_1": "a", "text_2": ["b", "c"]})), Ok(vec![(0, 1), (0, 2)]));
    let both = json!({"queries": ["a", "b"], "documents": ["c", "d"]});
    assert_eq!(pairs(both), Ok(vec![(0, 2), (1, 3)]));
    assert_eq!(pairs(json!({"queries": "a", "items": ["b"]})), Ok(vec![(0, 1)]));
    assert_eq!(pairs(json!({"data_1": ["a"], "data_2": "b"})), Ok(vec![(0, 1)]));
    for (body, fault) in [
        (json!({}), "400 text_1"),
        (json!({"text_1": "a"}), "400 text_2"),
        (json!({"items": ["a"]}), "400 queries"),
        (json!({"text_1": ["a", "b"], "text_2": ["c"]}), "400 text_2"),
        (json!({"text_1": [], "text_2": []}), "400 text_2"),
        (json!({"text_1": "a", "text_2": "b", "queries": "c"}), "422 queries"),
    ] {
        assert_eq!(pairs(body.clone()), Err(fault.into()), "{body}");
    }
    let form = PooledForm::Scores { pairs: vec![(0, 1), (0, 2)] };
    let written = answered(&form, &[&[2.0, 0.0], &[5.0, 0.0], &[0.0, 1.0]]).expect("an answer");
    let expected = json!([
        {"index": 0, "object": "score", "score": 1},
        {"index": 1, "object": "score", "score": 0},
    ]);
    assert_eq!(close(&written["data"]), close(&expected));
}

#[test]
fn classes_have_the_name_of_the_most_likely_and_stay_as_they_are() {
    let form = check(Api::Classify, &json!({"input": ["a", "b"]})).expect("a request");
    assert_eq!(form, PooledForm::Classes { labels: Vec::new() });
    let form = PooledForm::Classes { labels: vec!["no".into(), "yes".into()] };
    let written = answered(&form, &[&[0.25, 0.75], &[0.5, 0.5]]).expect("an answer");
    assert_eq!(written["id"], "classify-7");
    let expected = json!([
        {"index": 0, "label": "yes", "probs": [0.25, 0.75], "num_classes": 2},
        {"index": 1, "label": "no", "probs": [0.5, 0.5], "num_classes": 2},
    ]);
    assert_eq!(close(&written["data"]), close(&expected));
    let nameless = PooledForm::Classes { labels: Vec::new() };
    let written = answered(&nameless, &[&[1.0]]).expect("an answer");
    assert_eq!(written["data"][0]["label"], Value::Null);
}

#[test]
fn what_a_pooling_request_wants_is_its_task_or_the_models() {
    let task = |api, body: Value| match check(api, &body) {
        Ok(PooledForm::Vectors(form)) => Ok(form.task),
        Ok(other) => panic!("{other:?}"),
        Err((status, param)) => Err(format!("{status} {param}")),
    };
    assert_eq!(task(Api::Pooling, json!({"input": "a"})), Ok(None));
    let classify = json!({"input": "a", "task": "classify"});
    assert_eq!(task(Api::Pooling, classify.clone()), Ok(Some(PoolingTask::Classify)));
    assert_eq!(task(Api::Embeddings, classify), Err("400 task".into()));
    assert_eq!(task(Api::Embeddings, json!({"input": "a"})), Ok(Some(PoolingTask::Embed)));
    let tokens = json!({"input": "a", "task": "token_embed"});
    assert_eq!(task(Api::Pooling, tokens), Err("400 task".into()));
    // Probabilities are no vector that has a length.
    let form = check(Api::Pooling, &json!({"input": "a", "task": "classify"})).expect("a request");
    let written = answered(&form, &[&[0.25, 0.75]]).expect("an answer");
    assert_eq!(written["data"][0]["data"], json!([0.25, 0.75]));
}
