//! A conversation in a terminal.

use crate::answer::{AnswerSoFar, CalledTool, Piece};
use crate::control::harmless;
use crate::conversation::Conversation;
use crate::screen::{Screen, Shows};
use crate::server::ChatServer;
use anyhow::{Context, Result};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use tokio::signal::unix::{Signal, SignalKind, signal};

const HELP: &str = "\
/model NAME    talk to another model
/models        list the models
/system TEXT   another system prompt; without a text none
/clear         forget what was said
/quit          end, as Ctrl-D does
A line that ends with \\ goes on in the next; one that begins with // is sent with one slash.
Ctrl-C stops an answer, or empties the line.";

/// Command of one line.
#[derive(Debug, PartialEq, Eq)]
enum Input<'a> {
    Say(&'a str),
    Nothing,
    Help,
    Models,
    Model(&'a str),
    System(&'a str),
    Clear,
    Quit,
    Unknown(&'a str),
}

/// Talks until the end of input.
///
/// # Errors
///
/// When the terminal cannot be used. What a server refuses is printed.
pub(crate) async fn talk(
    server: &ChatServer,
    conversation: Conversation,
    hide_reasoning: bool,
) -> Result<()> {
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let shows = Shows { reasoning: !hide_reasoning, colour, is_terminal: true };
    // From here on Ctrl-C ends no program.
    let interrupts = signal(SignalKind::interrupt()).context("cannot listen to Ctrl-C")?;
    let editor = Some(DefaultEditor::new().context("cannot edit lines")?);
    let model = harmless(&conversation.model);
    println!("{model} at {}. /help says more, Ctrl-D ends.", server.url());
    let mut terminal = Terminal { server, conversation, shows, interrupts, editor };
    while let Some(line) = terminal.read("> ").await? {
        match input(&line) {
            Input::Nothing => {}
            Input::Help => println!("{HELP}"),
            Input::Quit => break,
            Input::Clear => terminal.conversation.clear(),
            Input::System(text) => {
                terminal.conversation.system = (!text.is_empty()).then(|| text.to_owned());
            }
            Input::Model("") => println!("{}", terminal.conversation.model),
            Input::Model(name) => terminal.conversation.model = name.to_owned(),
            Input::Models => match server.models().await {
                Ok(names) => names.iter().for_each(|name| println!("{}", harmless(name))),
                Err(error) => eprintln!("{error:#}"),
            },
            Input::Unknown(command) => println!("there is no {command}; /help lists what there is"),
            Input::Say(text) => {
                terminal.conversation.say(text);
                terminal.answer().await?;
            }
        }
    }
    Ok(())
}

fn input(line: &str) -> Input<'_> {
    let line = line.trim();
    let Some(command) = line.strip_prefix('/') else {
        return if line.is_empty() { Input::Nothing } else { Input::Say(line) };
    };
    if command.starts_with('/') {
        return Input::Say(command);
    }
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    match name {
        "help" => Input::Help,
        "models" => Input::Models,
        "model" => Input::Model(rest.trim()),
        "system" => Input::System(rest.trim()),
        "clear" => Input::Clear,
        "quit" | "exit" => Input::Quit,
        _ => Input::Unknown(line),
    }
}

struct Terminal<'s> {
    server: &'s ChatServer,
    conversation: Conversation,
    shows: Shows,
    interrupts: Signal,
    /// `None` while a line is read.
    editor: Option<DefaultEditor>,
}

impl Terminal<'_> {
    /// Prints the answer to what was said, and answers to the results of the tools that it calls.
    async fn answer(&mut self) -> Result<()> {
        loop {
            let Some(answer) = self.stream().await? else { return Ok(()) };
            if let Some(reason) = answer.cut_by() {
                println!("(cut: {})", harmless(reason));
            }
            self.conversation.answered(&answer);
            if answer.calls.is_empty() {
                return Ok(());
            }
            for CalledTool { id, name, .. } in &answer.calls {
                let Some(result) = self.read(&format!("{} returns> ", harmless(name))).await?
                else {
                    self.conversation.take_back();
                    return Ok(());
                };
                self.conversation.returned(id, &result);
            }
        }
    }

    /// Prints an answer as it comes; `None` where it failed, and where it came to nothing.
    async fn stream(&mut self) -> Result<Option<AnswerSoFar>> {
        let (mut screen, mut said) = (Screen::new(std::io::stdout(), self.shows), String::new());
        let body = self.conversation.body();
        let show = |piece| {
            screen.show(&piece)?;
            if let Piece::Text(text) = piece {
                said.push_str(&text);
            }
            Ok(())
        };
        let answered = tokio::select! {
            answered = self.server.answer(&body, show) => Some(answered),
            _ = self.interrupts.recv() => None,
        };
        match answered {
            Some(Ok(answer)) => {
                screen.end(&answer)?;
                return Ok(Some(answer));
            }
            Some(Err(error)) => {
                screen.end(&AnswerSoFar::default())?;
                eprintln!("{error:#}");
            }
            None => {
                screen.end(&AnswerSoFar::default())?;
                println!("(stopped)");
                if !said.is_empty() {
                    // The user saw it, so the model is to know of it.
                    return Ok(Some(AnswerSoFar { text: said, ..AnswerSoFar::default() }));
                }
            }
        }
        self.conversation.take_back();
        Ok(None)
    }

    /// Reads a line, or several that are one; `None` at the end of input. Ctrl-C begins it anew.
    async fn read(&mut self, prompt: &str) -> Result<Option<String>> {
        let mut text = String::new();
        loop {
            let prompt = if text.is_empty() { prompt.to_owned() } else { "… ".to_owned() };
            let mut editor = self.editor.take().context("a line is being read")?;
            // The editor blocks until there is a line.
            let reading = tokio::task::spawn_blocking(move || {
                let line = editor.readline(&prompt);
                (editor, line)
            });
            let (editor, line) = reading.await.context("the line editor failed")?;
            let editor = self.editor.insert(editor);
            let line = match line {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => {
                    text.clear();
                    continue;
                }
                Err(ReadlineError::Eof) => return Ok(None),
                Err(error) => return Err(error).context("cannot read a line"),
            };
            // A line that cannot be remembered is not worth an error.
            let _ = editor.add_history_entry(line.as_str());
            match line.strip_suffix('\\') {
                Some(begin) => {
                    text.push_str(begin);
                    text.push('\n');
                }
                None => return Ok(Some(text + &line)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_are_said() {
        for (line, expected) in [
            ("  Hello there ", Input::Say("Hello there")),
            ("", Input::Nothing),
            ("//etc is a folder", Input::Say("/etc is a folder")),
            ("/model  org/name ", Input::Model("org/name")),
            ("/models", Input::Models),
            ("/system Be brief.", Input::System("Be brief.")),
            ("/system", Input::System("")),
            ("/exit", Input::Quit),
            ("/etc", Input::Unknown("/etc")),
        ] {
            assert_eq!(input(line), expected, "{line:?}");
        }
    }
}
