//! Agents that lend KV of a prompt to the endpoint that computes the prompt.

use super::*;
use crate::Profile as PluginProfile;
use crate::plugin::{Pick, ProfileHandler, RouteError};
use crate::testkit::{endpoint, program, rank};
use crate::{HeaderView, NamedPlugin, Prompt};
use stator_placement::{Label, Profile};
use stator_protos::hash::SequenceHash;
use stator_protos::header::KV_HOLDERS;
use stator_protos::kv_event::{KvEvent, Medium, Stored};

const LIFE: Generation = Generation(1);

/// Three endpoints whose agents lend KV; the first holds a prompt of four blocks.
fn pool(program: Program) -> (Scheduler, Vec<SequenceHash>) {
    let mut pool = Scheduler::new(program, SchedulerSettings::default());
    pool.set_endpoints(&[1, 2, 3].map(endpoint));
    for number in 1..=3 {
        pool.set_equipment(rank(number), lending(number));
        pool.set_life(rank(number), LIFE);
    }
    let prompt: Vec<_> = (10..14).map(SequenceHash).collect();
    let stored = KvEvent::Stored(Stored {
        hashes: prompt.iter().map(|hash| hash.0).collect(),
        parent: None,
        tokens: Vec::new(),
        block_size: 16,
        medium: Medium::Host,
        lora_name: None,
    });
    pool.prefixes().apply(rank(1), LIFE, &[stored]);
    (pool, prompt)
}

fn lending(number: u8) -> Equipment {
    let address = format!("10.0.0.{number}:7010");
    let lends = Some(Label::new(&address));
    let profile = Profile { lends, fixed_adapters: true, ..Profile::default() };
    Equipment { profile, lends_at: Some(address.into()), ..Equipment::default() }
}

/// Sources of the prompt, and the header that names its lenders, if the endpoint of pod `only` answers.
fn placed(pool: &mut Scheduler, sequence: &[SequenceHash], only: &str) -> (String, Option<String>) {
    let headers: &[(&str, &str)] = &[("only", only)];
    let prompt = Prompt { sequence, tokens: 70, ..Prompt::default() };
    let request = Request { prompt, headers: HeaderView(headers), ..Request::default() };
    let call = Call { now: Time::from_millis(1), seed: 7, watched: true, scores: false };
    let decision = pool.schedule(&request, call).expect("an endpoint takes it");
    let named = decision.headers.iter().find(|(name, _)| *name == KV_HOLDERS);
    (decision.sources.to_string(), named.map(|(_, text)| text.clone()))
}

#[test]
fn the_agent_that_lends_a_prompt_is_named_to_who_lacks_it() {
    let (mut pool, prompt) = pool(program());
    let from = format!("4 blocks (64 tokens) from worker {}, 1 (6) computed", rank(1));
    let named = Some("10.0.0.1:7010;blocks=4".to_owned());
    assert_eq!(placed(&mut pool, &prompt, "pod2"), (from, named));
    assert_eq!(
        placed(&mut pool, &prompt, "pod1"),
        ("4 blocks (64 tokens) host, 1 (6) computed".into(), None)
    );
    let other: Vec<_> = (50..54).map(SequenceHash).collect();
    assert_eq!(placed(&mut pool, &other, "pod2"), ("5 blocks (70 tokens) computed".into(), None));
}

#[test]
fn an_agent_that_is_heard_no_more_lends_nothing() {
    let (mut pool, prompt) = pool(program());
    // Its engine's page is read instead.
    pool.report(rank(1), EngineLoad::default());
    assert_eq!(placed(&mut pool, &prompt, "pod2").1, None);
}

#[test]
fn nobody_is_named_where_nothing_asks_for_cached_blocks() {
    let (mut pool, prompt) = pool(Program { uses_kv: false, ..program() });
    assert_eq!(placed(&mut pool, &prompt, "pod2"), ("nothing cached".into(), None));
}

/// Has the prompts of pod 3 computed by the endpoint that `only` names.
struct Split;

impl ProfileHandler for Split {
    fn route<'a>(
        &self,
        _: &Request<'_>,
        run: &mut dyn FnMut(&str) -> Option<Pick<'a>>,
    ) -> Result<Routing<'a>, RouteError> {
        let primary = run("answers").ok_or(RouteError::Drained)?;
        let prefill = run("default").ok_or(RouteError::Drained)?;
        let others = vec![("prefill".to_owned(), prefill)];
        Ok(Routing { primary, others, headers: Vec::new(), port: None })
    }
}

#[test]
fn lenders_are_named_for_the_endpoint_that_computes_the_prompt() {
    let mut split = program();
    let mut answers: PluginProfile = program().profiles.remove(0);
    (answers.name, answers.filters) = ("answers".into(), Vec::new());
    split.profiles.push(answers);
    split.handler = NamedPlugin { plugin: Arc::new(Split), ..split.handler };
    let (mut pool, prompt) = pool(split);
    // The one that answers holds the prompt, and the one that computes it can read it there.
    let (sources, named) = placed(&mut pool, &prompt, "pod2");
    assert_eq!(sources, format!("4 blocks (64 tokens) from worker {}, 1 (6) computed", rank(1)));
    assert_eq!(named.as_deref(), Some("10.0.0.1:7010;blocks=4"));
    assert_eq!(placed(&mut pool, &prompt, "pod1").1, None);
}
