use super::*;
use proptest::{collection::vec, prelude::*};

const VLLM: &str = include_str!("../../fixtures/vllm-0.32.0-dp.txt");
const SGLANG: &str = include_str!("../../fixtures/sglang-0.5.23-priorities.txt");
const LABEL: (&str, &str) = ("worker", "00ff");
const ROOM: usize = 1 << 20;

fn shown(page: &str) -> String {
    republish(Engine::Vllm, page.as_bytes(), LABEL, ROOM).text
}

#[track_caller]
fn check(page: &str, expected: &str) {
    assert_eq!(shown(page), expected);
}

#[test]
fn types_and_help_are_kept_and_series_get_a_label() {
    check(
        "# HELP vllm:a_total All of \"a\".\n# TYPE vllm:a_total counter\n\
         vllm:a_total{engine=\"0\"} 3.0\nvllm:a_total{engine=\"1\"} 4 1700000000000\n\
         # HELP vllm:g Now.\n# TYPE vllm:g gauge\nvllm:g 1e-05\n",
        "# HELP vllm:a All of \\\"a\\\".\n# TYPE vllm:a counter\n\
         vllm:a_total{worker=\"00ff\",engine=\"0\"} 3.0\nvllm:a_total{worker=\"00ff\",engine=\"1\"} 4.0\n\
         # HELP vllm:g Now.\n# TYPE vllm:g gauge\nvllm:g{worker=\"00ff\"} 1e-5\n",
    );
}

#[test]
fn a_histogram_is_one_family_and_stands_together() {
    check(
        "# TYPE vllm:h histogram\nvllm:h_bucket{le=\"+Inf\"} 2\nvllm:x 1\nvllm:h_count 2\n\
         vllm:h_sum NaN\nvllm:h 5\n# TYPE vllm:h_created gauge\nvllm:h_created 1.7e9\n",
        "# TYPE vllm:h histogram\nvllm:h_bucket{worker=\"00ff\",le=\"+Inf\"} 2.0\n\
         vllm:h_count{worker=\"00ff\"} 2.0\nvllm:h_sum{worker=\"00ff\"} NaN\n\
         # TYPE vllm:x unknown\nvllm:x{worker=\"00ff\"} 1.0\n",
    );
}

#[test]
fn names_that_are_not_the_engines_are_left_out() {
    let page = "# TYPE stator_agent_engine_up gauge\nstator_agent_engine_up 7\nup 1\n\
        process_cpu_seconds_total 3\nsglang:x 1\nvllm 1\n";
    check(page, "");
    assert_eq!(republish(Engine::TrtLlm, b"trtllm_x 1\n", LABEL, ROOM).text.lines().count(), 2);
}

#[test]
fn a_label_of_our_name_is_renamed_and_no_label_comes_twice() {
    check(
        "vllm:a{worker=\"7\",b=\"\\\"}{\\n\"} 1\nvllm:a{b=\"1\",b=\"2\"} 1\n\
         vllm:a{worker=\"7\",exported_worker=\"8\"} 1\n",
        "# TYPE vllm:a unknown\nvllm:a{worker=\"00ff\",exported_worker=\"7\",b=\"\\\"}{\\n\"} 1.0\n",
    );
}

#[test]
fn a_series_or_a_description_that_comes_again_counts_once() {
    check(
        "# TYPE vllm:a gauge\n# TYPE vllm:a counter\nvllm:a{b=\"1\"} 1\nvllm:a{b=\"1\",} 2\n\
         # HELP vllm:a First.\n# HELP vllm:a Second.\n",
        "# HELP vllm:a First.\n# TYPE vllm:a gauge\nvllm:a{worker=\"00ff\",b=\"1\"} 1.0\n",
    );
}

#[test]
fn lines_that_cannot_be_read_are_not_there() {
    for line in [
        "vllm:a",
        "vllm:a{} x",
        "vllm:a{b} 1",
        "vllm:a{b=\"1} 1",
        "vllm:a{b=\"1\"}1",
        "vllm:a{b=\"\\x\"} 1",
        "vllm:a{b=\"1\"c=\"2\"} 1",
        "vllm:a{1b=\"1\"} 1",
        "vllm:a{b:c=\"1\"} 1",
        "vllm:a-b 1",
        "# TYPE vllm:a gauge",
        "# HELP vllm:a\u{1} x",
    ] {
        check(line, "");
    }
    let text = republish(Engine::Vllm, b"vllm:a{b=\"\xff\"} 1\nvllm:b 2\r\n", LABEL, ROOM).text;
    assert_eq!(text, "# TYPE vllm:b unknown\nvllm:b{worker=\"00ff\"} 2.0\n");
}

