//! A template's tree with the operators that make values replaced by ours.
//!
//! The engine cannot be told to bound `~`, `+`, `*`, slices and literals. Its tree can be read but
//! not changed, so this builds it anew: each node is copied, or becomes a call of a filter of
//! [`operators`](super::operators). A filter is never computed while a template is loaded, as the
//! engine does with constants, so loading costs no memory either.

use super::operators::{ADD, BUILT, CONCAT, DECLARED, KEPT, MULTIPLY, SLICE, SPREAD};
use minijinja::machinery::{Span, ast::*};
use minijinja::value::Value;

/// Builds a node in the place of `$node`, from new fields.
macro_rules! rebuilt {
    ($tree:ident::$kind:ident, $node:expr, { $($field:ident: $value:expr),* $(,)? }) => {
        $tree::$kind(Spanned::new($kind { $($field: $value),* }, $node.span()))
    };
}

/// The rewritten tree of a whole template.
pub(super) fn template<'a>(tree: &Stmt<'a>) -> Stmt<'a> {
    statement(tree)
}

fn statements<'a>(body: &[Stmt<'a>]) -> Vec<Stmt<'a>> {
    let mut out = Vec::with_capacity(body.len());
    for node in body {
        // Each run of a declaration keeps the variables that the macro encloses.
        let declared = match node {
            Stmt::Macro(node) => Some(node.span()),
            Stmt::CallBlock(node) => Some(node.span()),
            _ => None,
        };
        if let Some(span) = declared {
            let expr = filter(DECLARED, constant(Value::from(()), span), Vec::new(), span);
            out.push(Stmt::EmitExpr(Spanned::new(EmitExpr { expr }, span)));
        }
        out.push(statement(node));
    }
    out
}

fn statement<'a>(node: &Stmt<'a>) -> Stmt<'a> {
    match node {
        Stmt::Template(n) => rebuilt!(Stmt::Template, n, { children: statements(&n.children) }),
        Stmt::EmitExpr(n) => rebuilt!(Stmt::EmitExpr, n, { expr: expression(&n.expr) }),
        // Text leaves through the formatter, which counts it, as values do.
        Stmt::EmitRaw(n) => rebuilt!(Stmt::EmitExpr, n, {
            expr: constant(Value::from(n.raw), n.span()),
        }),
        Stmt::ForLoop(n) => rebuilt!(Stmt::ForLoop, n, {
            target: target(&n.target),
            iter: expression(&n.iter),
            filter_expr: n.filter_expr.as_ref().map(expression),
            recursive: n.recursive,
            body: statements(&n.body),
            else_body: statements(&n.else_body),
        }),
        Stmt::IfCond(n) => rebuilt!(Stmt::IfCond, n, {
            expr: expression(&n.expr),
            true_body: statements(&n.true_body),
            false_body: statements(&n.false_body),
        }),
        Stmt::WithBlock(n) => rebuilt!(Stmt::WithBlock, n, {
            assignments: n.assignments.iter().map(|(to, from)| (target(to), expression(from))).collect(),
            body: statements(&n.body),
        }),
        Stmt::Set(n) => assignment(n),
        Stmt::SetBlock(n) => rebuilt!(Stmt::SetBlock, n, {
            target: target(&n.target),
            filter: n.filter.as_ref().map(expression),
            body: statements(&n.body),
        }),
        Stmt::AutoEscape(n) => rebuilt!(Stmt::AutoEscape, n, {
            enabled: expression(&n.enabled),
            body: statements(&n.body),
        }),
        Stmt::FilterBlock(n) => rebuilt!(Stmt::FilterBlock, n, {
            filter: expression(&n.filter),
            body: statements(&n.body),
        }),
        Stmt::Block(n) => rebuilt!(Stmt::Block, n, {
            name: n.name,
            required: n.required,
            body: statements(&n.body),
        }),
        Stmt::Import(n) => rebuilt!(Stmt::Import, n, {
            expr: expression(&n.expr),
            name: target(&n.name),
        }),
        Stmt::FromImport(n) => rebuilt!(Stmt::FromImport, n, {
            expr: expression(&n.expr),
            names: n.names.iter().map(|(name, alias)| (target(name), alias.as_ref().map(target))).collect(),
        }),
        Stmt::Extends(n) => rebuilt!(Stmt::Extends, n, { name: expression(&n.name) }),
        Stmt::Include(n) => rebuilt!(Stmt::Include, n, {
            name: expression(&n.name),
            ignore_missing: n.ignore_missing,
        }),
        Stmt::Macro(n) => Stmt::Macro(declaration(n)),
        Stmt::CallBlock(n) => rebuilt!(Stmt::CallBlock, n, {
            call: call(&n.call),
            macro_decl: declaration(&n.macro_decl),
        }),
        Stmt::Continue(n) => rebuilt!(Stmt::Continue, n, {}),
        Stmt::Break(n) => rebuilt!(Stmt::Break, n, {}),
        Stmt::Do(n) => rebuilt!(Stmt::Do, n, { call: call(&n.call) }),
    }
}

fn assignment<'a>(node: &Spanned<Set<'a>>) -> Stmt<'a> {
    let value = expression(&node.expr);
    let expr = match &node.target {
        Expr::Var(_) => value,
        _ => filter(KEPT, value, Vec::new(), node.span()),
    };
    rebuilt!(Stmt::Set, node, { target: target(&node.target), expr: expr })
}

fn declaration<'a>(node: &Spanned<Macro<'a>>) -> Spanned<Macro<'a>> {
    let rebuilt = Macro {
        name: node.name,
        args: node.args.iter().map(target).collect(),
        defaults: expressions(&node.defaults),
        body: statements(&node.body),
    };
    Spanned::new(rebuilt, node.span())
}

