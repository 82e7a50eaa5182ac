//! The media of a request, and the requests that have one of them encoded. Pure: bodies in, bodies
//! out.
//!
//! Source: parts of messages in OpenAI's chats and responses and in Anthropic's messages.

use serde_json::value::RawValue;
use stator_body::{Api, Object};
use stator_handover::one_token;

/// Members of a part that hold an image, a sound or a video, whatever the part's type is.
const HOLDERS: [&str; 4] = ["image_url", "video_url", "audio_url", "input_audio"];
/// Fields that encoders do not need: they lengthen an answer of one token, or ask for several.
const UNNEEDED: [&str; 8] = [
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "n",
    "best_of",
    "logprobs",
    "top_logprobs",
];

/// The images, sounds and videos of a request.
#[derive(Debug)]
pub(crate) struct Media<'o, 'a> {
    api: Api,
    request: &'o Object<'a>,
    /// The parts of messages that hold them, as they came; of equal ones the first.
    parts: Vec<&'a [u8]>,
}

impl<'o, 'a> Media<'o, 'a> {
    /// Finds them.
    pub(crate) fn find(api: Api, request: &'o Object<'a>) -> Self {
        let messages = member(api).and_then(|member| request.get(member));
        let mut parts = Vec::new();
        for message in elements(messages) {
            let content = Object::parse(message).ok().and_then(|message| message.get("content"));
            for part in elements(content).filter(|part| is_medium(part)) {
                if !parts.contains(&part) {
                    parts.push(part);
                }
            }
        }
        Self { api, request, parts }
    }

    /// Number of media.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// For each the request that has it encoded: the client's, with that part as its only message
    /// and for an answer of one token.
    pub(crate) fn requests(&self) -> impl Iterator<Item = Vec<u8>> {
        self.parts.iter().filter_map(|part| {
            let message = [br#"[{"role":"user","content":["#, *part, b"]}]"].concat();
            let edit = one_token(self.api, self.request).remove(|name| UNNEEDED.contains(&name));
            Some(edit.set(member(self.api)?, message).finish())
        })
    }
}

/// The member of a request that holds its messages.
fn member(api: Api) -> Option<&'static str> {
    match api {
        Api::ChatCompletions | Api::Messages => Some("messages"),
        Api::Responses => Some("input"),
        _ => None,
    }
}

/// The elements of a list; none of anything else.
fn elements(raw: Option<&[u8]>) -> impl Iterator<Item = &[u8]> {
    let list = raw.filter(|raw| raw.starts_with(b"["));
    let list: Vec<&RawValue> =
        list.and_then(|raw| serde_json::from_slice(raw).ok()).unwrap_or_default();
    list.into_iter().map(|element| element.get().as_bytes())
}

