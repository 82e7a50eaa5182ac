//! Reports of a small run.

use crate::args::tests::args;
use crate::run::simulate;

#[test]
fn the_page_and_the_table_show_every_policy_and_need_nothing_else() {
    let args = args("--requests 60 --policy random,stator --mix chat --html /x/<y>.html");
    let outcomes = simulate(&args).expect("no rule is broken");
    let page = super::html::html(&crate::run::command(&args, 1), &outcomes);
    assert!(page.contains("random") && page.contains("stator") && page.contains("polyline"));
    assert!(!page.contains("http") && !page.contains("<script") && !page.contains("NaN"));
    let table = super::table::table(&outcomes);
    assert_eq!(table.lines().count(), 3, "{table}");
}

#[test]
fn several_seeds_are_one_row_of_medians() {
    let outcomes = simulate(&args("--requests 40 --policy random --seeds 3"));
    let outcomes = outcomes.expect("no rule is broken");
    assert_eq!(outcomes.iter().map(|outcome| outcome.seed).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(super::table::table(&outcomes).lines().count(), 2);
}
