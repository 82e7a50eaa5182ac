//! A template ready to run.

use super::budget::refusal;
use super::rewrite;
use minijinja::machinery::{self, CodeGenerator, Instructions, Token};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error};
use std::collections::BTreeMap;

/// Longest source of a template, in bytes: 1 MiB. The longest one known has 30 kB.
const SOURCE_MAX_BYTES: usize = 1 << 20;
/// Most tokens between the braces of one tag. The compiler recurses as deep as a chain of operators
/// is long; the longest tag known has 150.
const TAG_TOKENS_MAX: usize = 1000;
/// Most `elif`s of a template, each of which nests one deeper.
const BRANCHES_MAX: usize = 250;
const NAME: &str = "chat_template";

/// The instructions of a template, which are names and texts of its source.
#[derive(Debug)]
struct Program<'a> {
    root: Instructions<'a>,
    blocks: BTreeMap<&'a str, Instructions<'a>>,
}

self_cell::self_cell!(
    /// A template's source with its instructions.
    pub(crate) struct CompiledTemplate {
        owner: String,
        #[covariant]
        dependent: Program,
    }

    impl {Debug}
);

impl CompiledTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    ///
    /// The fault and its line, for a source that is no template or beyond the bounds of one.
    pub(crate) fn compile(source: String) -> Result<Self, Error> {
        check_size(&source)?;
        Self::try_new(source, |source| {
            let tree = machinery::parse(source, NAME, syntax()?)?;
            let tree = rewrite::template(&tree);
            let mut generator = CodeGenerator::new(NAME, source);
            generator.compile_stmt(&tree);
            let (root, blocks) = generator.finish();
            Ok(Program { root, blocks })
        })
    }

    /// Runs the template with `values` as its variables.
    ///
    /// # Errors
    ///
    /// Where the template refuses, fails or runs out of steps or memory.
    pub(crate) fn render(
        &self,
        environment: &Environment<'static>,
        values: Value,
    ) -> Result<String, Error> {
        let mut text = String::with_capacity(4096);
        let program = self.borrow_dependent();
        let mut out = machinery::make_string_output(&mut text);
        machinery::eval(
            environment,
            &program.root,
            values,
            &program.blocks,
            &mut out,
            AutoEscape::None,
        )?;
        Ok(text)
    }
}

/// Jinja as `transformers` sets it up.
fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

fn check_size(source: &str) -> Result<(), Error> {
    if source.len() > SOURCE_MAX_BYTES {
        let bytes = source.len();
        return Err(refusal(format!("the template has {bytes} bytes, at most {SOURCE_MAX_BYTES}")));
    }
    let (mut tokens, mut branches) = (0, 0);
    for token in machinery::tokenize(source, false, syntax()?) {
        // The compiler tells of a fault better.
        let Ok((token, span)) = token else { return Ok(()) };
        match token {
            Token::VariableEnd | Token::BlockEnd | Token::TemplateData(_) => tokens = 0,
            _ => tokens += 1,
        }
        branches += usize::from(matches!(token, Token::Ident("elif")));
        let line = span.start_line;
        if tokens > TAG_TOKENS_MAX {
            let message = format!("the tag in line {line} has over {TAG_TOKENS_MAX} tokens");
            return Err(refusal(message));
        }
        if branches > BRANCHES_MAX {
            let message = format!("the template has over {BRANCHES_MAX} elif branches");
            return Err(refusal(message));
        }
    }
    Ok(())
}
