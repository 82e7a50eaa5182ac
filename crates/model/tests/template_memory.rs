//! Chat templates that try to take the process's memory. An allocator counts what the thread holds.

#![allow(unsafe_code)] // An allocator is unsafe by its nature.

use proptest::prelude::*;
use stator_api::openai::chat;
use stator_model::template::{BUDGET_BYTES, ChatTemplate};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::UNIX_EPOCH;

/// Most memory that a thread may hold for a rendering without much input. The budget counts what is
/// made; beside it a text that grows has room to spare, and exists twice while it becomes a value.
const PEAK_MAX_BYTES: usize = 3 * BUDGET_BYTES;

struct Counting;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn grow(bytes: usize) {
    HELD.set(HELD.get().saturating_add(bytes));
    PEAK.set(PEAK.get().max(HELD.get()));
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get().saturating_sub(layout.size()));
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Loads and renders a template; returns the answer, the most memory that it took, and what it left.
fn rendered(source: &str) -> (Result<usize, String>, usize, usize) {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi\nthere"}]}"#;
    let before = HELD.get();
    PEAK.set(before);
    let result = ChatTemplate::new(vec![("default".to_owned(), source.to_owned())], Vec::new())
        .and_then(|template| {
            let request = chat::read(body.as_bytes()).expect("a request");
            let conversation = request.input.conversation().expect("a chat");
            template.render(conversation, UNIX_EPOCH).map_err(|error| error.to_string())
        })
        .map(|text| text.len());
    let left = HELD.get().saturating_sub(before);
    (result, PEAK.get() - before, left)
}

/// Renders a template that wants more than there is.
#[track_caller]
fn check_refused(source: &str) {
    let (result, peak, left) = rendered(source);
    assert!(peak < PEAK_MAX_BYTES, "{source}: {} MiB, {result:?}", peak >> 20);
    let message = result.expect_err(source);
    assert!(left < 64 << 10, "{source}: {left} bytes stay, {message}");
    let known = [
        "bytes of memory",
        "nested",
        "a namespace",
        "a loop",
        "tokens",
        "elif",
        "bytes, at",
        "range",
    ];
    assert!(known.iter().any(|known| message.contains(known)), "{source}: {message}");
}

/// Renders a template that may do what it does, with the memory that there is.
#[track_caller]
fn check_bounded(source: &str) {
    let (result, peak, left) = rendered(source);
    assert!(peak < PEAK_MAX_BYTES, "{source}: {} MiB, {result:?}", peak >> 20);
    assert!(left < 64 << 10, "{source}: {left} bytes stay, {result:?}");
}

fn looped(start: &str, step: &str) -> String {
    format!(
        "{{% set ns = namespace(x={start}, y=0) %}}{{% for i in range(99999) %}}{step}{{% endfor %}}"
    )
}

#[test]
fn doubled_values_are_refused() {
    for step in [
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x * 2 %}",
        "{% set ns.x = 2 * ns.x %}",
        "{% set ns.x = [ns.x, ns.x] | join %}",
        "{% set ns.x = ''.join([ns.x, ns.x]) %}",
        "{% set ns.x = ns.x | replace('a', 'aa' ~ ns.x) %}",
        "{% set ns.x = ns.x.replace('a', 'aa' ~ ns.x) %}",
        "{% set ns.x = '%s%s' | format(ns.x, ns.x) %}",
        "{% set ns.x = '{}{}'.format(ns.x, ns.x) %}",
        "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
        "{% set ns.x %}{% filter upper %}{{ ns.x }}{{ ns.x }}{% endfilter %}{% endset %}",
        "{% macro f() %}{{ ns.x }}{{ ns.x }}{% endmacro %}{% set ns.x = f() %}",
        "{% set ns.x = [ns.x, ns.x] | string %}",
        "{% set ns.x = [ns.x, ns.x] | tojson %}",
        "{% set ns.x = [ns.x, ns.x] | pprint %}",
        "{% set ns.x = (ns.x ~ 'b') | list | join('aaa') %}",
    ] {
        check_refused(&looped("'a'", step));
    }
    for step in [
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x * 2 %}",
        "{% set ns.x = (ns.x + ns.x) | list %}",
        "{% set ns.x = [ns.x, ns.x] %}",
        "{% set ns.x = {'a': ns.x, 'b': ns.x} %}",
        "{% set ns.x = (ns.x, ns.x) %}",
        "{% set ns.x = dict(a=ns.x, b=ns.x) %}",
    ] {
        check_refused(&looped("[1]", step));
    }
}

