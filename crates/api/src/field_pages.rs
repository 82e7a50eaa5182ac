//! The manual's page of fields (`docs/fields.md`), made from the structs and rules themselves.

use crate::anthropic::body::MessagesBody;
use crate::field_rules::{self, FieldRule, Standing};
use crate::openai::body::Body;
use crate::openai::nested;
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
for nothing, and refuses no request, but for a zero that names a rank or is a bound.
";

const NESTED: &str = "
## Objects within chats

The members that each object of a chat has. Rules for others are in the table of `/v1/chat/completions`. A member on
neither list gets 400; with `--unknown-fields ignore` the header names it, and no template shows it.

| object | members |
| --- | --- |
";

const PASSED: &str = "
## Bodies that pass

Engines that speak for themselves read bodies themselves: those of `--engine openai`, those beside a sidecar, and those
behind a picker. Proxy, sidecar and picker treat them alike.
Fields on the list of `crates/api/body/src/allow.rs`, and those of `--pass-fields`, go on to them. Of other fields:

- Fields that hand KV over, name a rank or choose what an engine runs get 400.
- Fields on no list get 400; `--unknown-fields ignore` names them in the header instead.
- The proxy obeys `priority`, `nvext.agent_hints`, `nvext.routing_constraints` and `nvext.cache_salt`. The sidecar
  obeys `nvext.cache_salt`; the picker before it obeys `nvext.routing_constraints`, and lets the rest of `nvext` pass.
- All others are as in the tables of their API, with these differences where nobody obeys them:

| field | | why |
| --- | --- | --- |
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
    page.push_str(NESTED);
    for object in nested::OBJECTS {
        let members: Vec<_> = object.members.iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(page, "| `{}` | {} |", object.place, members.join(", "));
    }
    page.push_str(PASSED);
    rows(&mut page, field_rules::PASSED.iter());
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
    rows(page, field_rules::of(api));
}

fn rows<'r>(page: &mut String, rules: impl Iterator<Item = &'r FieldRule>) {
    for rule in rules {
        let standing = match rule.standing {
            Standing::Honoured => continue,
            Standing::Ignored => "ignored",
            Standing::Refused => "refused",
        };
        let _ = writeln!(page, "| `{}` | {standing} | {} |", rule.name, rule.why);
    }
}
