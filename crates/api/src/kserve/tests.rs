use super::json::{InferIdentity, infer_answer, read_generate, read_infer};
use super::tensor::{TensorValues, raw_text};
use super::*;
use crate::delta::Usage;
use proptest::prelude::*;
use serde_json::json;

fn tensor(name: &'static str, values: TensorValues<'static>) -> InferTensor<'static> {
    let datatype = match values {
        TensorValues::Bytes(_) => "BYTES",
        TensorValues::Bools(_) => "BOOL",
        TensorValues::Other(_) => "FP32",
    };
    InferTensor { name: name.into(), datatype: datatype.into(), shape: vec![1], values }
}

fn text(name: &'static str, text: &'static str) -> InferTensor<'static> {
    tensor(name, TensorValues::Bytes(vec![text.as_bytes().into()]))
}

fn flag(name: &'static str, flag: bool) -> InferTensor<'static> {
    tensor(name, TensorValues::Bools(vec![flag]))
}

/// The completion's body, and whether it streams; or the parameter at fault.
fn check(tensors: Vec<InferTensor<'_>>, parameters: Value) -> Result<(Value, bool), String> {
    let Value::Object(parameters) = parameters else { panic!("an object") };
    match InferCall::new("m", tensors, parameters, Vec::new()) {
        Ok(call) => Ok((serde_json::from_slice(&call.body).expect("JSON"), call.streams)),
        Err(error) => Err(error.param.unwrap_or_default()),
    }
}

#[test]
fn the_tensors_of_dynamo_and_of_triton_make_a_completion() {
    let dynamo = check(vec![text("text_input", "a"), flag("streaming", true)], json!({}));
    assert_eq!(dynamo, Ok((json!({"model": "m", "prompt": "a", "echo": false}), true)));
    let sampling = text("sampling_parameters", r#"{"max_tokens": 3, "temperature": 0}"#);
    let triton = vec![
        text("text_input", "a"),
        sampling,
        flag("exclude_input_in_output", false),
        flag("return_finish_reason", true),
        flag("return_logprobs", false),
    ];
    let expected =
        json!({"model": "m", "prompt": "a", "echo": true, "max_tokens": 3, "temperature": 0});
    assert_eq!(check(triton, json!({})), Ok((expected, false)));
    let parameters =
        json!({"lora_name": "l", "seed": 7, "triton_enable_empty_final_response": true});
    let adapter = check(vec![text("text_input", "a")], parameters);
    assert_eq!(
        adapter,
        Ok((json!({"model": "l", "prompt": "a", "echo": false, "seed": 7}), false))
    );
}

#[test]
fn what_is_wrong_with_a_call_is_named() {
    let input = || text("text_input", "a");
    let shaped = |shape| InferTensor { shape, ..input() };
    for (tensors, parameters, param) in [
        (vec![], json!({}), "text_input"),
        (vec![input(), text("image", "b")], json!({}), "inputs"),
        (vec![input(), text("text_input", "b")], json!({}), "inputs"),
        (vec![input(), flag("return_logprobs", true)], json!({}), "return_logprobs"),
        (vec![input(), text("stream", "true")], json!({}), "stream"),
        (vec![shaped(vec![2])], json!({}), "text_input"),
        (vec![shaped(vec![-1])], json!({}), "text_input"),
        (vec![shaped(vec![i64::MAX, i64::MAX])], json!({}), "text_input"),
        (vec![tensor("text_input", TensorValues::Bytes(vec![]))], json!({}), "text_input"),
        (vec![tensor("text_input", TensorValues::Other(1))], json!({}), "text_input"),
        (
            vec![tensor("text_input", TensorValues::Bytes(vec![b"\xff"[..].into()]))],
            json!({}),
            "text_input",
        ),
        (vec![input(), text("sampling_parameters", "[]")], json!({}), "sampling_parameters"),
        (vec![input(), text("sampling_parameters", r#"{"seed": 7}"#)], json!({"seed": 8}), "seed"),
        (vec![input()], json!({"prompt": "b"}), "prompt"),
        (vec![input()], json!({"lora_name": 1}), "lora_name"),
    ] {
        assert_eq!(check(tensors.clone(), parameters), Err(param.into()), "{tensors:?}");
    }
    let outputs = vec!["logits".to_owned()];
    let refused =
        InferCall::new("m", vec![input()], Map::new(), outputs).expect_err("no such output");
    assert_eq!(refused.param.as_deref(), Some("outputs"));
}

#[test]
fn calls_come_as_json_in_two_forms() {
    let infer = json!({
        "id": "7",
        "parameters": {"max_tokens": 3},
        "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [["a"]]}],
        "outputs": [{"name": "text_output"}],
    });
    let read = read_infer("m", infer.to_string().as_bytes(), None).expect("a call");
    assert_eq!(read.id, "7");
    let body: Value = serde_json::from_slice(&read.call.body).expect("JSON");
    assert_eq!(body, json!({"model": "m", "prompt": "a", "echo": false, "max_tokens": 3}));
    let piece = InferText { text: "b", finish: Some(FinishReason::Length) };
    let usage =
        Usage { prompt_tokens: 2, completion_tokens: 3, cached_tokens: 1, ..Usage::default() };
    let identity = InferIdentity { model: "m", id: "7" };
    let answer: Value =
        serde_json::from_slice(&infer_answer(&identity, &read, &piece, usage).body).expect("JSON");
    let expected = json!({
        "model_name": "m", "model_version": "1", "id": "7",
        "parameters": {"input_tokens": 2, "output_tokens": 3, "cached_tokens": 1},
        "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [1], "data": ["b"]}],
    });
    assert_eq!(answer, expected);
    let flat = json!({"text_input": "a", "stream": true, "sampling_parameters": {"top_k": 1}});
    let read = read_generate("m", flat.to_string().as_bytes()).expect("a call");
    let body: Value = serde_json::from_slice(&read.call.body).expect("JSON");
    assert_eq!((body["top_k"].clone(), read.call.streams), (json!(1), true));
    for (body, param) in [
        (json!({}), "inputs"),
        (json!({"inputs": [1]}), "inputs[0]"),
        (
            json!({"inputs": [{"name": "text_input", "datatype": "BYTES", "data": ["a"]}]}),
            "inputs[0]",
        ),
        (
            json!({"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [1]}]}),
            "inputs[0]",
        ),
        (json!({"inputs": [], "input": []}), "input"),
        (
            json!({"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"],
                "parameters": {"shared_memory_region": "r"}}]}),
            "shared_memory_region",
        ),
    ] {
        let refused = read_infer("m", body.to_string().as_bytes(), None).expect_err("a fault");
        assert_eq!(refused.param.as_deref(), Some(param), "{body}");
    }
}

#[test]
fn tensors_of_bytes_follow_the_json() {
    let read = |call: &Value, tail: &[u8], json_bytes: Option<usize>| {
        let json = call.to_string();
        let body = [json.as_bytes(), tail].concat();
        read_infer("m", &body, json_bytes.or(Some(json.len())))
    };
    let (raw, piece) =
        (raw_text("It was"), InferText { text: "é", finish: Some(FinishReason::Stop) });
    let mut call = json!({
        "parameters": {"binary_data_output": true},
        "inputs": [
            {"name": "text_input", "datatype": "BYTES", "shape": [1],
                "parameters": {"binary_data_size": raw.len()}},
            {"name": "exclude_input_in_output", "datatype": "BOOL", "shape": [1],
                "parameters": {"binary_data_size": 1}},
        ],
        "outputs": [{"name": "text_output"},
            {"name": "finish_reason", "parameters": {"binary_data": false}}],
    });
    let tail = [&raw[..], &[0]].concat();
    let asked = read(&call, &tail, None).expect("a call");
    let body: Value = serde_json::from_slice(&asked.call.body).expect("JSON");
    assert_eq!(body, json!({"model": "m", "prompt": "It was", "echo": true}));
    let identity = InferIdentity { model: "m", id: "" };
    let answer = infer_answer(&identity, &asked, &piece, Usage::default());
    let (json, texts) = answer.body.split_at(answer.json_bytes.expect("bytes follow"));
    assert_eq!(texts, raw_text("é"));
    let json: Value = serde_json::from_slice(json).expect("JSON");
    let text = json!({"name": "text_output", "datatype": "BYTES", "shape": [1],
        "parameters": {"binary_data_size": 6}});
    let finish =
        json!({"name": "finish_reason", "datatype": "BYTES", "shape": [1], "data": ["stop"]});
    assert_eq!(json["outputs"], json!([text, finish]));
    let refused = |call: &Value, tail: &[u8], json_bytes, param: &str| {
        let error = read(call, tail, json_bytes).expect_err("a fault");
        assert_eq!(error.param.as_deref(), Some(param), "{error}");
    };
    refused(&call, &tail[..9], None, "inputs[0]");
    refused(&call, &tail[..10], None, "inputs[1]");
    refused(&call, &[&tail[..], &[0]].concat(), None, "inputs");
    refused(&call, &tail, Some(10_000), json::JSON_LENGTH);
    call["inputs"][1]["data"] = json!([true]);
    refused(&call, &tail, None, "inputs[1]");
}

proptest! {
    /// Strings with their lengths are read back; anything else is refused or read, never a panic.
    #[test]
    fn raw_elements_are_read_back(
        texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..5),
        noise in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut raw = Vec::new();
        for text in &texts {
            raw.extend((text.len() as u32).to_le_bytes());
            raw.extend(text);
        }
        let read = TensorValues::from_raw("BYTES", &raw);
        let expected = texts.iter().map(|text| text.as_slice().into()).collect();
        prop_assert_eq!(read, Some(TensorValues::Bytes(expected)));
        for datatype in ["BYTES", "BOOL", "FP32", "odd"] {
            let _ = TensorValues::from_raw(datatype, &noise);
        }
    }
}