#[test]
fn numbers_that_ask_for_memory_are_refused() {
    for source in [
        "{{ 'a' | indent(3000000000) }}",
        "{{ messages[0].content | indent(width=300000000) }}",
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * 'a' }}",
        "{% set x = 'a' * 99999999 ~ 'b' * 99999999 ~ 'c' * 99999999 ~ 'd' * 99999999 %}",
        "{% set x = [0] * 10**8 %}",
        "{% set x = (0, 1) * 10**8 %}",
        "{% set x = (range(99999) | list) * 99999 %}",
        "{{ range(99999) * 99999 }}",
        "{{ range(10**9) | list }}",
        "{{ range(9223372036854775807, -9223372036854775807, -1) }}",
        "{{ '%1000000000s' | format('a') }}",
        "{{ '%*s' | format(1000000000, 'a') }}",
        "{{ '%.1000000000f' | format(1.5) }}",
        "{{ '{:>1000000000}'.format('a') }}",
        "{{ '{:01000000000,}'.format(1) }}",
        "{{ [] | slice(1000000000) }}",
        "{{ [1] | batch(1000000000, 0) }}",
        "{{ ('a' * 99999) | replace('', 'b' * 99999) }}",
        "{{ ('a' * 99999).replace('', 'b' * 99999) }}",
        "{{ range(99999) | join('a' * 99999) }}",
        "{{ ('a' * 99999).join(range(99999)) }}",
        "{{ ('a' * 99999) | join('b' * 99999) }}",
        "{{ ['a' * 99999] * 99999 }}",
        "{{ (['a' * 99999] * 99999) | tojson(indent=9) }}",
        "{{ (['a' * 99999] * 99999) | join }}",
        "{{ ('%s' * 9999) | format('a' * 99999) }}",
        "{{ [1, 2, 3] | tojson(separators=['a' * 30000000, 'b']) }}",
    ] {
        check_refused(source);
    }
}

#[test]
fn values_that_pile_up_are_refused() {
    for step in [
        "{% set ns.x = ns.x + [('a' * 9999) ~ i] %}",
        "{% set ns.x = [ns.x] %}",
        "{% set ns.x = (ns.x,) %}",
        "{% set ns.x = {'a': ns.x} %}",
        "{% set ns.x = dict(a=ns.x) %}",
        "{% set ns.x = [ns.x] | list %}",
        "{% set ns.x = ns.x | batch(1) | list %}",
        "{% set ns.x = ns.x | groupby('a') %}",
        "{% set ns.x = {'a': ns.x}.items() %}",
        "{% set ns.x = {'a': ns.x} | items %}",
        "{% set ns.x = ns.x + [namespace()] %}",
        "{% set ns.x = ns.x + [namespace(a=1, b=2)] %}",
        "{% set ns.x = namespace(x=ns.x) %}",
        "{% set ns.x = ns %}",
        "{% set ns.x = [ns] %}",
        "{% set ns.x, ns.y = ns, 1 %}",
        "{% for j in [ns.x] %}{% set ns.x = loop %}{% endfor %}",
        "{% for j in [ns.x] %}{% set ns.x = [loop] %}{% endfor %}",
        "{% macro f() %}{{ i }}{{ ns.x }}{% endmacro %}",
        "{% call(y) cycle(1) %}{{ i }}{% endcall %}",
        "{% set ns.x = ns.x + [[], [], [], [], [], [], [], [], [], [], [], [], [i]] %}",
        "{% set ns.x = ns.x + [{}, {}, {}, {}, {}, {}, {}, {}, {'a': i}] %}",
        "{% set ns.y = ns.y ~ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' %}",
    ] {
        let prelude = "{% macro cycle(x) %}{{ caller(x) }}{% endmacro %}";
        check_refused(&format!("{prelude}{}", looped("[1]", step)));
    }
}

