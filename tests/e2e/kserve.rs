//! KServe's open inference protocol, over gRPC and as JSON.

use crate::support::{MODEL, Up, up};
use hyper::Method;
use serde_json::{Value, json};
use stator_protos::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use stator_protos::inference::infer_parameter::ParameterChoice;
use stator_protos::inference::model_infer_request::InferInputTensor;
use stator_protos::inference::{
    InferParameter, InferTensorContents, ModelConfigRequest, ModelInferRequest, ModelInferResponse,
    ModelMetadataRequest, ModelReadyRequest, ServerLiveRequest, ServerMetadataRequest,
    ServerReadyRequest,
};
use std::collections::HashMap;
use tonic::Code;
use tonic::transport::Channel;

type Client = GrpcInferenceServiceClient<Channel>;

/// `stator up` with the protocol on a port of its own, and a client of it.
async fn served(flags: &[&str]) -> (Up, Client) {
    let mut up = up(&[&["--workers=1", "--kserve-grpc-port=0"], flags].concat()).await;
    let listening = up.process.event("listening for KServe's gRPC").await;
    let address = listening["address"].as_str().expect("an address");
    let client = Client::connect(format!("http://{address}")).await.expect("it listens");
    (up, client)
}

fn text(name: &str, text: &str) -> InferInputTensor {
    let contents = InferTensorContents {
        bytes_contents: vec![text.as_bytes().to_vec()],
        ..InferTensorContents::default()
    };
    let (name, datatype) = (name.to_owned(), "BYTES".to_owned());
    InferInputTensor {
        name,
        datatype,
        shape: vec![1],
        contents: Some(contents),
        ..Default::default()
    }
}

fn flag(name: &str, flag: bool) -> InferInputTensor {
    let contents = InferTensorContents { bool_contents: vec![flag], ..Default::default() };
    let (name, datatype) = (name.to_owned(), "BOOL".to_owned());
    InferInputTensor {
        name,
        datatype,
        shape: vec![1],
        contents: Some(contents),
        ..Default::default()
    }
}

/// A greedy call for so many tokens.
fn call(inputs: Vec<InferInputTensor>, max_tokens: i64) -> ModelInferRequest {
    let number =
        |value| InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(value)) };
    let parameters = [("max_tokens", max_tokens), ("temperature", 0)];
    ModelInferRequest {
        model_name: MODEL.into(),
        id: "mine".into(),
        parameters: parameters.map(|(name, value)| (name.to_owned(), number(value))).into(),
        inputs,
        ..ModelInferRequest::default()
    }
}

/// The text of an output.
fn output(response: &ModelInferResponse, name: &str) -> Option<String> {
    let tensor = response.outputs.iter().find(|tensor| tensor.name == name)?;
    let contents = tensor.contents.as_ref()?.bytes_contents.first()?;
    Some(String::from_utf8(contents.clone()).expect("text"))
}

fn parameter(response: &ModelInferResponse, name: &str) -> Option<ParameterChoice> {
    response.parameters.get(name)?.parameter_choice.clone()
}

