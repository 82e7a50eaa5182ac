//! Tools, reasoning and forms of answers, as clients of the OpenAI API see them.

use crate::contract::every_form_holds;
use crate::support::{MODEL, Up, chat, official_client, up};
use serde_json::{Value, json};
use stator_tests::soon;

fn tools() -> Value {
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["n"],
        "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 99}}});
    json!([{"type": "function", "function": {"name": "f", "parameters": schema}}])
}

#[tokio::test]
async fn the_official_client_gets_calls_thoughts_and_forms_of_the_built_in_engine() {
    let up = up(&["--workers=1"]).await;
    official_client("openai_tools.py", &up).await;
}

#[tokio::test]
async fn a_call_is_streamed_as_clients_put_it_together() {
    let up = up(&["--workers=1"]).await;
    let mut body = chat("Hello", 200);
    body["tools"] = tools();
    body["tool_choice"] = json!("required");
    body["parallel_tool_calls"] = json!(false);
    let whole = up.client.post("/v1/chat/completions", &body).await.json();
    let message = &whole["choices"][0]["message"];
    body["stream"] = json!(true);
    let events = up.client.stream("/v1/chat/completions", &body).await.rest().await;
    let deltas: Vec<&Value> =
        events.iter().filter_map(|event| event["choices"][0].get("delta")).collect();
    let calls: Vec<&Value> =
        deltas.iter().filter_map(|delta| delta.get("tool_calls")).map(|calls| &calls[0]).collect();
    // The identity comes once, and the index always: clients add everything up.
    assert!(calls[0]["id"].as_str().is_some_and(|id| id.starts_with("call_")), "{events:?}");
    assert_eq!(
        (&calls[0]["type"], &calls[0]["function"]["name"]),
        (&json!("function"), &json!("f"))
    );
    for later in &calls[1..] {
        assert_eq!(
            (later.get("id"), later.get("type"), later["function"].get("name")),
            (None, None, None)
        );
        assert_eq!(later["index"], 0);
    }
    let arguments: String =
        calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
    assert_eq!(json!(arguments), message["tool_calls"][0]["function"]["arguments"]);
    let text: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!((text.as_str(), &message["content"]), ("", &Value::Null));
    assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn an_engine_without_guided_decoding_refuses_to_force_a_call() {
    let up = up(&["--engine=sim", "--workers=1"]).await;
    let mut body = chat("Hello", 4);
    body["tools"] = tools();
    assert_eq!(up.client.post("/v1/chat/completions", &body).await.status, 200);
    body["tool_choice"] = json!("required");
    let refused = up.client.post("/v1/chat/completions", &body).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["param"], "tool_choice");
    assert_eq!(body["model"], MODEL);
}

/// The tokens of thoughts, all tokens, and the message of an answer.
fn parts(answer: &Value) -> (u64, u64, &Value) {
    let usage = &answer["usage"];
    let thoughts = usage["completion_tokens_details"]["reasoning_tokens"].as_u64();
    let all = usage["completion_tokens"].as_u64();
    (thoughts.unwrap_or(0), all.expect("a count"), &answer["choices"][0]["message"])
}

#[tokio::test]
async fn thoughts_end_at_their_budget_and_the_answer_goes_on() {
    let up = up(&["--workers=1"]).await;
    let mut body = chat("Tell me about the garden.", 120);
    body["ignore_eos"] = json!(true);
    body["chat_template_kwargs"] = json!({"enable_thinking": true});
    let free = up.client.post("/v1/chat/completions", &body).await.json();
    let (thoughts, _, message) = parts(&free);
    assert_eq!((thoughts, &message["content"]), (120, &json!("")), "it thinks to its end");
    for (field, budget) in [
        ("thinking_token_budget", 0),
        ("thinking_token_budget", 1),
        ("thinking_budget", 33),
        ("nvext", 7),
        ("thinking", 20),
    ] {
        let mut body = body.clone();
        body[field] = match field {
            "nvext" => json!({"max_thinking_tokens": budget}),
            "thinking" => json!({"type": "enabled", "budget_tokens": budget}),
            _ => json!(budget),
        };
        let whole = up.client.post("/v1/chat/completions", &body).await.json();
        let (thoughts, all, message) = parts(&whole);
        assert_eq!((thoughts, all), (budget, 120), "{field}: {whole}");
        let text = message["content"].as_str().expect("an answer behind the thoughts");
        assert!(!text.is_empty() && !text.contains("think>"), "{text}");
        body["stream"] = json!(true);
        let events = up.client.stream("/v1/chat/completions", &body).await.rest().await;
        let streamed = |name: &str| -> String {
            let deltas = events.iter().map(|event| &event["choices"][0]["delta"][name]);
            deltas.filter_map(Value::as_str).collect()
        };
        assert_eq!(streamed("content"), text, "{field}");
        let thoughts = message["reasoning_content"].as_str().unwrap_or_default();
        assert_eq!(streamed("reasoning_content"), thoughts, "{field}");
        let freely = parts(&free).2["reasoning_content"].as_str().expect("thoughts");
        assert!(freely.starts_with(thoughts), "the model thinks as it did: {thoughts}");
    }
}

