//! Items of the Responses API, as messages of a chat.

use super::call_form::joined;
use super::seal::ThoughtSeal;
use crate::conversation::{AssistantTurn, Content, ContentPart, Message, Role};
use crate::custom_tools::arguments_of;
use crate::json::Json;
use crate::media;
use crate::openai::ApiError;
use crate::tree::{JsonPath, Members, object};
use std::borrow::Cow;

/// Messages under construction.
pub(super) struct ItemReader<'a, 'p> {
    messages: Vec<Message<'a>>,
    turn: Option<AssistantTurn<'a>>,
    /// Opens thoughts that were sealed here.
    seal: Option<&'p ThoughtSeal>,
}

impl<'a, 'p> ItemReader<'a, 'p> {
    /// Begins with the instructions, if there are any.
    pub(super) fn new(instructions: Option<Cow<'a, str>>, seal: Option<&'p ThoughtSeal>) -> Self {
        let system = instructions.filter(|text| !text.is_empty());
        let system = system.map(|text| message(Role::System, Content::Text(text)));
        Self { messages: system.into_iter().collect(), turn: None, seal }
    }

    /// Takes the next item.
    ///
    /// # Errors
    ///
    /// 400, with the path of what is wrong in it.
    pub(super) fn take(&mut self, item: Json<'a>, path: JsonPath<'_>) -> Result<(), ApiError> {
        let mut item = Members::of(item, path)?;
        let kind = item.text("type")?.unwrap_or("message".into());
        // Identities and states are of the items that an answer had.
        item.take("id");
        item.take("status");
        match &*kind {
            "message" => self.message(&mut item)?,
            "reasoning" => self.reasoning(&mut item)?,
            "function_call" => self.function_call(&mut item)?,
            "custom_tool_call" => self.custom_call(&mut item)?,
            "function_call_output" | "custom_tool_call_output" => self.output(&mut item)?,
            kind => {
                let kind: String = kind.chars().take(40).collect();
                let fault = format!("is an item of type {kind:?}, which is not supported here");
                return Err(path.unsupported(fault));
            }
        }
        item.refuse_rest()
    }

    /// The messages of all items.
    pub(super) fn finish(mut self) -> Vec<Message<'a>> {
        self.close();
        self.messages
    }

    fn message(&mut self, item: &mut Members<'a, '_>) -> Result<(), ApiError> {
        let path = *item.path();
        item.ignore("phase");
        let role = match &*item.required_text("role")? {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "system" => Role::System,
            "developer" => Role::Developer,
            role => {
                let fault = format!(
                    "is {role:?}, it must be \"user\", \"assistant\", \"system\" or \"developer\""
                );
                return Err(JsonPath::Member(&path, "role").invalid(fault));
            }
        };
        let content = item.required("content")?;
        let content = read_content(content, JsonPath::Member(&path, "content"))?;
        if role != Role::Assistant {
            self.close();
            self.messages.push(message(role, content));
            return Ok(());
        }
        let parts = &mut self.turn.get_or_insert_default().parts;
        match content {
            Content::Text(text) => parts.push(text.into()),
            Content::Parts(own) => parts.extend(own),
            Content::Null => {}
        }
        Ok(())
    }

    fn reasoning(&mut self, item: &mut Members<'a, '_>) -> Result<(), ApiError> {
        let path = *item.path();
        let sealed = item.text("encrypted_content")?;
        let mut thoughts = String::new();
        // The text itself says more than its summary.
        for name in ["content", "summary"] {
            if name == "summary"
                && let Some(sealed) = sealed.as_deref().filter(|_| thoughts.is_empty())
            {
                match self.seal.and_then(|seal| seal.open(sealed)) {
                    Some(text) => thoughts = text,
                    // Another server's, or of a key that is no more: the conversation goes on.
                    None => path.notes().ignore(JsonPath::Member(&path, "encrypted_content")),
                }
            }
            let path = JsonPath::Member(&path, name);
            match item.take(name) {
                None => {}
                Some(Json::Array(parts)) if thoughts.is_empty() => {
                    for (at, part) in parts.into_iter().enumerate() {
                        thoughts.push_str(&part_text(part, JsonPath::Item(&path, at))?);
                    }
                }
                Some(Json::Array(_)) => {}
                Some(other) => return Err(path.mistyped("a list", &other)),
            }
        }
        self.turn.get_or_insert_default().thoughts.push_str(&thoughts);
        Ok(())
    }

    fn function_call(&mut self, item: &mut Members<'a, '_>) -> Result<(), ApiError> {
        let id = item.required_text("call_id")?;
        let mut name = item.required_text("name")?;
        if let Some(namespace) = item.text("namespace")? {
            name = joined(&namespace, &name).into();
        }
        let arguments = item.required_text("arguments")?;
        item.ignore("async");
        check_caller(item)?;
        self.call(id, name, arguments);
        Ok(())
    }

    fn custom_call(&mut self, item: &mut Members<'a, '_>) -> Result<(), ApiError> {
        let id = item.required_text("call_id")?;
        let mut name = item.required_text("name")?;
        if let Some(namespace) = item.text("namespace")? {
            name = joined(&namespace, &name).into();
        }
        item.ignore("async");
        check_caller(item)?;
        let input = item.required_text("input")?;
        self.call(id, name, arguments_of(input).into());
        Ok(())
    }

    fn call(&mut self, id: Cow<'a, str>, name: Cow<'a, str>, arguments: Cow<'a, str>) {
        let function = object([("name", Json::Str(name)), ("arguments", Json::Str(arguments))]);
        let kind = Json::Str("function".into());
        let call = object([("id", Json::Str(id)), ("type", kind), ("function", function)]);
        self.turn.get_or_insert_default().calls.push(call);
    }

    fn output(&mut self, item: &mut Members<'a, '_>) -> Result<(), ApiError> {
        let path = *item.path();
        let id = item.required_text("call_id")?;
        let output = item.required("output")?;
        // The call says whose result it is.
        for hint in ["name", "namespace"] {
            item.ignore(hint);
        }
        check_caller(item)?;
        let content = read_content(output, JsonPath::Member(&path, "output"))?;
        self.close();
        let extra = vec![("tool_call_id".into(), Json::Str(id))];
        self.messages.push(Message { role: Role::Tool, content, extra });
        Ok(())
    }

    /// Ends the assistant's turn: what follows is somebody else's.
    fn close(&mut self) {
        self.messages.extend(self.turn.take().map(Message::from));
    }
}

