//! The Markdown of the repository: every link leads somewhere, and the first screen stays short.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// Most words of the README: what a newcomer reads before the first command is worth running.
const README_WORDS_MAX: usize = 800;
/// Most words of pages that promise to be one page.
const ONE_PAGE_WORDS_MAX: usize = 1100;

#[test]
fn every_relative_link_and_anchor_resolves() {
    let pages = pages();
    assert!(pages.len() > 20, "found {} pages", pages.len());
    let anchors: BTreeMap<_, _> =
        pages.iter().map(|(path, text)| (path.clone(), anchors(text))).collect();
    let mut broken = Vec::new();
    for (page, text) in &pages {
        for link in links(text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => page.clone(),
                _ => plain(&page.parent().unwrap().join(path)),
            };
            let known = anchors.get(&target).is_some_and(|known| known.contains(anchor));
            if !root().join(&target).exists() || (!anchor.is_empty() && !known) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_first_screen_and_the_one_pages_are_short() {
    let words = |page: &str| read(Path::new(page)).split_whitespace().count();
    for (page, most) in [
        ("README.md", README_WORDS_MAX),
        ("ARCHITECTURE.md", ONE_PAGE_WORDS_MAX),
        ("BENCHMARKS.md", ONE_PAGE_WORDS_MAX),
    ] {
        assert!(words(page) <= most, "{page} has {} words, the limit is {most}", words(page));
    }
}

#[test]
fn the_manual_lists_all_its_pages() {
    let listed: BTreeSet<_> = [("README.md", "docs"), ("settings/README.md", "docs/settings")]
        .into_iter()
        .flat_map(|(page, folder)| {
            let links = links(&read(&Path::new("docs").join(page)));
            links.into_iter().map(|link| plain(&Path::new(folder).join(link)))
        })
        .chain(links(&read(Path::new("BENCHMARKS.md"))).into_iter().map(PathBuf::from))
        .collect();
    let pages = pages().into_keys().filter(|page| page.starts_with("docs"));
    let lost: Vec<_> = pages.filter(|page| !listed.contains(page)).collect();
    assert!(lost == [Path::new("docs/README.md")], "no page links to {lost:#?}");
}

#[test]
fn every_type_of_the_glossary_is_in_the_code() {
    let text = read(Path::new("CONTRIBUTING.md"));
    let glossary = text.split_once("## Glossary").unwrap().1.split_once("\n## ").unwrap().0;
    let code: String = files(".rs").into_values().collect();
    let words: Vec<_> = code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let kinds = ["struct", "enum", "trait"];
    let types: BTreeSet<_> =
        words.windows(2).filter(|two| kinds.contains(&two[0])).map(|two| two[1]).collect();
    let column = glossary.lines().filter_map(|row| row.strip_suffix(" |")?.split(" | ").nth(2));
    let names = column.flat_map(|types| types.split('`').skip(1).step_by(2));
    let names: Vec<_> = names.map(|path| path.rsplit("::").next().unwrap()).collect();
    let lost: Vec<_> = names.iter().filter(|name| !types.contains(**name)).collect();
    assert!(names.len() > 35, "found {names:?}");
    assert!(lost.is_empty(), "no such types: {lost:?}");
}

#[test]
fn anchors_are_those_of_github() {
    let text = "# One `two` three\n```sh\n# no\n```\n## KV, and more_of it!\n## One two three\n";
    let expected = ["one-two-three", "kv-and-more_of-it", "one-two-three-1"];
    assert_eq!(anchors(text), expected.map(String::from).into());
    let text = "[a](b.md#c) `[no](code)` ![d](e.svg)\n```\n[no](fence)\n```\n[![f](g.svg)](h.md)\n";
    assert_eq!(links(text), ["b.md#c", "e.svg", "g.svg", "h.md"]);
}

fn root() -> PathBuf {
    plain(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
}

fn read(page: &Path) -> String {
    std::fs::read_to_string(root().join(page)).unwrap()
}

/// All pages, by their paths from the root.
fn pages() -> BTreeMap<PathBuf, String> {
    files(".md")
}

/// All files of this ending, by their paths from the root, without build outputs and downloads.
fn files(ending: &str) -> BTreeMap<PathBuf, String> {
    let mut folders = vec![root()];
    let mut files = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            // A link may lead to a folder above.
            if path.is_dir() && !path.is_symlink() {
                if !name.starts_with('.') && name != "target" && name != "shared" {
                    folders.push(path);
                }
            } else if name.ends_with(ending) {
                let file = path.strip_prefix(root()).unwrap().to_owned();
                let text = read(&file);
                files.insert(file, text);
            }
        }
    }
    files
}

/// The path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

/// Lines outside of fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Targets of links and images outside of code.
fn links(text: &str) -> Vec<String> {
    let lines = prose(text).filter(|line| !line.starts_with("    "));
    let text = lines.collect::<Vec<_>>().join("\n");
    // Every second part between backticks is code.
    let parts = text.split('`').step_by(2);
    let target = |after: &str| after.split_once(')').map(|(target, _)| target.to_owned());
    parts.flat_map(|part| part.split("](").skip(1).filter_map(target)).collect()
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in prose(text).filter(|line| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let mut numbered = anchor.clone();
        for number in 1.. {
            if anchors.insert(numbered) {
                break;
            }
            numbered = format!("{anchor}-{number}");
        }
    }
    anchors
}
