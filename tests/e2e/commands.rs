//! Commands of the whole manual, also those that no test can run as they stand: the binary knows each
//! flag, and the files that they name are in the checkout.

use stator_tests::process::binary;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders with pages.
const PAGES: [&str; 4] = ["", "docs", "docs/benchmarks", "manifests"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The pages of the manual, by path from the root.
fn pages() -> Vec<PathBuf> {
    let folders = PAGES.iter().map(|folder| root().join(folder));
    let manifests = ["agents", "epp"].map(|folder| root().join("manifests").join(folder));
    let files = folders.chain(manifests).flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let paths = files.map(|file| file.unwrap().path());
    let pages: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|of| of == "md")).collect();
    assert!(pages.len() > 25, "{} pages", pages.len());
    pages
}

/// Lines of a page's shell blocks, joined as a shell joins them.
fn lines(page: &str) -> Vec<String> {
    let (mut lines, mut is_shell, mut is_open) = (Vec::new(), false, false);
    for line in page.replace("\\\n", " ").lines() {
        if let Some(kind) = line.strip_prefix("```") {
            let is_end = is_open;
            is_open = !is_open;
            is_shell = !is_end && (kind.is_empty() || kind.starts_with("sh"));
        } else if is_shell {
            lines.push(line.to_owned());
        }
    }
    lines
}

/// The words of each command of a line, without quotes and comments.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut word, mut quote) = (vec![Vec::new()], String::new(), None);
    let flush = |word: &mut String, commands: &mut Vec<Vec<String>>| {
        let word = std::mem::take(word);
        match &*word {
            "" => {}
            "|" | "&&" | "||" | "&" | ";" => commands.push(Vec::new()),
            _ => commands.last_mut().expect("there is one").push(word),
        }
    };
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (Some(_), _) => word.push(letter),
            (None, '\'' | '"') => quote = Some(letter),
            (None, '#') if word.is_empty() => break,
            (None, ' ') => flush(&mut word, &mut commands),
            (None, _) => word.push(letter),
        }
    }
    flush(&mut word, &mut commands);
    commands
}

/// Arguments of stator in a command; none of another program.
fn arguments(words: &[String]) -> Option<Vec<&str>> {
    let is_variable = |word: &&String| {
        word.split_once('=')
            .is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
    };
    let words: Vec<_> = words.iter().skip_while(is_variable).map(String::as_str).collect();
    match words[..] {
        ["stator", ref arguments @ ..]
        | ["cargo", "run", "--release", "--", ref arguments @ ..] => Some(arguments.to_vec()),
        _ => None,
    }
}

#[test]
fn every_command_of_the_manual_is_understood() {
    let (mut count, mut faults) = (0, Vec::new());
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for command in lines(&text).iter().flat_map(|line| commands(line)) {
            let Some(arguments) = arguments(&command) else { continue };
            // What follows is the engine's.
            let own = arguments.split(|word| *word == "--").next().unwrap();
            let output = Command::new(binary()).args(own).arg("--help").output().unwrap();
            count += 1;
            if !output.status.success() {
                let error = String::from_utf8_lossy(&output.stderr).into_owned();
                faults.push(format!("{}: stator {}: {error}", page.display(), own.join(" ")));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 40, "{count} commands");
}

#[test]
fn files_that_commands_name_are_there() {
    let mut missing = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for word in lines(&text).iter().flat_map(|line| commands(line)).flatten() {
            let path = word.rsplit(['=', ',']).next().unwrap_or_default();
            let is_ours = ["manifests/", "tests/", "docs/", "worker-agent/", "crates/"]
                .iter()
                .any(|folder| path.starts_with(folder));
            if is_ours && !path.contains(['*', '$', '{', '<']) && !root().join(path).exists() {
                missing.push(format!("{}: {path}", page.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn a_line_has_several_commands() {
    let line = "A=1 stator bench --url 'a b' | grep x && stator chat  # as it is";
    let found = commands(line);
    let stator: Vec<_> = found.iter().filter_map(|words| arguments(words)).collect();
    assert_eq!(stator, [vec!["bench", "--url", "a b"], vec!["chat"]]);
}