fn is_medium(part: &[u8]) -> bool {
    let Ok(part) = Object::parse(part) else { return false };
    let holds = |name: &str| part.get(name).is_some_and(|raw| matches!(raw[0], b'{' | b'"'));
    HOLDERS.into_iter().any(holds) || holds("source") && part.get("type") == Some(br#""image""#)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn check(api: Api, body: &str) -> Vec<String> {
        let object = Object::parse(body.as_bytes()).expect("a sound object");
        let media = Media::find(api, &object);
        let requests: Vec<_> = media.requests().map(String::from_utf8).collect();
        assert_eq!(requests.len(), media.len());
        requests.into_iter().collect::<Result<_, _>>().expect("it stays text")
    }

    #[test]
    fn each_item_is_sent_once_and_as_it_came() {
        let (one, two) = (
            r#"{"type":"image_url", "image_url":{"url":"http://a/1.png","n":12345678901234567890}}"#,
            r#"{"input_audio":{"data":"UklGRg==","format":"wav"},"type":"input_audio"}"#,
        );
        let body = format!(
            r#"{{"model":"m","mm_processor_kwargs":{{"a":1}},"tools":[{{}}],"n":3,"stream":true,
                "messages":[{{"role":"system","content":"image_url"}},7,
                {{"role":"user","content":[{{"type":"text","text":"look"}},{one},"x",{two}]}},
                {{"role":"user","content":[{one}]}}],"max_tokens":90}}"#
        );
        let requests = check(Api::ChatCompletions, &body);
        assert_eq!(requests.len(), 2);
        for (request, part) in requests.iter().zip([one, two]) {
            let messages = format!(r#""messages":[{{"role":"user","content":[{part}]}}]"#);
            assert!(request.contains(&messages), "{request}");
            let mut request: Value = serde_json::from_str(request).expect("JSON");
            request.as_object_mut().expect("an object").remove("messages");
            let left = json!({"model": "m", "mm_processor_kwargs": {"a": 1}, "stream": false,
                              "max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 1});
            assert_eq!(request, left);
        }
    }

    #[test]
    fn the_media_of_other_apis_are_found() {
        let anthropic = r#"{"messages":[{"content":[
            {"type":"image","source":{"type":"url","url":"http://a/1.png"}},
            {"type":"document","source":{"type":"url","url":"http://a/1.pdf"}}]}]}"#;
        assert_eq!(check(Api::Messages, anthropic).len(), 1);
        let response = r#"{"input":[{"role":"user","content":[
            {"type":"input_image","image_url":"http://a/1.png"}]}]}"#;
        let requests = check(Api::Responses, response);
        assert!(requests[0].starts_with(r#"{"input":[{"role":"user","content":[{"type""#));
        assert!(requests[0].contains(r#""max_output_tokens":1"#));
    }

    #[test]
    fn what_is_no_medium_is_not_encoded() {
        let odd = r#"{"messages":[{"content":{"image_url":7}},
            {"content":[{"image_url":null},{"image_url":[]},["image_url"],null]}]}"#;
        assert!(check(Api::ChatCompletions, odd).is_empty());
        for body in [r#"{"messages":"x"}"#, r#"{"input":"x"}"#, "{}"] {
            for api in [Api::ChatCompletions, Api::Responses, Api::Completions, Api::VllmGenerate] {
                assert!(check(api, body).is_empty(), "{body}");
            }
        }
    }

    fn any_part() -> impl Strategy<Value = Value> {
        let name = prop_oneof![
            proptest::sample::select(&HOLDERS[..]),
            proptest::sample::select(&["text", "type", "source"][..]),
        ];
        let held = prop_oneof![
            Just(Value::Null),
            (0..3u8).prop_map(|n| json!({ "url": n.to_string() })),
            Just(json!("image")),
            Just(json!(["http://a/1"])),
        ];
        let object = vec((name.prop_map(String::from), held), 0..3);
        prop_oneof![
            object.prop_map(|it| it.into_iter().collect::<Value>()),
            Just(json!("image_url"))
        ]
    }

    proptest! {
        /// The scan of the bytes finds the same media as a walk over the tree.
        #[test]
        fn agrees_with_a_tree(messages in vec(vec(any_part(), 0..5), 0..4)) {
            let mut expected: Vec<String> = Vec::new();
            for part in messages.iter().flatten() {
                let holds = |name: &str| part[name].is_object() || part[name].is_string();
                let image = holds("source") && part["type"] == "image";
                // Parts are compared as text: trees are equal whatever the order of their members.
                let text = part.to_string();
                if (HOLDERS.iter().any(|name| holds(name)) || image) && !expected.contains(&text) {
                    expected.push(text);
                }
            }
            let messages: Vec<_> = messages.iter().map(|it| json!({"content": it})).collect();
            let requests = check(Api::ChatCompletions, &json!({ "messages": messages }).to_string());
            let found: Vec<String> = requests.iter().map(|request| {
                let request: Value = serde_json::from_str(request).expect("JSON");
                request["messages"][0]["content"][0].to_string()
            }).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
