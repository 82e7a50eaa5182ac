//! Production files of the workspace.

use std::fs;
use std::path::{Path, PathBuf};
use syn::{Attribute, Item, ItemMod};

/// A production file.
pub struct SourceFile {
    /// Path from the workspace's root.
    pub path: String,
    /// Folder of its crate, from the workspace's root.
    pub folder: String,
    /// Its module within the crate, for example `["engine", "cpu"]`; the crate's root is empty.
    pub module: Vec<String>,
    /// Its text, with that of tests in it.
    pub text: String,
}

impl SourceFile {
    /// Its items, without those that only tests compile.
    ///
    /// # Panics
    ///
    /// The file cannot be parsed.
    pub fn items(&self) -> Vec<Item> {
        let parsed = syn::parse_file(&self.text);
        let parsed = parsed.unwrap_or_else(|error| panic!("{}: {error}", self.path));
        parsed.items.into_iter().filter(|item| !is_for_tests(item)).collect()
    }
}

/// The workspace's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All production files: those below `src` of each member, without tests and their helpers. The
/// crates in `tests` have none.
///
/// # Panics
///
/// A file cannot be read.
pub fn production() -> Vec<SourceFile> {
    let mut files = Vec::new();
    let crates = crate::rooms::crates().into_iter().map(|of| of.folder);
    for folder in crates.filter(|folder| !folder.starts_with("tests")) {
        let source = root().join(&folder).join("src");
        for path in rust_files(&source) {
            let within = path.strip_prefix(&source).expect("it was found there");
            let module = module_of(within);
            if module.iter().any(|name| is_of_tests(name)) {
                continue;
            }
            let text = fs::read_to_string(&path).expect("a source file is UTF-8");
            files.push(SourceFile {
                path: format!("{folder}/src/{}", within.display()),
                folder: folder.clone(),
                module,
                text,
            });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// All Rust files below a folder; none where there is no folder.
pub fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    files
}

fn module_of(within: &Path) -> Vec<String> {
    let path = within.with_extension("");
    let mut names: Vec<String> =
        path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if matches!(names.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        names.pop();
    }
    names
}

fn is_of_tests(name: &str) -> bool {
    name.ends_with("tests") || matches!(name, "testkit" | "fuzz" | "testbed" | "fake")
}

/// Whether only tests compile an item.
pub fn is_for_tests(item: &Item) -> bool {
    let attributes = match item {
        Item::Mod(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        _ => return false,
    };
    attributes.iter().any(is_test_attribute)
}

fn is_test_attribute(attribute: &Attribute) -> bool {
    let cfg = attribute.path().is_ident("cfg");
    cfg && attribute.meta.require_list().is_ok_and(|list| {
        let words = list.tokens.to_string();
        words.starts_with("test") || words.contains("any (test") || words.contains("any(test")
    })
}

/// Items of a module that stands in its parent's file, without those of tests.
pub fn inline_items(module: &ItemMod) -> impl Iterator<Item = &Item> {
    let items = module.content.iter().flat_map(|(_, items)| items);
    items.filter(|item| !is_for_tests(item))
}
