use super::*;
use proptest::{collection::vec, prelude::*, sample::select};

fn spec(text: &str) -> Spec {
    text.parse().expect("a specification")
}

fn values(page: &str, text: &str, hint: &mut Hint) -> Vec<f64> {
    let mut values = Vec::new();
    each_series(page.as_bytes(), &spec(text), hint, |series| values.push(series.value));
    values
}

#[track_caller]
fn check(page: &str, text: &str, expected: &[f64]) {
    assert_eq!(values(page, text, &mut Hint::default()), expected, "{text} in {page:?}");
}

#[test]
fn series_are_found_by_name_and_labels() {
    let page = "# HELP a helps\n# TYPE a gauge\na 1\nab 2\na_b{c=\"d\"} 3\n";
    check(page, "a", &[1.0]);
    check(page, "ab", &[2.0]);
    check(page, "a_b", &[3.0]);
    check(page, "a_b{c=d}", &[3.0]);
    check(page, "a_b{c=e}", &[]);
    check(page, "a_b{e=}", &[3.0]);
    check(page, "a_", &[]);
}

#[test]
fn every_form_of_a_line_is_read() {
    check("a 1", "a", &[1.0]);
    check("a\t1.5 1395066363000\n", "a", &[1.5]);
    check("a{} 1e3\r\n", "a", &[1000.0]);
    check("a{b=\"}\\\"\\\\\",} +Inf\n", "a", &[f64::INFINITY]);
    check("a{b=\"x\\ny\"} 1\na{b=\"xny\"} 2\n", "a{b=xny}", &[2.0]);
    check("a { b = \"c\" , d = \"e\" } 7\n", "a", &[]);
    check("a{ b = \"c\" , d = \"e\" } 7\n", "a{d=e}", &[7.0]);
}

#[test]
fn lines_that_cannot_be_read_are_passed_over() {
    check("a{b=\"c 1\na x\na \na 2\n", "a", &[2.0]);
    check("a{b=\"c\\", "a", &[]);
    check("", "a", &[]);
}

#[test]
fn the_wrong_hint_costs_time_and_nothing_else() {
    let filler = "b{c=\"0123456789\"} 1\n".repeat(1000);
    let page = format!("{filler}a 1\na 2\n{filler}");
    for at in [0, 1, filler.len(), filler.len() + 4 + DRIFT_BYTES, page.len(), usize::MAX] {
        let mut hint = Hint(at);
        assert_eq!(values(&page, "a", &mut hint), [1.0, 2.0]);
        assert_eq!(hint, Hint(filler.len()));
    }
}

/// Every line split in the obvious way.
fn naive(page: &str, name: &str) -> Vec<f64> {
    page.lines()
        .filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let rest = match rest.strip_prefix('{') {
                Some(labels) => labels.rsplit_once('}')?.1,
                None => rest.strip_prefix([' ', '\t']).map(|_| rest)?,
            };
            rest.split_whitespace().next()?.parse().ok()
        })
        .collect()
}

fn any_family() -> impl Strategy<Value = (String, Vec<String>)> {
    let value = prop_oneof![any::<u32>().prop_map(f64::from), -1.0..1.0];
    let text = prop::string::string_regex("[ -!#-\\[\\]-z]{0,8}").expect("an expression");
    let series = (vec((select(vec!["b", "c", "engine"]), text), 0..4), value);
    ("[a-c:_]{1,4}", vec(series, 0..5)).prop_map(|(name, series)| {
        let lines = series.into_iter().map(|(labels, value)| {
            let labels: Vec<_> = labels.iter().map(|(l, v)| format!("{l}=\"{v}\"")).collect();
            let labels = labels.join(",");
            if labels.is_empty() { format!(" {value}") } else { format!("{{{labels}}} {value}") }
        });
        (name, lines.collect())
    })
}

proptest! {
    /// Whatever stands on the page, and wherever the metric stood before, its series are found.
    #[test]
    fn agrees_with_splitting_every_line(
        families in vec(any_family(), 0..20),
        wanted in "[a-c:_]{1,3}",
        hint in 0usize..6000,
        comments: bool,
    ) {
        let mut page = String::new();
        let mut seen = std::collections::BTreeSet::new();
        for (name, series) in families {
            if !seen.insert(name.clone()) {
                continue;
            }
            if comments {
                page.push_str(&format!("# HELP {name} {wanted} 1\n"));
            }
            for line in series {
                page.push_str(&format!("{name}{line}\n"));
            }
        }
        prop_assert_eq!(values(&page, &wanted, &mut Hint(hint)), naive(&page, &wanted));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(select(b"a{}=\",\\\n 1".to_vec()), 0..60), hint in 0usize..80) {
        let mut count = 0;
        each_series(&bytes, &spec("a{a=1}"), &mut Hint(hint), |_| count += 1);
        prop_assert!(count <= bytes.len());
    }
}
