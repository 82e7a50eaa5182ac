//! Request bodies, written directly: prompts are long, and a tree would only be torn down again.

use bytes::Bytes;

use crate::args::{Endpoint, TargetArgs};
use crate::workload::PromptInput;

/// Writes the bodies of requests to one model.
#[derive(Clone, Debug)]
pub(crate) struct BodyWriter {
    endpoint: Endpoint,
    exact: bool,
    /// The opening brace and the members that are the same in every request.
    head: String,
}

/// Speaker of a message in a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaker {
    System,
    User,
    Assistant,
}

/// Input of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestInput<'a> {
    /// One prompt.
    Prompt(&'a PromptInput),
    /// All that was said so far.
    Conversation(&'a [(Speaker, String)]),
}

impl BodyWriter {
    pub(crate) fn new(args: &TargetArgs, model: &str) -> Self {
        let mut head = format!("{{\"model\":{}", quoted(model));
        if args.stream && !args.no_stream {
            head.push_str(",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
        }
        match &args.extra_body {
            None => head.push_str(",\"temperature\":0"),
            Some(object) => {
                // Only the outer braces go: nested objects keep theirs.
                let members = object.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
                if let Some(members) = members.filter(|members| !members.is_empty()) {
                    head.push(',');
                    head.push_str(members);
                }
            }
        }
        let exact = args.ignore_eos && !args.no_ignore_eos;
        if exact {
            head.push_str(",\"ignore_eos\":true");
        }
        Self { endpoint: args.endpoint, exact, head }
    }

    /// The body of a request for `output_tokens` tokens.
    pub(crate) fn write(&self, input: RequestInput<'_>, output_tokens: u32) -> Bytes {
        let mut body = Vec::with_capacity(self.head.len() + 96 + size(input));
        body.extend_from_slice(self.head.as_bytes());
        member(&mut body, "max_tokens", output_tokens);
        if self.exact {
            member(&mut body, "min_tokens", output_tokens);
        }
        match self.endpoint {
            Endpoint::Chat => messages(&mut body, input),
            Endpoint::Completions => prompt(&mut body, input),
        }
        body.push(b'}');
        body.into()
    }
}

/// About how long a prompt is, in bytes.
fn size(input: RequestInput<'_>) -> usize {
    match input {
        RequestInput::Prompt(PromptInput::Tokens(ids)) => ids.len() * 7,
        RequestInput::Prompt(PromptInput::Text(text)) => text.len(),
        RequestInput::Conversation(said) => said.iter().map(|(_, text)| text.len() + 40).sum(),
    }
}

fn member(body: &mut Vec<u8>, name: &str, value: u32) {
    body.extend_from_slice(b",\"");
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(b"\":");
    body.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

fn messages(body: &mut Vec<u8>, input: RequestInput<'_>) {
    body.extend_from_slice(b",\"messages\":[");
    match input {
        RequestInput::Prompt(PromptInput::Text(text)) => message(body, Speaker::User, text),
        // The arguments are checked: token ids go to the completions endpoint only.
        RequestInput::Prompt(PromptInput::Tokens(_)) => message(body, Speaker::User, ""),
        RequestInput::Conversation(said) => {
            for (index, (role, text)) in said.iter().enumerate() {
                if index > 0 {
                    body.push(b',');
                }
                message(body, *role, text);
            }
        }
    }
    body.push(b']');
}

fn message(body: &mut Vec<u8>, role: Speaker, text: &str) {
    let role = match role {
        Speaker::System => "system",
        Speaker::User => "user",
        Speaker::Assistant => "assistant",
    };
    body.extend_from_slice(b"{\"role\":\"");
    body.extend_from_slice(role.as_bytes());
    body.extend_from_slice(b"\",\"content\":");
    body.extend_from_slice(quoted(text).as_bytes());
    body.push(b'}');
}

fn prompt(body: &mut Vec<u8>, input: RequestInput<'_>) {
    body.extend_from_slice(b",\"prompt\":");
    match input {
        RequestInput::Prompt(PromptInput::Tokens(ids)) => {
            let mut number = itoa::Buffer::new();
            body.push(b'[');
            for (index, id) in ids.iter().enumerate() {
                if index > 0 {
                    body.push(b',');
                }
                body.extend_from_slice(number.format(*id).as_bytes());
            }
            body.push(b']');
        }
        RequestInput::Prompt(PromptInput::Text(text)) => {
            body.extend_from_slice(quoted(text).as_bytes())
        }
        RequestInput::Conversation(said) => {
            let texts: Vec<&str> = said.iter().map(|(_, text)| text.as_str()).collect();
            body.extend_from_slice(quoted(&texts.join("\n")).as_bytes());
        }
    }
}

/// A JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn args(endpoint: Endpoint) -> TargetArgs {
        TargetArgs {
            url: String::new(),
            model: None,
            endpoint,
            stream: true,
            no_stream: false,
            ignore_eos: true,
            no_ignore_eos: false,
            extra_body: None,
            quickack: false,
            api_key: None,
            timeout_s: 1.0,
        }
    }

    #[track_caller]
    fn check(args: &TargetArgs, input: RequestInput<'_>, expected: Value) {
        let body = BodyWriter::new(args, "a\"b").write(input, 5);
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), expected);
    }

    #[test]
    fn token_ids_are_sent_as_they_are() {
        check(
            &args(Endpoint::Completions),
            RequestInput::Prompt(&PromptInput::Tokens(vec![7, 300])),
            json!({"model": "a\"b", "prompt": [7, 300], "max_tokens": 5, "min_tokens": 5, "ignore_eos": true,
                "temperature": 0, "stream": true, "stream_options": {"include_usage": true}}),
        );
    }

    #[test]
    fn conversations_keep_their_roles() {
        let said = [
            (Speaker::System, "s".to_owned()),
            (Speaker::User, "u\n".to_owned()),
            (Speaker::Assistant, "é".to_owned()),
        ];
        let expected = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "u\n"},
            {"role": "assistant", "content": "é"}]);
        let args = TargetArgs { no_stream: true, no_ignore_eos: true, ..args(Endpoint::Chat) };
        check(
            &args,
            RequestInput::Conversation(&said),
            json!({"model": "a\"b", "messages": expected, "max_tokens": 5, "temperature": 0}),
        );
    }

    #[test]
    fn extra_members_are_spliced_in() {
        let with =
            |extra: &str| TargetArgs { extra_body: Some(extra.to_owned()), ..args(Endpoint::Chat) };
        let messages = json!([{"role": "user", "content": "x"}]);
        let prompt = PromptInput::Text("x".to_owned());
        let mut expected = json!({"model": "a\"b", "messages": messages, "max_tokens": 5, "min_tokens": 5,
            "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true}});
        check(&with("{}"), RequestInput::Prompt(&prompt), expected.clone());
        expected["nested"] = json!({"a": {}});
        check(&with(r#"{"nested":{"a":{}}}"#), RequestInput::Prompt(&prompt), expected);
    }
}