#[tokio::test]
async fn each_choice_has_its_own_budget_and_a_form_comes_behind_it() {
    let up = up(&["--workers=1"]).await;
    let mut body = chat("Tell me about the garden.", 60);
    body["chat_template_kwargs"] = json!({"enable_thinking": true});
    body["thinking_token_budget"] = json!(9);
    body["temperature"] = json!(1.0);
    body["n"] = json!(3);
    body["guided_regex"] = json!("[ab]{4}");
    let answer = up.client.post("/v1/chat/completions", &body).await.json();
    for choice in answer["choices"].as_array().expect("choices") {
        let text = choice["message"]["content"].as_str().unwrap_or_default();
        assert_eq!(text.len(), 4, "{answer}");
        assert!(text.bytes().all(|byte| b"ab".contains(&byte)), "{text}");
    }
    assert!(parts(&answer).0 <= 27, "{answer}");
}

#[tokio::test]
async fn a_budget_that_nobody_can_hold_is_refused_by_its_name() {
    let up = up(&["--engine=sim", "--workers=1"]).await;
    let mut body = chat("Hello", 4);
    body["thinking_token_budget"] = json!(3);
    let refused = up.client.post("/v1/chat/completions", &body).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["param"], "thinking_token_budget");
    // Clients of this API always send one.
    let message = json!({"model": MODEL, "max_tokens": 4,
        "messages": [{"role": "user", "content": "Hello"}],
        "thinking": {"type": "enabled", "budget_tokens": 1024}});
    let answer = up.client.post("/v1/messages", &message).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    assert_eq!(answer.headers["x-stator-ignored"], "thinking.budget_tokens");
}

#[tokio::test]
async fn thoughts_of_messages_and_responses_have_their_budget() {
    let up = up(&["--workers=1"]).await;
    // So that something comes behind the thoughts.
    let schema = json!({"enum": ["flowers"]});
    let message = json!({"model": MODEL, "max_tokens": 60, "temperature": 0,
        "messages": [{"role": "user", "content": "Tell me about the garden."}],
        "thinking": {"type": "enabled", "budget_tokens": 11},
        "output_config": {"format": {"type": "json_schema", "schema": schema}}});
    let answer = up.client.post("/v1/messages", &message).await;
    assert!(!answer.headers.contains_key("x-stator-ignored"));
    let answer = answer.json();
    let kinds: Vec<_> = answer["content"].as_array().expect("blocks").iter().collect();
    assert_eq!((&kinds[0]["type"], &kinds[1]["type"]), (&json!("thinking"), &json!("text")));
    assert_eq!(answer["usage"]["output_tokens_details"]["thinking_tokens"], 11, "{answer}");
    let response = json!({"model": MODEL, "max_output_tokens": 60, "temperature": 0,
        "input": "Tell me about the garden.", "chat_template_kwargs": {"enable_thinking": true},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}},
        "nvext": {"max_thinking_tokens": 11}});
    let response = up.client.post("/v1/responses", &response).await.json();
    let kinds: Vec<_> = response["output"].as_array().expect("items").iter().collect();
    assert_eq!((&kinds[0]["type"], &kinds[1]["type"]), (&json!("reasoning"), &json!("message")));
    assert_eq!(response["usage"]["output_tokens_details"]["reasoning_tokens"], 11, "{response}");
}