/// Refuses a call by anybody but the model, and the result of one.
fn check_caller(item: &mut Members<'_, '_>) -> Result<(), ApiError> {
    let path = *item.path();
    match item.take("caller") {
        Some(caller) if caller.get("type").and_then(Json::as_str) != Some("direct") => {
            let path = JsonPath::Member(&path, "caller");
            Err(path.unsupported("must be {\"type\":\"direct\"}: only the model calls tools here"))
        }
        _ => Ok(()),
    }
}

fn message<'a>(role: Role, content: Content<'a>) -> Message<'a> {
    Message { role, content, extra: Vec::new() }
}

/// A text, or a list of parts.
fn read_content<'a>(content: Json<'a>, path: JsonPath<'_>) -> Result<Content<'a>, ApiError> {
    let parts = match content {
        Json::Str(text) => return Ok(Content::Text(text)),
        Json::Array(parts) => parts,
        other => return Err(path.mistyped("a string or a list of parts", &other)),
    };
    let parts = parts.into_iter().enumerate();
    let parts = parts.map(|(at, part)| read_part(part, JsonPath::Item(&path, at)));
    Ok(Content::of_parts(parts.collect::<Result<_, _>>()?))
}

fn part_text<'a>(part: Json<'a>, path: JsonPath<'_>) -> Result<Cow<'a, str>, ApiError> {
    match read_part(part, path)? {
        ContentPart::Text(text) => Ok(text),
        ContentPart::Media(medium) => Err(unsupported(&path, medium.part_type)),
    }
}

fn unsupported(path: &JsonPath<'_>, kind: &str) -> ApiError {
    let kind: String = kind.chars().take(40).collect();
    path.unsupported(format!("is a part of type {kind:?}, which is not supported here"))
}

fn read_part<'a>(part: Json<'a>, path: JsonPath<'_>) -> Result<ContentPart<'a>, ApiError> {
    let mut part = Members::of(part, path)?;
    let content = match &*part.required_text("type")? {
        "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => {
            part.required_text("text")?.into()
        }
        "refusal" => part.required_text("refusal")?.into(),
        kind => match media::of_item(kind, &mut part)? {
            Some(medium) => ContentPart::Media(medium),
            None => return Err(unsupported(&path, kind)),
        },
    };
    // An answer's own parts come back with these.
    part.take("annotations");
    part.take("logprobs");
    // Prefixes are cached without being asked.
    part.ignore("prompt_cache_breakpoint");
    part.refuse_rest()?;
    Ok(content)
}
