use super::*;
use crate::history::conversations::{conversations, words as words_of};
use crate::template::{ChatTemplate, DEFAULT, TOOL_USE};
use proptest::prelude::*;
use stator_api::Conversation;
use stator_api::openai::chat;
use std::sync::LazyLock;
use std::time::UNIX_EPOCH;

/// The end of a template whose messages are turns, each with its calls by `call`.
const TURNS: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}{{ '\n' }}{% endfor %}";
/// Instructions in front only, as in Qwen3.5's templates.
const LEADING: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}{% endfor %}";
/// One message of instructions, which may be a developer's, and then turns, as in Harmony's.
const ONE: &str = "{% set turns = messages %}{% if messages[0].role in ['system', 'developer'] %}# {{ messages[0].content }}\n{% set turns = messages[1:] %}{% endif %}{% for m in turns %}{% if m.role == 'user' %}U: {{ m.content }}\n{% elif m.role == 'tool' %}T {{ m.name }}: {{ m.content }}\n{% elif m.role == 'assistant' %}A: {{ m.content if m.content else '' }}{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}{{ '\n' }}{% endif %}{% endfor %}";
/// No instructions at all, as in Gemma's, and arguments that are printed as they are.
const NO_INSTRUCTIONS: &str = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}<|{{ m.role }}|>{{ m.content or '' }}{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments }}]{% endfor %}{{ '\n' }}{% endfor %}";
/// Ids that have the name of the function, as in Kimi's.
const IDS: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}{% for c in m.tool_calls or [] %}<|call|>{{ c.id }}<|args|>{{ c.function.arguments | tojson }}{% endfor %}{% if m.role == 'tool' %} of {{ m.tool_call_id }}{% endif %}{{ '\n' }}{% endfor %}";
const ALTERNATING: &str = include_str!("../../fixtures/templates/alternating.jinja");
const CONCATENATING: &str = include_str!("../../fixtures/templates/concatenating.jinja");
const THINKING: &str = include_str!("../../fixtures/templates/thinking.jinja");
const RENAMING: &str = include_str!("../../fixtures/templates/renaming.jinja");

fn load(source: &str) -> ChatTemplate {
    let tokens = ["bos_token", "eos_token"].map(|name| (name.to_owned(), "<s>".to_owned()));
    ChatTemplate::new(vec![(DEFAULT.to_owned(), source.to_owned())], tokens.into()).expect(source)
}

fn dialect(source: &str) -> TemplateDialect {
    load(source).default.dialect
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

/// Renders the messages of a body, which are JSON.
fn rendered(source: &str, messages: &str) -> Result<String, String> {
    let body = format!(r#"{{"model":"m","messages":{messages}}}"#);
    let request = chat::read(body.as_bytes()).expect("a chat");
    render(&load(source), &request.input.conversation().expect("a chat").messages)
}

#[test]
fn a_template_that_takes_all_is_given_all_as_it_is() {
    let found = dialect(THINKING);
    assert_eq!(found, TemplateDialect::default());
    // It prints the word, and is given no other.
    let prints = NoContent { beside_calls: false, alone: false };
    assert_eq!(dialect(TURNS), TemplateDialect { no_content: prints, ..found });
}

#[test]
fn a_template_that_shows_nothing_is_given_all_as_it_is() {
    for source in ["plain", "{{ messages | length }}", "{{ raise_exception('no') }}"] {
        assert_eq!(dialect(source), TemplateDialect::default(), "{source}");
    }
}

#[test]
fn arguments_are_text_where_a_template_joins_or_prints_them() {
    for (source, expected) in [
        (CONCATENATING, ArgumentForm::Text),
        (NO_INSTRUCTIONS, ArgumentForm::Text),
        (TURNS, ArgumentForm::Object),
        (ALTERNATING, ArgumentForm::Object),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", ArgumentForm::Object),
    ] {
        assert_eq!(dialect(source).arguments, expected, "{source}");
    }
    let messages = r#"[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[
        {"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\":1.50,  \"y\":1}"}},
        {"id":"2","type":"function","function":{"name":"g","arguments":" "}},
        {"id":"3","type":"function","function":{"name":"h","arguments":{"x":[1,"y"]}}}]}]"#;
    let expected =
        "<|user|>a\n<|assistant|>[f {\"x\":1.50,  \"y\":1}][g {}][h {\"x\": [1, \"y\"]}]\n";
    assert_eq!(rendered(NO_INSTRUCTIONS, messages).as_deref(), Ok(expected));
}

#[test]
fn no_content_is_an_empty_text_where_a_template_prints_none_or_fails() {
    let check = |source: &str, beside_calls: bool, alone: bool| {
        assert_eq!(dialect(source).no_content, NoContent { beside_calls, alone }, "{source}");
    };
    check(CONCATENATING, false, false);
    check(THINKING, true, true);
    // Calls stand in the place of the content.
    let calls = "{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% else %}{{ m.content }}{% endif %}{% endfor %}";
    check(calls, true, false);
    check(&calls.replace("m.content", "m.content or ''"), true, true);
    check(&calls.replace("m.content", "m.content | tojson"), true, false);
    let messages = r#"[{"role":"user","content":"a"},{"role":"assistant","content":null}]"#;
    assert_eq!(rendered(TURNS, messages).as_deref(), Ok("<|user|>a\n<|assistant|>\n"));
}

