//! Lengths of functions, and their parameters.

use crate::source::SourceFile;
use std::collections::BTreeSet;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, FnArg, ImplItemFn, ItemFn, ItemMod, Pat, Signature, Type};

/// A function of production code.
#[derive(Debug)]
pub struct Function {
    /// `path:line name`, for people.
    pub place: String,
    /// Lines from the signature to the closing brace.
    pub lines: usize,
    /// Parameters, `self` among them not.
    pub parameters: usize,
    /// Parameters that are a tuple of unlike types, taken apart in the signature.
    pub tuples: usize,
}

/// All functions with a body.
pub fn functions(files: &[SourceFile]) -> Vec<Function> {
    let mut found = Vec::new();
    for file in files {
        let mut visitor = Functions { path: &file.path, found: &mut found };
        file.items().iter().for_each(|item| visitor.visit_item(item));
    }
    found
}

struct Functions<'a> {
    path: &'a str,
    found: &'a mut Vec<Function>,
}

impl Functions<'_> {
    fn add(&mut self, signature: &Signature, body: &Block) {
        let first = signature.span().start().line;
        let typed = signature.inputs.iter().filter_map(|input| match input {
            FnArg::Typed(typed) => Some(typed),
            FnArg::Receiver(_) => None,
        });
        self.found.push(Function {
            place: format!("{}:{first} {}", self.path, signature.ident),
            lines: body.span().end().line - first + 1,
            parameters: typed.clone().count(),
            tuples: typed.filter(|typed| hides_parameters(&typed.pat, &typed.ty)).count(),
        });
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        crate::source::inline_items(module).for_each(|item| self.visit_item(item));
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }
}

/// Whether a parameter is several in disguise: a pattern `(a, b)` of a tuple of unlike types.
fn hides_parameters(pattern: &Pat, of: &Type) -> bool {
    let (Pat::Tuple(_), Type::Tuple(tuple)) = (pattern, of) else { return false };
    let unlike: BTreeSet<String> =
        tuple.elems.iter().map(|element| format!("{:?}", tokens(element))).collect();
    unlike.len() > 1
}

fn tokens(element: &Type) -> Option<String> {
    element.span().source_text()
}
