//! Words of a shell's command line, where it is a single command.

/// The words as a container has them: `$NAME` becomes `$(NAME)`, which Kubernetes replaces.
///
/// # Errors
///
/// The obstacle, for a script that needs a shell.
pub(super) fn words(script: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = script.trim().chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' => words.extend(word.take()),
            '\\' => match chars.next() {
                Some('\n') => words.extend(word.take()),
                Some(next) => push(word.get_or_insert_default(), next),
                None => return Err("a backslash ends the script".to_owned()),
            },
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or("a quote is not closed")? {
                        '\'' => break,
                        c => push(word, c),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or("a quote is not closed")? {
                        '"' => break,
                        '\\' if chars.peek().is_some_and(|next| "\"\\$`".contains(*next)) => {
                            push(word, chars.next().unwrap_or_default());
                        }
                        '$' => variable(&mut chars, word)?,
                        '`' => return Err("`…` needs a shell".to_owned()),
                        c => push(word, c),
                    }
                }
            }
            '$' => variable(&mut chars, word.get_or_insert_default())?,
            c if "\n;&|<>(){}`*?[]#~!".contains(c) => return Err(format!("{c:?} needs a shell")),
            c => push(word.get_or_insert_default(), c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Appends a character that means itself. Kubernetes reads `$$` as `$`.
fn push(word: &mut String, c: char) {
    word.push(c);
    if c == '$' {
        word.push('$');
    }
}

/// Appends the variable whose name follows.
fn variable(
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
    word: &mut String,
) -> Result<(), String> {
    let is_braced = chars.next_if_eq(&'{').is_some();
    let mut name = String::new();
    while let Some(c) = chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
        name.push(c);
    }
    let is_closed = !is_braced || chars.next_if_eq(&'}').is_some();
    if name.is_empty() || !is_closed {
        return Err("`$` before anything but a name needs a shell".to_owned());
    }
    *word += &format!("$({name})");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(script: &str, expected: &[&str]) {
        assert_eq!(words(script).expect(script), expected, "{script}");
    }

    #[test]
    fn a_single_command_is_its_words() {
        check("python3 -m dynamo.vllm  --a b", &["python3", "-m", "dynamo.vllm", "--a", "b"]);
        check("a --c '{\"k\": \"$v\"}'", &["a", "--c", "{\"k\": \"$$v\"}"]);
        check("a \"$B c\"${D}e", &["a", "$(B) c$(D)e"]);
        check("a \\\n b \\$c ''", &["a", "b", "$$c", ""]);
        check("a \"\\\"\\n\"", &["a", "\"\\n"]);
    }

    #[test]
    fn a_script_that_needs_a_shell_says_why() {
        for script in ["a; b", "a && b", "a > b", "$(a)", "a `b`", "a 'b", "a\nb", "${A:-b}"] {
            assert!(words(script).is_err(), "{script}");
        }
    }
}
