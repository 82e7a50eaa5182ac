//! Names of types, and first words of doc comments.

use crate::source::{SourceFile, inline_items};
use std::collections::BTreeMap;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Expr, Ident, ItemEnum, ItemMod, ItemStruct, ItemTrait, ItemType, Lit, LitStr, Meta,
    Visibility,
};

/// Words that stand for a noun: a doc comment that begins with one names nothing.
const HEADLESS: [&str; 9] =
    ["What", "Whatever", "Who", "Whoever", "Where", "Wherever", "How", "When", "Which"];

/// Names of visible types, each with the places that define it.
pub fn types(files: &[SourceFile]) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for file in files {
        let mut visitor = Words::default();
        file.items().iter().for_each(|item| visitor.visit_item(item));
        for name in visitor.types {
            found.entry(name).or_default().push(file.path.clone());
        }
    }
    found
}

/// First lines of doc comments: all of them, and those without a head.
#[derive(Debug, Default)]
pub struct DocLines {
    /// Doc comments.
    pub all: usize,
    /// `path: line` of those that begin with a word that stands for a noun.
    pub headless: Vec<String>,
}

/// The doc comments of items, fields, variants and functions.
pub fn doc_lines(files: &[SourceFile]) -> DocLines {
    let mut found = DocLines::default();
    for file in files {
        let mut visitor = Words::default();
        file.items().iter().for_each(|item| visitor.visit_item(item));
        found.all += visitor.docs.len();
        let headless = visitor.docs.into_iter().filter(|line| {
            let first = line.split(|c: char| !c.is_alphabetic()).find(|word| !word.is_empty());
            first.is_some_and(|word| HEADLESS.contains(&word))
        });
        found.headless.extend(headless.map(|line| format!("{}: {line}", file.path)));
    }
    found
}

/// Paths of the files that say a name, as an identifier or as a text of its own.
pub fn naming<'a>(files: &'a [SourceFile], name: &str) -> Vec<&'a str> {
    let says = |file: &&SourceFile| {
        // Most files need no parsing.
        if !file.text.contains(name) {
            return false;
        }
        let mut visitor = Mentions { name, found: false };
        file.items().iter().for_each(|item| visitor.visit_item(item));
        visitor.found
    };
    files.iter().filter(says).map(|file| &*file.path).collect()
}

struct Mentions<'n> {
    name: &'n str,
    found: bool,
}

impl<'ast> Visit<'ast> for Mentions<'_> {
    fn visit_ident(&mut self, ident: &'ast Ident) {
        self.found |= ident == self.name;
    }

    fn visit_lit_str(&mut self, text: &'ast LitStr) {
        self.found |= text.value() == self.name;
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        inline_items(module).for_each(|item| self.visit_item(item));
    }
}

#[derive(Default)]
struct Words {
    types: Vec<String>,
    docs: Vec<String>,
    /// The line of the latest doc attribute: the next line belongs to the same comment.
    doc_line: usize,
}

impl Words {
    fn add(&mut self, visibility: &Visibility, name: &syn::Ident) {
        if !matches!(visibility, Visibility::Inherited) {
            self.types.push(name.to_string());
        }
    }
}

impl<'ast> Visit<'ast> for Words {
    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        let Meta::NameValue(pair) = &attribute.meta else { return };
        let Expr::Lit(literal) = &pair.value else { return };
        let Lit::Str(text) = &literal.lit else { return };
        if pair.path.is_ident("doc") {
            let line = attribute.span().start().line;
            if line != self.doc_line + 1 {
                self.docs.push(text.value().trim().to_owned());
            }
            self.doc_line = line;
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        module.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
        inline_items(module).for_each(|item| self.visit_item(item));
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        self.add(&item.vis, &item.ident);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        self.add(&item.vis, &item.ident);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.add(&item.vis, &item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast ItemType) {
        self.add(&item.vis, &item.ident);
        visit::visit_item_type(self, item);
    }
}
