//! Circles of files: files of a crate that need one another, directly or through others.
//!
//! A file needs the file that *defines* what it names in a `use` or in a path from `crate`, `super`
//! or `self`. Declaring a module and showing its items on (`mod x; pub use x::Y;`) is no need.

use crate::source::{SourceFile, inline_items};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, Path, UseTree, Visibility};

/// Longest chain of re-exports that is followed.
const REEXPORTS_MAX: usize = 10;

/// Groups of files that need one another, as their paths; each file is in at most one.
pub fn circles(files: &[SourceFile]) -> Vec<Vec<&str>> {
    let mut by_crate = BTreeMap::<_, Vec<_>>::new();
    for file in files {
        by_crate.entry(&file.folder).or_default().push(file);
    }
    by_crate.into_values().flat_map(|files| circles_of(&files)).collect()
}

fn circles_of<'a>(files: &[&'a SourceFile]) -> Vec<Vec<&'a str>> {
    let modules: Vec<_> = files.iter().map(|file| Module::of(file)).collect();
    let house = Names {
        files: files.iter().enumerate().map(|(at, file)| (&file.module[..], at)).collect(),
        modules: &modules,
    };
    let needs: Vec<BTreeSet<usize>> = (0..files.len())
        .map(|from| {
            let needed = modules[from].needed.iter().filter_map(|path| house.definer(path, 0));
            needed.filter(|to| *to != from).collect()
        })
        .collect();
    let reached: Vec<_> = (0..files.len()).map(|from| reach(&needs, from)).collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for from in 0..files.len() {
        let circle: Vec<_> =
            reached[from].iter().copied().filter(|to| reached[*to].contains(&from)).collect();
        if circle.len() > 1 && seen.insert(circle.clone()) {
            circles.push(circle.into_iter().map(|at| &files[at].path[..]).collect());
        }
    }
    circles
}

/// The files that `from` needs, through others too; itself among them if it is in a circle.
fn reach(needs: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        open.extend(needs[at].iter().copied().filter(|to| reached.insert(*to)));
    }
    reached
}

/// Names that a file defines, shows on and needs; paths are from the crate's root.
#[derive(Default)]
struct Module {
    defined: BTreeSet<String>,
    imported: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    needed: Vec<Vec<String>>,
    here: Vec<String>,
}

impl Module {
    fn of(file: &SourceFile) -> Self {
        let mut module = Self { here: file.module.clone(), ..Self::default() };
        let items = file.items();
        items.iter().for_each(|item| module.visit_item(item));
        module.defined.extend(items.iter().filter_map(name_of));
        module
    }

    /// A path as written, from the crate's root; none if it leads out of the crate.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let mut here = self.here.clone();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => (here, rest) = (Vec::new(), &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|word| word == "super") {
                    here.pop()?;
                    rest = &rest[1..];
                }
            }
            _ => return None,
        }
        here.extend(rest.iter().cloned());
        Some(here)
    }

    fn import(&mut self, prefix: &mut Vec<String>, tree: &UseTree, shown_on: bool) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.import(prefix, &path.tree, shown_on);
                prefix.pop();
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(prefix, tree, shown_on));
            }
            // A glob may show any name of its module: the need is that of the module itself.
            UseTree::Glob(_) => {
                if let Some(path) = self.absolute_or_child(prefix) {
                    self.globs.push(path.clone());
                    self.needed.extend((!shown_on).then_some(path));
                }
            }
            UseTree::Name(_) | UseTree::Rename(_) => {
                let (name, shown) = match tree {
                    UseTree::Name(name) => (name.ident.to_string(), name.ident.to_string()),
                    UseTree::Rename(name) => (name.ident.to_string(), name.rename.to_string()),
                    _ => return,
                };
                let mut path = prefix.clone();
                if name != "self" {
                    path.push(name);
                }
                if let Some(path) = self.absolute_or_child(&path) {
                    self.imported.insert(shown, path.clone());
                    self.needed.extend((!shown_on).then_some(path));
                }
            }
        }
    }

    /// As [`Self::absolute`]; a path that begins with no keyword may begin with a child. Of another
    /// crate's name it makes a path that nothing defines.
    fn absolute_or_child(&self, path: &[String]) -> Option<Vec<String>> {
        self.absolute(path).or_else(|| {
            let mut here = self.here.clone();
            here.extend(path.iter().cloned());
            Some(here)
        })
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        inline_items(module).for_each(|item| self.visit_item(item));
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let shown_on = !matches!(item.vis, Visibility::Inherited);
        self.import(&mut Vec::new(), &item.tree, shown_on);
    }

    /// The `crate` of `pub(crate)` is no need.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast Path) {
        let words: Vec<_> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.needed.extend(self.absolute(&words));
        visit::visit_path(self, path);
    }
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Mod(item) if item.content.is_some() => &item.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        _ => return None,
    };
    Some(name.to_string())
}

/// The modules of a crate, by their paths.
struct Names<'a> {
    files: BTreeMap<&'a [String], usize>,
    modules: &'a [Module],
}

impl Names<'_> {
    /// The file that defines what stands at this path; none if it is of another crate.
    fn definer(&self, path: &[String], depth: usize) -> Option<usize> {
        let known = (0..=path.len()).rev().find(|end| self.files.contains_key(&path[..*end]))?;
        let file = self.files[&path[..known]];
        let module = &self.modules[file];
        let Some(name) = path.get(known) else { return Some(file) };
        if module.defined.contains(name) || depth == REEXPORTS_MAX {
            return Some(file);
        }
        if let Some(target) = module.imported.get(name) {
            let mut target = target.clone();
            target.extend_from_slice(&path[known + 1..]);
            return self.definer(&target, depth + 1);
        }
        module.globs.iter().find_map(|glob| {
            let mut target = glob.clone();
            target.extend_from_slice(&path[known..]);
            self.definer(&target, depth + 1)
        })
    }
}