fn call<'a>(node: &Spanned<Call<'a>>) -> Spanned<Call<'a>> {
    let rebuilt = Call { expr: expression(&node.expr), args: arguments(&node.args) };
    Spanned::new(rebuilt, node.span())
}

/// The names that an assignment gives values to.
fn target<'a>(node: &Expr<'a>) -> Expr<'a> {
    match node {
        Expr::GetAttr(n) => {
            Expr::GetAttr(Spanned::new(GetAttr { expr: target(&n.expr), name: n.name }, n.span()))
        }
        Expr::List(n) => {
            let items = n.items.iter().map(target).collect();
            Expr::List(Spanned::new(List { items }, n.span()))
        }
        other => expression(other),
    }
}

fn expressions<'a>(nodes: &[Expr<'a>]) -> Vec<Expr<'a>> {
    nodes.iter().map(expression).collect()
}

fn expression<'a>(node: &Expr<'a>) -> Expr<'a> {
    match node {
        Expr::Var(n) => rebuilt!(Expr::Var, n, { id: n.id }),
        Expr::Const(n) => constant(n.value.clone(), n.span()),
        Expr::Slice(n) => {
            let bound = |bound: &Option<Expr<'a>>| {
                let none = || constant(Value::from(()), n.span());
                CallArg::Pos(bound.as_ref().map_or_else(none, expression))
            };
            let args = vec![bound(&n.start), bound(&n.stop), bound(&n.step)];
            filter(SLICE, expression(&n.expr), args, n.span())
        }
        Expr::UnaryOp(n) => {
            // The kind of operator cannot be copied.
            let not = matches!(n.op, UnaryOpKind::Not);
            let op = if not { UnaryOpKind::Not } else { UnaryOpKind::Neg };
            rebuilt!(Expr::UnaryOp, n, { op: op, expr: expression(&n.expr) })
        }
        Expr::BinOp(n) => binary(n),
        Expr::Compare(n) => {
            let ops = n.ops.iter().map(|op| CompareOp { op: op.op, expr: expression(&op.expr) });
            rebuilt!(Expr::Compare, n, { expr: expression(&n.expr), ops: ops.collect() })
        }
        Expr::IfExpr(n) => rebuilt!(Expr::IfExpr, n, {
            test_expr: expression(&n.test_expr),
            true_expr: expression(&n.true_expr),
            false_expr: n.false_expr.as_ref().map(expression),
        }),
        Expr::Filter(n) => rebuilt!(Expr::Filter, n, {
            name: n.name,
            expr: n.expr.as_ref().map(expression),
            args: arguments(&n.args),
        }),
        Expr::Test(n) => rebuilt!(Expr::Test, n, {
            name: n.name,
            expr: expression(&n.expr),
            args: arguments(&n.args),
        }),
        Expr::GetAttr(n) => rebuilt!(Expr::GetAttr, n, { expr: expression(&n.expr), name: n.name }),
        Expr::GetItem(n) => rebuilt!(Expr::GetItem, n, {
            expr: expression(&n.expr),
            subscript_expr: expression(&n.subscript_expr),
        }),
        Expr::Call(n) => Expr::Call(call(n)),
        Expr::List(n) => built(rebuilt!(Expr::List, n, { items: expressions(&n.items) }), n.span()),
        Expr::Tuple(n) => {
            built(rebuilt!(Expr::Tuple, n, { items: expressions(&n.items) }), n.span())
        }
        Expr::Map(n) => built(
            rebuilt!(Expr::Map, n, { keys: expressions(&n.keys), values: expressions(&n.values) }),
            n.span(),
        ),
    }
}

fn binary<'a>(node: &Spanned<BinOp<'a>>) -> Expr<'a> {
    let (left, right) = (expression(&node.left), expression(&node.right));
    let name = match node.op {
        BinOpKind::Concat => CONCAT,
        BinOpKind::Add => ADD,
        BinOpKind::Mul => MULTIPLY,
        op => return Expr::BinOp(Spanned::new(BinOp { op, left, right }, node.span())),
    };
    filter(name, left, vec![CallArg::Pos(right)], node.span())
}

/// A literal of constants is made once, when the template is loaded, and costs no more than its
/// source; any other is made anew whenever the template comes by.
fn built<'a>(literal: Expr<'a>, span: Span) -> Expr<'a> {
    match literal.as_const() {
        Some(_) => literal,
        None => filter(BUILT, literal, Vec::new(), span),
    }
}

fn arguments<'a>(args: &[CallArg<'a>]) -> Vec<CallArg<'a>> {
    let spread = |expr: &Expr<'a>| filter(SPREAD, expression(expr), Vec::new(), expr.span());
    args.iter()
        .map(|arg| match arg {
            CallArg::Pos(expr) => CallArg::Pos(expression(expr)),
            CallArg::Kwarg(name, expr) => CallArg::Kwarg(name, expression(expr)),
            CallArg::PosSplat(expr) => CallArg::PosSplat(spread(expr)),
            CallArg::KwargSplat(expr) => CallArg::KwargSplat(spread(expr)),
        })
        .collect()
}

fn constant<'a>(value: Value, span: Span) -> Expr<'a> {
    Expr::Const(Spanned::new(Const { value }, span))
}

fn filter<'a>(name: &'a str, value: Expr<'a>, args: Vec<CallArg<'a>>, span: Span) -> Expr<'a> {
    Expr::Filter(Spanned::new(Filter { name, expr: Some(value), args }, span))
}
