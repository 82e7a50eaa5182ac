//! The manual's page of fields (`docs/fields.md`), made from the structs and rules themselves.

use crate::anthropic::body::MessagesBody;
use crate::field_rules::{self, Standing};
use crate::openai::body::Body;
use crate::pooled::body::{RankingBody, ScoreBody, VectorBody};
use crate::responses::body::ResponsesBody;
use stator_body::Api;
use std::fmt::Write as _;
use std::path::Path;

/// Set where the page is to be written.
const WRITE: &str = "STATOR_WRITE_SETTINGS";

const HEAD: &str = "# Fields of requests

Made by `STATOR_WRITE_SETTINGS=1 cargo test -p stator-api field_pages`; do not edit.

A field of a request is read, or is named in the answer's header `x-stator-ignored`, or the request gets 400
with the field's name. A field that is in no list gets 400 too, with the name that it may be a slip of;
`--unknown-fields ignore` names it in the header instead. A field that is `null`, `false`, zero or empty asks
for nothing, and refuses no request, but for a zero that names a rank.
";

#[test]
fn the_manual_lists_every_field() {
    let mut page = HEAD.to_owned();
    for (api, fields) in [
        (Api::ChatCompletions, Body::FIELDS),
        (Api::Completions, Body::FIELDS),
        (Api::Responses, ResponsesBody::FIELDS),
        (Api::Messages, MessagesBody::FIELDS),
        (Api::Embeddings, VectorBody::FIELDS),
        (Api::Pooling, VectorBody::FIELDS),
        (Api::Rerank, RankingBody::FIELDS),
        (Api::Score, ScoreBody::FIELDS),
    ] {
        section(&mut page, api, fields);
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fields.md");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&file, &page).expect("the page can be written");
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == page, "docs/fields.md is not as the fields are: set {WRITE}=1");
}

fn section(page: &mut String, api: Api, fields: &[&str]) {
    let mut read: Vec<&str> = fields.to_vec();
    let honoured = field_rules::of(api).filter(|rule| rule.standing == Standing::Honoured);
    read.extend(honoured.map(|rule| rule.name));
    read.sort_unstable();
    let read: Vec<_> = read.iter().map(|name| format!("`{name}`")).collect();
    let _ = write!(page, "\n## `{}`\n\nRead: {}.\n", api.path(), read.join(", "));
    let _ = write!(page, "\n| field | | why |\n| --- | --- | --- |\n");
    for rule in field_rules::of(api) {
        let standing = match rule.standing {
            Standing::Honoured => continue,
            Standing::Ignored => "ignored",
            Standing::Refused => "refused",
        };
        let _ = writeln!(page, "| `{}` | {standing} | {} |", rule.name, rule.why);
    }
}