#[test]
fn other_ways_to_memory_are_bounded() {
    for source in [
        "{% set s = 'a,' * 9999999 %}{% set x = s.split(',') %}{% set y = s | list %}",
        "{% set s = '<' * 9999999 %}{{ s | e | e | e }}",
        "{% set s = ('a' * 9999999) %}{{ [s[1:], s[2:], s[3:], s[4:], s[5:], s[6:], s[7:]] }}",
        "{% set s = 'ŉ' * 9999999 %}{{ s | upper | title | capitalize }}",
        "{% set s = '%A' * 9999999 %}{{ strftime_now(s) }}",
        "{% set l = range(99999) | list %}{% macro f() %}{% endmacro %}{{ f(*l) }}",
        "{% set l = (range(99999) | list) * 20 %}{{ dict(*l, *l, *l, *l) }}",
        "{{ raise_exception('a' * 50000000) }}",
        "{% set d = dict() %}{{ d.a.b.c }}",
        "{% include 'other' ignore missing %}{% extends 'other' %}",
        "{% set x %}{% for i in range(99999) %}some text that is raw and not so short{% endfor %}{% endset %}",
        "{% for i in range(99999) %}some text that is raw and not so short at all, and that leaves{% endfor %}",
        "{% macro f(l) %}{% set m = l + l %}{{ f(m) }}{% endmacro %}{{ f([1]) }}",
        "{% for i in [[[[1]]]] recursive %}{{ loop([i, i]) }}{% endfor %}",
        "{{ 'a'[0:2:-1] }}{{ [1][0:2:-1] }}{{ 'abc'[5:1] }}{{ 'abc'[::-9223372036854775807] }}",
        "{{ debug() }}",
        "{{ [1] | chain([2]) }}",
    ] {
        check_bounded(source);
    }
}

#[test]
fn templates_that_are_too_much_for_the_compiler_are_refused() {
    check_refused(&format!("{{{{ a{} }}}}", " ~ a".repeat(100_000)));
    check_refused(&format!("{{{{ a{} }}}}", "|e".repeat(100_000)));
    check_refused(&format!("{{% if a %}}{}{{% endif %}}", "{% elif b %}".repeat(50_000)));
    check_refused(&"a".repeat(2 << 20));
    check_bounded(&format!("{{{{ 1{} }}}}", " + a".repeat(450)));
    check_bounded(&format!("{{{{ a{} }}}}", "|e".repeat(450)));
    check_bounded(&format!("{{% if a %}}{}{{% endif %}}", "{% elif b %}".repeat(250)));
}

/// Expressions that may grow, over the variables `a` to `d`.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        prop::sample::select(vec![
            "ns.a", "ns.b", "ns.c", "ns.d", "i", "messages", "'x<\\n'", "[1]", "{'k': 2}"
        ])
        .prop_map(str::to_owned),
        (0..40_u32).prop_map(|bits| (1_u64 << bits).to_string()),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        let filters = vec![
            "batch",
            "capitalize",
            "dictsort",
            "e",
            "first",
            "format",
            "groupby",
            "indent",
            "int",
            "items",
            "join",
            "last",
            "length",
            "list",
            "lower",
            "map('list')",
            "map",
            "pprint",
            "replace",
            "reverse",
            "slice",
            "sort",
            "split",
            "string",
            "title",
            "tojson",
            "trim",
            "unique",
            "upper",
        ];
        let methods = vec![
            "format",
            "get",
            "items",
            "join",
            "keys",
            "partition",
            "replace",
            "rsplit",
            "split",
            "splitlines",
            "title",
            "upper",
            "values",
        ];
        prop_oneof![
            (
                inner.clone(),
                inner.clone(),
                prop::sample::select(vec!["~", "+", "*", "**", "-", "and", "in", "%"])
            )
                .prop_map(|(a, b, operator)| format!("({a} {operator} {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("[{a}, {b}]")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{{'p': {a}, 'q': {b}}}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}[{b}:]")),
            (inner.clone(), prop::sample::select(filters.clone()))
                .prop_map(|(a, f)| format!("{a}|{f}")),
            (inner.clone(), inner.clone(), prop::sample::select(filters))
                .prop_filter("one list of arguments", |(_, _, f)| !f.contains('('))
                .prop_map(|(a, b, f)| format!("{a}|{f}({b})")),
            (inner.clone(), prop::collection::vec(inner, 0..3), prop::sample::select(methods))
                .prop_map(|(a, args, m)| format!("{a}.{m}({})", args.join(", "))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A template with any loop stays within its memory, and leaves none taken.
    #[test]
    fn no_template_takes_more_than_its_memory(
        steps in prop::collection::vec((0..4_usize, expression()), 1..6),
    ) {
        let mut source = "{% set ns = namespace(a='a', b=[1, 'b'], c={'c': 1}, d=3) %}{% for i in range(40) %}".to_owned();
        for (target, expression) in &steps {
            let name = ["a", "b", "c", "d"][*target];
            source.push_str(&format!("{{% set ns.{name} = {expression} %}}{{{{ ns.{name} }}}}"));
        }
        source.push_str("{% endfor %}");
        let (result, peak, left) = rendered(&source);
        prop_assert!(peak < PEAK_MAX_BYTES, "{source}: {} MiB, {result:?}", peak >> 20);
        prop_assert!(left < 64 << 10, "{source}: {left} bytes stay");
    }
}
