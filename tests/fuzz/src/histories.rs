//! A conversation keeps all its texts, whatever form its template takes, and its prompt begins with
//! that of the conversation up to an assistant's message.
//!
//! An input is the body of a chat.

use stator_api::Conversation;
use stator_api::conversation::{Message, Role};
use stator_api::openai::chat;
use stator_model::template::ChatTemplate;
use std::sync::LazyLock;
use std::time::UNIX_EPOCH;

/// Most messages that are looked at, so that long inputs do not take quadratic time.
const MESSAGES_MAX: usize = 8;
/// Templates that print all that they are given, and refuse what they do not take.
const SOURCES: [&str; 5] = [
    // Instructions in front alone.
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}{% endfor %}",
    // None at all; arguments and contents are joined as texts.
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('rules') }}{% endif %}{{ '<|' + m.role + '|>' + m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name + ' ' + c.function.arguments }}{% endfor %}{% endfor %}",
    // Turns that alternate.
    "{% set at = namespace(user=true) %}{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% elif m.role in ['user', 'assistant'] and not m.tool_calls %}{% if (m.role == 'user') != at.user %}{{ raise_exception('turn') }}{% endif %}{% set at.user = not at.user %}{% endif %}<|{{ m.role }}|>{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}",
    // Ids of nine characters.
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('id') }}{% endif %}{{ c | tojson }}{% endfor %}{{ m.tool_call_id }}{% endfor %}",
    // Ids that name the function, and results that do.
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}{% for c in m.tool_calls or [] %}<|call|>{{ c.id }} {{ c.function.arguments | tojson }}{% endfor %}{{ m.tool_call_id }} {{ m.name }}{% endfor %}",
];

static TEMPLATES: LazyLock<Vec<ChatTemplate>> = LazyLock::new(|| {
    let template = |source: &str| {
        let sources = vec![("default".to_owned(), source.to_owned())];
        ChatTemplate::new(sources, Vec::new()).expect("a template")
    };
    SOURCES.into_iter().map(template).collect()
});

/// Runs the target.
pub(crate) fn run(body: &[u8]) {
    let Ok(request) = chat::read(body) else { return };
    let Some(conversation) = request.input.conversation() else { return };
    if conversation.media().next().is_some() {
        return;
    }
    let messages = &conversation.messages[..conversation.messages.len().min(MESSAGES_MAX)];
    for template in &*TEMPLATES {
        let Ok(prompt) = render(template, messages) else { continue };
        for text in messages.iter().flat_map(|message| message.content.texts()) {
            assert!(prompt.contains(text), "{text:?} is not in {prompt:?}");
        }
        let answers = messages.iter().enumerate().filter(|(_, it)| it.role == Role::Assistant);
        for (at, _) in answers.filter(|(at, _)| *at > 0) {
            let Ok(begun) = render(template, &messages[..at]) else { continue };
            assert!(prompt.starts_with(&begun), "{begun:?} does not begin {prompt:?}");
        }
    }
}

fn render(template: &ChatTemplate, messages: &[Message<'_>]) -> Result<String, String> {
    let conversation = Conversation {
        messages: messages.to_vec(),
        tools: None,
        documents: None,
        thinking: None,
        template_kwargs: Vec::new(),
        add_generation_prompt: false,
        continue_final_message: false,
        add_special_tokens: false,
    };
    template.render(&conversation, UNIX_EPOCH).map_err(|error| error.to_string())
}
