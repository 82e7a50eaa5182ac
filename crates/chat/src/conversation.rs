//! The conversation so far, and the request that asks for what comes next. Pure.

use crate::answer::AnswerSoFar;
use crate::args::ChatArgs;
use serde_json::{Value, json};

/// A conversation with a model.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    pub model: String,
    pub system: Option<String>,
    /// Fields that each request has.
    fields: Value,
    messages: Vec<Value>,
}

impl Conversation {
    pub(crate) fn new(model: String, args: &ChatArgs, tools: Option<Value>) -> Self {
        let mut fields = json!({"stream": true});
        let own = [
            ("max_tokens", args.max_tokens.map(Value::from)),
            ("temperature", args.temperature.map(Value::from)),
            ("tools", tools),
        ];
        for (name, value) in own {
            if let Some(value) = value {
                fields[name] = value;
            }
        }
        Self { model, system: args.system.clone(), fields, messages: Vec::new() }
    }

    /// Adds what the user says.
    pub(crate) fn say(&mut self, text: &str) {
        self.messages.push(json!({"role": "user", "content": text}));
    }

    /// Adds what a tool returned.
    pub(crate) fn returned(&mut self, call: &str, text: &str) {
        self.messages.push(json!({"role": "tool", "tool_call_id": call, "content": text}));
    }

    /// Adds an answer, whole or not.
    pub(crate) fn answered(&mut self, answer: &AnswerSoFar) {
        self.messages.push(answer.message());
    }

    /// Takes back what has got no answer.
    pub(crate) fn take_back(&mut self) {
        let answered = |message: &Value| message["role"] == "assistant";
        let end = self.messages.iter().rposition(answered).map_or(0, |last| last + 1);
        self.messages.truncate(end);
        // Nor does a call stay whose result is gone.
        if self.messages.last().is_some_and(|last| last.get("tool_calls").is_some()) {
            self.messages.pop();
            self.take_back();
        }
    }

    /// Forgets what was said.
    pub(crate) fn clear(&mut self) {
        self.messages.clear();
    }

    /// The body of the request for the next answer.
    pub(crate) fn body(&self) -> String {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let messages: Vec<Value> = system.chain(self.messages.iter().cloned()).collect();
        let mut body = self.fields.clone();
        body["model"] = self.model.as_str().into();
        body["messages"] = messages.into();
        body.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        chat: ChatArgs,
    }

    fn conversation(flags: &[&str]) -> Conversation {
        let words = std::iter::once("chat").chain(flags.iter().copied());
        Conversation::new("m".to_owned(), &Line::parse_from(words).chat, None)
    }

    fn sent(conversation: &Conversation) -> Value {
        serde_json::from_str(&conversation.body()).unwrap()
    }

    #[test]
    fn a_request_has_what_was_said_and_what_flags_say() {
        let mut talk = conversation(&["--system=Be brief.", "--max-tokens=5"]);
        talk.say("Hello");
        let expected = json!({"model": "m", "stream": true, "max_tokens": 5, "messages": [
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]});
        assert_eq!(sent(&talk), expected);
    }

    #[test]
    fn what_got_no_answer_is_taken_back() {
        let roles = |talk: &Conversation| -> Vec<String> {
            let body = sent(talk);
            let messages = body["messages"].as_array().unwrap().clone();
            messages.iter().map(|message| message["role"].as_str().unwrap().to_owned()).collect()
        };
        let mut talk = conversation(&[]);
        talk.say("a");
        let mut answer = AnswerSoFar { text: "b".to_owned(), ..AnswerSoFar::default() };
        talk.answered(&answer);
        talk.say("c");
        talk.take_back();
        assert_eq!(roles(&talk), ["user", "assistant"]);
        talk.say("d");
        answer.calls.push(crate::answer::CalledTool::default());
        talk.answered(&answer);
        talk.returned("id", "e");
        assert_eq!(roles(&talk), ["user", "assistant", "user", "assistant", "tool"]);
        talk.take_back();
        assert_eq!(roles(&talk), ["user", "assistant"]);
        talk.clear();
        talk.take_back();
        assert!(roles(&talk).is_empty());
    }
}
