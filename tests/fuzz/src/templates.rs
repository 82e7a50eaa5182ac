//! A chat template compiles and renders, or is refused: at loading with a reason, at rendering with
//! a reason for the client.
//!
//! An input is the template, a zero byte and the body of a chat request; without one, a body that
//! has all that templates look for.

use crate::split;
use stator_api::openai::chat;
use stator_model::template::ChatTemplate;
use std::time::UNIX_EPOCH;

const BODY: &[u8] = br#"{"model":"m","messages":[{"role":"system","content":"be brief"},
{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",
"function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"1","content":"2"}],
"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],
"chat_template_kwargs":{"x":[1,2.5,true,null,{"k":"v"}]}}"#;

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let (source, body) = split(input);
    let Ok(source) = std::str::from_utf8(source) else { return };
    let body = if body.is_empty() { BODY } else { body };
    let Ok(request) = chat::read(body) else { return };
    let Some(conversation) = request.input.conversation() else { return };
    let tokens = vec![("bos_token".to_owned(), "<s>".to_owned())];
    match ChatTemplate::new(vec![("default".to_owned(), source.to_owned())], tokens) {
        Ok(template) => {
            if let Err(error) = template.render(conversation, UNIX_EPOCH) {
                assert!(!error.to_string().is_empty());
            }
        }
        Err(reason) => assert!(!reason.is_empty()),
    }
}
