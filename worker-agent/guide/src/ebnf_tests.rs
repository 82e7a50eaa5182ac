use super::*;
use proptest::prelude::*;

fn check(text: &str, expected: Result<Translation, &str>) {
    let translated = translate(text).map_err(|error| error.0);
    assert_eq!(translated, expected.map_err(str::to_owned), "{text}");
}

#[test]
fn grammars_without_recursion_are_expressions() {
    let regex = |text: &str| Ok(Translation::Regex(text.into()));
    check("root ::= \"a.b\" [0-9]+ | digit{2,3}\ndigit ::= [0-9] # one", {
        regex("(?:a\\x{2e}b(?:[0-9])+|(?:(?:[0-9])){2,3})")
    });
    check("one ::= \"\\u00e9\" 'x'?", regex("\\x{e9}(?:x)?"));
    check("root ::= [^\\]a-c-]", regex("[^\\x{5d}a-c\\x{2d}]"));
}

#[test]
fn rules_that_stand_in_themselves_are_rules() {
    check("root ::= \"(\" root \")\" | [a-z]*", {
        Ok(Translation::Lark("start: rule_0\nrule_0: ((\"(\" rule_0 \")\") | (/[a-z]/)*)\n".into()))
    });
}

#[test]
fn faults_are_told_with_their_line() {
    check("root ::= \"a\" other", Err("the grammar has no rule \"other\""));
    check("root ::= \"a\nroot2 ::= \"b\"", Err("line 2 of the grammar: a text is not closed"));
    check("root ::= (\"a\"", Err("line 1 of the grammar: a bracket is not closed"));
    check("a ::= \"x\"\n\nb ::= \"y\"{9,2}", {
        Err("line 3 of the grammar: \"9,2\" is no count up to 10000")
    });
    check("", Err("line 1 of the grammar: the grammar has no rule"));
    check("a ::= \"x\" a ::= \"y\"", Err("a rule of the grammar is there twice"));
}

#[test]
fn rules_that_double_each_other_stay_small() {
    let double = |at: u32| format!("r{at} ::= r{} r{}\n", at + 1, at + 1);
    let text: String = (0..40).map(double).collect::<String>() + "r40 ::= \"x\"";
    // As one expression it would have 2^40 letters.
    assert!(matches!(translate(&text), Ok(Translation::Lark(rules)) if rules.len() < 4096));
    let deep: String = (0..1000).map(|at| format!("r{at} ::= (r{})?\n", at + 1)).collect();
    assert!(matches!(translate(&(deep + "r1000 ::= \"x\"")), Ok(Translation::Lark(_))));
    let nested = format!("root ::= {}", "(".repeat(100_000));
    assert!(translate(&nested).is_err_and(|error| error.0.contains("nested too deep")));
}

proptest! {
    /// Any text is translated or refused.
    #[test]
    fn nothing_panics(text in "([a-c]|::=|[|()*+?{}0-9,\\[\\]^\"'#\\\\ \n.é-]|root ::= ){0,40}") {
        match translate(&text) {
            Ok(Translation::Regex(text) | Translation::Lark(text)) => {
                prop_assert!(text.len() <= 2 * TRANSLATION_MAX_BYTES);
            }
            Err(error) => prop_assert!(!error.0.is_empty()),
        }
    }
}