/// The text that `/v1/completions` answers with.
async fn completion(up: &Up, prompt: &str, max_tokens: u32) -> String {
    let body =
        json!({"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0});
    let answer = up.client.post("/v1/completions", &body).await.json();
    answer["choices"][0]["text"].as_str().expect("a text").to_owned()
}

#[tokio::test]
async fn a_call_has_the_answer_of_a_completion_whole_and_in_pieces() {
    let (up, mut client) = served(&[]).await;
    let expected = completion(&up, "It was a", 12).await;
    let whole = client.model_infer(call(vec![text("text_input", "It was a")], 12)).await;
    let whole = whole.expect("an answer").into_inner();
    assert_eq!((whole.model_name.as_str(), whole.id.as_str()), (MODEL, "mine"));
    assert_eq!(output(&whole, "text_output").as_deref(), Some(expected.as_str()));
    assert!(
        ["stop", "length"].contains(&output(&whole, "finish_reason").expect("a reason").as_str())
    );
    assert!(matches!(parameter(&whole, "input_tokens"), Some(ParameterChoice::Int64Param(1..))));

    let inputs = vec![text("text_input", "It was a"), flag("streaming", true)];
    let wrong = call(vec![text("text_input", "It was a"), text("image", "x")], 12);
    let calls = tokio_stream::iter([wrong, call(inputs, 12)]);
    let mut stream = client.model_stream_infer(calls).await.expect("a stream").into_inner();
    let refused = stream.message().await.expect("a response").expect("a response");
    assert!(refused.error_message.contains("image") && refused.infer_response.is_none());
    let (mut joined, mut pieces, mut ended) = (String::new(), 0, false);
    while let Some(response) = stream.message().await.expect("the stream is sound") {
        assert!(!ended && response.error_message.is_empty(), "{}", response.error_message);
        let response = response.infer_response.expect("a piece");
        joined += &output(&response, "text_output").expect("a text");
        pieces += 1;
        ended =
            parameter(&response, "triton_final_response") == Some(ParameterChoice::BoolParam(true));
    }
    assert!(ended && pieces > 1, "{pieces} pieces");
    assert_eq!(joined, expected);
}

#[tokio::test]
async fn raw_tensors_are_answered_raw() {
    let (up, mut client) = served(&[]).await;
    let mut raw = call(vec![text("text_input", "It was a")], 4);
    raw.inputs[0].contents = None;
    raw.raw_input_contents = vec![[&8u32.to_le_bytes()[..], b"It was a"].concat()];
    let answer = client.model_infer(raw.clone()).await.expect("an answer").into_inner();
    let (length, found) = answer.raw_output_contents[0].split_at(4);
    assert_eq!(length, (found.len() as u32).to_le_bytes());
    assert_eq!(found, completion(&up, "It was a", 4).await.as_bytes());
    for odd in [vec![], vec![0, 0, 0], vec![9, 0, 0, 0, 1]] {
        let odd = ModelInferRequest { raw_input_contents: vec![odd], ..raw.clone() };
        let refused = client.model_infer(odd).await.expect_err("no such tensor");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
}

#[tokio::test]
async fn faults_and_states_are_told_in_grpcs_words() {
    let (up, mut client) = served(&["--api-key=one"]).await;
    assert!(client.server_live(ServerLiveRequest {}).await.expect("it lives").into_inner().live);
    assert!(client.server_ready(ServerReadyRequest {}).await.expect("it is").into_inner().ready);
    let server = client.server_metadata(ServerMetadataRequest {}).await.expect("it has a name");
    assert_eq!(server.into_inner().name, "stator");
    let refused = client.model_infer(call(vec![text("text_input", "a")], 1)).await;
    assert_eq!(refused.expect_err("it has no key").code(), Code::Unauthenticated);
    let keyed = |name: &str| {
        let (name, version) = (name.to_owned(), String::new());
        let mut request = tonic::Request::new(ModelReadyRequest { name, version });
        let key = "Bearer one".parse().expect("text");
        request.metadata_mut().insert("authorization", key);
        request
    };
    assert!(client.model_ready(keyed(MODEL)).await.expect("it is here").into_inner().ready);
    let unknown = client.model_ready(keyed("other")).await.expect_err("it is not here");
    assert_eq!(unknown.code(), Code::NotFound);
    let named = keyed(MODEL)
        .map(|ModelReadyRequest { name, version }| ModelMetadataRequest { name, version });
    let model = client.model_metadata(named).await.expect("it is here").into_inner();
    assert_eq!((model.platform.as_str(), model.versions), ("stator", vec!["1".to_owned()]));
    assert!(model.inputs.iter().any(|input| input.name == "text_input"));
    let named = keyed(MODEL)
        .map(|ModelReadyRequest { name, version }| ModelConfigRequest { name, version });
    let config = client.model_config(named).await.expect("it is here").into_inner();
    let config = config.config.expect("a configuration");
    assert_eq!((config.name.as_str(), config.input.len()), (MODEL, model.inputs.len()));
    for (inputs, max_tokens) in [
        (vec![], 1),
        (vec![flag("text_input", true)], 1),
        (vec![text("text_input", "a"), flag("stream", true)], 1),
        (vec![text("text_input", "a")], 0),
        (vec![text("text_input", "a"), text("sampling_parameters", r#"{"temprature": 1}"#)], 1),
    ] {
        let request = keyed("").map(|_| call(inputs, max_tokens));
        let refused = client.model_infer(request).await.expect_err("it is wrong");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    drop(up);
}

#[tokio::test]
async fn nothing_of_a_call_is_dropped_in_silence() {
    let (up, mut client) = served(&[]).await;
    let asked = || call(vec![text("text_input", "a")], 1);
    let named = |name: &str| {
        let value = ParameterChoice::StringParam("u".into());
        [(name.to_owned(), InferParameter { parameter_choice: Some(value) })].into()
    };
    let mut later = asked();
    later.model_version = "2".into();
    let mut inside = asked();
    inside.inputs[0].parameters = named("shared_memory_region");
    for (request, word) in [(later, "version"), (inside, "shared_memory_region")] {
        let refused = client.model_infer(request).await.expect_err("it is wrong");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(word), "{refused}");
    }
    let mut noted = asked();
    noted.parameters.extend::<HashMap<_, _>>(named("user"));
    noted.model_version = "1".into();
    let answer = client.model_infer(noted).await.expect("an answer").into_inner();
    let ignored = parameter(&answer, "x-stator-ignored");
    assert_eq!(ignored, Some(ParameterChoice::StringParam("user".into())));
    let model = format!("/v2/models/{MODEL}");
    let generate = json!({"text_input": "a", "parameters": {"max_tokens": 1, "user": "u"}});
    let answer = up.client.post(&format!("{model}/generate"), &generate).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.headers["x-stator-ignored"]),
        (200, &"user".parse().unwrap())
    );
    let other = up.client.post(&format!("{model}/versions/2/generate"), &generate).await;
    assert_eq!(other.status, 404);
}

#[tokio::test]
async fn the_protocol_is_spoken_as_json_too() {
    let up = up(&["--workers=1"]).await;
    let expected = completion(&up, "It was a", 6).await;
    let parameters = json!({"max_tokens": 6, "temperature": 0});
    let tensor =
        json!({"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["It was a"]});
    let infer = json!({"id": "7", "parameters": parameters, "inputs": [tensor]});
    let path = |end: &str| format!("/v2/models/{MODEL}{end}");
    for end in ["/infer", "/versions/1/infer"] {
        let answer = up.client.post(&path(end), &infer).await;
        assert_eq!(answer.status, 200, "{}", answer.json());
        let answer = answer.json();
        assert_eq!(
            (&answer["id"], &answer["outputs"][0]["data"][0]),
            (&json!("7"), &json!(expected))
        );
        assert!(answer["parameters"]["output_tokens"].as_u64() > Some(0));
    }
    let flat = json!({"text_input": "It was a", "parameters": parameters});
    let answer = up.client.post(&path("/generate"), &flat).await.json();
    assert_eq!(answer["text_output"], json!(expected));
    let mut stream =
        up.client.begin(Method::POST, &path("/generate_stream"), flat.to_string()).await;
    let events = String::from_utf8(stream.end().await.expect("an end").to_vec()).expect("text");
    let pieces: Vec<Value> = events
        .split("\n\n")
        .filter(|event| !event.is_empty())
        .map(|event| {
            serde_json::from_str(event.strip_prefix("data: ").expect("data")).expect("JSON")
        })
        .collect();
    let texts = pieces.iter().filter_map(|piece| piece["text_output"].as_str());
    assert_eq!(texts.collect::<String>(), expected);
    assert!(pieces.last().expect("a piece")["finish_reason"].is_string());
    for (path, status) in [
        ("/v2".to_owned(), 200),
        ("/v2/health/live".to_owned(), 200),
        ("/v2/health/ready".to_owned(), 200),
        (path(""), 200),
        (path("/ready"), 200),
        ("/v2/models/other".to_owned(), 404),
    ] {
        assert_eq!(up.client.get(&path).await.status, status, "{path}");
    }
    let refused = up.client.post(&path("/infer"), &json!({"inputs": []})).await;
    assert_eq!((refused.status.as_u16(), refused.json()["error"].is_string()), (400, true));
}
