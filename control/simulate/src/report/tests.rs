//! Reports of a small run.

use crate::args::tests::args;
use crate::run::simulate;

#[test]
fn the_page_and_the_table_show_every_policy_and_need_nothing_else() {
    let args = args("--requests 60 --policy random,stator --mix chat");
    let outcomes = simulate(&args).expect("no rule is broken");
    let page = super::html::html("simulate --json /x/<y>&z", &outcomes);
    for title in [
        "TTFT",
        "ITL",
        "Requests that wait",
        "Longest queue of one worker",
        "Requests that run",
        "KV in use",
        "Busy time of workers, least to most",
    ] {
        let figure = figure(&page, title);
        assert_eq!(figure.matches("class=\"line c").count(), 2, "a line for each policy: {title}");
    }
    assert_eq!(figure(&page, "Prompt tokens reused").matches("<rect").count(), 2);
    for outcome in &outcomes {
        let title = format!("One worker under {}, seed {}", outcome.policy, outcome.seed);
        let bars = figure(&page, &title).matches("<rect").count();
        assert!(!outcome.bars.is_empty() && bars == 2 * outcome.bars.len(), "{title}: {bars}");
    }
    assert!(page.contains("<pre>simulate --json /x/&lt;y&gt;&amp;z</pre>"), "it is text");
    assert!(!page.contains("http") && !page.contains("<script") && !page.contains("NaN"));
    let table = super::table::table(&outcomes).text();
    assert_eq!(table.lines().count(), 3, "{table}");
}

/// The figure of this title.
fn figure<'p>(page: &'p str, title: &str) -> &'p str {
    let (_, rest) = page
        .split_once(&format!("<h2>{title}</h2>\n"))
        .unwrap_or_else(|| panic!("there is no figure {title:?}"));
    rest.split_once("</figure>").expect("it has an end").0
}

#[test]
fn several_seeds_are_one_row_of_medians() {
    let outcomes = simulate(&args("--requests 40 --policy random --seeds 3"));
    let outcomes = outcomes.expect("no rule is broken");
    assert_eq!(outcomes.iter().map(|outcome| outcome.seed).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(super::table::table(&outcomes).rows.len(), 1);
}