#[tokio::test]
async fn grammars_in_ebnf_hold_the_answer() {
    let up = up(&["--workers=1"]).await;
    for (field, grammar) in [
        ("ebnf", r#"root ::= "yes" | "no" " "? "way""#),
        ("guided_grammar", "root ::= \"[\" root \"]\" | digit{2,3}\ndigit ::= [0-9]"),
    ] {
        let mut body = chat("Hello", 200);
        body["temperature"] = json!(1.0);
        body[field] = json!(grammar);
        for seed in 0..8 {
            body["seed"] = json!(seed);
            let answer = up.client.post("/v1/chat/completions", &body).await.json();
            let choice = &answer["choices"][0];
            let text = choice["message"]["content"].as_str().expect("text");
            if choice["finish_reason"] == "length" {
                continue;
            }
            let inner = text.trim_start_matches('[').trim_end_matches(']');
            let (open, close) = (text.matches('[').count(), text.matches(']').count());
            let is_number = (2..=3).contains(&inner.len()) && inner.parse::<u32>().is_ok();
            let fits = match field {
                "ebnf" => ["yes", "noway", "no way"].contains(&text),
                _ => open == close && is_number,
            };
            assert!(fits, "{field}: {text}");
        }
        body[field] = json!("root ::= other");
        let refused = up.client.post("/v1/chat/completions", &body).await;
        let error = &refused.json()["error"];
        assert_eq!((refused.status.as_u16(), &error["param"]), (400, &json!(field)), "{error}");
        assert!(
            error["message"].as_str().is_some_and(|text| text.contains("\"other\"")),
            "{error}"
        );
    }
}

/// Waits until so many turns were computed before they were asked for.
async fn turns_are_computed(up: &Up, turns: u32) {
    let wanted = format!("turns_computed_total {turns}");
    soon(&wanted, async {
        let computed = async || {
            let page = up.client.get("/metrics").await;
            String::from_utf8_lossy(&page.body).contains(&wanted)
        };
        while !computed().await {}
    })
    .await;
}

#[tokio::test]
async fn a_turn_is_computed_before_it_is_asked_for() {
    let up = up(&["--workers=1"]).await;
    let tell = "Tell me about the garden and the house by the river.";
    let mut first = chat(tell, 200);
    // Thoughts, which the next turn does not have, and then a text of several blocks.
    first["chat_template_kwargs"] = json!({"enable_thinking": true});
    first["thinking_budget"] = json!(20);
    first["guided_regex"] = json!("[a-z]{60}");
    let cached = async |hints: Value| {
        let mut first = first.clone();
        first["cache_salt"] = json!(format!("{hints}"));
        let mut next = first.clone();
        first["nvext"] = json!({"agent_hints": hints});
        let answer = up.client.post("/v1/chat/completions", &first).await.json();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        if hints["speculative_prefill"] == true {
            turns_are_computed(&up, 1).await;
        }
        let text = &answer["choices"][0]["message"]["content"];
        next["messages"] = json!([{"role": "user", "content": tell},
            {"role": "assistant", "content": text}, {"role": "user", "content": "And then?"}]);
        let answer = up.client.post("/v1/chat/completions", &next).await.json();
        let usage = &answer["usage"];
        let prompt = usage["prompt_tokens"].as_u64().expect("a count");
        (usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count"), prompt)
    };
    let (without, prompt) = cached(json!({"osl": 60})).await;
    let (with, same) = cached(json!({"speculative_prefill": true})).await;
    assert_eq!(prompt, same);
    assert!(with >= without + 32, "{without} and {with} of {prompt}");
    let mut response = json!({"model": MODEL, "input": tell, "max_output_tokens": 40,
        "structured_outputs": {"regex": "[a-z]{10}"}});
    let made = up.client.post("/v1/responses", &response).await.json();
    response["previous_response_id"] = made["id"].clone();
    response["nvext"] = json!({"agent_hints": {"speculative_prefill": true}});
    for (background, turns) in [(false, 2), (true, 3)] {
        response["background"] = json!(background);
        let answer = up.client.post("/v1/responses", &response).await;
        assert_eq!(answer.status, 200, "{}", answer.json());
        turns_are_computed(&up, turns).await;
    }
    let mut completion = json!({"model": MODEL, "prompt": "x", "max_tokens": 1});
    completion["nvext"] = json!({"agent_hints": {"speculative_prefill": true}});
    let refused = up.client.post("/v1/completions", &completion).await;
    let param = &refused.json()["error"]["param"];
    let expected = json!("nvext.agent_hints.speculative_prefill");
    assert_eq!((refused.status.as_u16(), param), (400, &expected));
}

#[tokio::test]
async fn the_built_in_engine_holds_every_form() {
    let up = up(&["--workers=1"]).await;
    let asked = json!({"model": MODEL, "prompt": "It was a", "max_tokens": 64, "temperature": 0});
    every_form_holds(&up.client, &asked, || up.process.log()).await;
    // What the schema asks and nobody can hold is named.
    let mut body = asked.clone();
    let schema = json!({"type": "array", "uniqueItems": true});
    body["response_format"] =
        json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let refused = up.client.post("/v1/completions", &body).await;
    let error = refused.json()["error"].clone();
    assert_eq!(
        (refused.status.as_u16(), &error["param"]),
        (400, &json!("response_format")),
        "{error}"
    );
    assert!(error["message"].as_str().unwrap().contains("uniqueItems"), "{error}");
}

#[tokio::test]
async fn a_form_begins_where_thoughts_end_whatever_the_form_is() {
    let up = up(&["--workers=1"]).await;
    for (field, value) in [
        (
            "response_format",
            json!({"type": "json_schema", "json_schema":
            {"name": "n", "schema": {"enum": ["left", "right"]}}}),
        ),
        ("ebnf", json!("root ::= \"\\\"left\\\"\" | \"\\\"right\\\"\"")),
        ("guided_grammar", json!("start: /\"left\"|\"right\"/")),
    ] {
        let mut body = chat("Tell me about the garden.", 200);
        body["ignore_eos"] = json!(false);
        body["chat_template_kwargs"] = json!({"enable_thinking": true});
        body["thinking_token_budget"] = json!(7);
        body[field] = value;
        let answer = up.client.post("/v1/chat/completions", &body).await.json();
        let message = &answer["choices"][0]["message"];
        let word = message["content"].as_str().unwrap_or_else(|| panic!("{field}: {answer}"));
        assert!(["\"left\"", "\"right\""].contains(&word), "{field}: {answer}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{field}: {answer}");
        let thoughts = &answer["usage"]["completion_tokens_details"]["reasoning_tokens"];
        assert_eq!(
            (thoughts, message["reasoning_content"].is_string()),
            (&json!(7), true),
            "{field}"
        );
        // Without thoughts it begins at once.
        body["chat_template_kwargs"] = json!({"enable_thinking": false});
        let answer = up.client.post("/v1/chat/completions", &body).await.json();
        let message = &answer["choices"][0]["message"];
        assert!(message["content"].as_str().is_some_and(|word| word.starts_with('"')), "{answer}");
        assert!(message["reasoning_content"].is_null(), "{answer}");
    }
}

#[tokio::test]
async fn a_call_that_was_cut_does_not_end_a_conversation() {
    let up = up(&["--workers=1"]).await;
    let cut = r#"{"path": "a.txt", "text": "hel"#;
    let chat = json!({"model": MODEL, "max_tokens": 2, "messages": [
        {"role": "user", "content": "Write a file."},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function",
            "function": {"name": "f", "arguments": cut}}]},
        {"role": "tool", "tool_call_id": "c", "content": "the arguments are no JSON"}]});
    let response = json!({"model": MODEL, "max_output_tokens": 2, "input": [
        {"role": "user", "content": "Write a file."},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": cut},
        {"type": "function_call_output", "call_id": "c", "output": "the arguments are no JSON"}]});
    // Clients of Messages read what came as far as it goes.
    let message = json!({"model": MODEL, "max_tokens": 2, "messages": [
        {"role": "user", "content": "Write a file."},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "c", "name": "f", "input": {"path": "a.txt"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": "no JSON", "is_error": true}]}]});
    for (path, mut body) in
        [("/v1/chat/completions", chat), ("/v1/responses", response), ("/v1/messages", message)]
    {
        for broken in [None, Some("look here")] {
            if let Some(text) = broken {
                let text = body.to_string().replace(&cut.replace('"', "\\\""), text);
                body = serde_json::from_str(&text).expect("JSON");
            }
            let answer = up.client.post(path, &body).await;
            assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
        }
    }
}

#[tokio::test]
async fn a_message_whose_call_was_cut_is_json() {
    let up = up(&["--workers=1"]).await;
    let text = json!({"type": "object", "additionalProperties": false, "required": ["text"],
        "properties": {"text": {"type": "string", "minLength": 200}}});
    let body = json!({"model": MODEL, "max_tokens": 40, "temperature": 0,
        "messages": [{"role": "user", "content": "Write a file."}],
        "tools": [{"name": "f", "input_schema": text}], "tool_choice": {"type": "tool", "name": "f"}});
    let answer = up.client.post("/v1/messages", &body).await.json();
    assert_eq!(answer["stop_reason"], "max_tokens", "{answer}");
    let call = &answer["content"][0];
    assert_eq!((&call["type"], call["input"].is_object()), (&json!("tool_use"), true), "{answer}");
}
