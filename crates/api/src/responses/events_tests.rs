use super::super::call_form::CallForms;
use super::*;
use crate::delta::{ToolCallDelta, ToolCallStart};
use serde_json::{Value, json};

const IDENTITY: Identity<'static> = Identity { id: "r", created: 7, model: "m" };
const USAGE: Usage = Usage {
    prompt_tokens: 9,
    completion_tokens: 3,
    reasoning_tokens: 2,
    cached_tokens: 4,
    pinned_tokens: 0,
};

fn response() -> ResponseEvents {
    let members = b",\"model\":\"m\"".as_slice().into();
    ResponseEvents::new(&IDENTITY, RequestEcho { members, ..RequestEcho::default() }, || 8)
}

/// The data of events; names and numbers are checked.
fn records(out: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(out).expect("text");
    let records = text.split_terminator("\n\n").enumerate().map(|(number, record)| {
        let (name, data) = record.split_once('\n').expect("two lines");
        let data: Value = serde_json::from_str(&data["data: ".len()..]).expect("JSON");
        assert_eq!(data["type"], name["event: ".len()..]);
        assert_eq!(data["sequence_number"], number);
        data
    });
    records.collect()
}

fn object(response: &ResponseEvents) -> Value {
    let mut out = Vec::new();
    response.push_object(&mut out);
    serde_json::from_slice(&out).expect("JSON")
}

fn calls() -> [ToolCallDelta<'static>; 2] {
    let start = ToolCallStart { id: "call_1", name: "f" };
    [
        ToolCallDelta { index: 0, start: Some(start), arguments: "{\"a\"", custom: false },
        ToolCallDelta { index: 0, start: None, arguments: ":1}", custom: false },
    ]
}

#[test]
fn items_open_and_close_in_the_order_that_clients_demand() {
    let (mut response, mut out) = (response(), Vec::new());
    response.begin(&mut out);
    let thought = Delta { reasoning: "hm", ..Delta::default() };
    response.delta(&mut out, &thought);
    response.delta(&mut out, &Delta { text: "so", ..Delta::default() });
    response.delta(&mut out, &Delta { text: " it", ..Delta::default() });
    let calls = calls();
    let finish = Some(FinishReason::ToolCalls);
    response.delta(&mut out, &Delta { tool_calls: &calls, finish, ..Delta::default() });
    response.end(&mut out, USAGE);
    let events = records(&out);
    let names: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().expect("a type").trim_start_matches("response."))
        .collect();
    let expected = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(names, expected);
    let last = &events.last().expect("events")["response"];
    assert_eq!(*last, object(&response));
    let done: Vec<_> = events
        .iter()
        .filter(|event| event["type"] == "response.output_item.done")
        .map(|event| event["item"].clone())
        .collect();
    assert_eq!(last["output"], json!(done));
    assert_eq!(done[1]["content"][0]["text"], "so it");
    assert_eq!(done[2]["arguments"], "{\"a\":1}");
    assert_eq!((&last["status"], &last["completed_at"]), (&json!("completed"), &json!(8)));
    assert_eq!(last["usage"]["input_tokens_details"]["cached_tokens"], 4);
    assert_eq!(last["model"], "m");
    assert!(response.is_over());
}

#[test]
fn an_answer_cut_by_its_bound_is_incomplete() {
    let (mut response, mut out) = (response(), Vec::new());
    response.begin(&mut out);
    let finish = Some(FinishReason::Length);
    response.delta(&mut out, &Delta { text: "a", finish, ..Delta::default() });
    response.end(&mut out, USAGE);
    let last = records(&out).pop().expect("events");
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(last["response"]["output"][0]["status"], "incomplete");
    assert_eq!(last["response"]["completed_at"], Value::Null);
}

#[test]
fn a_fault_ends_with_a_failed_response() {
    let (mut response, mut out) = (response(), Vec::new());
    response.queue(&mut out);
    response.begin(&mut out);
    response.delta(&mut out, &Delta { text: "a", ..Delta::default() });
    response.error(&mut out, &ApiError::internal());
    let events = records(&out);
    assert_eq!(events[1]["type"], "response.queued");
    let last = events.last().expect("events");
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["error"]["code"], "server_error");
    assert!(events.iter().any(|event| event["type"] == "error"));
    let mut gone = self::response();
    gone.cancel();
    assert_eq!(object(&gone)["status"], "cancelled");
}

#[test]
fn calls_have_the_form_of_their_tools() {
    let mut forms = CallForms::default();
    let (namespace, name) = ("team".to_owned(), "spawn".to_owned());
    forms.push("team__spawn", CallForm::Namespaced { namespace, name });
    let echo = RequestEcho { calls: Arc::new(forms), ..RequestEcho::default() };
    let (mut response, mut out) = (ResponseEvents::new(&IDENTITY, echo, || 8), Vec::new());
    response.begin(&mut out);
    let start = |id, name| Some(ToolCallStart { id, name });
    let calls = [
        ToolCallDelta { index: 0, start: start("call_1", "patch"), arguments: "a", custom: true },
        ToolCallDelta { index: 0, start: None, arguments: "\nb", custom: true },
        ToolCallDelta {
            index: 1,
            start: start("call_2", "team__spawn"),
            arguments: "{}",
            custom: false,
        },
    ];
    response.delta(&mut out, &Delta { tool_calls: &calls, ..Delta::default() });
    response.end(&mut out, USAGE);
    let events = records(&out);
    let of = |name: &str| events.iter().filter(|event| event["type"] == name).collect::<Vec<_>>();
    let inputs = of("response.custom_tool_call_input.delta");
    assert_eq!((&inputs[0]["delta"], &inputs[1]["delta"]), (&json!("a"), &json!("\nb")));
    assert_eq!(of("response.custom_tool_call_input.done")[0]["input"], "a\nb");
    let done = of("response.function_call_arguments.done");
    assert_eq!((done.len(), &done[0]["name"]), (1, &json!("spawn")));
    let items = &events.last().expect("events")["response"]["output"];
    let custom = json!({"id": "ctc_r_0", "status": "completed", "type": "custom_tool_call",
        "call_id": "call_1", "name": "patch", "input": "a\nb"});
    let namespaced = json!({"id": "fc_r_1", "status": "completed", "type": "function_call",
        "call_id": "call_2", "namespace": "team", "name": "spawn", "arguments": "{}"});
    assert_eq!(*items, json!([custom, namespaced]));
    let added = of("response.output_item.added");
    assert_eq!(
        (&added[0]["item"]["input"], &added[1]["item"]["name"]),
        (&json!(""), &json!("spawn"))
    );
}
