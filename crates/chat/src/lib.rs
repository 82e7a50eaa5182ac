//! `stator chat`: a conversation with a model behind any OpenAI-compatible endpoint.
//!
//! In a terminal it reads lines and prints answers as they come; in a pipe it reads one message and
//! prints its answer alone. It keeps the conversation in memory and runs no tool that a model calls.
//!
//! Start reading at [`run`]. `answer` reads what a server streams, `screen` shows it.

mod answer;
mod args;
mod control;
mod conversation;
pub mod fuzz;
mod screen;
mod server;
mod terminal;

pub use args::ChatArgs;

use anyhow::{Context, Result, ensure};
use conversation::Conversation;
use screen::{Screen, Shows};
use server::ChatServer;
use std::io::{ErrorKind, IsTerminal, Read};

/// Largest message that is read from a pipe, in bytes.
const MESSAGE_MAX_BYTES: u64 = 64 << 20;

/// Runs `stator chat`.
///
/// # Errors
///
/// When the arguments are wrong, the server does not answer, or refuses.
pub async fn run(args: ChatArgs) -> Result<()> {
    let server = ChatServer::new(&args)?;
    let tools = args.tools_file.as_deref().map(args::read_tools).transpose()?;
    let model = match args.model.clone() {
        Some(model) => model,
        None => {
            let listed = server.models().await?.into_iter().next();
            listed.context("the server lists no model; name one with --model")?
        }
    };
    let conversation = Conversation::new(model, &args, tools);
    if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        return terminal::talk(&server, conversation, args.hide_reasoning).await;
    }
    once(&server, conversation).await
}

/// Sends what standard input holds, and prints the answer alone.
async fn once(server: &ChatServer, mut conversation: Conversation) -> Result<()> {
    let mut message = String::new();
    let mut input = std::io::stdin().lock().take(MESSAGE_MAX_BYTES + 1);
    input.read_to_string(&mut message).context("cannot read the message")?;
    drop(input);
    ensure!(
        message.len() as u64 <= MESSAGE_MAX_BYTES,
        "the message has more than {MESSAGE_MAX_BYTES} bytes, the limit"
    );
    let message = message.trim_end_matches(['\r', '\n']);
    ensure!(!message.is_empty(), "standard input holds no message");
    conversation.say(message);
    let is_terminal = std::io::stdout().is_terminal();
    let mut screen = Screen::new(std::io::stdout(), Shows { is_terminal, ..Shows::default() });
    let answer = match server.answer(&conversation.body(), |piece| screen.show(&piece)).await {
        Err(error) if is_closed(&error) => return Ok(()),
        answered => answered?,
    };
    screen.end(&answer)?;
    if let Some(reason) = answer.cut_by() {
        eprintln!("the answer was cut: {}", control::harmless(reason));
    }
    Ok(())
}

/// Whether whoever reads the answer has had enough of it.
fn is_closed(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