#[test]
fn instructions_stand_where_a_template_keeps_them() {
    let check = |source: &str, expected: [bool; 4]| {
        let InstructionRules { first, several, later, adjacent_users } =
            dialect(source).history.instructions;
        assert_eq!([first, several, later, adjacent_users], expected, "{source}");
    };
    check(TURNS, [true, true, true, true]);
    check(&[LEADING, TURNS].concat(), [true, false, false, true]);
    check(ONE, [true, false, false, true]);
    check(NO_INSTRUCTIONS, [false, false, false, true]);
    // It renders those of later turns too, but in front of the turns before them.
    check(CONCATENATING, [true, true, false, true]);
    check(ALTERNATING, [true, false, false, false]);
    check(RENAMING, [true, false, false, false]);

    let messages = r#"[{"role":"system","content":"A"},{"role":"developer","content":"B"},
        {"role":"user","content":"c"},{"role":"assistant","content":"d"},
        {"role":"system","content":"E"},{"role":"user","content":"f"}]"#;
    let expected = "# A\n\nB\nU: c\nA: d\nU: E\nU: f\n";
    assert_eq!(rendered(ONE, messages).as_deref(), Ok(expected));
    let expected =
        "<s><turn>user\nA\n\nB\n\nc</turn>\n<turn>model\nd</turn>\n<turn>user\nE\n\nf</turn>\n";
    assert_eq!(rendered(RENAMING, messages).as_deref(), Ok(expected));
}

#[test]
fn a_word_of_the_source_is_no_role() {
    assert!(dialect(ONE).developer);
    let mentions = "{# for developers #}{% for m in messages %}{% if m.role in ['system', 'user'] %}{{ m.content }}{% endif %}{% endfor %}";
    assert!(!dialect(mentions).developer);
}

#[test]
fn ids_and_names_have_the_form_that_a_template_shows() {
    // As in newer ones of Mistral's.
    let ending = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}{% if c.id | length < 9 %}{{ raise_exception('short') }}{% endif %}{{ c.function | tojson }} {{ c.id[-9:] }}{% endfor %}{% endfor %}";
    for (source, ids, result_names) in [
        (TURNS, CallIds::Any, false),
        (ending, CallIds::Nine, false),
        (ALTERNATING, CallIds::Nine, false),
        (IDS, CallIds::Counted, false),
        (ONE, CallIds::Any, true),
    ] {
        let history = dialect(source).history;
        assert_eq!((history.ids, history.result_names), (ids, result_names), "{source}");
    }
    let messages = r#"[{"role":"user","content":"a"},
        {"role":"assistant","content":null,"tool_calls":[
            {"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"}},
            {"id":"call_2","type":"function","function":{"name":"g","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"call_2","content":"2"},
        {"role":"tool","tool_call_id":"call_1","content":"1"}]"#;
    let expected = "<|user|>a\n<|assistant|><|call|>functions.f:0<|args|>{}<|call|>functions.g:1<|args|>{}\n<|tool|>1 of functions.f:0\n<|tool|>2 of functions.g:1\n";
    assert_eq!(rendered(IDS, messages).as_deref(), Ok(expected));
    let expected = "U: a\nA: [f {}][g {}]\nT f: 1\nT g: 2\n";
    assert_eq!(rendered(ONE, messages).as_deref(), Ok(expected));
}

#[test]
fn the_template_for_tools_is_probed_by_itself() {
    let source = |name: &str, source: &str| (name.to_owned(), source.to_owned());
    let sources = vec![source(DEFAULT, TURNS), source(TOOL_USE, NO_INSTRUCTIONS)];
    let template = ChatTemplate::new(sources, Vec::new()).expect("both compile");
    let forms = |it: &crate::template::ProbedTemplate| it.dialect.arguments;
    assert_eq!(forms(&template.default), ArgumentForm::Object);
    assert_eq!(template.tool_use.as_ref().map(forms), Some(ArgumentForm::Text));
}

/// Templates that render each of the tests' conversations, and whether each begins with the prompt
/// of its beginning.
static SHAPES: LazyLock<Vec<(ChatTemplate, bool)>> = LazyLock::new(|| {
    let leading = [LEADING, TURNS].concat();
    let shapes = [
        (TURNS, true),
        (&leading, true),
        (ONE, true),
        (NO_INSTRUCTIONS, true),
        (IDS, true),
        (CONCATENATING, true),
        // Instructions stand in the last question, thoughts before it are left out.
        (ALTERNATING, false),
        (THINKING, false),
    ];
    shapes.map(|(source, is_stable)| (load(source), is_stable)).into()
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In every probed combination the prompt has all words, and that of a conversation up to an
    /// assistant's message is the beginning of the whole conversation's.
    #[test]
    fn no_words_are_lost_and_a_longer_prompt_begins_with_a_shorter_one(
        messages in conversations(),
    ) {
        for (template, is_stable) in &*SHAPES {
            let prompt = render(template, &messages);
            let Ok(prompt) = prompt else { panic!("{prompt:?} of {messages:?} by {template:?}") };
            for word in words_of(&messages) {
                prop_assert!(prompt.contains(&word), "{word} is not in {prompt}");
            }
            let answers = messages.iter().enumerate().filter(|(_, it)| it.role == Role::Assistant);
            for (at, _) in answers.filter(|_| *is_stable) {
                let begun = render(template, &messages[..at]).expect("a beginning renders too");
                prop_assert!(prompt.starts_with(&begun), "{begun:?} of {prompt:?}");
            }
        }
    }
}