#[test]
fn a_counter_whose_series_or_name_is_no_counters_is_unknown() {
    let kind = |page: &str, expected: &str| assert!(shown(page).contains(expected), "{page}");
    kind("# TYPE vllm:a counter\nvllm:a 1\n", "# TYPE vllm:a unknown\n");
    kind("# TYPE vllm:a counter\nvllm:a_total 1\n", "# TYPE vllm:a counter\n");
    let both = "# TYPE vllm:a gauge\nvllm:a 1\n# TYPE vllm:a_total counter\nvllm:a_total 1\n";
    kind(both, "# TYPE vllm:a_total unknown\n");
}

#[test]
fn families_are_left_out_whole_where_there_is_no_room() {
    let page = "vllm:a{b=\"1\"} 1\nvllm:a{b=\"2\"} 1\nvllm:c 1\nvllm:d 1\n";
    let whole = republish(Engine::Vllm, page.as_bytes(), LABEL, ROOM);
    assert_eq!(whole.left_out, 0);
    for room in 0..whole.text.len() {
        let part = republish(Engine::Vllm, page.as_bytes(), LABEL, room);
        assert!(part.text.len() <= room && part.left_out > 0, "{part:?}");
        let names = part.text.lines().filter(|line| line.starts_with("# TYPE"));
        assert_eq!(names.count() + part.left_out, 3);
        assert!(matches!(part.text.matches("vllm:a{").count(), 0 | 2), "{part:?}");
    }
    let many: String = (0..FAMILIES_MAX + 3).map(|n| format!("vllm:a{n} 1\n")).collect();
    let shown = republish(Engine::Vllm, many.as_bytes(), LABEL, ROOM);
    assert_eq!((shown.text.lines().count(), shown.left_out), (2 * FAMILIES_MAX, 3));
}

/// Names and kinds of families, in order, and the number of all series.
fn outline(text: &str) -> (Vec<&str>, usize) {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    (types.collect(), text.lines().filter(|line| !line.starts_with('#')).count())
}

#[test]
fn recorded_pages_come_out_whole() {
    for (engine, page, prefix) in
        [(Engine::Vllm, VLLM, "vllm:"), (Engine::Sglang, SGLANG, "sglang:")]
    {
        let shown = republish(engine, page.as_bytes(), LABEL, ROOM);
        assert_eq!(shown.left_out, 0);
        let (families, series) = outline(&shown.text);
        let own = page.lines().filter(|line| line.starts_with(prefix));
        let own = own.filter(|line| !line.split(['{', ' ']).next().unwrap().ends_with("_created"));
        assert_eq!(series, own.count());
        let counter = families.iter().find(|family| family.ends_with(" counter"));
        assert!(counter.is_some_and(|counter| !counter.contains("_total")), "{families:?}");
        assert!(!families.iter().any(|family| family.ends_with("unknown")), "{families:?}");
    }
}

/// Whether a text is whole families of readable series, each once, with our label.
fn is_sound(text: &str) -> bool {
    let mut families = HashSet::new();
    let mut series = HashSet::new();
    (text.is_empty() || text.ends_with('\n'))
        && text.lines().all(|line| match line.strip_prefix("# TYPE ") {
            Some(family) => families.insert(family.split(' ').next()),
            None if line.starts_with("# HELP ") => true,
            None => {
                let (key, _) = line.rsplit_once(' ').unwrap();
                let label = format!("{{{}=\"{}\"", LABEL.0, LABEL.1);
                Sample::read(line).is_some() && key.contains(&label) && series.insert(key)
            }
        })
}

proptest! {
    /// Whatever the page, what is shown is sound, within bounds, and what comes of it again.
    #[test]
    fn whatever_the_page_what_is_shown_is_sound(
        lines in vec("(# (TYPE|HELP) )?vllm:[ab](_total|_count|_bucket|_created)?\
            (\\{([a-b]=\"[1\\\\\"n]{0,2}\",?|worker=\"1\"){0,3}\\})? \
            (1|-Inf|counter|histogram|gauge|summary|x \"\\\\)?", 0..40),
        noise in vec(any::<u8>(), 0..60),
        room in 0usize..2000,
    ) {
        let page = [lines.join("\n").into_bytes(), noise].concat();
        let shown = republish(Engine::Vllm, &page, LABEL, room);
        prop_assert!(is_sound(&shown.text), "{}", shown.text);
        prop_assert!(shown.text.len() <= room);
    }
}
