//! The known word that an unknown one may have been meant to be.

/// `; did you mean "…"?` for the nearest of `known`, or nothing if none is near.
pub(crate) fn did_you_mean<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    let near = |candidate: &&str| {
        let limit = 1 + candidate.chars().count().min(word.chars().count()) / 3;
        distance(word, candidate) <= limit
    };
    match known.into_iter().filter(near).min_by_key(|known| distance(word, known)) {
        Some(nearest) => format!("; did you mean {nearest:?}?"),
        None => String::new(),
    }
}

/// Edits that lead from one word to the other: a character inserted, removed or replaced, case
/// and separators aside. Words beyond 64 characters are far from everything.
fn distance(from: &str, to: &str) -> usize {
    const LONGEST: usize = 64;
    let plain = |word: &str| -> Vec<char> {
        let letters = word.chars().filter(|c| !matches!(c, '-' | '_' | ' '));
        letters.flat_map(char::to_lowercase).take(LONGEST + 1).collect()
    };
    let (from, to) = (plain(from), plain(to));
    if from.len().max(to.len()) > LONGEST {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(word: &str, expected: &str) {
        let known = ["queue-scorer", "max-score-picker", "plugins", "pluginRef"];
        assert_eq!(did_you_mean(word, known), expected);
    }

    #[test]
    fn near_words_are_suggested_and_far_ones_are_not() {
        check("quue-scorer", "; did you mean \"queue-scorer\"?");
        check("queue_scorer", "; did you mean \"queue-scorer\"?");
        check("plugin-ref", "; did you mean \"pluginRef\"?");
        check("Plugin", "; did you mean \"plugins\"?");
        check("weight", "");
        check("", "");
        check(&"queue-scorer".repeat(20), "");
    }
}
